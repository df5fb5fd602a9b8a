#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "convert/families/family.h"
#include "convert/families/normalized_table.h"
#include "convert/huggingface/hf_folder.h"
#include "convert/huggingface/weight_files.h"
#include "golden/golden_data.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/effort.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

ModelConfig describe(const json& config) {
  const json text = text_config(config);
  const Checkpoint none("folder");
  return describe_family({JsonView(text, "config.json"), none}, "config.json").config;
}

std::string error_with(const json& changes) {
  json config = tiny_config();
  config.merge_patch(changes);
  return error_of([&] { describe(config); });
}

TEST(Families, RefuseWhatTheyDoNotKnowByName) {
  EXPECT_TRUE(says(error_with({{"model_type", "convbert"}}), "\"convbert\"", "README"));
  EXPECT_TRUE(
      says(error_with({{"architectures", {"ConvBertModel"}}}), "\"ConvBertModel\"", "README"));
  EXPECT_TRUE(says(error_with({{"hidden_act", "tanh"}}), "\"tanh\""));
  EXPECT_TRUE(says(error_with({{"model_type", "qwen2"},
                               {"use_sliding_window", true},
                               {"layer_types", {"full_attention", "linear_attention"}}}),
                   "layer_types[1]", "\"linear_attention\""));
  EXPECT_TRUE(says(error_with({{"model_type", "qwen2"},
                               {"use_sliding_window", true},
                               {"layer_types", {"full_attention"}}}),
                   "layer_types", "1 entries for 2 layers"));
  EXPECT_TRUE(says(error_with({{"model_type", "olmoe"}, {"clip_qkv", 8.0}}), "clip_qkv"));
  EXPECT_TRUE(says(error_with({{"model_type", "gpt_oss"}, {"swiglu_alpha", 1.5}}), "swiglu_alpha"));
}

TEST(Families, ShowNoLongValues) {
  const std::string sentence =
      error_with({{"model_type", "minimax_m2"}, {"scoring_func", std::string(1000, 'a')}});
  EXPECT_TRUE(says(sentence, "scoring_func", "\"sigmoid\""));
  EXPECT_LT(sentence.size(), 200U);
}

// Options that a family's own code has and Transformers' has not, or the description.
TEST(Families, RefuseOptionsThatTheyLack) {
  struct Refused {
    std::string family;
    std::string key;
    json value;
  };
  for (const auto& [family, key, value] : {Refused{"minimax_m2", "scoring_func", "softmax"},
                                           {"minimax_m2", "qk_norm_type", "per_head"},
                                           {"minimax_m2", "shared_intermediate_size", 64},
                                           {"minimax_m2", "attn_type_list", {0, 1}},
                                           {"minimax_text_01", "postnorm", false},
                                           {"minimax_text_01", "shared_intermediate_size", 64},
                                           {"minimax_text_01", "attn_type_list", {0, 1}},
                                           {"minimax_text_01", "num_attention_heads", 6},
                                           {"minimax_text_01", "layernorm_mlp_alpha", 0},
                                           {"minimax_text_01", "rotary_dim", 14},
                                           {"hunyuan_v1_dense", "use_cla", true},
                                           {"hunyuan_v1_moe", "num_shared_expert", {1, 2}},
                                           {"hunyuan_v1_moe", "moe_intermediate_size", 24},
                                           {"ernie4_5", "compression_ratio", 2.0},
                                           {"apertus", "post_norm", true},
                                           {"apertus", "hidden_act", "silu"},
                                           {"olmo", "clip_qkv", 8.0},
                                           {"bailing_moe", "norm_head", true},
                                           {"bailing_moe_v2", "score_function", "softmax"},
                                           {"hy_v3", "mlp_layer_types", {"dense", "mixed"}},
                                           {"llama4_text", "layer_types", {"full_attention"}},
                                           {"cohere2_moe", "expert_selection_fn", "sparsemax"},
                                           {"phimoe", "num_experts_per_tok", 3},
                                           {"mimo_v2_flash", "swa_head_dim", 16},
                                           {"mimo_v2_flash", "moe_layer_freq", {0, 1}},
                                           {"gemma3n", "altup_active_idx", 1},
                                           {"gemma3n", "activation_sparsity_pattern", {0.5}},
                                           {"gemma3n", "intermediate_size", {44, 44}},
                                           {"longcat_flash", "router_bias", true},
                                           {"granite_swa", "layer_rope_theta", {1000.0}},
                                           {"mpt", "attn_config", {{"alibi", false}}},
                                           {"exaone4", "layer_types", {"chunked_attention"}}}) {
    std::ifstream file(golden_root() / "families" / family / "config.json");
    json config = json::parse(file);
    EXPECT_NO_THROW(describe(config)) << family;
    config[key] = value;
    EXPECT_TRUE(says(error_of([&] { describe(config); }), "config.json", key)) << family;
  }
}

TEST(Families, HaveExpertsInTheLayersThatTheConfigurationNames) {
  const auto with_experts = [](const std::string& family, const json& changes) {
    std::ifstream file(golden_root() / "families" / family / "config.json");
    json config = json::parse(file);
    config.merge_patch(changes);
    const ModelConfig model = describe(config);
    std::vector<bool> sparse;
    for (int64_t n = 0; n < model.n_layers(); ++n) {
      sparse.push_back(model.layer(n).experts.has_value());
    }
    return sparse;
  };
  using List = std::vector<bool>;
  EXPECT_EQ(with_experts("glm4_moe", {{"num_hidden_layers", 3}, {"first_k_dense_replace", 2}}),
            (List{false, false, true}));
  EXPECT_EQ(with_experts("hy_v3", {{"num_hidden_layers", 3}, {"mlp_layer_types", nullptr}}),
            (List{false, true, true}));
  EXPECT_EQ(with_experts("ernie4_5_moe", {{"num_hidden_layers", 4},
                                          {"moe_layer_interval", 2},
                                          {"moe_layer_start_index", 2},
                                          {"moe_layer_end_index", -1}}),
            (List{false, false, false, true}));
  EXPECT_EQ(with_experts("llama4_text", {{"moe_layers", {0, 2}}}),
            (List{true, false, true, false}));
}

