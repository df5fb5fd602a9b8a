#include "convert/families/predictors.h"

#include <algorithm>
#include <set>
#include <utility>

#include "convert/families/family.h"
#include "convert/weights/read_values.h"

namespace faststream::convert {
namespace {

bool is_named(const std::string& name, const std::string& begin) {
  return name.starts_with(begin) || name.find("." + begin) != std::string::npos;
}

// Those of `wanted` by what they begin with.
std::vector<LeftOut> counted(const std::vector<std::string>& names,
                             const std::set<std::string>& wanted) {
  std::vector<LeftOut> counts;
  std::set<std::string> rest = wanted;
  for (const std::string& begin : names) {
    const size_t n =
        std::erase_if(rest, [&](const std::string& name) { return is_named(name, begin); });
    if (n > 0) counts.push_back({begin.substr(0, begin.find_last_not_of('.') + 1), n});
  }
  return counts;
}

std::set<std::string> sources_of(const TensorParts& parts, bool of_predictors) {
  std::set<std::string> sources;
  for (const auto& [id, of_tensor] : parts) {
    if ((id.predictor > 0) != of_predictors) continue;
    for (const TensorPart& part : of_tensor) sources.insert(part.source);
  }
  return sources;
}

// Whether a predictor has the model's matrix, as it has where it has none of its own. One that is
// the same is taken away.
bool has_models(Checkpoint& weights, const std::string& own, const std::string& models) {
  const SourceTensor* tensor = weights.find(own + ".weight");
  if (tensor == nullptr || own == models) return true;
  const SourceTensor* of_model = weights.find(models + ".weight");
  if (of_model == nullptr || !same_values(weights, *tensor, *of_model)) return false;
  static_cast<void>(weights.take(own + ".weight"));
  return true;
}

bool are_there(const Checkpoint& weights, const TensorParts& parts) {
  return std::ranges::all_of(parts, [&](const auto& tensor) {
    return std::ranges::all_of(tensor.second, [&](const TensorPart& part) {
      if (part.source.empty()) return true;
      const SourceTensor* found = weights.find(part.source);
      return found != nullptr && has_rows_of(*found, part);
    });
  });
}

}  // namespace

const LayerConfig* find_attention_layer(const ModelConfig& model, bool has_experts) {
  for (int64_t n = model.n_layers(); n > 0; --n) {
    const LayerConfig& layer = model.layer(n - 1);
    if (kv_geometry(layer) && layer.has_feed_forward() &&
        layer.experts.has_value() == has_experts) {
      return &layer;
    }
  }
  return nullptr;
}

bool add_predictor(const LayerConfig& layer, int64_t number, Modules modules, ModelConfig& model,
                   PredictorModules& predictors) {
  if (static_cast<int64_t>(model.predictors.size()) == kMaxPredictors) return false;
  const NormConfig& norm = layer.mixer_norms.before;
  ModelConfig predictor;
  predictor.hidden = model.hidden;
  predictor.vocab = model.vocab;
  predictor.max_context = model.max_context;
  predictor.ropes = model.ropes;
  predictor.embedding = {.shared = true, .multiplier = model.embedding.multiplier, .norm = norm};
  predictor.hidden_input = HiddenInputConfig{.norm = norm};
  predictor.layer_kinds = {layer};
  predictor.layers = {0};
  predictor.output = {.norm = norm, .shared = true, .soft_cap = model.output.soft_cap};
  modules.mixer_layers = modules.ffn_layers = {number};
  model.predictors.push_back(std::move(predictor));
  predictors.each.push_back(std::move(modules));
  return true;
}

void add_predicting_layers(int64_t first, int64_t count, const Checkpoint& weights,
                           const Modules& modules, ModelConfig& model,
                           PredictorModules& predictors) {
  const std::string base = base_in(weights, modules);
  for (int64_t n = first; n < first + std::min(count, kMaxLayers); ++n) {
    const std::string layer = modules.layers + std::to_string(n) + ".";
    predictors.names.insert(predictors.names.end(), {modules.base + layer, layer});
    const auto has = [&](const char* module) {
      return weights.find(base + layer + module + ".weight") != nullptr;
    };
    const LayerConfig* kind = find_attention_layer(model, has(modules.router.c_str()));
    if (!has("eh_proj") || kind == nullptr) continue;
    Modules own = modules;
    own.embedding = layer + "embed_tokens";
    own.embedding_norm = layer + "enorm";
    own.hidden_norm = layer + "hnorm";
    own.hidden_projection = layer + "eh_proj";
    const bool is_step = has("transformer.shared_head.norm");
    own.output_norm = layer + (is_step                   ? "transformer.shared_head.norm"
                               : has("shared_head.norm") ? "shared_head.norm"
                                                         : "final_layernorm");
    own.output = base + layer + (is_step ? "transformer.shared_head.output" : "shared_head.head");
    static_cast<void>(add_predictor(*kind, n, std::move(own), model, predictors));
  }
}

void add_predictors_beside(const Checkpoint& weights, Modules modules, ModelConfig& model,
                           PredictorModules& predictors) {
  const auto has = [&](const std::string& name) { return weights.find(name) != nullptr; };
  predictors.names.emplace_back("mtp.");
  if (!has("mtp.fc.weight")) return;
  modules.base = "mtp.";
  modules.embedding_norm = "pre_fc_norm_embedding";
  modules.hidden_norm = "pre_fc_norm_hidden";
  modules.hidden_projection = "fc";
  modules.output_norm = "norm";
  modules.output = "mtp.lm_head";
  for (int64_t n = 0;; ++n) {
    const std::string layer = "mtp.layers." + std::to_string(n) + ".";
    if (!has(layer + modules.attention_norm + ".weight")) return;
    const LayerConfig* kind = find_attention_layer(model, has(layer + modules.router + ".weight"));
    if (kind == nullptr) return;
    use_joined_experts(modules, weights, layer);
    if (!add_predictor(*kind, n, modules, model, predictors)) return;
  }
}

std::vector<LeftOut> keep_predictors(const PredictorModules& predictors, const Modules& modules,
                                     ModelConfig& model, Checkpoint& weights, TensorParts& parts,
                                     std::vector<LeftOut>& left_out) {
  const std::string embedding = base_in(weights, modules) + modules.embedding;
  TensorParts all;
  for (size_t i = 0; i < model.predictors.size(); ++i) {
    const Modules& own = predictors.each[i];
    ModelConfig& predictor = model.predictors[i];
    predictor.embedding.shared =
        has_models(weights, base_in(weights, own) + own.embedding, embedding);
    predictor.output.shared =
        has_models(weights, own.output, model.output.tied ? embedding : modules.output);
    for (auto& [id, of_tensor] : parts_of(predictor, own, weights)) {
      TensorId of_predictor = id;
      of_predictor.predictor = static_cast<int64_t>(i) + 1;
      all[of_predictor] = std::move(of_tensor);
    }
  }
  if (!are_there(weights, all)) {
    all.clear();
    model.predictors.clear();
  }
  parts.insert(all.begin(), all.end());
  const std::set<std::string> kept = sources_of(all, true);
  const std::set<std::string> of_model = sources_of(parts, false);
  std::set<std::string> others;
  for (const auto& entry : weights.tensors()) {
    const std::string& name = entry.first;
    if (kept.contains(name) || of_model.contains(name)) continue;
    const bool is_of_predictors = std::ranges::any_of(
        predictors.names, [&](const std::string& begin) { return is_named(name, begin); });
    if (is_of_predictors) others.insert(name);
  }
  for (const std::string& name : others) static_cast<void>(weights.take(name));
  std::ranges::copy(counted(predictors.names, others), std::back_inserter(left_out));
  return counted(predictors.names, kept);
}

void leave_out_predictors(SourceModel& model) {
  model.config.predictors.clear();
  std::erase_if(model.parts, [](const auto& tensor) { return tensor.first.predictor > 0; });
  std::ranges::copy(std::exchange(model.predictors, {}), std::back_inserter(model.left_out));
}

}  // namespace faststream::convert
