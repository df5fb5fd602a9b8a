#include "models/config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/error.h"
#include "unit/models/descriptions.h"

namespace faststream {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfig, SurvivesJson) {
  for (const ModelConfig& config :
       {small_decoder(), rich_decoder(), latent_decoder(), small_hybrid(), small_encoder(),
        scoring_encoder(), small_translator(), small_predictor(), joining_predictor()}) {
    const nlohmann::json json = config_to_json(config);
    const ModelConfig again = config_from_json(json, "test");
    EXPECT_EQ(again.layer_kinds, config.layer_kinds);
    EXPECT_EQ(again.ropes, config.ropes);
    EXPECT_EQ(again.layers, config.layers);
    EXPECT_EQ(again.layer_inputs, config.layer_inputs);
    EXPECT_EQ(again.pooling, config.pooling);
    EXPECT_EQ(again.output, config.output);
    EXPECT_EQ(config_to_json(again), json);
  }
}

TEST(ModelConfig, LeavesOutWhatIsNotSpecial) {
  const nlohmann::json json = config_to_json(small_decoder());
  EXPECT_EQ(json["layer_kinds"][0]["attention"],
            nlohmann::json::parse(R"({"head_dim": 16, "n_heads": 4, "n_kv_heads": 2,
                                      "rope": "rope", "scale": 0.25})"));
  EXPECT_EQ(json["layers"], nlohmann::json({"layer", "layer"}));
  EXPECT_FALSE(json.contains("embedding"));
}

// Calls action(damaged, path) with `json` in which one member, somewhere, is `replacement`.
void damage_each(nlohmann::json& whole, nlohmann::json& part, const std::string& path,
                 const nlohmann::json& replacement,
                 const std::function<void(const std::string&)>& action) {
  for (auto& [key, value] : part.items()) {
    const nlohmann::json sound = value;
    value = replacement;
    action(path + "." + key);
    value = sound;
    if (value.is_structured()) damage_each(whole, value, path + "." + key, replacement, action);
  }
}

TEST(ModelConfig, RefusesEveryMemberOfAnotherTypeOrOutOfRange) {
  for (const nlohmann::json& wrong :
       {nlohmann::json::parse("[[]]"), nlohmann::json(-1), nlohmann::json(1e300),
        nlohmann::json(UINT64_MAX), nlohmann::json("seven")}) {
    nlohmann::json json = config_to_json(rich_decoder());
    damage_each(json, json, "", wrong, [&](const std::string& path) {
      // Numbers may be negative where a factor is asked for, and names are free.
      const bool may_be = path.ends_with("name") || path.ends_with("multiplier") ||
                          path.ends_with("scale") || path.ends_with("cutoff") ||
                          path.ends_with("prompt") || path.find("slopes") != std::string::npos ||
                          path.ends_with("attention_factor");
      if (may_be) return;
      EXPECT_TRUE(message_of([&] { config_from_json(json, "model.bin"); }).starts_with("model.bin"))
          << path << " = " << wrong;
    });
  }
}

TEST(ModelConfig, RefusesMembersThatItDoesNotKnow) {
  nlohmann::json json = config_to_json(rich_decoder());
  json["layer_kinds"][1]["experts"]["router"]["noise"] = 1;
  EXPECT_NE(message_of([&] { config_from_json(json, "model.bin"); }).find("noise"),
            std::string::npos);
}

TEST(ModelConfig, RefusesLatentAttentionThatCannotBe) {
  const auto refused = [](const std::function<void(LatentAttentionConfig&)>& damage) {
    ModelConfig config = latent_decoder();
    damage(config.layer_kinds[0].get<LatentAttentionConfig>());
    return !message_of([&] { validate(config, "test"); }).empty();
  };
  EXPECT_FALSE(refused([](LatentAttentionConfig&) {}));
  EXPECT_TRUE(refused([](LatentAttentionConfig& a) { a.n_heads = 0; }));
  EXPECT_TRUE(refused([](LatentAttentionConfig& a) { a.q_rank = -1; }));
  EXPECT_TRUE(refused([](LatentAttentionConfig& a) { a.kv_rank = 0; }));
  EXPECT_TRUE(refused([](LatentAttentionConfig& a) { a.kv_rank = 17; })) << "an odd width";
  EXPECT_TRUE(refused([](LatentAttentionConfig& a) { a.kv_rank = 1020; })) << "too wide with rope";
  EXPECT_TRUE(refused([](LatentAttentionConfig& a) { a.rope_dim = 8; })) << "the rope has 6";
  EXPECT_TRUE(refused([](LatentAttentionConfig& a) { a.rope = 1; }));
  EXPECT_TRUE(refused([](LatentAttentionConfig& a) { a.latent_norm = {}; }));
  EXPECT_TRUE(refused([](LatentAttentionConfig& a) { a.scale = std::nanf(""); }));
}