TEST(Families, TellWhatDeepSeekOfManyKindsAsksFor) {
  json config = tiny_config();
  config.update({{"model_type", "deepseek_v2"},
                 {"num_key_value_heads", 4},
                 {"num_hidden_layers", 3},
                 {"q_lora_rank", nullptr},
                 {"kv_lora_rank", 8},
                 {"qk_nope_head_dim", 6},
                 {"qk_rope_head_dim", 4},
                 {"v_head_dim", 5},
                 {"first_k_dense_replace", 1},
                 {"n_routed_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"n_group", 4},
                 {"topk_group", 2},
                 {"num_nextn_predict_layers", 1}});
  const auto router = [&] { return describe(config).layer(2).experts->router; };
  EXPECT_EQ(router().groups, 1) << "greedy";
  config["topk_method"] = "group_limited_greedy";
  EXPECT_EQ(router().groups_used, 2);
  EXPECT_EQ(router().group_score, Router::GroupScore::largest);
  config["topk_method"] = "noaux_tc";
  EXPECT_TRUE(says(error_with(config), "topk_method", "\"noaux_tc\""));
  config["model_type"] = "deepseek_v3";
  config["norm_topk_prob"] = false;
  EXPECT_EQ(router().group_score, Router::GroupScore::two_best);
  EXPECT_TRUE(router().correction && router().score == Router::Score::sigmoid);
  const auto attention = [&] { return describe(config).layer(0).get<LatentAttentionConfig>(); };
  EXPECT_EQ(attention().q_rank, 0);
  EXPECT_EQ(attention().latent_norm.eps, 1e-6F);
  EXPECT_FLOAT_EQ(attention().scale, 1 / std::sqrt(10.0F));
  config["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}};
  const float factor = 0.1F * std::log(4.0F) + 1;
  EXPECT_FLOAT_EQ(attention().scale, factor * factor / std::sqrt(10.0F));
  EXPECT_EQ(describe(config).max_context, 64);
  config["model_type"] = "deepseek_v32";
  config["q_lora_rank"] = 8;
  config["index_topk"] = 48;
  EXPECT_EQ(describe(config).max_context, 48) << "longer texts are refused";
  config["num_key_value_heads"] = 2;
  EXPECT_TRUE(says(error_with(config), "num_key_value_heads"));
}

TEST(Families, PutAttentionAndAStateSpaceSideBySide) {
  json config = tiny_config();
  config.update({{"model_type", "falcon_h1"},
                 {"mamba_d_ssm", 12},
                 {"mamba_n_heads", 3},
                 {"mamba_d_head", "auto"},
                 {"mamba_d_state", 6},
                 {"key_multiplier", 0.5}});
  const LayerConfig layer = describe(config).layer(0);
  ASSERT_EQ(layer.mixers.size(), 2U);
  const double head_dim = static_cast<double>(layer.attention().head_dim);
  EXPECT_FLOAT_EQ(layer.attention().scale, static_cast<float>(0.5 / std::sqrt(head_dim)));
  EXPECT_EQ(layer.get<StateSpaceConfig>().head_dim, 4);
  EXPECT_FALSE(layer.get<StateSpaceConfig>().norm);
  config["mamba_n_heads"] = 5;
  EXPECT_TRUE(says(error_with(config), "12", "not a multiple", "5"));
  config["mamba_n_heads"] = 3;
  config["ssm_multipliers"] = {1.0, 2.0};
  EXPECT_TRUE(says(error_with(config), "ssm_multipliers", "5 numbers"));
  config["ssm_multipliers"] = {1.0, 2.0, 1.0, 1.0, 1e300};
  EXPECT_TRUE(says(error_with(config), "ssm_multipliers", "too large"));
}

TEST(Families, NumberLayersWithAttentionAsReleasesDo) {
  json config = tiny_config();
  config.update({{"model_type", "kimi_linear"},
                 {"num_key_value_heads", config["num_attention_heads"]},
                 {"kv_lora_rank", 8},
                 {"qk_rope_head_dim", 4},
                 {"qk_nope_head_dim", 4},
                 {"v_head_dim", 4},
                 {"num_experts", 4},
                 {"moe_intermediate_size", 8},
                 {"num_experts_per_token", 2},
                 {"linear_attn_config",
                  {{"full_attn_layers", {2}},
                   {"kda_layers", {1}},
                   {"num_heads", 2},
                   {"head_dim", 6},
                   {"short_conv_kernel_size", 4}}}});
  const ModelConfig model = describe(config);
  EXPECT_EQ(model.layer(0).get<DeltaNetConfig>().decay_rank, 6);
  EXPECT_FALSE(model.layer(0).experts);
  EXPECT_FALSE(model.layer(1).get<LatentAttentionConfig>().rope);
  EXPECT_EQ(model.layer(1).experts->router.used, 2);
  for (const int layer : {0, 3}) {
    config["linear_attn_config"]["full_attn_layers"] = {layer};
    EXPECT_TRUE(says(error_with(config), "full_attn_layers"));
  }
  config["linear_attn_config"]["full_attn_layers"] = {2};
  config["mla_use_nope"] = false;
  EXPECT_TRUE(says(error_with(config), "mla_use_nope"));
}

TEST(Families, FoldFactorsOfNormedStreams) {
  json config = tiny_config();
  config.update({{"model_type", "minimax"},
                 {"rms_norm_eps", 1e-5},
                 {"num_local_experts", 4},
                 {"full_attn_alpha_factor", 2.0}});
  const ModelConfig model = describe(config);
  EXPECT_FLOAT_EQ(model.layer(0).mixer_norms.stream.eps, 1e-5F / 4);
  EXPECT_FLOAT_EQ(model.layer(1).mixer_norms.stream.eps, 1e-5F) << "linear attention";
  EXPECT_TRUE(model.layer(0).ffn_norms.stream);
  EXPECT_FALSE(model.layer(1).ffn_norms.stream) << "the output's norm follows";
  config["full_attn_alpha_factor"] = 0;
  EXPECT_TRUE(says(error_with(config), "full_attn_alpha_factor"));
}

TEST(Families, GiveHiddenStatesWhereTheArchitectureHasNoHead) {
  json config = tiny_config();
  config.update({{"model_type", "qwen3"}, {"architectures", {"Qwen3Model"}}});
  EXPECT_TRUE(describe(config).output.none);
  EXPECT_FALSE(describe(config).layer(0).attention().bidirectional);
  config["architectures"] = {"Qwen3ForCausalLM"};
  EXPECT_FALSE(describe(config).output.none);
}

TEST(Families, ScoreTheLabelsOfClassifiers) {
  json config = tiny_config();
  config.update({{"model_type", "bert"}, {"architectures", {"BertForSequenceClassification"}}});
  const auto pooling = [&] { return *describe(config).pooling; };
  EXPECT_EQ(pooling().dense.back().size, 2) << "unnamed labels";
  EXPECT_FALSE(pooling().sigmoid);
  config["id2label"] = {{"0", "LABEL_0"}};
  EXPECT_EQ(pooling().dense.back().size, 1);
  EXPECT_TRUE(pooling().sigmoid && pooling().scores);
  config["sbert_ce_default_activation_function"] = "torch.nn.modules.linear.Identity";
  EXPECT_FALSE(pooling().sigmoid);
  config["sentence_transformers"] = {{"activation_fn", "torch.nn.modules.activation.Sigmoid"}};
  EXPECT_TRUE(pooling().sigmoid);
}

// That of a golden checkpoint.
json golden_config(const char* folder) {
  std::ifstream file(golden_root() / folder / "config.json");
  return json::parse(file);
}

TEST(Families, ScoreLabelsByWhatBothStacksOfBartRead) {
  json config = golden_config("encoders/bart_rank");
  EXPECT_EQ(describe(config).pooling->start, 4);
  config.erase("decoder_start_token_id");
  EXPECT_EQ(describe(config).pooling->start, 2);
  config["architectures"] = {"BartForConditionalGeneration"};
  EXPECT_EQ(describe(config).pooling, std::nullopt);
}

// Also where the configuration is completed, or read as a newer one has it, before it is described.
TEST(Families, SayWhichFileHasWhatTheyRefuse) {
  for (const char* folder :
       {"families/step3p5", "families/laguna", "families/beam", "families/cohere_compass"}) {
    json config = golden_config(folder);
    config["rope_parameters"] = 5;
    const Checkpoint none("folder");
    const std::string where = "folder/config.json";
    const std::string sentence = error_of([&] {
      (void)describe_family({JsonView(config, where), none}, where);
    });
    EXPECT_TRUE(sentence.starts_with(where + ": \"rope_parameters\" is not")) << sentence;
  }
}

TEST(Families, MakeEncoderDecodersOfTwoEncoders) {
  const json config = golden_config("seq2seq/roberta2bert");
  const ModelConfig model = describe(config);
  EXPECT_EQ(model.embedding.offset, 0);
  EXPECT_EQ(model.encoder->embedding.offset, 1) << "after the padding token";
  const auto error_with_decoder = [&](const json& changes) {
    json changed = config;
    changed["decoder"].merge_patch(changes);
    return error_of([&] { describe(changed); });
  };
  EXPECT_TRUE(says(error_with_decoder({{"model_type", "gpt2"}}), "decoder", "\"gpt2\""));
  EXPECT_TRUE(says(error_with_decoder({{"hidden_size", 48}}), "different widths"));
  EXPECT_TRUE(says(error_with_decoder({{"position_embedding_type", "relative_key"}}),
                   "position_embedding_type"));
  json last = config;
  last["encoder"]["pad_token_id"] = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(says(error_of([&] { describe(last); }), "encoder", "pad_token_id"));
}

TEST(Families, GoByT5sActivationWhereItStandsBesideTheNameThatItFollowsFrom) {
  json config = golden_config("seq2seq/t5");
  config["dense_act_fn"] = "silu";
  EXPECT_EQ(describe(config).layer(0).ffn.activation, Activation::silu);
  config.erase("dense_act_fn");
  config.erase("is_gated_act");
  config["feed_forward_proj"] = "gated-gelu";
  EXPECT_EQ(describe(config).layer(0).ffn.activation, Activation::gelu_tanh);
  EXPECT_TRUE(describe(config).layer(0).ffn.gated);
}

TEST(Families, EmbedWithDprByItsOwnProduct) {
  json config = golden_config("encoders/dpr_question");
  EXPECT_EQ(describe(config).vector_size(), 20);
  config["projection_dim"] = 0;
  EXPECT_EQ(describe(config).vector_size(), 36);
  EXPECT_EQ(describe(config).pooling->mode, Pooling::first);
}

TEST(Families, ConvolveTokensBesideTheFirstLayerOfDeberta) {
  json config = golden_config("encoders/deberta_v2_convolution");
  EXPECT_EQ(describe(config).layer(0).token_convolution.taps, 5);
  EXPECT_EQ(describe(config).layer(1).token_convolution.taps, 0);
  config["conv_groups"] = 2;
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "conv_groups"));
  config["conv_groups"] = 1;
  config["conv_kernel_size"] = 4;
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "conv_kernel_size"));
}

