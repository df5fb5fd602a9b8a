#include "convert/huggingface/hf_folder.h"

#include <gtest/gtest.h>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "convert/families/family.h"
#include "convert/tokenizers/esm_vocabulary.h"
#include "golden/golden_data.h"
#include "text/tokenizer/compiled_tokenizer.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

// tiny_config() with some members replaced; null removes.
json config_with(const json& changes) {
  json config = tiny_config();
  config.merge_patch(changes);
  return config;
}

ModelConfig parse(const json& config) {
  const Checkpoint none("folder");
  return describe_family({JsonView(config, "config.json"), none}, "config.json").config;
}

std::string folder_error_with(const json& changes) {
  return error_of([&] { parse(config_with(changes)); });
}

TEST(HfLlama, ReadsTheShape) {
  const ModelConfig config = parse(tiny_config());
  ModelConfig expected = plain_decoder({.n_layers = 2,
                                        .hidden = 16,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 4,
                                        .ffn_hidden = 24,
                                        .vocab = kTinyVocab,
                                        .max_context = 64});
  EXPECT_EQ(config_to_json(config), config_to_json(expected));
}

TEST(HfLlama, UsesTransformersDefaultsForAbsentMembers) {
  const json config = config_with({{"num_key_value_heads", nullptr},
                                   {"max_position_embeddings", nullptr},
                                   {"rms_norm_eps", nullptr},
                                   {"tie_word_embeddings", nullptr},
                                   {"rope_theta", nullptr},
                                   {"hidden_act", nullptr}});
  const ModelConfig model = parse(config);
  EXPECT_EQ(model.layer(0).attention().n_kv_heads, 4);
  EXPECT_EQ(model.max_context, 2048);
  EXPECT_EQ(model.output.norm.eps, 1e-6F);
  EXPECT_EQ(model.ropes[0].frequencies, plain_frequencies(10000, 4));
  EXPECT_FALSE(model.output.tied);
}

TEST(HfLlama, TakesHeadDimFromTheConfigOrFromTheHiddenSize) {
  EXPECT_EQ(parse(config_with({{"head_dim", 6}})).layer(0).attention().head_dim, 6);
  json config = tiny_config();
  config["head_dim"] = nullptr;  // as some checkpoints have it
  EXPECT_EQ(parse(config).layer(0).attention().head_dim, 4);
  EXPECT_TRUE(says(folder_error_with({{"hidden_size", 18}}), "hidden_size", "head_dim"));
}

TEST(HfLlama, HasBiasesWhereTheConfigSaysSo) {
  const LayerConfig layer =
      parse(config_with({{"attention_bias", true}, {"mlp_bias", true}})).layer(0);
  EXPECT_TRUE(layer.attention().qkv_bias && layer.attention().out_bias && layer.ffn.bias);
}

TEST(HfLlama, RefusesWhatItCannotRun) {
  EXPECT_TRUE(says(folder_error_with({{"model_type", "convbert"}}), "config.json",
                   "type \"convbert\"", "README"));
  EXPECT_TRUE(says(folder_error_with({{"model_type", nullptr}}), "\"model_type\" is missing"));
  EXPECT_TRUE(says(folder_error_with({{"architectures", {"LlamaForTokenClassification"}}}),
                   "architecture \"LlamaForTokenClassification\""));
  EXPECT_TRUE(says(folder_error_with({{"hidden_act", "tanh"}}), "activation \"tanh\""));
}

