#include "convert/gguf/gguf_family.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "unit/convert/described_gguf.h"

namespace faststream::convert {
namespace {

// The description of an architecture with a few layers, and with the tensors that a test adds.
class GgufFamily : public DescribedGguf {
 protected:
  GgufBuilder& begin(const std::string& architecture, const std::string& eps = "rms_",
                     bool has_ffn_norm = true) {
    prefix_ = architecture + ".";
    gguf_ = GgufBuilder();
    gguf_.add("general.architecture", architecture);
    set("block_count", 6U);
    set("context_length", 64U);
    set("embedding_length", 16U);
    set("feed_forward_length", 24U);
    set("attention.head_count", 4U);
    set("attention.head_count_kv", 2U);
    set("attention.layer_norm_" + eps + "epsilon", 1e-5F);
    tensor("token_embd.weight", {10, 16});
    tensor("output_norm.weight", {16});
    tensor("blk.0.attn_norm.weight", {16});
    if (has_ffn_norm) tensor("blk.0.ffn_norm.weight", {16});
    tensor("blk.0.ffn_gate.weight", {24, 16});
    return gguf_;
  }
  // The window of each layer.
  [[nodiscard]] static std::vector<int64_t> windows(const ModelConfig& config) {
    std::vector<int64_t> all;
    for (int64_t n = 0; n < config.n_layers(); ++n)
      all.push_back(config.layer(n).attention().window);
    return all;
  }
};

TEST_F(GgufFamily, Gemma3HasWindowsWithARotationOfTheirOwn) {
  begin("gemma3");
  set("attention.sliding_window", 8U);
  set("rope.freq_base", 1e6F);
  tensor("blk.0.post_attention_norm.weight", {16});
  tensor("blk.0.post_ffw_norm.weight", {16});
  tensor("blk.0.attn_q_norm.weight", {4});
  const ModelConfig config = describe().config;
  EXPECT_EQ(windows(config), (std::vector<int64_t>{8, 8, 8, 8, 8, 0}));
  EXPECT_EQ(config.ropes[*config.layer(0).attention().rope].frequencies, plain_frequencies(1e4, 4));
  EXPECT_EQ(config.ropes[*config.layer(5).attention().rope].frequencies, plain_frequencies(1e6, 4));
  EXPECT_EQ(config.layer(0).attention().qk_norm, QkNorm::head);
  EXPECT_EQ(config.layer(0).mixer_norms.after.kind, NormKind::rms);
  EXPECT_EQ(config.layer(0).ffn.activation, Activation::gelu_tanh);
  EXPECT_EQ(config.embedding.multiplier, 4);
}

TEST_F(GgufFamily, Gemma4HasLayersOfTwoWidthsAndSomeOfEarlierKeys) {
  begin("gemma4");
  set("attention.key_length", 8U);
  set("attention.value_length", 8U);
  set("attention.key_length_swa", 4U);
  set("attention.sliding_window", 8U);
  gguf_.add_array<uint8_t>("gemma4.attention.sliding_window_pattern", GgufType::boolean,
                           {1, 0, 1, 0, 1, 0});
  gguf_.add_array<uint32_t>("gemma4.attention.head_count_kv", GgufType::u32, {2, 1, 2, 1, 2, 1});
  gguf_.add_array<uint32_t>("gemma4.feed_forward_length", GgufType::u32, {24, 24, 24, 24, 48, 48});
  set("attention.shared_kv_layers", 2U);
  set("embedding_length_per_layer_input", 4U);
  set("rope.freq_base", 1e6F);
  set("final_logit_softcapping", 30.0F);
  gguf_.floats("rope_freqs.weight", {4}, {1, 1, 1e30F, 1e30F});
  tensor("blk.0.attn_v.weight", {8, 16});
  tensor("blk.0.attn_q_norm.weight", {4});
  const GgufFamilyModel model = describe();
  const ModelConfig& config = model.config;
  EXPECT_EQ(windows(config), (std::vector<int64_t>{8, 0, 8, 0, 8, 0}));
  EXPECT_EQ(config.ropes[*config.layer(0).attention().rope].frequencies, plain_frequencies(1e4, 4));
  const std::vector<float>& wide = config.ropes[*config.layer(1).attention().rope].frequencies;
  EXPECT_EQ(wide[1], plain_frequencies(1e6, 8)[1]);
  EXPECT_LT(wide[2], 1e-20F) << "not rotated";
  const AttentionConfig& full = config.layer(5).attention();
  EXPECT_EQ(full.head_dim, 8);
  EXPECT_EQ(full.n_kv_heads, 1);
  EXPECT_EQ(full.kv_of, 3);
  EXPECT_EQ(full.qk_norm, QkNorm::head);
  EXPECT_EQ(config.layer(4).attention().head_dim, 4);
  EXPECT_EQ(config.layer(4).attention().kv_of, 2);
  EXPECT_FALSE(config.layer(3).attention().kv_of);
  EXPECT_EQ(config.layer(3).ffn.size, 24);
  EXPECT_EQ(config.layer(4).ffn.size, 48);
  EXPECT_EQ(config.layer_inputs.size, 4);
  EXPECT_EQ(config.output.soft_cap, 30);
  EXPECT_FALSE(model.modules.keys_as_values.contains(0));
  EXPECT_TRUE(model.modules.keys_as_values.contains(1)) << "it has no values";
  gguf_.add_array<uint32_t>("gemma4.feed_forward_length", GgufType::u32, {24, 24});
  EXPECT_TRUE(says(error(), "gemma4.feed_forward_length", "2 entries for 6 layers"));
}

TEST_F(GgufFamily, GptOssNormsBeforeItsExpertsWhatIsNamedAfterAttention) {
  begin("gpt-oss", "rms_", false);
  set("attention.sliding_window", 8U);
  set("expert_count", 4U);
  set("expert_used_count", 2U);
  set("expert_feed_forward_length", 12U);
  set("rope.scaling.type", "yarn");
  set("rope.scaling.factor", 4.0F);
  tensor("blk.0.post_attention_norm.weight", {16});
  tensor("blk.0.attn_sinks.weight", {4});
  tensor("blk.0.ffn_gate_inp.bias", {4});
  const GgufFamilyModel model = describe();
  const LayerConfig& layer = model.config.layer(0);
  EXPECT_EQ(windows(model.config), (std::vector<int64_t>{8, 0, 8, 0, 8, 0}));
  EXPECT_EQ(model.modules.ffn_norm, "post_attention_norm");
  EXPECT_FALSE(layer.mixer_norms.after);
  EXPECT_TRUE(layer.attention().sinks);
  ASSERT_TRUE(layer.experts);
  EXPECT_EQ(layer.experts->each.size, 12);
  EXPECT_EQ(layer.experts->each.activation, Activation::swiglu_clamped);
  EXPECT_TRUE(layer.experts->router.bias && layer.experts->router.normalized);
  EXPECT_FLOAT_EQ(model.config.ropes[0].attention_factor, 0.1F * std::log(4.0F) + 1);
}

// Six layers of hidden size 16.
TEST_F(GgufFamily, OldMiniCpmHasTheFactorsOfItsReleases) {
  begin("minicpm");
  const GgufFamilyModel old = describe();
  EXPECT_EQ(old.config.embedding.multiplier, 12);
  EXPECT_FLOAT_EQ(old.modules.residual_scale, 1.4F / std::sqrt(6.0F));
  EXPECT_FLOAT_EQ(old.modules.output_norm_scale, 256.0F / 16);
  set("embedding_scale", 3.0F);
  set("residual_scale", 0.5F);
  set("logit_scale", 4.0F);
  const GgufFamilyModel model = describe();
  EXPECT_EQ(model.config.embedding.multiplier, 3);
  EXPECT_EQ(model.modules.residual_scale, 0.5F);
  EXPECT_EQ(model.modules.output_norm_scale, 0.25F);
}

TEST_F(GgufFamily, StepCutsGatesByLayerAndHasMoreHeadsInWindows) {
  begin("step35", "rms_", false);
  gguf_.add_array<uint32_t>("step35.attention.head_count", GgufType::u32, {4, 8, 8, 8, 4, 8});
  gguf_.add_array<uint32_t>("step35.attention.sliding_window_pattern", GgufType::u32,
                            {0, 1, 1, 1, 0, 1});
  gguf_.add_array<float>("step35.swiglu_clamp_exp", GgufType::f32, {0, 0, 0, 7, 7, 7});
  gguf_.add_array<float>("step35.swiglu_clamp_shexp", GgufType::f32, {2, 0, 0, 0, 0, 16});
  set("attention.sliding_window", 8U);
  set("expert_count", 4U);
  set("expert_used_count", 2U);
  set("expert_feed_forward_length", 12U);
  set("leading_dense_block_count", 1U);
  tensor("blk.3.ffn_gate_shexp.weight", {24, 16});
  tensor("blk.3.ffn_up_shexp.weight", {24, 16});
  tensor("blk.3.ffn_down_shexp.weight", {16, 24});
  const ModelConfig config = describe().config;
  EXPECT_EQ(windows(config), (std::vector<int64_t>{0, 8, 8, 8, 0, 8}));
  EXPECT_EQ(config.layer(1).attention().n_heads, 8);
  EXPECT_TRUE(config.layer(1).attention().head_gate);
  EXPECT_EQ(config.ropes[*config.layer(0).attention().rope].dims() * 2,
            config.ropes[*config.layer(1).attention().rope].dims());
  EXPECT_EQ(config.layer(0).ffn.gate_limit, 2);
  EXPECT_EQ(config.layer(1).experts->each.activation, Activation::silu);
  EXPECT_EQ(config.layer(3).experts->each.gate_limit, 7);
  EXPECT_EQ(config.layer(5).experts->shared.gate_limit, 16);
  set("rope.scaling.factor", 4.0F);
  EXPECT_TRUE(says(error(), "step35.rope.scaling.factor"));
}

TEST_F(GgufFamily, Deepseek2KeepsLatentsAndHasExpertsBehindDenseLayers) {
  begin("deepseek2");
  set("attention.head_count_kv", 1U);
  set("attention.kv_lora_rank", 8U);
  set("attention.key_length", 12U);
  set("attention.value_length", 8U);
  set("attention.key_length_mla", 10U);
  set("attention.value_length_mla", 5U);
  set("rope.dimension_count", 4U);
  set("rope.scaling.type", "yarn");
  set("rope.scaling.factor", 4.0F);
  set("rope.scaling.yarn_log_multiplier", 0.0707F);
  set("leading_dense_block_count", 2U);
  set("expert_count", 8U);
  set("expert_used_count", 2U);
  set("expert_shared_count", 2U);
  set("expert_feed_forward_length", 12U);
  set("expert_gating_func", 2U);
  set("expert_group_count", 4U);
  set("expert_group_used_count", 2U);
  set("nextn_predict_layers", 1U);
  tensor("blk.2.exp_probs_b.bias", {8});
  tensor("blk.2.ffn_gate_shexp.weight", {24, 16});
  tensor("blk.2.ffn_up_shexp.weight", {24, 16});
  const GgufFamilyModel model = describe();
  EXPECT_EQ(model.config.n_layers(), 5);
  EXPECT_EQ(model.predictors.names, std::vector<std::string>{"blk.5."});
  EXPECT_TRUE(model.config.predictors.empty()) << "it has no projection";
  EXPECT_EQ(model.config.layer(1).ffn.size, 24);
  const auto& attention = model.config.layer(0).get<LatentAttentionConfig>();
  EXPECT_EQ(attention.nope_dim, 6);
  EXPECT_EQ(attention.value_head_dim, 5);
  EXPECT_EQ(attention.q_rank, 0);
  const float factor = 0.0707F * std::log(4.0F) + 1;
  EXPECT_NEAR(attention.scale, factor * factor / std::sqrt(10.0F), 1e-6);
  EXPECT_EQ(model.config.ropes[0].attention_factor, 1);
  EXPECT_EQ(model.modules.latent_k, "attn_k_b");
  ASSERT_TRUE(model.config.layer(2).experts);
  const ExpertsConfig& experts = *model.config.layer(2).experts;
  EXPECT_EQ(experts.shared.size, 24);
  EXPECT_TRUE(experts.router.correction);
  EXPECT_EQ(experts.router.score, Router::Score::sigmoid);
  EXPECT_EQ(experts.router.groups_used, 2);
}

TEST_F(GgufFamily, KindAndPlaceOfNormsAreWhatTensorsSay) {
  begin("falcon", "");
  tensor("blk.0.attn_norm.bias", {16});
  tensor("blk.0.attn_norm_2.weight", {16});
  const GgufFamilyModel model = describe();
  const LayerConfig& layer = model.config.layer(0);
  EXPECT_TRUE(layer.parallel);
  EXPECT_EQ(layer.mixer_norms.before.kind, NormKind::layer);
  EXPECT_EQ(model.modules.attention_norm, "attn_norm_2");
  EXPECT_EQ(model.modules.ffn_norm, "attn_norm");
}

TEST_F(GgufFamily, FoldsTheScalingsOfGraniteAndRefusesOthers) {
  begin("granite");
  set("embedding_scale", 12.0F);
  set("attention.scale", 0.5F);
  set("residual_scale", 0.25F);
  set("logit_scale", 8.0F);
  const GgufFamilyModel model = describe();
  EXPECT_EQ(model.config.embedding.multiplier, 12);
  EXPECT_EQ(model.config.layer(0).attention().scale, 0.5F);
  EXPECT_EQ(model.modules.residual_scale, 0.25F);
  EXPECT_EQ(model.modules.output_norm_scale, 0.125F);
  set("logit_scale", 0.0F);
  EXPECT_TRUE(says(error(), "granite.logit_scale"));
  begin("qwen3");
  set("attention.scale", 0.5F);
  EXPECT_TRUE(says(error(), "qwen3.attention.scale", "not supported"));
}

TEST_F(GgufFamily, GraniteWithWindowsMayHaveLayersWithoutRotation) {
  begin("granite_swa");
  set("attention.sliding_window", 8U);
  EXPECT_TRUE(says(error(), "granite_swa.attention.sliding_window_pattern", "missing"));
  const std::string pattern = "granite_swa.attention.sliding_window_pattern";
  const std::string rotated = "granite_swa.attention.rope_pattern";
  gguf_.add_array<uint8_t>(pattern, GgufType::boolean, {0, 1, 1, 0, 1, 1});
  gguf_.add_array<uint8_t>(rotated, GgufType::boolean, {1, 1, 0, 0, 1, 1});
  tensor("blk.0.attn_sinks.weight", {4});
  const ModelConfig config = describe().config;
  EXPECT_EQ(windows(config), (std::vector<int64_t>{0, 8, 8, 0, 8, 8}));
  for (const int64_t n : {0, 1, 4, 5}) EXPECT_TRUE(config.layer(n).attention().rope) << n;
  for (const int64_t n : {2, 3}) EXPECT_FALSE(config.layer(n).attention().rope) << n;
  EXPECT_TRUE(config.layer(0).attention().sinks);
  gguf_.add_array<uint8_t>(rotated, GgufType::boolean, {1, 1});
  EXPECT_TRUE(says(error(), rotated, "not an entry for each layer"));
}

TEST_F(GgufFamily, SharedExpertsMayHaveTheirGatesInOneTensor) {
  begin("granitemoe");
  set("expert_count", 4U);
  set("expert_used_count", 2U);
  tensor("blk.0.ffn_up_shexp.weight", {24, 16});
  tensor("blk.0.ffn_down_shexp.weight", {16, 12});
  const GgufFamilyModel model = describe();
  ASSERT_TRUE(model.config.layer(0).experts);
  EXPECT_EQ(model.config.layer(0).experts->shared.size, 12);
  EXPECT_TRUE(model.config.layer(0).experts->shared.gated);
  EXPECT_EQ(model.modules.shared_gate_up, std::vector<std::string>{"ffn_up_shexp"});
}

TEST_F(GgufFamily, Gemma3nHasFewGatesWhereACutoffIsFinite) {
  begin("gemma3n");
  set("attention.sliding_window", 8U);
  set("embedding_length_per_layer_input", 4U);
  set("altup.num_inputs", 3U);
  tensor("blk.0.laurel_l.weight", {5, 16});
  const auto cutoffs = [&] {
    std::vector<std::optional<float>> all;
    const ModelConfig config = describe().config;
    for (int64_t n = 0; n < config.n_layers(); ++n) all.push_back(config.layer(n).ffn.cutoff);
    return all;
  };
  EXPECT_EQ(cutoffs(), std::vector(6, std::optional(1.6448534F))) << "nothing is said";
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  gguf_.add_array<float>("gemma3n.activation_sparsity_scale", GgufType::f32,
                         {1.5F, 0.0F, kNone, kNone, kNone, 0.5F});
  EXPECT_EQ(cutoffs(), (std::vector<std::optional<float>>{1.5F, 0.0F, {}, {}, {}, 0.5F}));
  const ModelConfig config = describe().config;
  EXPECT_EQ(windows(config), (std::vector<int64_t>{8, 8, 8, 8, 0, 8}));
  EXPECT_EQ(config.altup.streams, 3);
  EXPECT_EQ(config.layer(0).laurel.rank, 5);
  EXPECT_EQ(config.output.soft_cap, 30);
  gguf_.add_array<float>("gemma3n.activation_sparsity_scale", GgufType::f32, {1.5F});
  EXPECT_TRUE(says(error(), "gemma3n.activation_sparsity_scale", "not a number for each layer"));
  gguf_.add_array<float>("gemma3n.activation_sparsity_scale", GgufType::f32,
                         {1.5F, std::nanf(""), kNone, kNone, kNone, 0.5F});
  EXPECT_TRUE(says(error(), "gemma3n.activation_sparsity_scale", "no number"));
  set("altup.active_idx", 1U);
  EXPECT_TRUE(says(error(), "gemma3n.altup.active_idx", "not supported"));
}

TEST_F(GgufFamily, MiniMaxScalesWhatItsBranchesAddTo) {
  begin("minimax-01");
  set("residual_scale", 4.0F);
  EXPECT_TRUE(says(error(), "minimax-01.expert_count", "missing"));
  set("expert_count", 4U);
  set("expert_used_count", 2U);
  for (const int n : {0, 1, 2, 4, 5}) {
    tensor("blk." + std::to_string(n) + ".attn_qkv.weight", {48, 16});
  }
  tensor("blk.3.attn_q.weight", {16, 16});
  const ModelConfig config = describe().config;
  EXPECT_TRUE(config.layer(3).find<AttentionConfig>());
  EXPECT_TRUE(config.layer(4).find<LinearAttentionConfig>());
  EXPECT_FLOAT_EQ(config.layer(0).mixer_norms.stream.eps, 1e-5F / 16);
  EXPECT_EQ(config.embedding.norm.kind, NormKind::rms);
  set("residual_scale", 0.0F);
  EXPECT_TRUE(says(error(), "minimax-01.residual_scale", "not above 0"));
}

TEST_F(GgufFamily, ReadsTheTwoTablesOfLongrope) {
  begin("phi3");
  set("rope.scaling.attn_factor", 1.19F);
  gguf_.floats("rope_factors_short.weight", {2}, {1, 2});
  EXPECT_TRUE(says(error(), "rope_factors_long.weight"));
  gguf_.floats("rope_factors_long.weight", {2}, {4, 8});
  EXPECT_EQ(describe().config.ropes[0].original_max_context, 64)
      << "the context, as llama.cpp has it";
  set("rope.scaling.original_context_length", 32U);
  const RopeConfig rope = describe().config.ropes[0];
  const std::vector<float> plain = plain_frequencies(10000, 4);
  EXPECT_EQ(rope.frequencies, (std::vector{plain[0], plain[1] / 2}));
  EXPECT_EQ(rope.long_frequencies, (std::vector{plain[0] / 4, plain[1] / 8}));
  EXPECT_EQ(rope.attention_factor, 1.19F);
  EXPECT_EQ(rope.original_max_context, 32);
}

TEST_F(GgufFamily, Lfm2HasConvolutionsWhereThereAreNoKeys) {
  begin("lfm2moe");
  gguf_.add_array("lfm2moe.attention.head_count_kv", GgufType::i32,
                  std::vector<int32_t>{0, 0, 2, 0, 0, 2});
  set("shortconv.l_cache", 3U);
  set("leading_dense_block_count", 1U);
  set("expert_count", 4U);
  set("expert_used_count", 2U);
  set("expert_feed_forward_length", 12U);
  tensor("token_embd_norm.weight", {16});
  tensor("blk.2.attn_q_norm.weight", {4});
  tensor("blk.1.exp_probs_b.bias", {4});
  const GgufFamilyModel model = describe();
  const ModelConfig& config = model.config;
  EXPECT_EQ(config.layer(0).get<ShortConvolutionConfig>().convolution.taps, 3);
  EXPECT_EQ(config.layer(0).ffn.size, 24);
  EXPECT_FALSE(config.layer(0).experts);
  ASSERT_TRUE(config.layer(1).experts);
  EXPECT_TRUE(config.layer(1).find<ShortConvolutionConfig>() != nullptr);
  EXPECT_EQ(config.layer(1).experts->router.score, Router::Score::sigmoid);
  EXPECT_TRUE(config.layer(1).experts->router.correction);
  EXPECT_EQ(config.layer(2).attention().n_kv_heads, 2);
  EXPECT_EQ(config.layer(2).attention().qk_norm, QkNorm::head);
  EXPECT_FALSE(config.embedding.norm);
  EXPECT_EQ(model.modules.output_norm, "token_embd_norm");
  set("expert_gating_func", 4U);
  EXPECT_TRUE(says(error(), "lfm2moe.expert_gating_func", "softmax and sigmoid"));
}

TEST_F(GgufFamily, Qwen35HasHeadsOfValuesByTheirNumberBesideAKey) {
  begin("qwen35", "rms_", false);
  set("ssm.group_count", 2U);
  set("ssm.time_step_rank", 6U);
  set("ssm.state_size", 4U);
  set("ssm.inner_size", 12U);
  set("ssm.conv_kernel", 4U);
  tensor("blk.0.post_attention_norm.weight", {16});
  tensor("blk.0.ssm_conv1d.weight", {28, 4});
  const GgufFamilyModel model = describe();
  const auto& mixer = std::get<DeltaNetConfig>(model.config.layer(0).mixers.at(0));
  EXPECT_EQ(mixer.value_head_dim, 2);
  EXPECT_TRUE(model.config.layer(1).attention().output_gate);
  EXPECT_EQ(model.modules.ffn_norm, "post_attention_norm");
  EXPECT_EQ(model.modules.value_heads, (std::vector<int64_t>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(model.modules.recurrent_in[2].first, 2 * 8 + 2 * 2) << "the second head's";
  set("ssm.inner_size", 13U);
  EXPECT_TRUE(says(error(), "qwen35.ssm.inner_size", "ssm.time_step_rank"));
  set("ssm.inner_size", 10U);
  set("ssm.time_step_rank", 5U);
  EXPECT_TRUE(says(error(), "qwen35.ssm.time_step_rank", "ssm.group_count"));
}

TEST_F(GgufFamily, Qwen3NextMayHaveTheFirstProductsOfAKeyTogether) {
  begin("qwen3next", "rms_", false);
  set("ssm.group_count", 2U);
  set("ssm.time_step_rank", 4U);
  set("ssm.state_size", 4U);
  set("ssm.inner_size", 8U);
  set("ssm.conv_kernel", 4U);
  tensor("blk.0.ssm_conv1d.weight", {24, 4});
  EXPECT_EQ(describe().modules.recurrent_in[0].module, "attn_qkv");
  tensor("blk.0.ssm_in.weight", {32, 16});
  const Modules modules = describe().modules;
  EXPECT_EQ(modules.recurrent_in[0].module, "ssm_in");
  EXPECT_EQ(modules.recurrent_in[1].first, 16) << "queries of the second key";
}

TEST_F(GgufFamily, NemotronHHasAFeedForwardAfterEachMixerAtMost) {
  begin("nemotron_h", "", false);
  set("block_count", 3U);
  gguf_.add_array("nemotron_h.attention.head_count_kv", GgufType::i32,
                  std::vector<int32_t>{0, 0, 2});
  gguf_.add_array("nemotron_h.feed_forward_length", GgufType::i32, std::vector<int32_t>{0, 24, 0});
  set("ssm.group_count", 2U);
  set("ssm.time_step_rank", 4U);
  set("ssm.state_size", 4U);
  set("ssm.inner_size", 8U);
  set("ssm.conv_kernel", 4U);
  tensor("blk.1.ffn_up.weight", {24, 16});
  tensor("blk.1.ffn_down.weight", {16, 24});
  tensor("blk.2.attn_output.weight", {16, 16});
  EXPECT_TRUE(says(error(), "nemotron_h.block_count", "follows no mixer"));
  tensor("blk.0.ssm_conv1d.weight", {24, 4});
  const GgufFamilyModel model = describe();
  ASSERT_EQ(model.config.n_layers(), 2);
  const LayerConfig& layer = model.config.layer(0);
  EXPECT_EQ(layer.ffn.size, 24);
  EXPECT_EQ(layer.ffn.activation, Activation::relu_squared);
  EXPECT_EQ(layer.mixer_norms.before.kind, NormKind::rms);
  EXPECT_FALSE(model.config.layer(1).has_feed_forward());
  EXPECT_EQ(model.modules.mixer_layers, (std::vector<int64_t>{0, 2}));
}

TEST_F(GgufFamily, LayersAreDenseThatLackARouter) {
  begin("exaone-moe");
  set("expert_count", 4U);
  set("expert_used_count", 2U);
  set("expert_feed_forward_length", 12U);
  set("attention.sliding_window", 8U);
  for (int n = 0; n < 6; n += 2) {
    tensor("blk." + std::to_string(n) + ".ffn_down.weight", {16, 24});
  }
  const ModelConfig config = describe().config;
  EXPECT_EQ(config.layer(2).ffn.size, 24);
  EXPECT_FALSE(config.layer(2).experts);
  EXPECT_TRUE(config.layer(3).experts);
  EXPECT_EQ(windows(config), (std::vector<int64_t>{8, 8, 8, 0, 8, 8}));
  EXPECT_FALSE(config.layer(3).attention().rope);
  gguf_.add_array<uint8_t>("exaone-moe.attention.sliding_window_pattern", GgufType::boolean,
                           {1, 0});
  EXPECT_TRUE(says(error(), "exaone-moe.attention.sliding_window_pattern", "2 entries"));
}

TEST_F(GgufFamily, ApertusHasNumbersOfItsActivationForEachLayer) {
  begin("apertus");
  const std::vector<float> numbers(6, 0.5F);
  for (const char* name : {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta"}) {
    EXPECT_TRUE(says(error(), name, "for each layer"));
    gguf_.add_array(name, GgufType::f32, numbers);
  }
  EXPECT_TRUE(describe().config.layer(0).ffn.xielu);
}

TEST_F(GgufFamily, RefusesHeadsThatDifferFromLayerToLayer) {
  begin("llama");
  gguf_.add_array("llama.attention.head_count_kv", GgufType::i32,
                  std::vector<int32_t>{2, 2, 4, 2, 2, 2});
  EXPECT_TRUE(says(error(), "llama.attention.head_count_kv", "differs from layer to layer"));
  gguf_.add_array("llama.attention.head_count_kv", GgufType::i32, std::vector<int32_t>{2, 2});
  EXPECT_TRUE(says(error(), "llama.attention.head_count_kv", "2 numbers for 6 layers"));
}

TEST_F(GgufFamily, BaichuanRotatesOrHasSlopesByItsLayers) {
  begin("baichuan");
  set("block_count", 32U);
  EXPECT_TRUE(describe().config.layer(0).attention().rope);
  set("block_count", 40U);
  EXPECT_EQ(describe().config.layer(0).attention().slopes.size(), 4U);
}

TEST_F(GgufFamily, Ling3sRatesAreAboveZeroAndItsLimitsRefused) {
  begin("bailingmoe3");
  set("rope.dimension_count", 4U);
  set("attention.kv_lora_rank", 8U);
  set("attention.key_length_mla", 10U);
  set("attention.value_length_mla", 6U);
  set("kda.head_dim", 6U);
  set("ssm.conv_kernel", 4U);
  tensor("blk.0.ssm_beta.weight", {4, 16});
  gguf_.floats("blk.0.ssm_a", {4, 1}, {1, 2, 4, 8});
  EXPECT_TRUE(says(error(), "bailingmoe3.kda.gate_lower_bound", "below 0"));
  set("kda.gate_lower_bound", -5.0F);
  const GgufFamilyModel model = describe();
  EXPECT_NE(model.config.layer(0).find<DeltaNetConfig>(), nullptr);
  EXPECT_TRUE(model.config.layer(1).get<LatentAttentionConfig>().head_gate);
  TensorParts parts;
  parts[{TensorKind::recurrent_decay, 0}] = {{.source = "blk.0.ssm_a", .shape = {4}}};
  parts[{TensorKind::recurrent_convolution, 0}] = {
      {.source = "blk.0.ssm_conv1d.weight", .shape = {72, 1, 4}}};
  model.finish(model.config, parts);
  EXPECT_EQ(*parts.at({TensorKind::recurrent_decay, 0})[0].values,
            (std::vector<float>{0, std::log(2.0F), std::log(4.0F), std::log(8.0F)}));
  EXPECT_EQ((parts.at({TensorKind::recurrent_convolution, 0}).size()), 3U);
  gguf_.add_array<float>("bailingmoe3.swiglu_clamp_exp", GgufType::f32, {0, 7, 0, 0, 0, 0});
  EXPECT_TRUE(says(error(), "bailingmoe3.swiglu_clamp_exp"));
  gguf_.remove("bailingmoe3.swiglu_clamp_exp");
  gguf_.floats("blk.1.ssm_a", {4}, {1, 0, 4, 8});
  tensor("blk.1.ssm_beta.weight", {4, 16});
  EXPECT_TRUE(says(error(), "blk.1.ssm_a", "above 0"));
}

TEST_F(GgufFamily, DeepseekOcrRotatesAllOfAHead) {
  begin("deepseek2-ocr");
  set("rope.dimension_count", 0U);
  EXPECT_EQ(describe().config.ropes[0].dims(), 4);
  set("attention.sliding_window", 128U);
  EXPECT_TRUE(says(error(), "deepseek2-ocr.attention.sliding_window", "Unlimited OCR"));
}

}  // namespace
}  // namespace faststream::convert
