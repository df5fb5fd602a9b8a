// UltraBERT: EuroBERT's layers, of which those with a window have a rotation of their own.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "convert/families/family.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kUltraBert = {.n_layers = 32,
                                   .hidden = 4096,
                                   .n_heads = 32,
                                   .ffn_hidden = 11008,
                                   .vocab = 32000,
                                   .max_context = 32768,
                                   .norm_eps = 1e-6F};
constexpr const char* kFull = "full_attention";
constexpr const char* kWindowed = "sliding_attention";

// How far each layer sees to either side; 0: to the ends. The first releases list it.
std::vector<int64_t> reaches_in(const JsonView& config, int64_t n_layers) {
  constexpr int64_t kReach = 128;
  constexpr int64_t kEvery = 3;
  std::vector<int64_t> reaches;
  if (const auto list = config.find("attention_windows")) {
    int64_t reach = 0;
    for (const JsonView& each : list->elements()) {
      reaches.push_back(each.value().is_null() ? 0 : each.as<int64_t>(0, kMaxContext));
      if (reach == 0) reach = reaches.back();
      if (reaches.back() != 0 && reaches.back() != reach) {
        each.fail("is another window than other layers have, which is not supported");
      }
    }
    if (reaches.size() != static_cast<size_t>(n_layers)) {
      list->fail("has " + std::to_string(reaches.size()) + " entries for " +
                 std::to_string(n_layers) + " layers");
    }
    return reaches;
  }
  const int64_t reach = count_in(config, "sliding_window", kMaxContext, kReach);
  for (const bool windowed :
       windowed_in(config, n_layers, [](int64_t n) { return (n + 1) % kEvery != 0; })) {
    reaches.push_back(windowed ? reach : 0);
  }
  return reaches;
}

// What is there has to have both types of layers: Transformers has no defaults for one alone.
void check_rope_parameters(const JsonView& config) {
  const auto parameters = config.find("rope_parameters");
  if (!parameters) return;
  for (const char* type : {kFull, kWindowed}) {
    if (parameters->find(type)) continue;
    parameters->fail("has no member for layers of the type " + in_quotes(type) +
                     "; leave it out for the rotations that UltraBERT usually has");
  }
}

// Of the layers with a window, or of the others. The first releases list a base for each layer.
RopeConfig rope_of(const JsonView& config, const PlainShape& shape,
                   const std::vector<int64_t>& reaches, const char* type, double theta) {
  const auto list = config.find("rope_theta");
  if (!list || !list->value().is_array() || config.find("rope_parameters")) {
    RopeConfig rope = rope_from_hf(
        config, {.head_dim = shape.head_dim, .max_context = shape.max_context, .theta = theta},
        type);
    rope.name = type;
    return rope;
  }
  const std::vector<JsonView> thetas = list->elements();
  for (size_t n = 0; n < std::min(thetas.size(), reaches.size()); ++n) {
    if ((reaches[n] > 0) == (type == std::string_view(kWindowed))) theta = thetas[n].as<double>();
  }
  if (!(theta > 0)) list->fail("has a base that is not above 0");
  RopeConfig rope;
  rope.name = type;
  rope.frequencies = plain_frequencies(theta, shape.head_dim);
  return rope;
}

}  // namespace

FamilyModel describe_ultrabert(const FamilySource& source) {
  const JsonView& config = source.config;
  const PlainShape shape = shape_in(config, kUltraBert);
  FamilyModel model{plain_decoder(shape)};
  const std::vector<int64_t> reaches = reaches_in(config, shape.n_layers);
  check_rope_parameters(config);
  constexpr double kThetaOfFull = 2560000;
  constexpr double kThetaOfWindows = 10000;
  model.config.ropes = {rope_of(config, shape, reaches, kFull, kThetaOfFull),
                        rope_of(config, shape, reaches, kWindowed, kThetaOfWindows)};
  const Activation activation = activation_in(config, "hidden_act", "silu");
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    set_attention_bias(layer, config.get("attention_bias", false));
    layer.attention().bidirectional = true;
    layer.ffn.activation = activation;
    layer.ffn.bias = config.get("mlp_bias", false);
    const int64_t reach = reaches[static_cast<size_t>(n)];
    if (reach == 0) return;
    layer.name = "windowed";
    layer.attention().window = reach + 1;
    layer.attention().rope = 1;
  });
  remove_output(model);
  model.modules.base = has_modules(source.weights, "ultrabert.") ? "ultrabert." : "model.";
  if (is_classifier(config)) {
    const auto pooling = config.get<std::string>("classifier_pooling", "cls");
    if (pooling != "cls" && pooling != "mean") {
      config.member("classifier_pooling").fail("is " + in_quotes(pooling) + ", an unknown way");
    }
    score_labels(model, config, {.mode = pooling == "mean" ? Pooling::mean : Pooling::first}, {},
                 "classifier");
  } else {
    leave_out(model.modules, {"head.linear1", "head.linear2", "head.decoder", "cls"});
  }
  return model;
}

}  // namespace faststream::convert