TEST(HfLlama, RefusesMembersThatAreMissingOrAbsurd) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size"}) {
    EXPECT_TRUE(
        says(folder_error_with({{"model_type", "mixtral"}, {key, nullptr}}), key, "missing"));
    EXPECT_TRUE(says(folder_error_with({{key, "many"}}), key, "not a whole number"));
    EXPECT_TRUE(says(folder_error_with({{key, 1.5}}), key, "not a whole number"));
    EXPECT_TRUE(says(folder_error_with({{key, UINT64_MAX}}), key, "not a whole number"));
    EXPECT_TRUE(says(folder_error_with({{key, 0}}), "config.json")) << key;
    EXPECT_TRUE(says(folder_error_with({{key, -4}}), "config.json")) << key;
    EXPECT_TRUE(says(folder_error_with({{key, INT64_MAX}}), "config.json")) << key;
  }
  EXPECT_TRUE(says(folder_error_with({{"num_key_value_heads", 3}}), "multiple"));
  EXPECT_TRUE(says(folder_error_with({{"rms_norm_eps", "small"}}), "rms_norm_eps"));
  EXPECT_TRUE(says(folder_error_with({{"tie_word_embeddings", 1}}), "tie_word_embeddings"));
  EXPECT_TRUE(says(folder_error_with({{"rope_theta", -1.0}}), "theta"));
}

TEST(HfLlama, TakesTokenIdsFromTheConfigs) {
  const auto ids = [](const json& config, const json& generation, const json& tokenizer) {
    return tokenizer_config_from_hf(config, generation, tokenizer, "folder");
  };
  const json none = json::object();
  TokenizerConfig plain = ids({{"bos_token_id", 5}, {"eos_token_id", 6}}, none, none);
  EXPECT_EQ(plain.bos, 5);
  EXPECT_EQ(plain.eos, std::vector<int32_t>{6});
  EXPECT_EQ(plain.prefix, std::vector<int32_t>{5});
  EXPECT_TRUE(plain.suffix.empty());

  TokenizerConfig listed = ids({{"eos_token_id", {6, 7}}}, none, {{"add_bos_token", false}});
  EXPECT_EQ(listed.bos, 1);  // LlamaConfig's default
  EXPECT_EQ(listed.eos, (std::vector<int32_t>{6, 7}));
  EXPECT_TRUE(listed.prefix.empty());

  TokenizerConfig generated = ids({{"eos_token_id", 6}}, {{"eos_token_id", {8, 9}}}, none);
  EXPECT_EQ(generated.eos, (std::vector<int32_t>{8, 9}));

  TokenizerConfig nothing = ids({{"bos_token_id", nullptr}, {"eos_token_id", nullptr}}, none, none);
  EXPECT_FALSE(nothing.bos.has_value());
  EXPECT_TRUE(nothing.eos.empty());

  EXPECT_TRUE(says(error_of([&] { ids({{"eos_token_id", "x"}}, none, none); }), "eos_token_id"));
  EXPECT_TRUE(says(error_of([&] {
                     ids({{"bos_token_id", -1}}, none, none);
                   }),
                   "folder: config.json: \"bos_token_id\""));
}

class HfFolder : public testing::Test {
 protected:
  void write(const json& config, const TestTensors& tensors) {
    write_hf_folder(folder_.path(), config, tensors);
  }
  [[nodiscard]] SourceModel open() const { return open_source_model(folder_.path(), std::nullopt); }
  [[nodiscard]] std::string open_error() const {
    return error_of([&] { static_cast<void>(open()); });
  }
  TemporaryFolder folder_;
};

TEST_F(HfFolder, TakesTheTypeOfTheTensors) {
  write(config_with({{"torch_dtype", "float32"}}), tiny_tensors(DType::f16));
  EXPECT_EQ(open().config.weight_format, WeightFormat::f16);
}

TEST_F(HfFolder, ReadsTheChatTemplate) {
  write(tiny_config(), tiny_tensors(DType::f32));
  EXPECT_TRUE(open().chat_template.is_null());
  write_bytes(folder_ / "tokenizer_config.json", R"({"chat_template": "A"})");
  EXPECT_EQ(open().chat_template, "A");
  write_bytes(folder_ / "tokenizer_config.json",
              R"({"chat_template": [{"name": "tool_use", "template": "T"},
                                    {"name": "default", "template": "D"}]})");
  EXPECT_EQ(open().chat_template, (json{{"default", "D"}, {"tool_use", "T"}}));
  write_bytes(folder_ / "chat_template.jinja", "J");
  EXPECT_EQ(open().chat_template, "J");
}