TEST(ModelConfig, KeepsOneRowOfATokenForLatentAttention) {
  const KvGeometry kv = *kv_geometry(latent_decoder().layer_kinds[0]);
  EXPECT_EQ(kv.k_dim(), 24);
  EXPECT_EQ(kv.v_dim(), 0) << "values are in the keys";
  EXPECT_EQ(kv.v_head_dim, 18);
}

TEST(ModelConfig, RefusesMixersThatCannotBeSideBySide) {
  const auto refused = [](const std::function<void(std::vector<Mixer>&)>& damage) {
    ModelConfig config = small_hybrid();
    const auto kind = std::ranges::find(config.layer_kinds, "side by side", &LayerConfig::name);
    damage(kind->mixers);
    return !message_of([&] { validate(config, "test"); }).empty();
  };
  const Mixer delta_net = small_hybrid().layer_kinds[1].mixers[0];
  const Mixer latent = latent_decoder().layer_kinds[0].mixers[0];
  EXPECT_FALSE(refused([](std::vector<Mixer>&) {}));
  EXPECT_FALSE(refused([](std::vector<Mixer>& m) { m.pop_back(); }));
  EXPECT_TRUE(refused([](std::vector<Mixer>& m) { m.clear(); }));
  EXPECT_TRUE(refused([](std::vector<Mixer>& m) { m.push_back(m.back()); }));
  EXPECT_TRUE(refused([](std::vector<Mixer>& m) { std::swap(m[0], m[1]); })) << "another order";
  EXPECT_TRUE(refused([&](std::vector<Mixer>& m) { m[0] = delta_net; })) << "two states";
  EXPECT_TRUE(refused([&](std::vector<Mixer>& m) { m[1] = latent; })) << "keys and values twice";
  nlohmann::json json = config_to_json(small_hybrid());
  json["layer_kinds"][1].erase("delta_net");
  EXPECT_NE(message_of([&] { config_from_json(json, "model.bin"); }).find("no mixer"),
            std::string::npos);
}

TEST(ModelConfig, RefusesBlocksBesideTheStreamThatAreNotPlain) {
  const auto refused = [](const std::function<void(LayerConfig&)>& damage) {
    ModelConfig config = small_hybrid();
    damage(config.layer_kinds.back());
    return !message_of([&] { validate(config, "test"); }).empty();
  };
  EXPECT_FALSE(refused([](LayerConfig&) {}));
  EXPECT_TRUE(refused([](LayerConfig& l) { l.aside->attention.n_heads = 0; }));
  EXPECT_TRUE(refused([](LayerConfig& l) { l.aside->attention.rope = 7; }));
  EXPECT_TRUE(refused([](LayerConfig& l) { l.aside->attention.sinks = true; }));
  EXPECT_TRUE(refused([](LayerConfig& l) { l.aside->attention.kv_of = 0; }));
  EXPECT_TRUE(refused([](LayerConfig& l) { l.aside->ffn.size = 0; }));
  EXPECT_TRUE(refused([](LayerConfig& l) { l.parallel = true; }));
  EXPECT_TRUE(refused([](LayerConfig& l) { l.mixers = {AttentionConfig(l.aside->attention)}; }))
      << "keys and values twice";
}

