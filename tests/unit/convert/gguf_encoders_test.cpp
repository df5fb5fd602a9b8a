// What GGUF metadata and tensors say of encoders, of vectors and of scores; what is computed is in
// tests/golden.
#include "convert/gguf/gguf_encoders.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/convert/described_gguf.h"

namespace faststream::convert {
namespace {

class GgufEncoders : public DescribedGguf {
 protected:
  void begin(const std::string& architecture) {
    prefix_ = architecture + ".";
    gguf_ = GgufBuilder();
    gguf_.add("general.architecture", architecture);
    set("block_count", 4U);
    set("context_length", 64U);
    set("embedding_length", 16U);
    set("feed_forward_length", 24U);
    set("attention.head_count", 4U);
    set("attention.layer_norm_epsilon", 1e-5F);
    for (const char* norm : {"token_embd_norm", "blk.0.attn_output_norm"}) {
      tensor(std::string(norm) + ".weight", {16});
      tensor(std::string(norm) + ".bias", {16});
    }
    tensor("token_embd.weight", {10, 16});
    tensor("blk.0.ffn_up.weight", {24, 16});
  }
  // BERT's, but for its classifier.
  void begin_bert() {
    begin("bert");
    tensor("position_embd.weight", {64, 16});
    tensor("token_types.weight", {1, 16});
  }
};

TEST_F(GgufEncoders, MakeVectorsAsTheyArePooled) {
  begin_bert();
  const auto pooling = [&] { return describe().config.pooling; };
  EXPECT_FALSE(pooling()) << "nothing says how";
  for (const auto& [type, mode] : {std::pair(1U, Pooling::mean), std::pair(2U, Pooling::first),
                                   std::pair(3U, Pooling::last)}) {
    set("pooling_type", type);
    ASSERT_TRUE(pooling());
    EXPECT_EQ(pooling()->mode, mode);
    EXPECT_FALSE(pooling()->scores || pooling()->normalize);
  }
  set("pooling_type", 0U);
  EXPECT_FALSE(pooling());
  set("pooling_type", 4U);
  EXPECT_TRUE(says(error(), "m.gguf", "bert.pooling_type", "classifier"));
  set("pooling_type", 9U);
  EXPECT_TRUE(says(error(), "bert.pooling_type", "is 9"));
}

TEST_F(GgufEncoders, ScoreLabelsBehindTheHeadThatIsTheirs) {
  begin_bert();
  tensor("cls.output.weight", {1, 16});
  EXPECT_TRUE(says(error(), "m.gguf", "without the product before it", "Hugging Face"));
  tensor("cls.weight", {16, 16});
  tensor("cls.bias", {16});
  PoolingConfig scores = *describe().config.pooling;
  EXPECT_TRUE(scores.scores && scores.sigmoid);
  ASSERT_EQ(scores.dense.size(), 2U);
  EXPECT_EQ(scores.dense[0].activation, Activation::tanh);
  EXPECT_TRUE(scores.dense[0].bias);
  EXPECT_EQ(scores.dense[1].size, 1);
  EXPECT_FALSE(scores.dense[1].bias);

  begin("bert");  // DistilBERT, which has no segments
  tensor("position_embd.weight", {64, 16});
  tensor("cls.weight", {16, 16});
  tensor("cls.output.weight", {3, 16});
  scores = *describe().config.pooling;
  EXPECT_FALSE(scores.sigmoid);
  EXPECT_EQ(scores.dense[0].activation, Activation::relu);

  begin_bert();
  tensor("cls.weight", {16});  // one label by itself, as Jina's first rankers
  EXPECT_TRUE(says(error(), "without the product before it"));
}

TEST_F(GgufEncoders, PassOverTheHeadOfMaskedWords) {
  begin("modern-bert");
  tensor("output_norm.weight", {16});
  tensor("cls.weight", {16, 16});
  tensor("cls.norm.weight", {16});
  const GgufFamilyModel model = describe();
  EXPECT_FALSE(model.config.pooling);
  EXPECT_TRUE(std::ranges::find(model.modules.unused, "cls.norm.weight") !=
              model.modules.unused.end());
}

TEST_F(GgufEncoders, ModernBertHasItsWindowsBehindALayerWithout) {
  begin("modern-bert");
  tensor("output_norm.weight", {16});
  tensor("blk.1.attn_norm.weight", {16});
  set("attention.sliding_window", 12U);
  const ModelConfig config = describe().config;
  std::vector<int64_t> windows;
  for (int64_t n = 0; n < 4; ++n) windows.push_back(config.layer(n).attention().window);
  EXPECT_EQ(windows, (std::vector<int64_t>{0, 7, 7, 0})) << "six tokens to each side";
  EXPECT_FALSE(config.layer(0).mixer_norms.before);
  EXPECT_TRUE(config.layer(1).mixer_norms.before);
  EXPECT_EQ(config.layer(0).ffn.activation, Activation::gelu);
  set("hidden_activation", "silu");
  EXPECT_EQ(describe().config.layer(0).ffn.activation, Activation::silu);
  set("hidden_activation", "new");
  EXPECT_TRUE(says(error(), "modern-bert.hidden_activation", "\"new\""));
}

TEST_F(GgufEncoders, JinasModelsOfCodeAreRefused) {
  begin("jina-bert-v2");
  EXPECT_EQ(describe().config.layer(0).attention().slopes.size(), 4U);
  tensor("blk.0.attn_q_norm.weight", {16});
  EXPECT_TRUE(says(error(), "m.gguf", "models of code"));
}

TEST_F(GgufEncoders, DecodersMakeVectorsInPlaceOfTexts) {
  begin("qwen3");
  tensor("output_norm.weight", {16});
  tensor("output.weight", {10, 16});
  EXPECT_FALSE(describe().config.output.none);
  set("pooling_type", 3U);
  GgufFamilyModel model = describe();
  EXPECT_TRUE(model.config.output.none && model.config.pooling);
  EXPECT_FALSE(model.config.layer(0).attention().bidirectional);
  EXPECT_TRUE(std::ranges::find(model.modules.unused, "output.weight") !=
              model.modules.unused.end());
  gguf_.add("qwen3.attention.causal", false);
  EXPECT_TRUE(describe().config.layer(0).attention().bidirectional);
  set("pooling_type", 0U);
  EXPECT_NE(error(), "") << "no text can be written that way";
  tensor("cls.output.weight", {2, 16});
  EXPECT_TRUE(says(error(), "m.gguf", "decoder that ranks"));
}

// The encoder alone, and with a decoder.
TEST_F(GgufEncoders, T5sStacksAreOfTheirOwnLengths) {
  const auto begin_t5 = [&](const std::string& architecture) {
    begin(architecture);
    set("attention.layer_norm_rms_epsilon", 1e-6F);
    set("attention.key_length", 6U);
    set("attention.relative_buckets_count", 8U);
    set("decoder_block_count", 2U);
  };
  begin_t5("t5");
  const ModelConfig both = describe().config;
  EXPECT_EQ(both.n_layers(), 2);
  EXPECT_EQ(both.encoder->n_layers(), 4);
  EXPECT_EQ(both.layer(0).ffn.activation, Activation::relu);
  EXPECT_EQ(both.max_context, 2048);
  EXPECT_TRUE(both.output.tied);
  set("decoder_start_token_id", 10U);
  EXPECT_TRUE(says(error(), "t5.decoder_start_token_id", "vocabulary"));
  set("decoder_start_token_id", 3U);
  EXPECT_EQ(describe().answers.start, 3);
  set("attention.value_length", 4U);
  EXPECT_TRUE(says(error(), "t5.attention.value_length"));
  begin_t5("t5encoder");
  tensor("enc.blk.0.ffn_gate.weight", {24, 16});
  set("pooling_type", 1U);
  const ModelConfig alone = describe().config;
  EXPECT_EQ(alone.n_layers(), 4);
  EXPECT_TRUE(alone.output.none && alone.pooling && alone.layer(0).attention().bidirectional);
  EXPECT_EQ(alone.layer(0).ffn.activation, Activation::gelu_tanh);
}

}  // namespace
}  // namespace faststream::convert
