#include "convert/adapters/merge_adapter.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/adapters/adapter_config.h"
#include "convert/adapters/factors.h"
#include "convert/huggingface/safetensors.h"
#include "convert/pytorch/pytorch_file.h"
#include "convert/weights/elements.h"
#include "convert/weights/read_values.h"
#include "support/error.h"
#include "support/printable.h"
#include "support/shape_text.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kTensorsFile = "adapter_model.safetensors";
constexpr const char* kPytorchTensorsFile = "adapter_model.bin";
constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;

// What an adapter has of a module that it changes.
struct ModuleFactors {
  std::optional<SourceTensor> a = {};            // [rank, in]
  std::optional<SourceTensor> b = {};            // [out, rank]
  std::optional<SourceTensor> embedding_a = {};  // [rank, vocab]
  std::optional<SourceTensor> embedding_b = {};  // [width, rank]
  std::optional<SourceTensor> bias = {};         // [out]
  std::optional<SourceTensor> magnitudes = {};   // [out]

  [[nodiscard]] std::vector<const SourceTensor*> tensors() const {
    std::vector<const SourceTensor*> all;
    for (const auto* tensor : {&a, &b, &embedding_a, &embedding_b, &bias, &magnitudes}) {
      if (*tensor) all.push_back(&**tensor);
    }
    return all;
  }
};

struct FactorEnding {
  std::string_view ending;
  std::optional<SourceTensor> ModuleFactors::*place;
};
constexpr auto kFactorEndings = std::to_array<FactorEnding>({
    {".lora_A.weight", &ModuleFactors::a},
    {".lora_B.weight", &ModuleFactors::b},
    {".lora_embedding_A", &ModuleFactors::embedding_a},
    {".lora_embedding_B", &ModuleFactors::embedding_b},
    {".lora_B.bias", &ModuleFactors::bias},
    {".lora_magnitude_vector", &ModuleFactors::magnitudes},
    {".lora_magnitude_vector.weight", &ModuleFactors::magnitudes},
});

// By names without what PEFT puts before them.
struct AdapterTensors {
  std::map<std::string, ModuleFactors> modules;
  std::map<std::string, SourceTensor> whole;
};

constexpr std::string_view kBaseLayer = ".base_layer";

void erase_parts(std::string& name, std::string_view part) {
  for (size_t at = 0; (at = name.find(part, at)) != std::string::npos;) name.erase(at, part.size());
}

void sort_in(const Checkpoint& weights, SourceTensor tensor, AdapterTensors& adapter) {
  constexpr std::string_view kBefore = "base_model.model.";
  std::string name = tensor.name;
  if (name.starts_with(kBefore)) name.erase(0, kBefore.size());
  for (const auto& [ending, place] : kFactorEndings) {
    if (!name.ends_with(ending)) continue;
    auto& factor = adapter.modules[name.substr(0, name.size() - ending.size())].*place;
    if (factor) refuse_factor(weights, tensor, "is there twice");
    factor = std::move(tensor);
    return;
  }
  // A module that the adapter has whole, or, beside factors, as it was when these were trained.
  erase_parts(name, ".modules_to_save");
  erase_parts(name, kBaseLayer);
  if (name.find(".lora_") != std::string::npos) {
    refuse_factor(weights, tensor, "is of a kind of adapters that cannot be merged");
  }
  const auto [at, is_new] = adapter.whole.emplace(name, tensor);
  if (!is_new) refuse_factor(weights, tensor, "is there twice");
}

AdapterTensors read_tensors(const fs::path& folder, Checkpoint& weights, SourceFiles& files) {
  const std::string prefix = folder.string() + ": ";
  if (fs::exists(folder / kTensorsFile)) {
    add_safetensors_file(weights, folder / kTensorsFile, files, prefix);
  } else if (fs::exists(folder / kPytorchTensorsFile)) {
    add_pytorch_file(weights, folder / kPytorchTensorsFile, files, prefix);
  } else {
    throw Error(folder.string() + ": holds neither " + kTensorsFile + " nor " +
                kPytorchTensorsFile + "; download one of them");
  }
  std::vector<std::string> names;
  for (auto at = weights.tensors().lower_bound(prefix);
       at != weights.tensors().end() && at->first.starts_with(prefix); ++at) {
    names.push_back(at->first);
  }
  AdapterTensors adapter;
  for (const std::string& name : names) sort_in(weights, weights.take(name), adapter);
  if (names.empty()) throw Error(folder.string() + ": has no tensors; is the adapter complete?");
  return adapter;
}