TEST(ModelConfig, RefusesContradictions) {
  const auto refused = [](const std::function<void(ModelConfig&)>& damage) {
    ModelConfig config = rich_decoder();
    damage(config);
    return message_of([&] { validate(config, "test"); }) != "";
  };
  const auto attention = [&](const std::function<void(AttentionConfig&)>& damage) {
    return refused([&](ModelConfig& c) { damage(c.layer_kinds[0].attention()); });
  };
  const auto experts = [&](const std::function<void(ExpertsConfig&)>& damage) {
    return refused([&](ModelConfig& c) { damage(*c.layer_kinds[1].experts); });
  };
  const auto dense = [&](const DenseConfig& before_output) {
    return refused([&](ModelConfig& c) { c.output.dense = before_output; });
  };
  EXPECT_FALSE(refused([](ModelConfig&) {}));
  const int64_t hidden = rich_decoder().hidden;
  EXPECT_FALSE(dense({.size = hidden, .bias = true, .activation = Activation::gelu}));
  EXPECT_TRUE(dense({.size = hidden + 1, .norm = {}}));
  EXPECT_TRUE(dense({.size = hidden, .norm = {.kind = NormKind::rms, .eps = -1}}));
  const auto without_output = [&](int64_t dense_size) {
    return refused([&](ModelConfig& c) {
      c.output = {};
      c.output.none = true;
      c.output.dense.size = dense_size;
    });
  };
  EXPECT_FALSE(without_output(0));
  EXPECT_TRUE(without_output(hidden));
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.n_kv_heads = 3; }));
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.head_dim = 15; }));
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.head_dim = 4; })) << "the rope has 6";
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.value_head_dim = 0; }));
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.rope = 2; }));
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.slopes.pop_back(); }));
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.qk_norm = QkNorm::none; }));
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.qk_norm = QkNorm::whole; }))
      << "it is after rotation";
  EXPECT_TRUE(refused([](ModelConfig& c) { c.layer_kinds[0].ffn.xielu = true; }))
      << "it has an activation";
  EXPECT_TRUE(refused([](ModelConfig& c) { c.layer_kinds[0].ffn.cutoff = 1; }))
      << "it has no gates";
  EXPECT_TRUE(refused([](ModelConfig& c) { c.layer_kinds[0].laurel.norm = {}; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.layer_kinds[1].laurel = c.layer_kinds[0].laurel; }))
      << "its branches are parallel";
  EXPECT_TRUE(refused([](ModelConfig& c) { c.altup.streams = 1; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.altup.streams = kMostParts; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.altup.norm = {}; }));
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.router.margin = 1; })) << "they are sigmoids";
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.router.score = Router::Score::sparse_mixer; }))
      << "they are in groups";
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.each.cutoff = 1; }));
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.shared.gate_limit = -1; }));
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.router.soft_cap = -1; }));
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.shared.activation = Activation::softplus; }))
      << "it is of factors alone";
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.head_gate = true; })) << "there are no gates";
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.gate = Activation::silu_clamped; }));
  EXPECT_TRUE(experts(
      [](ExpertsConfig& e) { e.each.middle_norm = {.kind = NormKind::rms, .eps = 1e-6F}; }));
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.identities = 4; })) << "their inputs are weighed";
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.deferred = true; }))
      << "others follow that are, too";
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.window = 0; })) << "it is in blocks";
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.scale = std::nanf(""); }));
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.kv_of = 0; })) << "layer 0 is none before it";
  const auto of_layer_0 = [&](const std::function<void(AttentionConfig&)>& damage) {
    return refused([&](ModelConfig& c) { damage(c.layer_kinds[2].attention()); });
  };
  EXPECT_FALSE(of_layer_0([](AttentionConfig& a) { a.window = 100; }));
  EXPECT_TRUE(of_layer_0([](AttentionConfig& a) { a.window = 129; })) << "it has given these up";
  EXPECT_TRUE(of_layer_0([](AttentionConfig& a) { a.window = 0; }));
  EXPECT_TRUE(of_layer_0([](AttentionConfig& a) { a.n_kv_heads = 4; }));
  EXPECT_TRUE(of_layer_0([](AttentionConfig& a) { a.head_dim = 32; }));
  EXPECT_TRUE(of_layer_0([](AttentionConfig& a) { a.kv_of = 5; }));
  EXPECT_TRUE(refused([](ModelConfig& c) {
    c.layers.push_back(2), c.layer_kinds[2].attention().kv_of = 4;
  })) << "layer 4 has none of its own";
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.router.used = 5; })) << "two groups have 4";
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.norm.kind = NormKind::rms; })) << "it is parallel";
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.router.groups = 3; }));
  EXPECT_TRUE(experts([](ExpertsConfig& e) { e.shared = {}; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.layer_kinds[0].experts.emplace(); }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.layer_kinds[0].ffn.size = 0; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.layers.push_back(3); }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.layers.clear(); }));
  EXPECT_TRUE(refused([](ModelConfig& c) {
    AttentionConfig& heads = c.layer_kinds[0].attention();
    heads.n_heads = heads.n_kv_heads = 4096;
    heads.slopes.clear();
    c.layers.assign(65, 0);
  })) << "more heads than 2^18";
  EXPECT_TRUE(attention([](AttentionConfig& a) { a.bidirectional = true; })) << "it has an output";
  EXPECT_TRUE(refused([](ModelConfig& c) { c.output.none = true; })) << "it is tied";
  EXPECT_TRUE(refused([](ModelConfig& c) { c.pooling.emplace(); })) << "it has an output";
  EXPECT_TRUE(refused([](ModelConfig& c) {
    c = small_encoder();
    c.pooling->dense[0].size = 0;
  }));
  EXPECT_TRUE(refused([](ModelConfig& c) {
    c = small_encoder();
    c.pooling->max_tokens = c.max_context + 1;
  }));
  EXPECT_TRUE(refused([](ModelConfig& c) {
    c = small_encoder();
    c.pooling->dense_before = static_cast<int64_t>(c.pooling->dense.size()) + 1;
  }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.ropes[0].long_frequencies.pop_back(); }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.ropes[0].dynamic_factor = 2; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.ropes[1].original_max_context = 0; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.embedding.positions = 513; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.embedding_format = WeightFormat::int8; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.activation_bits = 4; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.rotated = true; })) << "activations have 16 bits";
  const auto rotated = [](WeightFormat format) {
    return [format](ModelConfig& c) {
      c.activation_bits = 8;
      c.weight_format = format;
      c.rotated = c.values_rotated = true;
    };
  };
  EXPECT_FALSE(refused(rotated(WeightFormat::int8)));
  EXPECT_TRUE(refused(rotated(WeightFormat::bf16)));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.values_rotated = true; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.output_format = WeightFormat::f32; })) << "it is tied";
}