TEST_F(HfFolder, SaysWhyAChatTemplateIsUnusable) {
  write(tiny_config(), tiny_tensors(DType::f32));
  write_bytes(folder_ / "chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(open().chat_template_fault, "");
  write_bytes(folder_ / "chat_template.jinja", "\n{% for x %}");
  EXPECT_TRUE(says(open().chat_template_fault, "its chat template, line 2", "--chat-template"));
  EXPECT_EQ(open().chat_template, "\n{% for x %}") << "it is kept, and can be looked at";
  std::filesystem::remove(folder_ / "chat_template.jinja");
  write_bytes(folder_ / "tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_TRUE(says(open_error(), "\"chat_template\" is neither a text nor a list of named ones"));
}

TEST_F(HfFolder, ReadsTheSpellingsOfSpecialTokens) {
  write(tiny_config(), tiny_tensors(DType::f32));
  EXPECT_TRUE(open().special_tokens.is_null());
  write_bytes(folder_ / "tokenizer_config.json",
              R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null,
                  "add_bos_token": true, "additional_special_tokens": ["<a>", {"content": "<b>"}]})");
  EXPECT_EQ(open().special_tokens, (json{{"bos_token", "<s>"},
                                         {"eos_token", "</s>"},
                                         {"additional_special_tokens", {"<a>", "<b>"}}}));
  write_bytes(folder_ / "special_tokens_map.json", R"({"bos_token": "<x>", "pad_token": "<pad>"})");
  EXPECT_EQ(open().special_tokens, (json{{"bos_token", "<s>"},
                                         {"eos_token", "</s>"},
                                         {"pad_token", "<pad>"},
                                         {"additional_special_tokens", {"<a>", "<b>"}}}))
      << "the older file counts where the newer one says nothing";
}

TEST_F(HfFolder, RefusesAFolderWithoutConfigOrWithABrokenOne) {
  EXPECT_TRUE(says(open_error(), "no config.json"));
  write(tiny_config(), tiny_tensors(DType::f32));
  write_bytes(folder_ / "config.json", "hello");
  EXPECT_TRUE(says(open_error(), "config.json", "not valid JSON"));
  write_bytes(folder_ / "config.json", "");
  EXPECT_TRUE(says(open_error(), "config.json", "not valid JSON"));
}

TEST_F(HfFolder, FindsHowItIsQuantizedInAFileBesideToo) {
  write(tiny_config(), tiny_tensors(DType::f32));
  EXPECT_EQ(open_error(), "");
  write_bytes(folder_ / "hf_quant_config.json",
              R"({"producer": {}, "quantization": {"quant_algo": "W4A16_AWQ"}})");
  EXPECT_TRUE(says(open_error(), "W4A16_AWQ", "not supported"));
  write_bytes(folder_ / "quant_config.json", R"({"w_bit": 4, "version": "gemv_fast"})");
  EXPECT_TRUE(says(open_error(), "gemv_fast", "not supported"));
  write_bytes(folder_ / "quantize_config.json", R"({"bits": 4, "checkpoint_format": "bitblas"})");
  EXPECT_TRUE(says(open_error(), "bitblas", "not supported"));
}

TEST_F(HfFolder, RefusesAFolderWithoutWeights) {
  write(tiny_config(), tiny_tensors(DType::f32));
  std::filesystem::remove(folder_ / "model.safetensors");
  EXPECT_TRUE(says(open_error(), "neither .safetensors", "pytorch_model.bin"));
  write_bytes(folder_ / "pytorch_model.bin", "x");
  EXPECT_TRUE(says(open_error(), "pytorch_model.bin", "torch.save()"));
}

TEST_F(HfFolder, RefusesClassifiersWithoutScoresAndThoseOfMultimodalModels) {
  json config = config_with({{"architectures", {"LlamaForSequenceClassification"}}});
  write(config, tiny_tensors(DType::f32));
  EXPECT_TRUE(says(open_error(), "\"score.weight\""));
  write({{"architectures", {"Gemma3ForSequenceClassification"}}, {"text_config", tiny_config()}},
        tiny_tensors(DType::f32));
  EXPECT_TRUE(says(open_error(), "config.json", "multimodal"));
}