void refuse_shape(const Checkpoint& weights, const SourceTensor& tensor, const SourceTensor& other,
                  const std::string& what = "") {
  refuse_factor(weights, tensor,
                "with the shape " + shape_text(tensor.shape) + " does not fit to " +
                    quoted_tensor(other.name) + " with the shape " + shape_text(other.shape) +
                    what);
}

std::shared_ptr<const SourceTensor> shaped(SourceTensor tensor, std::vector<int64_t> shape) {
  tensor.shape = std::move(shape);
  return std::make_shared<const SourceTensor>(std::move(tensor));
}

std::shared_ptr<const SourceTensor> turned(SourceTensor matrix) {
  matrix.transposed = !matrix.transposed;
  std::swap(matrix.shape[0], matrix.shape[1]);
  return std::make_shared<const SourceTensor>(std::move(matrix));
}

class Merger {
 public:
  Merger(AdapterConfig config, const AdaptedModel& model, MergedAdapter& merged)
      : config_(std::move(config)), model_(model), merged_(merged) {}

  void replace(const std::string& name, SourceTensor tensor);
  void change(const std::string& module, ModuleFactors factors);

 private:
  // Empty: it is of what is left out.
  std::string target(const std::string& name, const SourceTensor& of);
  [[noreturn]] void refuse(const SourceTensor& tensor, const std::string& what) const {
    refuse_factor(model_.weights, tensor, what);
  }
  void note_rank(int64_t rank);
  void check_rank(const std::string& module, const SourceTensor& a, const SourceTensor& b);
  void change_matrix(const std::string& name, const std::string& module, ModuleFactors& factors);
  void change_bias(const std::string& name, SourceTensor bias, float scale);
  void change_experts(const std::string& module, const std::vector<ExpertMatrices>& known,
                      const ModuleFactors& factors);
  void update(const std::string& name, LowRankUpdate update);

  AdapterConfig config_;
  const AdaptedModel& model_;
  MergedAdapter& merged_;
};

std::string Merger::target(const std::string& name, const SourceTensor& of) {
  std::string found = model_.find(name);
  if (!found.empty() && model_.is_shared(found)) {
    refuse(of, "changes an embedding that encoder and decoder share, which cannot be merged");
  }
  if (!found.empty() || model_.is_left_out(name)) return found;
  refuse(of, "belongs to " + quoted_tensor(name) +
                 ", which the model has not; is the adapter for another model?");
}

void Merger::replace(const std::string& name, SourceTensor tensor) {
  require_values(model_.weights, tensor);
  const std::string found = target(name, tensor);
  if (found.empty()) {
    ++merged_.left_out;
    return;
  }
  const SourceTensor& known = *model_.weights.find(found);
  if (known.update || known.file >= model_.own_files) {
    refuse(tensor, "replaces what another adapter has changed; merge one of them alone");
  }
  std::vector<int64_t> shape = known.shape;
  if (const int64_t rows = model_.rows_of_whole(found); rows > 0) shape.front() = rows;
  if (tensor.shape != shape) refuse_shape(model_.weights, tensor, known);
  static_cast<void>(model_.weights.take(found));
  model_.weights.add_tensor(std::move(tensor), found);
  ++merged_.replaced;
}

void Merger::change(const std::string& module, ModuleFactors factors) {
  const std::vector<const SourceTensor*> tensors = factors.tensors();
  std::string inner = module;  // several parameters of a module are wrapped one around the other
  erase_parts(inner, kBaseLayer);
  if (const auto experts = model_.experts(inner); !experts.empty()) {
    for (const SourceTensor* tensor : tensors) require_finite(model_.weights, *tensor);
    return change_experts(inner, experts, factors);
  }
  const std::string name = target(module + ".weight", *tensors.front());
  if (name.empty()) {
    merged_.left_out += tensors.size();
    return;
  }
  for (const SourceTensor* tensor : tensors) require_finite(model_.weights, *tensor);
  change_matrix(name, module, factors);
  if (!factors.bias) return;
  const std::string bias = target(module + ".bias", *factors.bias);
  if (!bias.empty()) change_bias(bias, *std::move(factors.bias), config_.scale_of(module));
}

void Merger::note_rank(int64_t rank) {
  merged_.least_rank = merged_.most_rank == 0 ? rank : std::min(merged_.least_rank, rank);
  merged_.most_rank = std::max(merged_.most_rank, rank);
}