TEST(Families, RefuseNanAndInfinityInWhatATableIsMadeOf) {
  const TemporaryFolder folder;
  const NormalizedTable table{.name = "table", .norm = "norm", .eps = 1e-5F};
  const TestTensors sound = {{"table", {DType::f32, {2, 2}, {1, 2, 3, 5}}},
                             {"norm.weight", {DType::f32, {2}, {1, 2}}},
                             {"norm.bias", {DType::f32, {2}, {0, 1}}}};
  const auto rows = [&](const TestTensors& tensors) {
    write_bytes(folder / "model.safetensors", safetensors_bytes(tensors));
    SourceFiles files;
    return rows_of(table, 2, 2, open_weight_files(folder.path(), files));
  };
  const std::vector<float> expected = {-1, 3, -1, 3};
  const std::vector<float> found = rows(sound);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4) << i;
  for (const auto& [name, tensor] : sound) {
    for (const float bad : {NAN, -INFINITY}) {
      TestTensors damaged = sound;
      damaged[name].values[1] = bad;
      EXPECT_TRUE(says(error_of([&] { rows(damaged); }), "model.safetensors", "\"" + name + "\"",
                       "NaN or infinity"));
    }
  }
}

TEST(Families, EndMiniCpmBeforeItsAttentionIsSparse) {
  json config = golden_config("families/minicpm4");
  EXPECT_EQ(describe(config).max_context, 199);
  EXPECT_EQ(describe(config).context_end, ContextEnd::sparse_attention);
  config["sparse_config"]["dense_len"] = -1;
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "sparse_config"));
  config.erase("sparse_config");
  const ModelConfig longer = describe(config);
  EXPECT_EQ(longer.max_context, 512);
  config["max_position_embeddings"] = 24;
  const ModelConfig shorter = describe(config);
  for (const ModelConfig* model : {&longer, &shorter}) {
    EXPECT_TRUE(model->ropes[0].long_frequencies.empty()) << "no length matters";
  }
  EXPECT_GT(shorter.ropes[0].frequencies[5], longer.ropes[0].frequencies[5]);
  config["num_experts"] = 8;
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "num_experts"));
  config.erase("num_experts");
  config.erase("scale_emb");
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "scale_emb"));
}