TEST_F(HfFolder, TakesTheTextModelOfAMultimodalOne) {
  TestTensors tensors;
  for (const auto& [name, tensor] : tiny_tensors(DType::f32)) {
    tensors[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] = tensor;
  }
  tensors["model.vision_tower.a"] = tensors["model.vision_tower.b"] = {DType::f32, {1}, {1}};
  tensors["projector.weight"] = {DType::f32, {1}, {1}};
  tensors["model.text_model.norm.weight"] = tensors["model.language_model.norm.weight"];
  tensors.erase("model.language_model.norm.weight");  // SmolVLM's name
  const json wrapper = {{"architectures", {"LlavaForConditionalGeneration"}},
                        {"model_type", "llava"},
                        {"text_config", config_with({{"bos_token_id", 5}})},
                        {"bos_token_id", 1},
                        {"eos_token_id", nullptr}};
  write(wrapper, tensors);
  const SourceModel model = open();
  EXPECT_EQ(model.tokenizer.config.bos, 1);
  EXPECT_EQ(model.tokenizer.config.eos, std::vector<int32_t>{2}) << "the text model's own";
  EXPECT_EQ(to_text(model.left_out), "1 tensor of projector, 2 tensors of vision_tower");
}

TEST_F(HfFolder, FindsATextModelWhateverItsTensorsAreCalledInAMultimodalCheckpoint) {
  struct Names {
    std::string model;   ///< in the place of "model."
    std::string output;  ///< and of "lm_head."
    const char* part = "text_config";
  };
  for (const Names& names : {Names{"model.language_model.", "lm_head."},
                             Names{"language_model.model.", "language_model.lm_head."},
                             Names{"model.language_model.model.", "model.language_model.lm_head."},
                             Names{"model.text_model.", "lm_head."},
                             Names{"text_model.model.", "text_model.lm_head.", "llm_config"},
                             Names{"language.model.", "language.lm_head.", "language_config"},
                             Names{"model.", "lm_head.", "language_config"}, Names{"", "lm_head."},
                             Names{"thinker.model.", "thinker.lm_head.", "thinker_config"}}) {
    TestTensors tensors = {{"visual.a", {DType::f32, {1}, {1}}}};
    for (const auto& [name, tensor] : tiny_tensors(DType::f32)) {
      const bool is_output = name.starts_with("lm_head.");
      tensors[is_output ? names.output + name.substr(8) : names.model + name.substr(6)] = tensor;
    }
    json config = {{"architectures", {"Some"}}, {names.part, tiny_config()}};
    if (names.part == std::string("thinker_config")) {
      config[names.part] = {{"text_config", tiny_config()}};
      tensors["talker.model.norm.weight"] = {DType::f32, {1}, {1}};
    }
    write(config, tensors);
    EXPECT_EQ(open_error(), "") << names.model;
    EXPECT_TRUE(says(to_text(open().left_out), "1 tensor of visual")) << names.model;
  }
}

TEST_F(HfFolder, RefusesAMissingTensorAndAWrongShape) {
  TestTensors tensors = tiny_tensors(DType::f32);
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  write(tiny_config(), tensors);
  EXPECT_TRUE(says(open_error(), "\"model.layers.1.mlp.up_proj.weight\"", "missing"));
  tensors = tiny_tensors(DType::f32);
  tensors["model.norm.weight"].shape = {4, 4};
  write(tiny_config(), tensors);
  EXPECT_TRUE(says(open_error(), "\"model.norm.weight\"", "[4, 4]", "[16]"));
}

TEST_F(HfFolder, RefusesTensorsThatTheModelDoesNotHave) {
  TestTensors tensors = tiny_tensors(DType::f32);
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::f32, {2}, {1, 2}};
  write(tiny_config(), tensors);
  EXPECT_EQ(open_error(), "");
  tensors["model.layers.0.self_attn.q_proj.bias"] = {DType::f32, {16}, random_values(16, 1)};
  write(tiny_config(), tensors);
  EXPECT_TRUE(says(open_error(), "\"model.layers.0.self_attn.q_proj.bias\"", "no place"));
}