void Merger::check_rank(const std::string& module, const SourceTensor& a, const SourceTensor& b) {
  if (a.shape.size() != 2 || b.shape.size() != 2 || a.shape[0] != b.shape[1] || a.elements() == 0) {
    refuse_shape(model_.weights, a, b);
  }
  const int64_t rank = a.shape[0];
  if (const int64_t expected = config_.rank_of(module); rank != expected) {
    refuse(a, "has the rank " + std::to_string(rank) + ", but " + kConfigFile + " says " +
                  std::to_string(expected));
  }
  note_rank(rank);
}

void Merger::change_matrix(const std::string& name, const std::string& module,
                           ModuleFactors& factors) {
  const bool is_embedding = factors.embedding_a || factors.embedding_b;
  auto& a = is_embedding ? factors.embedding_a : factors.a;
  auto& b = is_embedding ? factors.embedding_b : factors.b;
  const SourceTensor& any = *factors.tensors().front();
  if (!a || !b) refuse(any, "has no counterpart; an adapter has two factors of each matrix");
  if (is_embedding && (factors.a || factors.b))
    refuse(any, "is beside other factors of its matrix");
  check_rank(module, *a, *b);
  const SourceTensor& matrix = *model_.weights.find(name);
  const int64_t in = a->shape[1];
  const int64_t out = b->shape[0];
  const bool may_be_plain = matrix.shape == std::vector{out, in} && !is_embedding;
  const bool may_be_transposed = matrix.shape == std::vector{in, out};
  if (!may_be_plain && !may_be_transposed) {
    refuse(*a, "and its counterpart give a matrix " + shape_text(std::vector{out, in}) +
                   ", but the model's " + quoted_tensor(name) + " is " + shape_text(matrix.shape));
  }
  const bool transposed = !may_be_plain || (may_be_transposed && model_.is_transposed(name));
  LowRankUpdate change{.scale = config_.scale_of(module)};
  if (config_.has_magnitudes != factors.magnitudes.has_value()) {
    refuse(any, std::string(config_.has_magnitudes ? "has no magnitudes beside it"
                                                   : "has magnitudes beside it") +
                    ", unlike what " + kConfigFile + " says");
  }
  if (factors.magnitudes) {
    if (is_embedding)
      refuse(*factors.magnitudes, "is of an embedding, whose magnitudes cannot be merged");
    if (matrix.update) {
      refuse(*factors.magnitudes, "is of what another adapter has changed; merge this one first");
    }
    if (factors.magnitudes->shape != std::vector{out}) {
      refuse_shape(model_.weights, *factors.magnitudes, *b);
    }
    change.magnitudes =
        shaped(*std::move(factors.magnitudes),
               transposed ? std::vector<int64_t>{1, out} : std::vector<int64_t>{out, 1});
  }
  if (transposed) {
    change.factors = {{turned(*std::move(a)), turned(*std::move(b))}};
  } else {
    change.factors = {{shaped(*b, b->shape), shaped(*a, a->shape)}};
  }
  update(name, std::move(change));
}

void Merger::change_bias(const std::string& name, SourceTensor bias, float scale) {
  const SourceTensor& known = *model_.weights.find(name);
  if (bias.shape.size() != 1 || bias.shape != known.shape)
    refuse_shape(model_.weights, bias, known);
  const int64_t n = bias.shape[0];
  update(name, {.factors = {{nullptr, shaped(std::move(bias), {1, n})}}, .scale = scale});
}

