#include "convert/huggingface/hf_adapters.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "convert/huggingface/text_tensors.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

// The two places of a tied matrix, and how it was before adapters in that which had no name.
struct TiedPlaces {
  std::string stored;
  std::string added;
  SourceTensor before;
};

// Gives a tied matrix, of which the checkpoint has one, both names.
std::optional<TiedPlaces> part_tied_places(const FamilyModel& family, Checkpoint& weights) {
  if (!family.config.output.tied) return std::nullopt;
  const Modules& modules = family.modules;
  std::string stored = base_in(weights, modules) + modules.embedding + ".weight";
  std::string added = modules.output + ".weight";
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
  if (adapters_tie || !is_changed(places.stored)) static_cast<void>(weights.take(places.added));
}

// What a tensor may be called in the checkpoint: the classes around a model that was trained and
// the one that was saved can differ in how names begin.
std::vector<std::string> possible_names(const std::string& name, const Modules& modules,
                                        bool is_part) {
  std::string of_text = is_part ? name_in_text_model(name) : "";
  const std::string& inner = of_text.empty() ? name : of_text;
  std::vector<std::string> names = {inner, modules.base + inner};
  const std::string outermost = modules.base.substr(0, modules.base.find('.') + 1);
  if (!outermost.empty() && inner.starts_with(outermost)) {
    names.push_back(inner.substr(outermost.size()));
  }
  return names;
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

std::vector<MergedAdapter> merge_adapters(std::span<const fs::path> folders, bool is_part,
                                          const FamilyModel& family,
                                          std::span<const LeftOut> left_out, Checkpoint& weights,
                                          SourceFiles& files) {
  if (folders.empty()) return {};
  const Modules& modules = family.modules;
  const std::string layers = base_in(weights, modules) + modules.layers;
  const std::optional<TiedPlaces> tied = part_tied_places(family, weights);
  AdaptedModel model{.weights = weights, .own_files = weights.files().size()};
  model.find = [&](const std::string& name) -> std::string {
    for (std::string& known : possible_names(name, modules, is_part)) {
      if (weights.find(known) != nullptr) return std::move(known);
    }
    return "";
  };
  model.is_shared = [&](const std::string& name) { return is_shared_embedding(name, family); };
  model.is_left_out = [&](const std::string& name) {
    return std::ranges::any_of(left_out, [&](const LeftOut& other) { return is_of(name, other); });
  };
  model.is_transposed = [&](const std::string& name) {
    return modules.transposed && name.starts_with(layers);
  };
  std::vector<MergedAdapter> merged;
  for (const fs::path& folder : folders) merged.push_back(merge_adapter(folder, files, model));
  if (tied) {
    join_tied_places(*tied, std::ranges::any_of(merged, &MergedAdapter::ties), weights);
  }
  return merged;
}

}  // namespace faststream::convert