TEST_F(HfFolder, TakesNoModelForAPartOfAnotherBecauseItHasANan) {
  TestTensors tensors = tiny_tensors(DType::f32);
  tensors["other.weight"] = {DType::f32, {2}, {1, 2}};
  write(tiny_config(), tensors);
  const std::string text = tiny_config().dump();
  write_bytes(folder_ / "config.json", text.substr(0, text.size() - 1) + R"(, "unused": NaN})");
  EXPECT_TRUE(says(open_error(), "\"other.weight\"", "no place"));
}

TEST_F(HfFolder, AcceptsATiedModelWithAndWithoutAnOutputMatrix) {
  TestTensors tensors = tiny_tensors(DType::f32);
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  write(config_with({{"tie_word_embeddings", true}}), tensors);
  EXPECT_TRUE(open().config.output.tied);
  tensors.erase("lm_head.weight");
  write(config_with({{"tie_word_embeddings", true}}), tensors);
  EXPECT_TRUE(open().config.output.tied);
  write(tiny_config(), tensors);
  EXPECT_TRUE(says(open_error(), "\"lm_head.weight\"", "missing"));
}

TEST_F(HfFolder, TakesATiedMatrixUnderEitherName) {
  TestTensors tensors = tiny_tensors(DType::f32);
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  tensors.erase("model.embed_tokens.weight");
  write(config_with({{"tie_word_embeddings", true}}), tensors);
  EXPECT_TRUE(open().config.output.tied);
}

TEST_F(HfFolder, DoesNotTieMatricesThatDiffer) {
  TestTensors tensors = tiny_tensors(DType::f32);
  write(config_with({{"tie_word_embeddings", true}}), tensors);
  EXPECT_FALSE(open().config.output.tied);
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  tensors["lm_head.weight"].dtype = DType::f16;
  write(config_with({{"tie_word_embeddings", true}}), tensors);
  EXPECT_FALSE(open().config.output.tied);
}

TEST(TextConfig, TiesMatricesUnlessOneSaysNoAndNoneSaysYes) {
  const auto tied = [](const json& outer, const json& inner) {
    json config = {{"text_config", {{"model_type", "llama"}}}};
    if (!outer.is_null()) config["tie_word_embeddings"] = outer;
    if (!inner.is_null()) config["text_config"]["tie_word_embeddings"] = inner;
    return text_config(config)["tie_word_embeddings"];
  };
  EXPECT_EQ(tied(nullptr, nullptr), true);
  EXPECT_EQ(tied(nullptr, false), false);
  EXPECT_EQ(tied(false, nullptr), false);
  EXPECT_EQ(tied(false, true), true);  // LLaVA-OneVision 0.5B
  EXPECT_EQ(tied(true, false), true);
  EXPECT_EQ(tied("x", true), "x") << "for the sentence about it";
}

TEST(TextConfig, IsWhatTheWholeIsMadeForWhereItSaysNothing) {
  const json outer = {"Qwen3VLForConditionalGeneration"};
  const auto named = [&](const json& part) {
    return text_config({{"architectures", outer}, {"text_config", part}});
  };
  EXPECT_EQ(named({{"hidden_size", 1}})["architectures"], outer);
  EXPECT_EQ(named({{"architectures", {"A"}}})["architectures"], json({"A"}));
  EXPECT_FALSE(named({{"model_type", "llama"}}).contains("architectures"));
}

TEST_F(HfFolder, TakesNamesWithoutThePartThatTheOuterClassAdds) {
  TestTensors tensors;
  for (const auto& [name, tensor] : tiny_tensors(DType::f32)) {
    tensors[name.starts_with("model.") ? name.substr(6) : name] = tensor;
  }
  write(tiny_config(), tensors);
  EXPECT_EQ(open_error(), "");
  const Checkpoint none("folder");
  EXPECT_EQ(base_in(none, {.base = "model.decoder."}), "decoder.");  // OPT
}