// A [experts · rank, in] has the ranks of one expert after those of another, B [out, rank ·
// experts] the experts of one rank.
void Merger::change_experts(const std::string& module, const std::vector<ExpertMatrices>& known,
                            const ModuleFactors& factors) {
  const SourceTensor& any = *factors.tensors().front();
  if (!factors.a || !factors.b || factors.tensors().size() != 2) {
    refuse(any, "is of experts, whose adapters have two factors");
  }
  const SourceTensor& a = *factors.a;
  const SourceTensor& b = *factors.b;
  for (const SourceTensor* factor : {&a, &b}) {
    if (factor->transposed || factor->format->block_elements != 1 || factor->packed) {
      refuse(*factor, "lies in columns; save it as safetensors");
    }
  }
  const int64_t ranks = a.shape.empty() ? 0 : a.shape[0];
  const auto fit = [&](int64_t out, int64_t in) {
    return a.shape == std::vector{ranks, in} && b.shape == std::vector{out, ranks};
  };
  for (const ExpertMatrices& experts : known) {
    const std::string parameter = module + "." + experts.parameter;
    const int64_t rank = config_.rank_of(parameter);
    if (ranks % experts.count != 0 || ranks / experts.count != rank) continue;
    const bool is_joined = !experts.joined.empty();
    const bool transposed = is_joined && fit(experts.in, experts.out) &&
                            (experts.in != experts.out || model_.is_transposed(experts.joined));
    if (!transposed && !fit(experts.out, experts.in)) continue;
    note_rank(rank);
    LowRankUpdate of_joined{.scale = config_.scale_of(parameter)};
    for (int64_t e = 0; e < experts.count; ++e) {
      const auto right = lines_of(a, e * rank * a.shape[1], rank, a.shape[1]);
      if (transposed) {
        of_joined.factors.push_back(
            {turned(*right), turned(*lines_of(b, e, b.shape[0], rank, experts.count))});
      } else if (is_joined) {
        of_joined.factors.push_back({lines_of(b, e, b.shape[0], rank, experts.count), right});
      } else {
        for (const auto& [name, first, count] : experts.of_experts[static_cast<size_t>(e)]) {
          const auto left = lines_of(b, first * ranks + e, count, rank, experts.count);
          update(name, {.factors = {{left, right}}, .scale = of_joined.scale});
        }
      }
    }
    if (is_joined) update(experts.joined, std::move(of_joined));
    return;
  }
  refuse_shape(
      model_.weights, a, b,
      ", or there are no experts of these shapes and the rank of " + std::string(kConfigFile));
}

void Merger::update(const std::string& name, LowRankUpdate update) {
  require_values(model_.weights, *model_.weights.find(name));
  SourceTensor tensor = model_.weights.take(name);
  update.base = std::make_shared<const SourceTensor>(tensor);
  tensor.update = std::make_shared<const LowRankUpdate>(std::move(update));
  model_.weights.add_tensor(std::move(tensor), name);
  ++merged_.changed;
}

// The name of the folder alone: the same adapter gives the same file on every machine.
std::string name_of(const fs::path& folder) {
  const fs::path plain = fs::absolute(folder).lexically_normal();
  return plain.has_filename() ? plain.filename().string() : plain.parent_path().filename().string();
}

}  // namespace

std::string to_text(const MergedAdapter& adapter) {
  const auto count = [](size_t n) { return std::to_string(n) + (n == 1 ? " tensor" : " tensors"); };
  std::string text = printable(adapter.name) + ": " + count(adapter.changed) + " changed";
  if (adapter.most_rank > 0) {
    text += adapter.least_rank == adapter.most_rank
                ? ", of rank " + std::to_string(adapter.most_rank)
                : ", of ranks " + std::to_string(adapter.least_rank) + " to " +
                      std::to_string(adapter.most_rank);
  }
  if (adapter.replaced > 0) text += ", " + count(adapter.replaced) + " replaced";
  if (adapter.left_out > 0) {
    text += ", " + count(adapter.left_out) + " of what is left out of the model";
  }
  return text;
}

struct Adapter::Contents {
  AdapterConfig config;
  AdapterTensors tensors;
};

Adapter::Adapter(fs::path folder, Checkpoint& weights, SourceFiles& files)
    : folder_(std::move(folder)) {
  const fs::path config = folder_ / kConfigFile;
  if (!fs::exists(config)) {
    throw Error(folder_.string() + ": holds no " + kConfigFile +
                "; give the folder of an adapter that PEFT has saved");
  }
  contents_ = std::make_unique<Contents>(
      Contents{parse_adapter_config(files.read(config, kMaxConfigBytes), config.string()),
               read_tensors(folder_, weights, files)});
}

Adapter::Adapter(Adapter&& other) noexcept = default;
Adapter::~Adapter() = default;

std::vector<std::pair<std::string, int64_t>> Adapter::whole_tensors() const {
  std::vector<std::pair<std::string, int64_t>> tensors;
  for (const auto& [name, tensor] : contents_->tensors.whole) {
    tensors.emplace_back(name, tensor.shape.size() == 2 ? tensor.shape[0] : 0);
  }
  return tensors;
}

MergedAdapter Adapter::merge(const AdaptedModel& model) && {
  MergedAdapter merged{.name = name_of(folder_), .ties = contents_->config.ties};
  Merger merger(std::move(contents_->config), model, merged);
  for (auto& [name, tensor] : contents_->tensors.whole) merger.replace(name, std::move(tensor));
  for (auto& [module, factors] : contents_->tensors.modules) {
    merger.change(module, std::move(factors));
  }
  if (merged.changed + merged.replaced == 0) {
    throw Error(folder_.string() + ": changes nothing but what is left out of the model");
  }
  return merged;
}

}  // namespace faststream::convert