TEST(Families, TellJinaBertFromBert) {
  const json bert = {{"model_type", "bert"}, {"architectures", {"BertModel"}}};
  json jina = bert;
  jina["architectures"] = {"JinaBertModel"};
  EXPECT_TRUE(says(error_with(jina), "\"position_embedding_type\""));
  jina["position_embedding_type"] = "alibi";
  EXPECT_TRUE(says(error_with(jina), "\"feed_forward_type\""));
  jina["feed_forward_type"] = "geglu";
  json config = tiny_config();
  config.update(jina);
  EXPECT_FALSE(describe(config).layer(0).attention().slopes.empty());
  config.update(bert);
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "is not \"absolute\""));
}

TEST(Families, LetTokensOfEuroBertSeeEachOther) {
  json config = tiny_config();
  config.update({{"model_type", "eurobert"}, {"architectures", {"EuroBertForMaskedLM"}}});
  const ModelConfig masked = describe(config);
  EXPECT_TRUE(masked.output.none && masked.layer(0).attention().bidirectional);
  EXPECT_FALSE(masked.pooling);
  config["architectures"] = {"EuroBertModel"};
  EXPECT_EQ(config_to_json(describe(config)), config_to_json(masked));

  config["architectures"] = {"EuroBertForSequenceClassification"};
  EXPECT_EQ(describe(config).pooling->mode, Pooling::mean);
  EXPECT_EQ(describe(config).pooling->dense_before, 1) << "late, as the class has it";
  config["clf_pooling"] = "mean";
  EXPECT_EQ(describe(config).pooling->mode, Pooling::mean);
  config["classifier_pooling"] = "bos";
  EXPECT_EQ(describe(config).pooling->mode, Pooling::first);
  EXPECT_EQ(describe(config).pooling->dense_before, 0);
  config["classifier_pooling"] = "max";
  EXPECT_TRUE(says(error_with(config), "\"classifier_pooling\"", "\"max\""));
  config["architectures"] = {"EuroBertForTokenClassification"};
  EXPECT_TRUE(says(error_with(config), "\"EuroBertForTokenClassification\""));
}

TEST(Families, PutExpertsIntoSomeLayersOfNomicBert) {
  std::ifstream file(golden_root() / "encoders/nomic_bert_moe/config.json");
  const json config = json::parse(file);
  const auto refused = [&](const json& changes, std::string_view member) {
    json changed = config;
    changed.merge_patch(changes);
    return says(error_of([&] { describe(changed); }), "config.json", member);
  };
  const ModelConfig model = describe(config);
  EXPECT_EQ(model.layers, (std::vector<size_t>{0, 1, 0, 1}));
  EXPECT_EQ(model.layer(1).experts->count, 5);
  EXPECT_EQ(model.layer(1).experts->router.used, 2);
  EXPECT_TRUE(model.layer(1).experts->sum_bias && !model.layer(1).experts->each.bias);
  EXPECT_TRUE(model.layer(0).ffn.bias && !model.layer(0).ffn.gated);
  for (const json& changes :
       {json{{"expert_choice_router", true}}, json{{"moe_normalize_expert_weights", true}},
        json{{"num_shared_experts", 1}}, json{{"ffn_div", 2}}, json{{"num_experts", nullptr}},
        json{{"moe_top_k", 6}}, json{{"mlp_fc2_bias", false}}, json{{"activation_function", "glu"}},
        json{{"rotary_emb_fraction", 0.5}}, json{{"rotary_emb_scale_base", 512}},
        json{{"rotary_scaling_factor", 2}}, json{{"prenorm", true}}}) {
    EXPECT_TRUE(refused(
        changes, changes.begin().key() == "moe_top_k" ? "experts used" : changes.begin().key()))
        << changes;
  }
  EXPECT_TRUE(refused({{"activation_function", "swiglu"}}, "moe_every_n_layers"));
  json dense = config;
  dense.merge_patch({{"moe_every_n_layers", 0}, {"type_vocab_size", 0}});
  EXPECT_EQ(describe(dense).layer_kinds.size(), 1);
  EXPECT_EQ(describe(dense).embedding.segments, 0);
}

TEST(Families, RoundTheFeedForwardsOfNeoBertUp) {
  std::ifstream file(golden_root() / "encoders/neobert/config.json");
  json config = json::parse(file);
  EXPECT_EQ(describe(config).layer(0).ffn.size, 48) << "2 / 3 of 62 are 41";
  EXPECT_TRUE(describe(config).layer(0).attention().bidirectional);
  config["architectures"] = {"NeoBERT"};
  EXPECT_TRUE(describe(config).output.none);
  for (const char* key : {"rope", "rms_norm"}) {
    json other = config;
    other[key] = false;
    EXPECT_TRUE(says(error_of([&] { describe(other); }), "config.json", key));
  }
  config["hidden_act"] = "SwiGLU";
  EXPECT_NO_THROW(describe(config));
  config["hidden_act"] = "gelu";
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "\"hidden_act\"", "gelu"));
  config["hidden_act"] = "swiglu";
  config["ngpt"] = true;
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "\"ngpt\""));
}

