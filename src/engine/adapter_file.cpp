#include "engine/adapter_file.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/adapter_plan.h"
#include "support/error.h"
#include "support/hash.h"
#include "support/json.h"

namespace faststream {
namespace {

constexpr const char* kAdapter = "adapter";
constexpr const char* kModel = "model";

[[noreturn]] void refuse(const ModelFile& file, const std::string& what) {
  throw Error(file.name() + ": " + what);
}

void check_model(const ModelFile& file, const ModelFile& model) {
  if (!is_adapter_file(file)) {
    refuse(file,
           "is no adapter; make one of PEFT's folder with faststream-convert CHECKPOINT "
           "--lora DIR --adapter-for MODEL");
  }
  if (is_adapter_for(file, model.weights_checksum())) return;
  refuse(file, "is an adapter for other weights than those of " + model.name() +
                   "; convert it again, with --adapter-for " + model.name());
}

// Of a matrix; 0: the adapter does not change it.
int64_t rank_of(const ModelFile& file, const std::string& matrix) {
  const TensorInfo* a = file.find(matrix + ".a");
  if (a == nullptr) return 0;
  const int64_t rank = a->shape.front();
  if (rank > kMostAdapterRank || rank % kAdapterRankStep != 0) {
    refuse(file, "tensor \"" + a->name + "\" has the rank " + std::to_string(rank) +
                     ", which is no multiple of " + std::to_string(kAdapterRankStep) + " up to " +
                     std::to_string(kMostAdapterRank) + "; convert the adapter again");
  }
  return rank;
}

void check_values(const ModelFile& file, const TensorPlan& plan) {
  const TensorInfo& tensor = file.require(plan.name, plan.stored_as(), plan.stored_shape());
  const std::span<const std::byte> bytes = file.bytes(tensor);
  std::vector<float> row(static_cast<size_t>(plan.columns()));
  const auto row_bytes = static_cast<size_t>(plan.bytes_of_columns(plan.columns()));
  for (size_t at = 0; at < bytes.size(); at += row_bytes) {
    decode_row(plan.format, bytes.data() + at, nullptr, 0, row);
    if (std::ranges::all_of(row, [](float value) { return std::isfinite(value); })) continue;
    refuse(file, "tensor \"" + plan.name + "\" holds NaN or infinity; convert the adapter again");
  }
}

}  // namespace

nlohmann::json adapter_to_json(const ModelFile& model) {
  return {{kModel, hash_digits(model.weights_checksum())}};
}

bool is_adapter_file(const ModelFile& file) { return file.header().contains(kAdapter); }

bool is_adapter_for(const ModelFile& file, uint64_t weights_checksum) {
  if (!is_adapter_file(file)) return false;
  const JsonView header(file.header(), file.name() + ": header", "convert the adapter again");
  return header.member(kAdapter).get<std::string>(kModel) == hash_digits(weights_checksum);
}

AdapterRanks read_adapter(const ModelFile& file, const ModelFile& model,
                          const ModelConfig& config) {
  check_model(file, model);
  AdapterRanks ranks;
  for (const TensorPlan& plan : tensor_plan(config)) {
    if (!takes_adapter(plan)) continue;
    if (const int64_t rank = rank_of(file, plan.name); rank > 0) ranks[plan.name] = rank;
  }
  const std::vector<TensorPlan> plans = adapter_plan(config, ranks);
  for (const TensorInfo& tensor : file.tensors()) {
    if (std::ranges::find(plans, tensor.name, &TensorPlan::name) != plans.end()) continue;
    refuse(file, "tensor \"" + tensor.name +
                     "\" belongs to no matrix of the model that an adapter can change");
  }
  for (const TensorPlan& plan : plans) check_values(file, plan);
  return ranks;
}

}  // namespace faststream
