#include "convert/huggingface/hf_adapters.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "convert/huggingface/text_tensors.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

// What the checkpoint calls matrices with a row for each token, and what begins names.
struct TableNames {
  std::string base;
  std::string embedding;
  std::string output;
};
TableNames table_names(const FamilyModel& family, const Checkpoint& weights) {
  std::string base = base_in(weights, family.modules);
  std::string embedding = base + family.modules.embedding + ".weight";
  return {std::move(base), std::move(embedding), family.modules.output + ".weight"};
}

// The two places of a tied matrix, and how it was before adapters in that which had no name.
struct TiedPlaces {
  std::string stored;
  std::string added;
  SourceTensor before;
};

// Gives a tied matrix, of which the checkpoint has one, both names.
std::optional<TiedPlaces> part_tied_places(const FamilyModel& family, Checkpoint& weights) {
  if (!family.config.output.tied) return std::nullopt;
  auto [base, stored, added] = table_names(family, weights);
  if (weights.find(stored) == nullptr) stored.swap(added);
  const SourceTensor* tensor = weights.find(stored);
  if (tensor == nullptr || weights.find(added) != nullptr) return std::nullopt;
  SourceTensor before = *tensor;
  weights.add_tensor(before, added);
  return TiedPlaces{std::move(stored), std::move(added), std::move(before)};
}

// Takes the added name away where adapters have changed nothing there, unless they have changed the
// other place alone.
void join_tied_places(const TiedPlaces& places, bool adapters_tie, Checkpoint& weights) {
  const auto is_changed = [&](const std::string& name) {
    const SourceTensor& tensor = *weights.find(name);
    return tensor.update || tensor.file != places.before.file ||
           tensor.offset != places.before.offset;
  };
  if (is_changed(places.added)) return;
  // One for other tokens than the model's has become the other's copy.
  const bool has_old_size = weights.find(places.stored)->shape != places.before.shape;
  if (adapters_tie || has_old_size || !is_changed(places.stored)) {
    static_cast<void>(weights.take(places.added));
  }
}

// A name as it is in a layer: "layers.", which may stand after others, the layer's number, the
// rest.
struct NameInLayer {
  std::string number;
  std::string rest;
};
std::optional<NameInLayer> name_in_layer(const std::string& name, const Modules& modules) {
  const size_t layers = name.find(modules.layers);
  if (layers == std::string::npos) return std::nullopt;
  const size_t number = layers + modules.layers.size();
  const size_t dot = name.find('.', number);
  if (dot == std::string::npos) return std::nullopt;
  return NameInLayer{name.substr(number, dot - number), name.substr(dot + 1)};
}

// What a tensor may be called in the checkpoint: the classes around a model that was trained and
// the one that was saved can differ in how names begin, and Transformers has one name for routers
// since its version 5.
std::vector<std::string> possible_names(const std::string& name, const Modules& modules,
                                        const std::string& base) {
  const std::string of_text = name_in_text_model(name);
  std::vector<std::string> names;
  for (const std::string& inner : {name, of_text}) {
    if (inner.empty()) continue;
    names.insert(names.end(), {inner, modules.base + inner});
    const std::string outermost = modules.base.substr(0, modules.base.find('.') + 1);
    if (!outermost.empty() && inner.starts_with(outermost)) {
      names.push_back(inner.substr(outermost.size()));
    }
  }
  const auto in_layer = name_in_layer(name, modules);
  if (in_layer && in_layer->rest == "mlp.gate.weight") {
    names.push_back(base + modules.layers + in_layer->number + "." + modules.router + ".weight");
  }
  return names;
}

// Of a tensor of all experts.
std::optional<ExpertMatrices> joined_experts(const std::string& module,
                                             const std::string& parameter,
                                             const Checkpoint& weights) {
  const SourceTensor* tensor = weights.find(module + "." + parameter);
  if (tensor == nullptr || tensor->shape.size() != 3 || tensor->elements() == 0) {
    return std::nullopt;
  }
  return ExpertMatrices{.parameter = parameter,
                        .out = tensor->shape[1],
                        .in = tensor->shape[2],
                        .count = tensor->shape[0],
                        .joined = module + "." + parameter};
}

// Of tensors of each expert, whose rows are one matrix.
std::optional<ExpertMatrices> single_experts(const std::string& layer, const std::string& parameter,
                                             const std::vector<std::string>& names,
                                             const Modules& modules, const Checkpoint& weights) {
  ExpertMatrices experts{.parameter = parameter};
  for (;; ++experts.count) {
    std::vector<ExpertMatrices::Rows> parts;
    int64_t out = 0;
    for (const std::string& module : names) {
      const std::string name =
          layer + modules.experts + std::to_string(experts.count) + "." + module + ".weight";
      const SourceTensor* tensor = weights.find(name);
      if (tensor == nullptr || tensor->shape.size() != 2) break;
      parts.push_back({name, out, tensor->shape[0]});
      out += tensor->shape[0];
      experts.in = tensor->shape[1];
    }
    if (parts.size() < names.size()) break;
    experts.out = out;
    experts.of_experts.push_back(std::move(parts));
  }
  if (experts.count == 0) return std::nullopt;
  return experts;
}