TEST(Families, ReadLing3AsItsAuthorsNameIt) {
  std::ifstream file(golden_root() / "families/bailing_hybrid/config.json");
  json config = json::parse(file);
  const ModelConfig model = describe(config);
  config.update({{"architectures", {"BailingMoeV3ForCausalLM"}},
                 {"layer_group_size", 2},
                 {"layer_types", nullptr},
                 {"mlp_layer_types", nullptr},
                 {"n_group", config["num_expert_group"]},
                 {"norm_topk_prob", true},
                 {"num_experts_per_tok", config["num_experts_per_token"]},
                 {"max_position_embeddings", config["model_max_length"]},
                 {"no_kda_lora", true},
                 {"gated_attention_proj_granularity_type", "head_wise"},
                 {"score_function", "sigmoid"},
                 {"share_expert_swiglu_limit_list", {nullptr, 0.0, nullptr}}});
  for (const char* key :
       {"num_expert_group", "moe_renormalize", "num_experts_per_token", "model_max_length"}) {
    config.erase(key);
  }
  EXPECT_EQ(describe(config).layers.back(), model.layers[1]) << "it is behind the last group";
  config["num_hidden_layers"] = 2;
  const ModelConfig released = describe(config);
  EXPECT_EQ(config_to_json(released)["layer_kinds"][0], config_to_json(model)["layer_kinds"][0]);
  EXPECT_EQ(config_to_json(released)["layer_kinds"][1], config_to_json(model)["layer_kinds"][1]);
  for (const json& changes :
       {json{{"no_kda_lora", false}},
        json{{"gated_attention_proj_granularity_type", "element_wise"}},
        json{{"score_function", "softmax"}}, json{{"expert_swiglu_limit_list", {nullptr, 7.0}}}}) {
    json changed = config;
    changed.merge_patch(changes);
    EXPECT_TRUE(says(error_of([&] { describe(changed); }), "config.json", changes.begin().key()));
  }
}

TEST(Families, ReadTheWindowsOfUltraBert) {
  std::ifstream file(golden_root() / "encoders/ultrabert/config.json");
  json config = json::parse(file);
  const ModelConfig model = describe(config);
  EXPECT_EQ(model.layer(0).attention().window, 7);
  EXPECT_EQ(model.layer(2).attention().window, 0);
  for (const char* key : {"sliding_window", "layer_types", "rope_parameters"}) config.erase(key);
  json released = config;
  released.update({{"attention_windows", {6, 6, nullptr, 6}},
                   {"rope_parameters", nullptr},
                   {"rope_theta", {10000.0, 10000.0, 2560000.0, 10000.0}}});
  EXPECT_EQ(config_to_json(describe(released)), config_to_json(model)) << "as it was";
  for (const json& changes :
       {json{{"attention_windows", {6, 6}}}, json{{"attention_windows", {6, 7, 0, 6}}},
        json{{"attention_windows", {-1, 6, 0, 6}}}, json{{"rope_theta", {-1.0}}},
        json{{"rope_parameters", json::object()}}, json{{"rope_parameters", {{"rope_theta", 1e4}}}},
        json{{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}}) {
    json changed = released;
    changed.update(changes);
    EXPECT_TRUE(says(error_of([&] { describe(changed); }), "config.json", changes.begin().key()))
        << changes;
  }
  EXPECT_EQ(describe(config).layer(1).attention().window, 129) << "as its class has it";
  EXPECT_EQ(describe(config).ropes, model.ropes);
  config.update(
      {{"architectures", {"UltrabertForSequenceClassification"}}, {"classifier_pooling", "max"}});
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "classifier_pooling", "max"));
}

TEST(Families, ReadTheRotationsOfGte) {
  std::ifstream file(golden_root() / "encoders/gte_released/config.json");
  json config = json::parse(file);
  const std::vector<float> frequencies = describe(config).ropes[0].frequencies;
  ASSERT_EQ(frequencies.size(), 9);
  EXPECT_FLOAT_EQ(frequencies[0], static_cast<float>(std::pow(8.0, -2.0 / 18)));
  EXPECT_NEAR(frequencies[8] * std::pow(500.0, 16.0 / 18), 1.0 / 8, 1e-5) << "by the factor";
  for (const json& changes :
       {json{{"position_embedding_type", "absolute"}}, json{{"layer_norm_type", "rms_norm"}},
        json{{"pack_qkv", false}}, json{{"logn_attention_scale", true}}}) {
    json changed = config;
    changed.merge_patch(changes);
    EXPECT_TRUE(says(error_of([&] { describe(changed); }), "config.json", changes.begin().key()));
  }
  for (const auto& [key, value] :
       {std::pair<const char*, json>{"factor", 0.5}, {"factor", nullptr}, {"mixed_b", 0.75}}) {
    json changed = config;
    changed["rope_scaling"][key] = value;
    EXPECT_TRUE(says(error_of([&] { describe(changed); }), "rope_scaling", key));
  }
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(describe(config).ropes[0].frequencies, plain_frequencies(500, 18));
}

TEST(Families, ScoreLabelsByTheLastTokensOfDecoders) {
  json config = tiny_config();
  config["architectures"] = {"LlamaForSequenceClassification"};
  const ModelConfig model = describe(config);
  ASSERT_TRUE(model.pooling && model.output.none && model.output.norm);
  EXPECT_EQ(model.pooling->mode, Pooling::last);
  EXPECT_TRUE(model.pooling->scores && !model.pooling->dense.back().bias);
  EXPECT_EQ(model.vector_size(), 2) << "labels without names";
  config["architectures"] = {"MBartForSequenceClassification"};
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "\"MBartForSequenceClassification\""));
}

TEST(Families, RotateJinaEmbeddingsV3) {
  json config = tiny_config();
  config.update(
      {{"model_type", "jina_embeddings_v3"}, {"architectures", {"JinaEmbeddingsV3Model"}}});
  config.erase("rope_theta");
  config.erase("num_key_value_heads");
  const ModelConfig model = describe(config);
  EXPECT_TRUE(model.output.none && model.layer(0).attention().bidirectional);
  EXPECT_EQ(model.embedding.positions, 0);
  EXPECT_EQ(model.ropes[0].frequencies, plain_frequencies(20000, 4));
  config["lora_adaptations"] = {"retrieval.query"};  // which its class does not know
  EXPECT_EQ(config_to_json(describe(config)), config_to_json(model));
  // As its authors' own code has it.
  config.update({{"model_type", "xlm-roberta"},
                 {"architectures", {"XLMRobertaModel"}},
                 {"position_embedding_type", "rotary"},
                 {"rotary_emb_base", 20000}});
  EXPECT_EQ(config_to_json(describe(config)), config_to_json(model));
}