TEST(ModelConfig, RefusesEncodersThatDoNotFit) {
  const auto refused = [](const std::function<void(ModelConfig&, ModelConfig&)>& damage) {
    ModelConfig config = small_translator();
    ModelConfig encoder = *config.encoder;
    damage(config, encoder);
    config.encoder = std::make_shared<const ModelConfig>(std::move(encoder));
    return message_of([&] { validate(config, "test"); }) != "";
  };
  EXPECT_FALSE(refused([](ModelConfig&, ModelConfig&) {}));
  EXPECT_TRUE(refused([](ModelConfig&, ModelConfig& e) { e.output.none = false; }));
  EXPECT_TRUE(refused([](ModelConfig&, ModelConfig& e) { e.hidden = 32; })) << "it is shared";
  EXPECT_FALSE(refused([](ModelConfig& c, ModelConfig& e) {
    c.layer_kinds[0].attention().window = e.layer_kinds[0].attention().window = 9;
  }));
  EXPECT_TRUE(
      refused([](ModelConfig&, ModelConfig& e) { e.layer_kinds[0].attention().n_kv_heads = 2; }));
  EXPECT_TRUE(refused(
      [](ModelConfig& c, ModelConfig&) { c.layer_kinds[0].attention().value_head_dim = 8; }));
  EXPECT_TRUE(refused([](ModelConfig&, ModelConfig& e) {
    e.layer_kinds[0].attention().n_kv_heads = int64_t{1} << 62;
  })) << "its keys' width overflows";
  EXPECT_TRUE(refused([](ModelConfig&, ModelConfig& e) {
    e.encoder = std::make_shared<const ModelConfig>(small_encoder());
  })) << "it has an encoder itself";
  EXPECT_TRUE(refused([](ModelConfig&, ModelConfig& e) {
    e.layer_kinds.push_back(e.layer_kinds[0]);
    e.layer_kinds[1].attention().kv_of = 0;
    e.layers.push_back(1);
  })) << "its layers share the memory of their keys and values";
  EXPECT_TRUE(refused([](ModelConfig& c, ModelConfig&) { c.embedding.shared = true; }));
  EXPECT_TRUE(refused([](ModelConfig& c, ModelConfig&) {
    c.layer_kinds[0].attention().relative_bias.max_distance = 4;
  })) << "four distances have buckets of their own";
  ModelConfig alone = small_translator();
  alone.encoder = nullptr;
  EXPECT_NE(message_of([&] { validate(alone, "test"); }).find("cross attention"),
            std::string::npos);
  nlohmann::json nested = config_to_json(small_translator());
  nested["encoder"]["encoder"] = nested["encoder"];
  EXPECT_NE(message_of([&] { config_from_json(nested, "model.bin"); }), "");
}

