#include "models/tensor_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "unit/models/descriptions.h"

namespace faststream {
namespace {

std::vector<ModelConfig> all_descriptions() {
  return {small_decoder(), rich_decoder(),     latent_decoder(),  small_hybrid(),
          small_encoder(), small_translator(), small_predictor(), joining_predictor()};
}

const TensorPlan& tensor(const std::vector<TensorPlan>& plans, const std::string& name) {
  return *std::ranges::find(plans, name, &TensorPlan::name);
}

TEST(TensorPlan, CountsTheParametersOfLlama2) {
  const ModelConfig config = plain_decoder({.n_layers = 32,
                                            .hidden = 4096,
                                            .n_heads = 32,
                                            .n_kv_heads = 32,
                                            .head_dim = 128,
                                            .ffn_hidden = 11008,
                                            .vocab = 32000,
                                            .max_context = 4096});
  int64_t parameters = 0;
  for (const TensorPlan& tensor : tensor_plan(config)) {
    int64_t elements = 1;
    for (const int64_t n : tensor.shape) elements *= n;
    parameters += elements;
  }
  EXPECT_EQ(parameters, 6738415616);
}

TEST(TensorPlan, HasWhatTheDescriptionAsksForOnce) {
  std::set<std::string> names;
  for (const TensorPlan& tensor : tensor_plan(rich_decoder())) {
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
  }
  for (const char* name : {"positions",
                           "segments",
                           "embedding_norm_bias",
                           "layers.0.attention_sinks",
                           "layers.0.ffn_up.scales",
                           "layers.0.ffn_up_bias",
                           "layers.1.router_bias",
                           "layers.1.router_correction",
                           "layers.2.experts_gate_up",
                           "layers.2.shared_gate",
                           "layers.3.attention_stream_norm",
                           "output_bias",
                           "layer_inputs",
                           "layer_inputs_projection",
                           "layers.4.experts_after_norm_bias",
                           "layers.4.stream_scale",
                           "layers.0.input_gate",
                           "layers.0.input_scale",
                           "altup_in",
                           "altup_out",
                           "layers.3.altup_gates",
                           "layers.0.altup_predict_bias",
                           "layers.0.laurel_out",
                           "layers.3.laurel_norm_bias"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_FALSE(names.contains("output")) << "it is tied";
  EXPECT_FALSE(names.contains("layers.1.ffn_up"));
  ModelConfig bent = small_decoder();
  bent.layer_kinds[0].ffn = {
      .size = 8, .gated = false, .activation = Activation::none, .xielu = true};
  EXPECT_TRUE(std::ranges::any_of(tensor_plan(bent), [](const TensorPlan& tensor) {
    return tensor.name == "layers.1.ffn_xielu";
  }));
  EXPECT_FALSE(names.contains("layers.4.attention_k_norm")) << "its keys are another layer's";
  names.clear();
  for (const TensorPlan& tensor : tensor_plan(small_translator())) names.insert(tensor.name);
  for (const char* name : {"layers.1.cross_norm", "layers.0.cross_kv", "encoder.layers.1.ffn_down",
                           "encoder.layers.0.attention_distances"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_FALSE(names.contains("encoder.embedding")) << "it is the decoder's";
  EXPECT_EQ(tensor_plan(small_encoder()).back().name, "dense.0_norm");
  ModelConfig narrow = small_encoder();
  narrow.embedding.size = 12;
  narrow.embedding.norm = {.kind = NormKind::layer, .eps = 1e-5F};
  narrow.embedding.segments = 2;
  validate(narrow, "test");
  const std::vector<TensorPlan> of_narrow = tensor_plan(narrow);
  EXPECT_EQ(tensor(of_narrow, "embedding").shape, (std::vector<int64_t>{narrow.vocab, 12}));
  EXPECT_EQ(tensor(of_narrow, "segments").shape, (std::vector<int64_t>{2, 12}));
  EXPECT_EQ(tensor(of_narrow, "embedding_norm").shape, std::vector<int64_t>{12});
  EXPECT_EQ(tensor(of_narrow, "embedding_projection").shape,
            (std::vector<int64_t>{narrow.hidden, 12}));
  const std::vector<TensorPlan> scoring = tensor_plan(scoring_encoder());
  const AttentionConfig scored = scoring_encoder().layer(0).attention();
  for (const char* name :
       {"layers.0.attention_relative_keys", "layers.0.attention_relative_queries"}) {
    EXPECT_EQ(tensor(scoring, name).shape, (std::vector{8 * scored.n_heads, scored.head_dim}));
    EXPECT_EQ(tensor(scoring, name).blocks, scored.n_heads) << name;
  }
  const int64_t hidden = scoring_encoder().hidden;
  EXPECT_EQ(tensor(scoring, "layers.0.token_convolution").shape,
            (std::vector<int64_t>{hidden, 3 * hidden}));
  EXPECT_EQ(tensor(scoring, "layers.0.token_convolution_norm_bias").shape,
            std::vector<int64_t>{hidden});
  names.clear();
  const std::vector<TensorPlan> predicting = tensor_plan(small_predictor());
  for (const TensorPlan& tensor : predicting) names.insert(tensor.name);
  for (const char* name : {"predictors.0.embedding_norm", "predictors.1.hidden_norm",
                           "predictors.1.layers.0.attention_qkv", "predictors.1.output"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  for (const char* name : {"predictors.0.embedding", "predictors.0.output"}) {
    EXPECT_FALSE(names.contains(name)) << name << " is the decoder's";
  }
  EXPECT_EQ(tensor(predicting, "predictors.0.hidden_projection").shape[1],
            2 * small_predictor().hidden);
  const std::vector<TensorPlan> joining = tensor_plan(joining_predictor());
  const int64_t two = 2 * joining_predictor().hidden;
  EXPECT_EQ(tensor(joining, "predictors.0.layer_states_norm").shape, std::vector{two});
  EXPECT_EQ(tensor(joining, "predictors.0.layer_states_projection").shape[1], two);
  EXPECT_EQ(tensor(joining, "predictors.0.layers.0.attention_qkv").shape[1], two);
  EXPECT_EQ(tensor(joining, "predictors.0.output").shape[0], 3);
}

TEST(TensorPlan, HasAPlaceInTheDocumentForEachKind) {
  const std::filesystem::path tests = std::getenv("FASTSTREAM_TEST_DATA");
  std::ifstream file(tests / "../docs/model-file.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t table = text.find("| name | shape | type |");
  ASSERT_NE(table, std::string::npos);
  size_t place = table;
  for (int kind = 0; kind <= static_cast<int>(TensorKind::output); ++kind) {
    std::string name = tensor_name({.kind = static_cast<TensorKind>(kind)});
    for (const std::string layer : {"layers.0.", "dense.0"}) {
      const size_t at = name.find(layer);
      if (at != std::string::npos)
        name = name.replace(at, layer.size(), layer == "dense.0" ? "dense.N" : "");
    }
    const size_t at = text.find(name + "`", table);
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GE(at, place) << name << " stands in another order in the file";
    place = at;
  }
}

TEST(TensorPlan, NeverRotatesProductsOfHeads) {
  for (const int64_t n_heads : {4, 1}) {
    ModelConfig config = latent_decoder();
    config.weight_format = WeightFormat::int8;
    config.rotated = config.values_rotated = true;
    for (LayerConfig& layer : config.layer_kinds) {
      layer.get<LatentAttentionConfig>().n_heads = n_heads;
    }
    const std::vector<TensorPlan> plans = tensor_plan(config);
    EXPECT_TRUE(tensor(plans, "layers.0.latent_q").rotated);
    EXPECT_TRUE(tensor(plans, "layers.0.latent_kv").rotated);
    for (const char* name : {"layers.0.latent_k", "layers.1.latent_v"}) {
      EXPECT_FALSE(tensor(plans, name).rotated) << name;
      EXPECT_EQ(tensor(plans, name).blocks, n_heads) << name;
    }
    EXPECT_EQ(tensor(plans, "layers.0.latent_v").heads.dim, 12) << "rotated at conversion";
    EXPECT_TRUE(tensor(plans, "layers.0.attention_out").heads.columns);
    EXPECT_EQ(tensor(plans, "layers.1.latent_q").shape, (std::vector<int64_t>{16 * n_heads, 64}));
  }
}

TEST(TensorPlan, TellsWhoseProductsReadATensor) {
  const std::vector<TensorPlan> plain = tensor_plan(small_decoder());
  EXPECT_EQ(tensor(plain, "embedding").readers, TensorReaders::lookup);
  EXPECT_FALSE(tensor(plain, "embedding").is_multiplied());
  EXPECT_EQ(tensor(plain, "layers.0.ffn_down").readers, TensorReaders::all);
  EXPECT_EQ(tensor(plain, "layers.1.attention_out").readers, TensorReaders::all);
  EXPECT_EQ(tensor(plain, "layers.1.ffn_down").readers, TensorReaders::wanted);
  EXPECT_EQ(tensor(plain, "output").readers, TensorReaders::wanted);

  const std::vector<TensorPlan> tied = tensor_plan(rich_decoder());
  EXPECT_EQ(tensor(tied, "embedding").readers, TensorReaders::wanted);
  EXPECT_TRUE(tensor(tied, "embedding").is_multiplied());
  EXPECT_EQ(tensor(tied, "positions").readers, TensorReaders::lookup);

  for (const TensorPlan& plan : tensor_plan(small_encoder())) {
    if (!is_of_layers(plan.id.kind)) continue;
    EXPECT_EQ(plan.readers, TensorReaders::all) << plan.name;
  }
  ModelConfig parallel = small_decoder();
  parallel.layer_kinds[0].parallel = true;
  EXPECT_EQ(tensor(tensor_plan(parallel), "layers.1.ffn_down").readers, TensorReaders::all);
}

TEST(TensorPlan, TellsWhatFollowsAProduct) {
  const auto follows = [](const std::vector<TensorPlan>& plans, const char* name) {
    const TensorPlan& plan = tensor(plans, name);
    return std::pair(plan.gated, plan.activation);
  };
  const std::vector<TensorPlan> rich = tensor_plan(rich_decoder());
  EXPECT_EQ(follows(rich, "layers.0.ffn_up"), std::pair(false, Activation::relu_squared));
  EXPECT_EQ(follows(rich, "layers.0.ffn_down"), std::pair(false, Activation::none));
  EXPECT_EQ(follows(rich, "layers.1.experts_gate_up"), std::pair(true, Activation::swiglu_clamped));
  EXPECT_EQ(follows(rich, "layers.1.shared_gate_up"), std::pair(true, Activation::silu_clamped));
  EXPECT_EQ(follows(tensor_plan(small_encoder()), "dense.0"), std::pair(false, Activation::tanh));
}

TEST(TensorPlan, SplitsWhatIsMultipliedIntoPartsThatAreAllOfIt) {
  for (const ModelConfig& config : all_descriptions()) {
    for (const TensorPlan& plan : tensor_plan(config)) {
      const SplitRule& split = plan.split;
      if (split.by == SplitBy::none) continue;
      const int64_t extent = plan.shape[split.columns ? 1 : 0];
      int64_t sum = 0;
      for (const SplitRule::Part& part : split.parts) {
        sum += part.extent * split.repeats;
      }
      EXPECT_EQ(sum, extent) << plan.name;
    }
  }
}

// Products with all shares of a matrix' columns need those shares of its input, which are what the
// shares of rows of the matrix before give.
TEST(TensorPlan, SplitsInputsAsWhatGivesThem) {
  for (const ModelConfig& config : all_descriptions()) {
    std::map<TensorId, SplitRule> rules;
    for (const TensorPlan& plan : tensor_plan(config)) rules[plan.id] = plan.split;
    for (const auto& [id, rule] : rules) {
      TensorId before = id;
      if (id.member != TensorMember::weights) continue;
      if (id.kind == TensorKind::attention_out) {
        const bool is_latent = config.layer(id.n).find<LatentAttentionConfig>() != nullptr;
        before.kind = is_latent ? TensorKind::latent_v : TensorKind::attention_qkv;
      }
      if (id.kind == TensorKind::cross_out) before.kind = TensorKind::cross_q;
      if (id.kind == TensorKind::ffn_down) {
        before.kind = ffn_tensors(config.layer(id.n).ffn).up;
      }
      if (before == id || !rules.contains(before)) continue;
      EXPECT_TRUE(rule.columns);
      EXPECT_FALSE(rules[before].columns);
      const auto units = [](const SplitRule::Part& part) {
        return (part.extent + part.unit - 1) / part.unit;
      };
      EXPECT_EQ(units(rule.parts[0]), units(rules[before].parts[0])) << tensor_name(id);
    }
  }
}

TEST(TensorSizes, CountScalesAndWhatIsMultipliedAsBitsOfWeights) {
  const TensorPlan matrix{.format = WeightFormat::int8, .shape = {4, 16}};
  const TensorPlan scales{.shape = {4}, .role = TensorRole::scales};
  const TensorPlan norm{.shape = {16}, .role = TensorRole::norm};
  TensorPlan table{.format = WeightFormat::bf16, .shape = {10, 16}, .role = TensorRole::table};
  table.readers = TensorReaders::lookup;
  TensorSizes sizes = sizes_of(std::vector{matrix, scales, norm, table});
  EXPECT_EQ(sizes.bytes, 64U + 16U + 64U + 320U);
  EXPECT_EQ(sizes.bits_a_weight, 8.0 * (64 + 16) / 64);
  table.readers = TensorReaders::wanted;  // the output matrix, too
  sizes = sizes_of(std::vector{matrix, scales, norm, table});
  EXPECT_EQ(sizes.bits_a_weight, 8.0 * (64 + 16 + 320) / (64 + 160));
  EXPECT_EQ(sizes_of({}).bits_a_weight, 0);
}

TEST(SplitRule, GivesEachRankItsUnitsOfEachPart) {
  using Shares = std::vector<SplitShare>;
  const SplitRule qkv{.by = SplitBy::head, .parts = {{{64, 32, 16}, {32, 16}, {16, 8}}}};
  EXPECT_EQ(shares_of(qkv, {0, 1}), (Shares{{0, 64}, {64, 32}, {96, 16}}));
  EXPECT_EQ(shares_of(qkv, {1, 2}), (Shares{{32, 32}, {80, 16}, {104, 8}}));
  EXPECT_EQ(shares_of(qkv, {3, 4}), (Shares{{48, 16}, {80, 16}, {104, 8}}))
      << "two ranks have the same of two key heads each, and one of its two heads";
  EXPECT_EQ(shares_of(qkv, {2, 4}), (Shares{{32, 16}, {80, 16}, {104, 8}}));
  EXPECT_EQ(shares_of(qkv, {1, 4}), (Shares{{16, 16}, {64, 16}, {96, 8}}));
  EXPECT_EQ(shares_of(qkv, {1, 3}), (Shares{{16, 16}, {64, 16}, {96, 8}}));
  EXPECT_EQ(shares_of(qkv, {2, 3}), (Shares{{32, 32}, {80, 16}, {104, 8}}));
  EXPECT_EQ(shares_of(qkv, {4, 6})[0].count, 0) << "three ranks cannot share two heads";
  const SplitRule vocabulary{.by = SplitBy::vocabulary, .parts = {{{10}}}};
  EXPECT_EQ(shares_of(vocabulary, {0, 3}), (Shares{{0, 3}}));
  EXPECT_EQ(shares_of(vocabulary, {1, 3}), (Shares{{3, 3}}));
  EXPECT_EQ(shares_of(vocabulary, {2, 3}), (Shares{{6, 4}}));
  const SplitRule columns{.by = SplitBy::input, .columns = true, .parts = {{{576, 256}}}};
  EXPECT_EQ(shares_of(columns, {0, 2}), (Shares{{0, 256}}));
  EXPECT_EQ(shares_of(columns, {1, 2}), (Shares{{256, 320}})) << "what is left of a block, too";
  const SplitRule of_experts{.by = SplitBy::output, .parts = {{{8}, {8}}}, .repeats = 2};
  EXPECT_EQ(shares_of(of_experts, {1, 2}), (Shares{{4, 4}, {12, 4}, {20, 4}, {28, 4}}));
}

}  // namespace
}  // namespace faststream