TEST(Families, PlaceTheAminoAcidsOfEsm) {
  std::ifstream file(golden_root() / "encoders/esm/config.json");
  json config = json::parse(file);
  const ModelConfig model = describe(config);
  EXPECT_EQ(model.embedding.multiplier, 0.88F);
  EXPECT_EQ(model.embedding.positions, 0);
  EXPECT_EQ(model.ropes[0].frequencies, plain_frequencies(10000, 12));
  config["token_dropout"] = nullptr;
  config["position_embedding_type"] = "absolute";
  const ModelConfig first = describe(config);
  EXPECT_EQ(first.embedding.multiplier, 1);
  EXPECT_EQ(first.embedding.offset, 2) << "after the padding's id";
  EXPECT_EQ(first.max_context, first.embedding.positions - 2);
  config["position_embedding_type"] = "relative_key";
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "position_embedding_type", "relative_key"));
  config["is_folding_model"] = true;
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "is_folding_model"));
}

TEST(Families, GiveWindowsToSomeLayers) {
  json config = tiny_config();
  config.update({{"model_type", "qwen3"},
                 {"num_hidden_layers", 4},
                 {"use_sliding_window", true},
                 {"sliding_window", 8},
                 {"max_window_layers", 3}});
  const ModelConfig model = describe(config);
  EXPECT_EQ(model.layers, (std::vector<size_t>{0, 0, 0, 1}));
  EXPECT_EQ(model.layer(2).attention().window, 0);
  EXPECT_EQ(model.layer(3).attention().window, 8);
  EXPECT_EQ(model.layer(3).name, "windowed");
}

TEST(Families, TakeLongerTextsWithDynamicScaling) {
  json config = tiny_config();
  const int64_t trained = describe(config).max_context;
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.5}};
  EXPECT_EQ(describe(config).max_context, trained * 5 / 2);
  EXPECT_EQ(describe(config).ropes[0].original_max_context, trained);
  config["rope_scaling"]["factor"] = 1e9;
  EXPECT_LE(describe(config).max_context, int64_t{1} << 28);
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  EXPECT_EQ(describe(config).max_context, trained);
}

TEST(Families, GiveEachHeadItsSlope) {
  EXPECT_EQ(alibi_slopes(4), (std::vector<float>{0.25F, 0.0625F, 0.015625F, 0.00390625F}));
  EXPECT_EQ(alibi_slopes(3), (std::vector<float>{0.0625F, 0.00390625F, 0.25F}));
  EXPECT_EQ(alibi_slopes(1), (std::vector<float>{0.00390625F}));
}