TEST(ModelConfig, PoolsWhatBothStacksReadBehindAFirstToken) {
  const auto message = [](const std::function<void(ModelConfig&, ModelConfig&)>& damage) {
    ModelConfig config = small_translator();
    ModelConfig encoder = *config.encoder;
    config.output = {};
    config.output.none = true;
    PoolingConfig& pooling = config.pooling.emplace();
    pooling.mode = Pooling::last;
    pooling.start = 2;
    damage(config, encoder);
    if (config.encoder) config.encoder = std::make_shared<const ModelConfig>(std::move(encoder));
    return message_of([&] {
      validate(config, "test");
      EXPECT_EQ(config_from_json(config_to_json(config), "test").pooling, config.pooling);
    });
  };
  const auto says = [&](const char* words,
                        const std::function<void(ModelConfig&, ModelConfig&)>& damage) {
    const std::string said = message(damage);
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  EXPECT_EQ(message([](ModelConfig&, ModelConfig&) {}), "");
  says("first token of the decoder's",
       [](ModelConfig& c, ModelConfig&) { c.pooling->start.reset(); });
  says("first token of the decoder's", [](ModelConfig& c, ModelConfig&) {
    c = small_encoder();
    c.pooling->start = 2;
  });
  says("first token is",
       [](ModelConfig& c, ModelConfig&) { c.pooling->start = static_cast<int32_t>(c.vocab); });
  says("shorter texts", [](ModelConfig&, ModelConfig& e) { --e.max_context; });
}

TEST(ModelConfig, RefusesPredictorsThatDoNotFit) {
  const auto refused = [](const std::function<void(ModelConfig&, ModelConfig&)>& damage) {
    ModelConfig config = small_predictor();
    damage(config, config.predictors[0]);
    return message_of([&] { validate(config, "test"); });
  };
  EXPECT_EQ(refused([](ModelConfig&, ModelConfig&) {}), "");
  const auto says = [&](const char* words,
                        const std::function<void(ModelConfig&, ModelConfig&)>& damage) {
    const std::string message = refused(damage);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  says("hidden states", [](ModelConfig&, ModelConfig& p) { p.hidden_input.reset(); });
  says("norm of hidden", [](ModelConfig&, ModelConfig& p) { p.hidden_input->norm.eps = -1; });
  says("width", [](ModelConfig&, ModelConfig& p) { p.hidden *= 2; });
  says("width", [](ModelConfig&, ModelConfig& p) { p.vocab += 1; });
  says("itself", [](ModelConfig&, ModelConfig& p) { p.predictors = {small_decoder()}; });
  says("itself", [](ModelConfig&, ModelConfig& p) { p.encoder = small_translator().encoder; });
  says("output matrix", [](ModelConfig&, ModelConfig& p) { p.output.none = true; });
  says("something else", [](ModelConfig&, ModelConfig& p) { p.output.bias = true; });
  says("number of layers", [](ModelConfig&, ModelConfig& p) { p.layers.clear(); });
  says("kind does not exist", [](ModelConfig&, ModelConfig& p) { p.layers = {7}; });
  says("number of predictors", [](ModelConfig& c, ModelConfig&) {
    c.predictors.resize(kMaxPredictors + 1, c.predictors[0]);
  });
  says("shared with no decoder", [](ModelConfig& c, ModelConfig&) { c.output.shared = true; });
  says("of no decoder", [](ModelConfig& c, ModelConfig&) { c.hidden_input.emplace(); });
  nlohmann::json nested = config_to_json(small_predictor());
  nested["predictors"][0]["predictors"] = nested["predictors"];
  EXPECT_NE(message_of([&] { config_from_json(nested, "model.bin"); }), "");
}

TEST(ModelConfig, RefusesPredictorsThatJoinWhatIsNotThere) {
  const auto says = [](const char* words,
                       const std::function<void(ModelConfig&, ModelConfig&)>& damage) {
    ModelConfig config = joining_predictor();
    damage(config, config.predictors[0]);
    const std::string message = message_of([&] { validate(config, "test"); });
    EXPECT_NE(message.find(words), std::string::npos) << words << ": " << message;
  };
  const auto states = [](ModelConfig& predictor) -> LayerStatesConfig& {
    return predictor.hidden_input->layer_states;
  };
  EXPECT_EQ(message_of([] { validate(joining_predictor(), "test"); }), "");
  says("outside 0 to 2", [&](ModelConfig&, ModelConfig& p) { states(p).after = {-1, 2}; });
  says("outside 2 to 2", [&](ModelConfig&, ModelConfig& p) { states(p).after = {1, 3}; });
  says("outside 2 to 2", [&](ModelConfig&, ModelConfig& p) { states(p).after = {1, 1}; });
  says("number of layers' states",
       [&](ModelConfig&, ModelConfig& p) { states(p).after.assign(17, 1); });
  says("they have more", [&](ModelConfig&, ModelConfig& p) { states(p).after.clear(); });
  says("norm each", [&](ModelConfig&, ModelConfig& p) { states(p).norm = {}; });
  says("not alone", [](ModelConfig& c, ModelConfig&) { c.predictors.resize(2, c.predictors[0]); });
  says("a norm that it has not",
       [](ModelConfig&, ModelConfig& p) { p.hidden_input->side_by_side = false; });
  says("a norm that it has not", [](ModelConfig&, ModelConfig& p) { p.hidden_input->norm = {}; });
  says("no other of its kind", [](ModelConfig&, ModelConfig& p) { p.layers = {0, 0}; });
  says("attention alone", [](ModelConfig&, ModelConfig& p) { p.layer_kinds[0].parallel = true; });
  says("attention alone", [](ModelConfig&, ModelConfig& p) {
    p.layer_kinds[0].mixer_norms.before = p.embedding.norm;
  });
  says("number of layers", [](ModelConfig&, ModelConfig& p) { p.layers.clear(); });
  says("kind does not exist", [](ModelConfig&, ModelConfig& p) { p.layers = {7}; });
  says("a token of the output", [](ModelConfig&, ModelConfig& p) { p.output.tokens[1] = 100; });
  says("a token of the output", [](ModelConfig&, ModelConfig& p) { p.output.tokens[1] = -1; });
  says("those of token 7", [](ModelConfig&, ModelConfig& p) { p.output.tokens[1] = 7; });
  says("none of its own", [](ModelConfig&, ModelConfig& p) { p.output.shared = true; });
  says("none of its own", [](ModelConfig&, ModelConfig& p) { p.output.tied = true; });
  says("a row for each token", [](ModelConfig& c, ModelConfig&) { c.output.tokens = {1}; });
}

TEST(RelativeBias, HasABucketForEachSmallDistanceAndAlikeOnesBeyondTheLargest) {
  // Of one head, each bucket's number its own: 8 for both sides, so 4 each, of which 2 are exact.
  const RelativeBiasConfig both{.buckets = 8, .max_distance = 8, .bidirectional = true};
  const std::vector<float> table = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(bias_by_distance(both, table),
            (std::vector<float>{3, 3, 3, 3, 3, 2, 2, 1, 0, 5, 6, 6, 7, 7, 7, 7, 7}));
  const RelativeBiasConfig before{.buckets = 4, .max_distance = 8};
  EXPECT_EQ(bias_by_distance(before, {0, 1, 2, 3}),
            (std::vector<float>{3, 3, 3, 3, 3, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(RelativeScores, HaveARowForEachSmallDistanceAndFewerOnesBeyond) {
  // Keys after the query have the first rows, as in Transformers' tables.
  EXPECT_EQ(row_by_distance({.rows = 6, .of_keys = true}),
            (std::vector<int32_t>{5, 5, 4, 3, 2, 1, 0}));
  const std::vector<int32_t> rows =
      row_by_distance({.rows = 16, .max_distance = 20, .of_queries = true});
  ASSERT_EQ(rows.size(), 41U);
  // Transformers' own buckets of distances 0, 1, ... for 8 of them up to 20.
  const std::vector<int32_t> buckets = {0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 6,
                                        6, 7, 7, 7, 7, 7, 7, 7, 7, 8};
  for (size_t d = 0; d < buckets.size(); ++d) {
    EXPECT_EQ(rows[20 - d], std::min(8 + buckets[d], 15)) << "a key " << d << " before";
    EXPECT_EQ(rows[20 + d], 8 - buckets[d]) << "a key " << d << " after";
  }
  // Where those of the published models change.
  const std::vector<int32_t> published = row_by_distance({.rows = 512, .max_distance = 512});
  for (const auto& [distance, bucket] : std::vector<std::pair<int, int>>{{128, 128},
                                                                         {131, 131},
                                                                         {132, 131},
                                                                         {133, 132},
                                                                         {146, 141},
                                                                         {147, 141},
                                                                         {148, 142},
                                                                         {500, 254},
                                                                         {505, 254},
                                                                         {506, 255},
                                                                         {511, 255},
                                                                         {512, 256}}) {
    EXPECT_EQ(published[static_cast<size_t>(512 + distance)], 256 - bucket) << distance;
  }
}

TEST(ModelConfig, RefusesEmbeddingsOfASizeOfTheirOwnBesideAnOutputMatrix) {
  ModelConfig config = small_decoder();
  config.embedding.size = 12;
  EXPECT_NE(message_of([&] { validate(config, "test"); }).find("those of encoders"),
            std::string::npos);
  config = small_encoder();
  config.embedding.size = 12;
  EXPECT_EQ(message_of([&] { validate(config, "test"); }), "");
  config.embedding.size = -1;
  EXPECT_NE(message_of([&] { validate(config, "test"); }).find("size of embeddings is -1"),
            std::string::npos);
}

TEST(ModelConfig, RefusesConvolutionsOfTokensThatCannotBe) {
  const auto says = [](const char* words,
                       const std::function<void(ModelConfig&, TokenConvolutionConfig&)>& damage) {
    ModelConfig config = scoring_encoder();
    damage(config, config.layer_kinds[0].token_convolution);
    const std::string message = message_of([&] { validate(config, "test"); });
    EXPECT_NE(message.find(words), std::string::npos) << words << ": " << message;
  };
  says("taps is an even number", [](ModelConfig&, TokenConvolutionConfig& c) { c.taps = 4; });
  says("taps is 1", [](ModelConfig&, TokenConvolutionConfig& c) { c.taps = 1; });
  says("taps is 65", [](ModelConfig&, TokenConvolutionConfig& c) { c.taps = 65; });
  says("something is said", [](ModelConfig&, TokenConvolutionConfig& c) { c.taps = 0; });
  says("swiglu_clamped",
       [](ModelConfig&, TokenConvolutionConfig& c) { c.activation = Activation::swiglu_clamped; });
  says("softplus",
       [](ModelConfig&, TokenConvolutionConfig& c) { c.activation = Activation::softplus; });
  says("norm's eps", [](ModelConfig&, TokenConvolutionConfig& c) { c.norm.eps = -1; });
  says("no encoder's layer", [](ModelConfig& c, TokenConvolutionConfig&) {
    const TokenConvolutionConfig convolution = c.layer_kinds[0].token_convolution;
    c = small_decoder();
    c.layer_kinds[0].token_convolution = convolution;
  });
}

TEST(ModelConfig, RefusesRelativeScoresThatAttentionCannotAdd) {
  const auto refused = [](const std::function<void(ModelConfig&, AttentionConfig&)>& damage) {
    ModelConfig config = scoring_encoder();
    damage(config, config.layer_kinds[0].attention());
    return message_of([&] { validate(config, "test"); });
  };
  EXPECT_EQ(refused([](ModelConfig&, AttentionConfig&) {}), "");
  const auto says = [&](const char* words,
                        const std::function<void(ModelConfig&, AttentionConfig&)>& damage) {
    const std::string message = refused(damage);
    EXPECT_NE(message.find(words), std::string::npos) << words << ": " << message;
  };
  const auto scores = [](AttentionConfig& a) -> RelativeScoresConfig& { return a.relative_scores; };
  says("rows is odd", [&](ModelConfig&, AttentionConfig& a) { scores(a).rows = 7; });
  says("rows is -2", [&](ModelConfig&, AttentionConfig& a) { scores(a).rows = -2; });
  says("rows is 5000", [&](ModelConfig&, AttentionConfig& a) { scores(a).rows = 5000; });
  says("multiple of four", [&](ModelConfig&, AttentionConfig& a) { scores(a).rows = 10; });
  says("max_distance is 3", [&](ModelConfig&, AttentionConfig& a) { scores(a).max_distance = 3; });
  says("max_distance is -1",
       [&](ModelConfig&, AttentionConfig& a) { scores(a).max_distance = -1; });
  says("neither of queries nor of keys",
       [&](ModelConfig&, AttentionConfig& a) { scores(a).of_queries = scores(a).of_keys = false; });
  says("bidirectional", [](ModelConfig&, AttentionConfig& a) { a.bidirectional = false; });
  says("keys for each head", [](ModelConfig&, AttentionConfig& a) { a.n_kv_heads = 1; });
  says("neither rotated nor", [](ModelConfig& c, AttentionConfig& a) {
    c.ropes = small_decoder().ropes;
    a.rope = 0;
  });
}

TEST(RopeFrequencies, FallGeometricallyFromOne) {
  const std::vector<float> frequencies = plain_frequencies(10000, 8);
  ASSERT_EQ(frequencies.size(), 4U);
  EXPECT_FLOAT_EQ(frequencies[0], 1.0F);
  EXPECT_FLOAT_EQ(frequencies[1], 0.1F);
  EXPECT_FLOAT_EQ(frequencies[2], 0.01F);
  EXPECT_FLOAT_EQ(frequencies[3], 0.001F);
}

TEST(RopeLength, TellsTextsApartThatAreRotatedDifferently) {
  ModelConfig config;
  EXPECT_EQ(config.rope_length(1 << 20), 0);
  EXPECT_FALSE(config.outgrows(0, 1 << 20));

  config.ropes = {rich_decoder().ropes[0]};  // with long_frequencies above 128 tokens
  EXPECT_EQ(config.rope_length(128), 0);
  EXPECT_EQ(config.rope_length(129), config.rope_length(5000));
  EXPECT_FALSE(config.outgrows(0, 128));
  EXPECT_TRUE(config.outgrows(0, 129));
  EXPECT_FALSE(config.outgrows(config.rope_length(129), 5000));

  RopeConfig dynamic;
  dynamic.frequencies = plain_frequencies(10000, 8);
  dynamic.original_max_context = 64;
  dynamic.dynamic_factor = 4;
  config.ropes = {dynamic};
  EXPECT_EQ(config.rope_length(64), 0);
  EXPECT_EQ(config.rope_length(65), 65);
  EXPECT_EQ(config.rope_length(5000), 5000);
  EXPECT_FALSE(config.outgrows(0, 5000)) << "later tokens are rotated by their own length";

  config.ropes.push_back(rich_decoder().ropes[0]);
  EXPECT_EQ(config.rope_length(100), 100);
  EXPECT_TRUE(config.outgrows(100, 129));
  EXPECT_FALSE(config.outgrows(config.rope_length(129), 130));
}

}  // namespace
}  // namespace faststream