std::vector<ExpertMatrices> experts_in(const std::string& module, const Modules& modules,
                                       const std::string& base, const Checkpoint& weights) {
  const auto in_layer = name_in_layer(module, modules);
  if (!in_layer || !in_layer->rest.ends_with("experts")) return {};
  const std::string layer = base + modules.layers + in_layer->number + ".";
  const bool has_gate = modules.expert_gate_up.size() == 2;
  const std::string up = has_gate ? "gate_up_proj" : "up_proj";
  std::vector<ExpertMatrices> all;
  for (auto& experts :
       {joined_experts(layer + in_layer->rest, up, weights),
        joined_experts(layer + in_layer->rest, "down_proj", weights),
        single_experts(layer, up, modules.expert_gate_up, modules, weights),
        single_experts(layer, "down_proj", {modules.expert_down}, modules, weights)}) {
    if (experts) all.push_back(*experts);
  }
  return all;
}

bool is_of(const std::string& name, const LeftOut& left_out) {
  return module_group(name) == left_out.name || name.starts_with(left_out.name + ".") ||
         name.find("." + left_out.name + ".") != std::string::npos;
}

bool is_shared_embedding(const std::string& name, const FamilyModel& family) {
  return family.embeddings.size() > 1 &&
         std::ranges::any_of(family.embeddings, [&](const std::string& module) {
           return name == module + ".weight" || name.ends_with("." + module + ".weight");
         });
}

}  // namespace

std::optional<int64_t> changed_vocabulary(std::span<const Adapter> adapters,
                                          const FamilyModel& family, const Checkpoint& weights) {
  const TableNames names = table_names(family, weights);
  const SourceTensor* table = weights.find(names.embedding);
  if (table == nullptr) table = weights.find(names.output);
  std::optional<int64_t> vocab;
  if (table == nullptr || table->shape.size() != 2) return vocab;
  for (const Adapter& adapter : adapters) {
    for (const auto& [name, rows] : adapter.whole_tensors()) {
      const auto known = possible_names(name, family.modules, names.base);
      const bool is_table = std::ranges::any_of(known, [&](const std::string& each) {
        return each == names.embedding || each == names.output;
      });
      if (!is_table || rows == 0 || rows == table->shape.front()) continue;
      if (vocab && *vocab != rows) {
        throw Error(adapter.folder().string() + ": has " + in_quotes(name) + " for " +
                    std::to_string(rows) + " tokens, but another matrix for " +
                    std::to_string(*vocab));
      }
      vocab = rows;
    }
  }
  return vocab;
}

std::vector<MergedAdapter> merge_adapters(std::vector<Adapter> adapters, size_t own_files,
                                          std::optional<int64_t> vocabulary, bool is_part,
                                          const FamilyModel& family,
                                          std::span<const LeftOut> left_out, Checkpoint& weights) {
  if (adapters.empty()) return {};
  const Modules& modules = family.modules;
  const TableNames names = table_names(family, weights);
  const std::string& base = names.base;
  const std::string layers = base + modules.layers;
  const std::optional<TiedPlaces> tied = part_tied_places(family, weights);
  AdaptedModel model{.weights = weights, .own_files = own_files};
  model.find = [&](const std::string& name) -> std::string {
    for (std::string& known : possible_names(name, modules, base)) {
      if (weights.find(known) != nullptr) return std::move(known);
    }
    return "";
  };
  model.is_shared = [&](const std::string& name) { return is_shared_embedding(name, family); };
  model.experts = [&](const std::string& module) {
    return experts_in(module, modules, base, weights);
  };
  model.is_left_out = [&](const std::string& name) {
    return (is_part && name_in_text_model(name).empty()) ||
           std::ranges::any_of(left_out, [&](const LeftOut& other) { return is_of(name, other); });
  };
  model.is_transposed = [&](const std::string& name) {
    const SourceTensor& tensor = *weights.find(name);
    const bool is_joined = tensor.shape.size() == 3;
    return name.starts_with(layers) &&
           (is_joined ? modules.experts_are_transposed && !tensor.packed : modules.transposed);
  };
  model.rows_of_whole = [&](const std::string& name) {
    const bool is_table = name == names.embedding || name == names.output;
    return is_table ? vocabulary.value_or(0) : 0;
  };
  std::vector<MergedAdapter> merged;
  for (Adapter& adapter : adapters) merged.push_back(std::move(adapter).merge(model));
  if (tied) {
    join_tied_places(*tied, std::ranges::any_of(merged, &MergedAdapter::ties), weights);
  }
  return merged;
}

}  // namespace faststream::convert