// As released: what is the same in the class of text models is left out.
TEST(Families, TakeTheSizesOfTheirClassWhereATextConfigHasNone) {
  const ModelConfig gemma =
      describe({{"architectures", {"Gemma3ForConditionalGeneration"}},
                {"model_type", "gemma3"},
                {"text_config",
                 {{"hidden_size", 2560},
                  {"intermediate_size", 10240},
                  {"model_type", "gemma3_text"},
                  {"num_hidden_layers", 34},
                  {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                  {"sliding_window", 1024}}}});
  EXPECT_EQ(gemma.vocab, 262208);
  EXPECT_EQ(gemma.max_context, 131072);
  EXPECT_EQ(gemma.layer(0).attention().n_heads, 8);
  EXPECT_EQ(gemma.layer(0).attention().n_kv_heads, 4);
  EXPECT_EQ(gemma.layer(0).attention().head_dim, 256);
  EXPECT_EQ(gemma.layer(4).attention().window, 1024);
  EXPECT_EQ(gemma.layer(5).attention().window, 0);

  const ModelConfig llava = describe({{"model_type", "llava"},
                                      {"text_config",
                                       {{"architectures", {"MistralForCausalLM"}},
                                        {"intermediate_size", 14336},
                                        {"max_position_embeddings", 32768},
                                        {"model_type", "mistral"},
                                        {"num_key_value_heads", 8},
                                        {"rms_norm_eps", 1e-05},
                                        {"sliding_window", nullptr},
                                        {"vocab_size", 32064}}}});
  EXPECT_EQ(llava.n_layers(), 32);
  EXPECT_EQ(llava.hidden, 4096);
  EXPECT_EQ(llava.layer(0).attention().n_heads, 32);
  EXPECT_EQ(llava.layer(0).attention().window, 0);
}

// As released: E4B's sizes, smaller, and what the class has where nothing is said.
TEST(Families, GiveGemma4ItsLayersOfTwoWidthsAndEarlierKeys) {
  json text = {{"model_type", "gemma4_text"},
               {"num_hidden_layers", 12},
               {"num_kv_shared_layers", 4},
               {"use_double_wide_mlp", true}};
  const auto gemma = [&] {
    return describe({{"architectures", {"Gemma4ForConditionalGeneration"}},
                     {"model_type", "gemma4"},
                     {"text_config", text}});
  };
  const ModelConfig model = gemma();
  EXPECT_EQ(model.layer_inputs.size, 256);
  EXPECT_EQ(model.layer(0).attention().window, 512);
  EXPECT_EQ(model.layer(0).attention().head_dim, 256);
  EXPECT_EQ(model.layer(5).attention().head_dim, 512);
  EXPECT_EQ(model.layer(5).attention().n_kv_heads, 4);
  EXPECT_EQ(model.layer(7).attention().kv_of, std::nullopt);
  EXPECT_EQ(model.layer(8).attention().kv_of, 7);
  EXPECT_EQ(model.layer(11).attention().kv_of, 5);
  EXPECT_EQ(model.layer(7).ffn.size, 9216);
  EXPECT_EQ(model.layer(8).ffn.size, 2 * 9216);
  EXPECT_EQ(kv_layers(model), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(model.ropes[0].frequencies, plain_frequencies(1e4, 256));
  EXPECT_EQ(model.ropes[1].frequencies[63], plain_frequencies(1e6, 512)[63]);
  EXPECT_EQ(model.ropes[1].frequencies[64], 0);
  EXPECT_EQ(model.ropes[1].dims(), 512);

  text["per_layer_config"] = {{"5", {{"head_dim", 128}, {"num_key_value_heads", 2}}},
                              {"11", {{"head_dim", 128}, {"num_key_value_heads", 2}}}};
  EXPECT_EQ(gemma().layer(5).attention().head_dim, 128);
  EXPECT_EQ(gemma().layer(5).attention().n_kv_heads, 2);
  text["per_layer_config"]["11"]["head_dim"] = 64;
  EXPECT_TRUE(says(error_of(gemma), "heads of several widths"));
  text["per_layer_config"] = {{"12", {{"head_dim", 128}}}};
  EXPECT_TRUE(says(error_of(gemma), "\"12\"", "no layer's number"));
  text["per_layer_config"] = {{"5", {{"hidden_size", 128}}}};
  EXPECT_TRUE(says(error_of(gemma), "hidden_size"));
  text.erase("per_layer_config");
  text["num_kv_shared_layers"] = 7;
  EXPECT_TRUE(says(error_of(gemma), "layer 5 reads keys and values"));
  text["num_kv_shared_layers"] = 0;
  text["use_bidirectional_attention"] = "vision";
  EXPECT_FALSE(gemma().layer(0).attention().bidirectional) << "but of pictures";
  text["use_bidirectional_attention"] = "all";
  EXPECT_TRUE(says(error_of(gemma), "use_bidirectional_attention"));
}

TEST(Families, KnowTextConfigsByTheirTypeAlone) {
  json text = tiny_config();
  text["architectures"] = {"VLlama3ForCausalLM"};  // SmolVLM
  EXPECT_EQ(describe({{"model_type", "idefics3"}, {"text_config", text}}).vocab, kTinyVocab);
  EXPECT_TRUE(says(error_with({{"architectures", {"VLlama3ForCausalLM"}}}), "VLlama3ForCausalLM"));
}

TEST(Families, LeaveOutLayersThatAttendToPictures) {
  json text = {{"model_type", "mllama_text_model"}};
  const auto mllama = [&] { return describe({{"model_type", "mllama"}, {"text_config", text}}); };
  EXPECT_EQ(mllama().n_layers(), 32) << "of 40 that the class has";
  text["num_hidden_layers"] = 2;
  text["cross_attention_layers"] = {0, 1};
  EXPECT_TRUE(says(error_of(mllama), "attend to pictures"));
}

// Where attention that scales queries by their position would be wrong.
TEST(Families, EndWithinTheContextThatTheyKnow) {
  json config = {{"model_type", "mistral4"},
                 {"rope_parameters",
                  {{"rope_type", "yarn"},
                   {"rope_theta", 1e4},
                   {"factor", 128.0},
                   {"original_max_position_embeddings", 8192},
                   {"llama_4_scaling_beta", 0.1}}}};
  const ModelConfig model = describe(config);
  EXPECT_EQ(model.max_context, 8192);
  EXPECT_EQ(model.ropes[0].dims(), 64);
  config["rope_parameters"]["llama_4_scaling_beta"] = 0.0;
  EXPECT_EQ(describe(config).max_context, 1048576);
}

// As released: DeepSeek OCR, Hunyuan OCR and Ernie 4.5 VL, the latter two without a part for texts.
TEST(Families, ReadWhatWasReleasedBeforeTransformersHadAClass) {
  const ModelConfig deepseek = describe({{"architectures", {"DeepseekOCRForCausalLM"}},
                                         {"language_config",
                                          {{"architectures", {"DeepseekV2ForCausalLM"}},
                                           {"first_k_dense_replace", 1},
                                           {"hidden_size", 1280},
                                           {"intermediate_size", 6848},
                                           {"kv_lora_rank", nullptr},
                                           {"moe_intermediate_size", 896},
                                           {"n_routed_experts", 64},
                                           {"num_attention_heads", 10},
                                           {"num_experts_per_tok", 6},
                                           {"num_hidden_layers", 12},
                                           {"num_key_value_heads", 10},
                                           {"q_lora_rank", nullptr},
                                           {"qk_rope_head_dim", 0},
                                           {"topk_method", "greedy"},
                                           {"use_mla", false},
                                           {"v_head_dim", 0}}}});
  EXPECT_EQ(deepseek.layer(1).attention().head_dim, 128);
  EXPECT_EQ(deepseek.layer(1).experts->count, 64);

  json hunyuan = tiny_config();
  hunyuan["architectures"] = {"HunYuanVLForConditionalGeneration"};
  hunyuan["model_type"] = "hunyuan_vl";
  hunyuan["head_dim"] = 128;
  hunyuan["vision_config"] = json::object();
  hunyuan["rope_scaling"] = {
      {"type", "xdrope"}, {"alpha", 1000.0}, {"factor", 1.0}, {"xdrope_section", {16, 16, 16, 16}}};
  EXPECT_EQ(describe(hunyuan).ropes[0].frequencies,
            plain_frequencies(1e4 * std::pow(1000.0, 128.0 / 126), 128));

  json ernie = tiny_config();
  ernie["architectures"] = {"Ernie4_5_VLMoeForConditionalGeneration"};
  ernie["model_type"] = "ernie4_5_moe_vl";
  ernie["moe_num_experts"] = {8, 8};
  ernie["moe_intermediate_size"] = {24, 16};
  ernie["moe_layer_start_index"] = {1, 1};
  ernie["moe_layer_end_index"] = {1, 0};
  ernie["moe_k"] = 6;
  const ModelConfig model = describe(ernie);
  EXPECT_FALSE(model.layer(0).experts.has_value());
  EXPECT_EQ(model.layer(1).experts->count, 8);
  EXPECT_EQ(model.layer(1).experts->each.size, 24);
}

TEST(Families, RefuseTypesOfLayersWithoutTheirRotation) {
  json config = {{"model_type", "cohere_compass_text"}, {"num_hidden_layers", 2}};
  EXPECT_TRUE(says(error_of([&] { describe(config); }), "rope_parameters", "full_attention"));
  config["rope_parameters"] = {{"full_attention", nullptr}};
  EXPECT_EQ(describe(config).layer(0).attention().rope, std::nullopt);
}

// As released: Step 3.5 Flash, of fewer layers.
TEST(Families, ReadTheListsOfStep) {
  json config = {{"architectures", {"Step3p5ForCausalLM"}},
                 {"model_type", "step3p5"},
                 {"num_hidden_layers", 5},
                 {"num_nextn_predict_layers", 1},
                 {"num_attention_groups", 4},
                 {"moe_num_experts", 16},
                 {"moe_top_k", 3},
                 {"moe_layers_enum", "2,3, 4,5"},
                 {"sliding_window", 512},
                 {"rope_theta", {5e6, 1e4, 1e4, 1e4, 5e6, 1e4}},
                 {"partial_rotary_factors", {0.5, 1.0, 1.0, 1.0, 0.5, 1.0}},
                 {"rope_scaling",
                  {{"rope_type", "llama3"},
                   {"factor", 2.0},
                   {"original_max_position_embeddings", 131072},
                   {"low_freq_factor", 1.0},
                   {"high_freq_factor", 32.0}}},
                 {"attention_other_setting", {{"num_attention_heads", 96}}},
                 {"swiglu_limits", {0.0, 0.0, nullptr, 7, 7.0, 0.0}},
                 {"swiglu_limits_shared", {0.0, 0.0, 0.0, 0.0, 16.0, 0.0}}};
  for (const bool windowed : {false, true, true, true, false, true}) {
    config["layer_types"].push_back(windowed ? "sliding_attention" : "full_attention");
  }
  const ModelConfig model = describe(config);
  EXPECT_EQ(model.layer(0).attention().n_heads, 64);
  EXPECT_EQ(model.layer(1).attention().n_heads, 96);
  EXPECT_EQ(model.layer(1).attention().n_kv_heads, 4);
  EXPECT_EQ(model.ropes[*model.layer(0).attention().rope].dims(), 64);
  EXPECT_EQ(model.ropes[*model.layer(1).attention().rope].frequencies, plain_frequencies(1e4, 128));
  EXPECT_FALSE(model.layer(1).experts.has_value());
  EXPECT_EQ(model.layer(2).experts->router.used, 3);
  EXPECT_EQ(model.layer(2).experts->each.activation, Activation::silu);
  EXPECT_EQ(model.layer(3).experts->each.activation, Activation::silu_clamped);
  EXPECT_EQ(model.layer(3).experts->shared.activation, Activation::silu);
  EXPECT_EQ(model.layer(4).experts->each.gate_limit, 7);
  EXPECT_EQ(model.layer(4).experts->shared.gate_limit, 16);
  const auto error = [&](const char* key, const json& value) {
    json changed = config;
    changed[key] = value;
    return error_of([&] { describe(changed); });
  };
  EXPECT_TRUE(says(error("moe_layers_enum", "2;3"), "moe_layers_enum"));
  EXPECT_TRUE(says(error("swiglu_limits", {1, 2}), "swiglu_limits", "2 entries for 5 layers"));
  EXPECT_TRUE(says(error("swiglu_limits", {1, 2, 3, 4, -1}), "swiglu_limits[4]"));
  EXPECT_TRUE(says(error("partial_rotary_factors", {0.5}), "partial_rotary_factors"));
  EXPECT_TRUE(says(error("use_head_wise_attn_gate", false), "use_head_wise_attn_gate"));
}

TEST(Families, GateEachHeadOrElementOfLaguna) {
  json config = {{"model_type", "laguna"}, {"num_hidden_layers", 2}};
  const auto attention = [&] { return describe(config).layer(0).attention(); };
  EXPECT_EQ(attention().gates_dim(), 48);
  EXPECT_EQ(attention().gate, Activation::softplus);
  config["gating"] = "per-element";
  EXPECT_EQ(attention().gates_dim(), 48 * 128);
  config["gating"] = "per-layer";
  EXPECT_TRUE(says(error_of(attention), "gating"));
  config["gating"] = true;
  config["num_attention_heads_per_layer"] = {16, 24};
  EXPECT_EQ(describe(config).layer(1).attention().n_heads, 24);
  config["moe_apply_router_weight_on_input"] = true;
  EXPECT_TRUE(says(error_of(attention), "moe_apply_router_weight_on_input"));
}

// The stream is √i times that of Beam, so that a norm of the same has i times the epsilon.
TEST(Families, RaiseTheEpsilonOfNormsAsTheStreamOfBeamGrows) {
  const ModelConfig model = describe({{"model_type", "beam"},
                                      {"num_hidden_layers", 2},
                                      {"num_experts", 16},
                                      {"moe_intermediate_size", 8},
                                      {"rms_norm_eps", 1e-6}});
  EXPECT_FLOAT_EQ(model.layer(0).mixer_norms.before.eps, 1e-6F);
  EXPECT_FLOAT_EQ(model.layer(0).ffn_norms.before.eps, 2e-6F);
  EXPECT_FLOAT_EQ(model.layer(1).mixer_norms.before.eps, 3e-6F);
  EXPECT_FLOAT_EQ(model.layer(1).mixer_norms.after.eps, 1e-6F);
  EXPECT_FLOAT_EQ(model.output.norm.eps, 5e-6F);
  EXPECT_TRUE(model.layer(1).attention().query_power) << "the last layer rotates nothing";
  EXPECT_FALSE(model.layer(0).attention().query_power);
}

TEST(Families, TakeNullForKeyHeadsAndHeadSizesAsTheyFollowFromOthers) {
  const AttentionConfig attention = describe({{"model_type", "qwen3"},
                                              {"hidden_size", 64},
                                              {"num_attention_heads", 4},
                                              {"num_key_value_heads", nullptr},
                                              {"head_dim", nullptr}})
                                        .layer(0)
                                        .attention();
  EXPECT_EQ(attention.n_kv_heads, 4);
  EXPECT_EQ(attention.head_dim, 16);
}

TEST(Families, TakeChatGlmsVocabularyFromItsPaddedSize) {
  std::ifstream file(golden_root() / "families/chatglm/config.json");
  json config = json::parse(file);
  config["padded_vocab_size"] = 160;
  config["vocab_size"] = 150;
  EXPECT_EQ(describe(config).vocab, 160);
}

// The configurations of all golden checkpoints, each member in turn replaced by what it should not
// be: what comes is a description that is valid, or one sentence.
TEST(Families, SurviveAnyMember) {
  const std::vector<json> wrong = {nullptr, -1, INT64_MAX, "many", {1, 2}, {{"a", "b"}}};
  size_t described = 0;
  size_t n_tried = 0;
  for (const std::string& name : golden_variants("families/")) {
    std::ifstream file(golden_root() / name / "config.json");
    const json config = json::parse(file);
    EXPECT_NO_THROW(describe(config)) << name;
    for (const auto& [key, value] : config.items()) {
      for (size_t i = 0; i < repetitions(wrong.size()); ++i) {
        const json& other = wrong[n_tried++ % wrong.size()];
        json changed = config;
        changed[key] = other;
        try {
          const ModelConfig model = describe(changed);
          validate(model, "test");
          ++described;
        } catch (const Error& error) {
          EXPECT_TRUE(says(error.what(), "config.json")) << name << ": " << key;
        }
      }
    }
  }
  EXPECT_GT(described, 0U);
}

}  // namespace
}  // namespace faststream::convert
