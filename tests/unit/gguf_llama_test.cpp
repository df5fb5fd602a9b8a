#include "convert/gguf/gguf_llama.h"

#include <gtest/gtest.h>

#include "gguf_files.h"

namespace faststream {
namespace {

class GgufLlama : public testing::Test {
 protected:
  GgufLlama() { add_tiny_gguf_tensors(gguf_); }

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

TEST_F(GgufLlama, TakesItsShapeFromTheMetadata) {
  gguf_.add("llama.rope.freq_base", 50000.0F);
  gguf_.add("tokenizer.chat_template", "{{ messages }}");
  const SourceModel model = open();
  EXPECT_EQ(model.config.n_layers, 2);
  EXPECT_EQ(model.config.hidden, 16);
  EXPECT_EQ(model.config.ffn_hidden, 24);
  EXPECT_EQ(model.config.n_heads, 4);
  EXPECT_EQ(model.config.n_kv_heads, 2);
  EXPECT_EQ(model.config.head_dim, 4);
  EXPECT_EQ(model.config.vocab, kTinyVocab);
  EXPECT_EQ(model.config.max_context, 64);
  EXPECT_EQ(model.config.norm_eps, 1e-5F);
  EXPECT_EQ(model.config.rope.theta, 50000);
  EXPECT_EQ(model.config.rope.scaling, "none");
  EXPECT_TRUE(model.config.tied_output);
  EXPECT_FALSE(model.config.attention_bias);
  EXPECT_EQ(model.config.weights, DType::f32);
  EXPECT_EQ(model.chat_template, "{{ messages }}");
}

TEST_F(GgufLlama, KeepsTheSamplingThatIsRecommended) {
  EXPECT_TRUE(open().sampling.is_null());
  gguf_.add("general.sampling.temp", 0.5F).add("general.sampling.top_k", 7U);
  EXPECT_EQ(open().sampling, nlohmann::json({{"temperature", 0.5}, {"top_k", 7}}));
  gguf_.add("general.sampling.temp", -1.0F);
  EXPECT_TRUE(says(error(), "m.gguf", "temperature"));
}

TEST_F(GgufLlama, HasAnOutputMatrixAndBiasesWhereTheTensorsAreThere) {
  gguf_.floats("output.weight", {kTinyVocab, 16}, random_values(kTinyVocab * 16, 1));
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    gguf_.floats(layer + "attn_q.bias", {16}, random_values(16, 1));
    gguf_.floats(layer + "attn_k.bias", {8}, random_values(8, 1));
    gguf_.floats(layer + "attn_v.bias", {8}, random_values(8, 1));
  }
  EXPECT_TRUE(says(error(), "\"blk.0.attn_output.bias\"", "missing"));
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    gguf_.floats(layer + "attn_output.bias", {16}, random_values(16, 1));
  }
  const SourceModel model = open();
  EXPECT_FALSE(model.config.tied_output);
  EXPECT_TRUE(model.config.attention_bias);
}

TEST_F(GgufLlama, KnowsLinearScaling) {
  gguf_.add("llama.rope.scaling.type", "linear").add("llama.rope.scaling.factor", 4.0F);
  EXPECT_EQ(open().config.rope.scaling, "linear");
  EXPECT_EQ(open().config.rope.factor, 4);
  gguf_.add("llama.rope.scaling.type", "yarn");
  EXPECT_TRUE(says(error(), "llama.rope.scaling.type", "\"yarn\""));
}

TEST_F(GgufLlama, FindsWhatFrequencyFactorsWereComputedFrom) {
  RopeConfig rope;
  rope.scaling = "llama3";
  rope.factor = 8;
  rope.original_max_context = 512;
  const std::vector<float> scaled = rope_inv_freq(rope, 4);
  const std::vector<float> plain = rope_inv_freq({}, 4);
  const GgufBuilder other = gguf_;
  gguf_.floats("rope_freqs.weight", {2}, {plain[0] / scaled[0], plain[1] / scaled[1]});
  const RopeConfig found = open().config.rope;
  EXPECT_EQ(found.scaling, "llama3");
  EXPECT_EQ(found.factor, 8);
  EXPECT_EQ(rope_inv_freq(found, 4), scaled);

  gguf_ = other;
  gguf_.floats("rope_freqs.weight", {2}, {1, 1});
  EXPECT_EQ(open().config.rope.scaling, "none");
  for (const std::vector<float>& factors :
       {std::vector<float>{8, 1}, {0, 0}, {NAN, 1}, {-1, -1}, {1, INFINITY}, {0.5F, 0.5F}}) {
    gguf_ = other;
    gguf_.floats("rope_freqs.weight", {2}, factors);
    EXPECT_TRUE(says(error(), "rope_freqs.weight", "not supported")) << factors[0];
  }
  gguf_ = other;
  gguf_.floats("rope_freqs.weight", {3}, {1, 1, 1});
  EXPECT_TRUE(says(error(), "rope_freqs.weight", "shape"));
}

TEST_F(GgufLlama, RefusesWhatItDoesNotDo) {
  const GgufBuilder sound = gguf_;
  const auto error_with = [&](const char* key, auto value) {
    gguf_ = sound;
    gguf_.add(key, value);
    return error();
  };
  EXPECT_TRUE(says(error_with("general.architecture", "qwen3"), "m.gguf", "\"qwen3\""));
  EXPECT_TRUE(says(error_with("llama.expert_count", 8U), "experts"));
  EXPECT_TRUE(says(error_with("llama.rope.dimension_count", 2U), "partial rotary"));
  EXPECT_TRUE(says(error_with("llama.attention.value_length", 8U), "two lengths"));
  EXPECT_TRUE(says(error_with("llama.attention.scale", 0.5F), "scaling"));
  EXPECT_TRUE(says(error_with("llama.block_count", 0U), "n_layers"));
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
}  // namespace faststream
