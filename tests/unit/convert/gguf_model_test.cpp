#include "convert/gguf/gguf_model.h"

#include <gtest/gtest.h>

#include "unit/convert/gguf_files.h"

namespace faststream::convert {
namespace {

class GgufModelTest : public testing::Test {
 protected:
  GgufModelTest() { add_tiny_gguf_tensors(gguf_); }

  SourceModel open() const {
    write_bytes(path_, gguf_.bytes());
    return open_source_model(path_, std::nullopt);
  }
  std::string error() const {
    return error_of([&] { open(); });
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "m.gguf";
  GgufBuilder gguf_ = tiny_gguf_metadata();
};

TEST_F(GgufModelTest, TakesItsShapeFromTheMetadata) {
  gguf_.add("llama.rope.freq_base", 50000.0F);
  gguf_.add("tokenizer.chat_template", "{{ messages }}");
  const SourceModel model = open();
  ModelConfig expected = plain_decoder({.n_layers = 2,
                                        .hidden = 16,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 4,
                                        .ffn_hidden = 24,
                                        .vocab = kTinyVocab,
                                        .max_context = 64,
                                        .rope_theta = 50000});
  expected.output.tied = true;
  EXPECT_EQ(config_to_json(model.config), config_to_json(expected));
  EXPECT_EQ(model.chat_template, "{{ messages }}");
}

TEST_F(GgufModelTest, KeepsTheSamplingThatIsRecommended) {
  EXPECT_TRUE(open().sampling.is_null());
  gguf_.add("general.sampling.temp", 0.5F).add("general.sampling.top_k", 7U);
  EXPECT_EQ(open().sampling, nlohmann::json({{"temperature", 0.5}, {"top_k", 7}}));
  gguf_.add("general.sampling.temp", -1.0F);
  EXPECT_TRUE(says(error(), "m.gguf", "temperature"));
}

TEST_F(GgufModelTest, HasAnOutputMatrixAndBiasesWhereTheTensorsAreThere) {
  gguf_.floats("output.weight", {kTinyVocab, 16}, random_values(kTinyVocab * 16, 1));
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    gguf_.floats(layer + "attn_q.bias", {16}, random_values(16, 1));
    gguf_.floats(layer + "attn_k.bias", {8}, random_values(8, 1));
    gguf_.floats(layer + "attn_v.bias", {8}, random_values(8, 1));
  }
  const SourceModel model = open();
  EXPECT_FALSE(model.config.output.tied);
  EXPECT_TRUE(model.config.layer(0).attention().qkv_bias);
  EXPECT_FALSE(model.config.layer(0).attention().out_bias);
}

TEST_F(GgufModelTest, KnowsLinearScaling) {
  gguf_.add("llama.rope.scaling.type", "linear").add("llama.rope.scaling.factor", 4.0F);
  const std::vector<float> plain = plain_frequencies(10000, 4);
  EXPECT_EQ(open().config.ropes[0].frequencies, (std::vector{plain[0] / 4, plain[1] / 4}));
  gguf_.add("llama.rope.scaling.type", "strange");
  EXPECT_TRUE(says(error(), "llama.rope.scaling.type", "\"strange\""));
}

TEST_F(GgufModelTest, DividesFrequenciesByTheirFactors) {
  const std::vector<float> plain = plain_frequencies(10000, 4);
  const GgufBuilder other = gguf_;
  gguf_.floats("rope_freqs.weight", {2}, {1, 8});
  EXPECT_EQ(open().config.ropes[0].frequencies, (std::vector{plain[0], plain[1] / 8}));
  for (const float factor : {0.0F, -1.0F, NAN, INFINITY}) {
    gguf_ = other;
    gguf_.floats("rope_freqs.weight", {2}, {1, factor});
    EXPECT_TRUE(says(error(), "rope_freqs.weight", "factor")) << factor;
  }
  gguf_ = other;
  gguf_.floats("rope_freqs.weight", {3}, {1, 1, 1});
  EXPECT_TRUE(says(error(), "rope_freqs.weight", "shape"));
}

TEST_F(GgufModelTest, RefusesWhatItDoesNotDo) {
  const GgufBuilder sound = gguf_;
  const auto error_with = [&](const char* key, auto value) {
    gguf_ = sound;
    gguf_.add(key, value);
    return error();
  };
  EXPECT_TRUE(says(error_with("general.architecture", "rwkv"), "m.gguf", "\"rwkv\"", "README"));
  EXPECT_TRUE(says(error_with("general.type", "adapter"), "m.gguf", "is an adapter and no model"));
  EXPECT_TRUE(says(error_with("llama.expert_count", 8U), "expert_used_count", "missing"));
  EXPECT_TRUE(says(error_with("llama.rope.dimension_count", 5U), "dimension_count", "1 to 4"));
  EXPECT_TRUE(says(error_with("llama.attention.value_length", 8U), "two lengths"));
  EXPECT_TRUE(says(error_with("llama.attention.scale", 0.5F), "scaling"));
  EXPECT_TRUE(says(error_with("llama.block_count", 0U), "llama.block_count"));
  EXPECT_TRUE(says(error_with("llama.block_count", 3U), "\"blk.2."));
  EXPECT_TRUE(says(error_with("llama.block_count", 1U), "\"blk.1.", "no place"));
  EXPECT_TRUE(says(error_with("llama.embedding_length", 18U), "not a multiple"));
  gguf_ = sound;
  gguf_.add_array<uint32_t>("llama.attention.head_count_kv", GgufType::u32, {2, 4});
  EXPECT_TRUE(says(error(), "head_count_kv", "from layer to layer"));
  for (const char* key : {"general.architecture", "llama.block_count", "llama.context_length",
                          "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.model"}) {
    gguf_ = sound;
    gguf_.remove(key);
    EXPECT_TRUE(says(error(), key, "missing"));
  }
}

}  // namespace
}  // namespace faststream::convert