TEST_F(HfFolder, SaysThatAFileOnlyStandsForOneOfGitLfs) {
  for (const char* name : {"model.safetensors", "tokenizer.model"}) {
    write(tiny_config(), tiny_tensors(DType::f32));
    write_bytes(folder_ / name,
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4976698672\n");
    EXPECT_TRUE(says(open_error(), name, "git lfs pull"));
  }
}

TEST_F(HfFolder, NeedsATokenizerThatFits) {
  write(tiny_config(), tiny_tensors(DType::f32));
  write_bytes(folder_ / "tokenizer.model", tiny_tokenizer(kTinyVocab + 1));
  EXPECT_TRUE(says(open_error(), "tokenizer", "21", "20", "--tokenizer"));
  write_bytes(folder_ / "tokenizer.model", "not a tokenizer");
  EXPECT_TRUE(says(open_error(), "tokenizer"));
  write_bytes(folder_ / "tokenizer.model", "");
  EXPECT_TRUE(says(open_error(), "tokenizer.model", "empty"));
  std::filesystem::remove(folder_ / "tokenizer.model");
  EXPECT_TRUE(says(open_error(), "tokenizer.model", "--tokenizer FILE"));
  write_bytes(folder_ / "tokenizer.json", "{}");
  EXPECT_TRUE(says(open_error(), "tokenizer.json", "\"model\" is missing"));
  write_bytes(folder_ / "other.model", tiny_tokenizer(kTinyVocab));
  EXPECT_EQ(error_of([&] { open_source_model(folder_.path(), folder_ / "other.model"); }), "");
}

TEST_F(HfFolder, TakesATokenizerJsonOfAnyName) {
  write(tiny_config(), tiny_tensors(DType::f32));
  json vocab;
  for (int64_t i = 0; i < kTinyVocab; ++i) vocab["w" + std::to_string(i)] = i;
  write_bytes(folder_ / "mine.json",
              json({{"added_tokens", json::array()},
                    {"pre_tokenizer", {{"type", "Whitespace"}}},
                    {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "w0"}}}})
                  .dump());
  const SourceModel model = open_source_model(folder_.path(), folder_ / "mine.json");
  EXPECT_TRUE(model.tokenizer.description);
  EXPECT_EQ(model.tokenizer.config.eos, std::vector<int32_t>{2});
  EXPECT_FALSE(open().tokenizer.description) << "tokenizer.model";
}

// ChatGLM 2 and 3, whose own class adds tokens to tokenizer.model.
TEST_F(HfFolder, HasTheControlTokensOfTheFamilysTokenizer) {
  const std::filesystem::path golden = golden_root();
  std::filesystem::copy(golden / "families/chatglm", folder_.path(),
                        std::filesystem::copy_options::recursive);
  std::filesystem::copy(golden / "gqa/tokenizer.model", folder_ / "tokenizer.model");
  const SourceModel model = open();
  const TokenizerConfig& config = model.tokenizer.config;
  constexpr int32_t kFirst = 90;  // behind those of tokenizer.model
  EXPECT_FALSE(config.bos.has_value());
  EXPECT_EQ(config.prefix, (std::vector<int32_t>{kFirst + 1, kFirst + 3}));
  EXPECT_EQ(config.eos, (std::vector<int32_t>{2, kFirst + 6, kFirst + 8}));
  const auto tokenizer =
      make_compiled_tokenizer(std::as_bytes(std::span(model.tokenizer.tables)), config, "test");
  EXPECT_EQ(tokenizer->find_token("<|assistant|>"), kFirst + 7);
  const std::vector<Stretch> chat = {{"[gMASK]sop<|user|>\n a<|assistant|>", true}};
  const std::vector<int32_t> ids = tokenizer->encode_stretches(chat);
  EXPECT_EQ(ids[0], kFirst + 1);
  EXPECT_EQ(ids[1], kFirst + 3);
  EXPECT_EQ(ids[2], kFirst + 6);
  EXPECT_EQ(ids.back(), kFirst + 7);
  EXPECT_EQ(tokenizer->encode("a").front(), kFirst + 1);
}

// Of tokens that begin alike the longest; of what is none one "<unk>" up to the next token.
TEST(EsmVocabulary, SplitsAtTokens) {
  const TemporaryFolder folder;
  SourceFiles files;
  EXPECT_FALSE(read_esm_vocabulary(folder.path(), files));
  write_bytes(folder / "vocab.txt", "<cls>\n<pad>\n<eos>\n<unk>\nL\nA\n.\n-\n LA \n<mask>");
  const auto file = read_esm_vocabulary(folder.path(), files);
  ASSERT_TRUE(file && file->config);
  const std::string tables = compile_tokenizer(*file->description, "test");
  const auto tokenizer =
      make_compiled_tokenizer(std::as_bytes(std::span(tables)), *file->config, "test");
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(tokenizer->encode("LAAL.-"), (Ids{0, 8, 5, 4, 6, 7, 2}));
  EXPECT_EQ(tokenizer->encode(" A xyz\nL L"), (Ids{0, 5, 3, 4, 4, 2}));
  EXPECT_EQ(tokenizer->encode("x yLz"), (Ids{0, 3, 3, 4, 3, 2}));
  EXPECT_EQ(tokenizer->encode(""), (Ids{0, 2}));
  write_bytes(folder / "vocab.txt", "[CLS]\n[SEP]\n[UNK]\na\n");
  EXPECT_FALSE(read_esm_vocabulary(folder.path(), files)) << "BERT's";
  write_bytes(folder / "vocab.txt", "<cls>\n<eos>\n<unk>\nA\nA\n");
  EXPECT_TRUE(says(error_of([&] { read_esm_vocabulary(folder.path(), files); }), "vocab.txt",
                   "\"A\" twice"));
}

TEST_F(HfFolder, KeepsHeadsThatPredictFurtherTokens) {
  std::filesystem::copy(golden_root() / "families/glm4_moe", folder_.path(),
                        std::filesystem::copy_options::recursive);
  std::filesystem::copy(golden_root() / "gqa/tokenizer.model", folder_ / "tokenizer.model");
  const SourceModel model = open();
  EXPECT_EQ(to_text(model.predictors), "44 tensors of model.layers.2");
  EXPECT_EQ(to_text(model.left_out), "") << "two more are the model's own";
}

TEST_F(HfFolder, NamesTheFileOfATokenizerThatIsDamaged) {
  write(tiny_config(), tiny_tensors(DType::f32));
  for (const char* name : {"mine.model", "mine.json"}) {
    write_bytes(folder_ / name, name == std::string("mine.json") ? "{}" : "not a tokenizer");
    EXPECT_TRUE(
        says(error_of([&] { (void)open_source_model(folder_.path(), folder_ / name); }), name));
  }
}

TEST_F(HfFolder, AcceptsRowsWithoutTokensOnlyAsPadding) {
  const auto error = [this](int64_t rows, int tokens) {
    json config = tiny_config();
    config["vocab_size"] = rows;
    TestTensors tensors = tiny_tensors(DType::f32);
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      tensors[name].shape[0] = rows;
      tensors[name].values.assign(static_cast<size_t>(rows) * 16, 0.5F);
    }
    write(config, tensors);
    write_bytes(folder_ / "tokenizer.model", tiny_tokenizer(tokens));
    return open_error();
  };
  EXPECT_EQ(error(32, 20), "");
  EXPECT_EQ(error(21, 20), "");
  EXPECT_EQ(error(148, 20), "") << "128 in reserve";
  EXPECT_TRUE(says(error(149, 20), "20 tokens", "149 rows", "--tokenizer"));
  EXPECT_EQ(error(512, 20), "") << "a multiple of 512";
  EXPECT_EQ(error(20001, 19802), "") << "one in a hundred in reserve";
  EXPECT_TRUE(says(error(20001, 19801), "19801 tokens", "20001 rows"));
  EXPECT_TRUE(says(error(768, 512), "512 tokens", "768 rows")) << "512 are a multiple of 256";
  EXPECT_TRUE(says(error(4096, 600), "600 tokens", "4096 rows"));
}

TEST_F(HfFolder, RefusesAddedTokensThatTheTokenizerLacks) {
  write(tiny_config(), tiny_tensors(DType::f32));
  const auto error = [this](const char* file, const char* text) {
    write_bytes(folder_ / file, text);
    std::string message = open_error();
    std::filesystem::remove(folder_ / file);
    return message;
  };
  EXPECT_TRUE(says(error("added_tokens.json", R"({"<|im_start|>": 20})"), "added_tokens.json",
                   "\"<|im_start|>\"", "20", "--tokenizer FILE"));
  EXPECT_TRUE(says(error("tokenizer_config.json",
                         R"({"added_tokens_decoder": {"1": {"content": "<s>"},
                                                      "5": {"content": "<pad>"}}})"),
                   "tokenizer_config.json", "\"<pad>\"", "id 5"));

  EXPECT_EQ(error("added_tokens.json", R"({"<s>": 1, "a": 3})"), "");
  EXPECT_EQ(
      error("tokenizer_config.json", R"({"added_tokens_decoder": {"0": {"content": "<unk>"}}})"),
      "");

  for (const char* text : {"[]", "{", R"({"<s>": "1"})", R"({"<s>": -1})", R"({"<s>": 1.0})"}) {
    EXPECT_TRUE(says(error("added_tokens.json", text), "added_tokens.json")) << text;
  }
  for (const char* text :
       {R"({"added_tokens_decoder": []})", R"({"added_tokens_decoder": {"x": {}}})",
        R"({"added_tokens_decoder": {"1": {}}})",
        R"({"added_tokens_decoder": {"99999999999": {"content": "a"}}})"}) {
    EXPECT_TRUE(says(error("tokenizer_config.json", text), "tokenizer_config.json")) << text;
  }
  for (const char* text : {R"({"added_tokens": {}})", R"({"added_tokens": [1]})",
                           R"({"added_tokens": [{"id": 1}]})"}) {
    EXPECT_TRUE(says(error("tokenizer.json", text), "tokenizer.json")) << text;
  }
}

TEST(SamplingFromHf, TakesWhatIsRecommended) {
  const json config = {
      {"temperature", 0.6}, {"top_p", 0.9}, {"top_k", nullptr}, {"max_length", 99}};
  EXPECT_EQ(sampling_from_hf(config, "g"), (json{{"temperature", 0.6}, {"top_p", 0.9}}));
  EXPECT_TRUE(sampling_from_hf(json::object(), "g").is_null());
  EXPECT_EQ(sampling_from_hf({{"do_sample", false}, {"temperature", 0.6}}, "g"),
            (json{{"temperature", 0}}));
  for (const json& wrong :
       {json{{"temperature", -1}}, json{{"top_k", 1.5}}, json{{"top_p", "x"}}}) {
    EXPECT_TRUE(says(error_of([&] { (void)sampling_from_hf(wrong, "g"); }), "g: ")) << wrong;
  }
}

TEST(SourceModel, RefusesPathsThatAreNoCheckpoint) {
  const TemporaryFolder folder;
  const auto error = [](const std::filesystem::path& path) {
    return error_of([&] { open_source_model(path, std::nullopt); });
  };
  EXPECT_TRUE(says(error(folder / "none"), "none", "no such checkpoint"));
  write_bytes(folder / "w.safetensors", "x");
  EXPECT_TRUE(says(error(folder / "w.safetensors"), "give the folder"));
  write_bytes(folder / "text.txt", std::string(1000, 'x'));
  EXPECT_TRUE(
      says(error(folder / "text.txt"), "text.txt", "neither a Hugging Face folder nor a GGUF"));
  write_bytes(folder / "empty", "");
  EXPECT_TRUE(says(error(folder / "empty"), "is empty"));
}

}  // namespace
}  // namespace faststream::convert
