#include "engine/load_weights.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "models/shares.h"
#include "models/tensor_plan.h"

namespace faststream {
namespace {

constexpr uint64_t kAlignment = 256;  // of tensors in a backend's memory; Weight asks for 64

// Where each tensor will be, from the first byte of all.
using Places = std::map<TensorId, uint64_t>;

// Adds the slices of what a rank has of a tensor, which is shares of rows or of columns; without a
// rule all of it.
void add_slices(const TensorPlan& plan, const SplitRule& rule, uint64_t from, RankPlace rank,
                WeightSource& source) {
  const auto rows = static_cast<uint64_t>(plan.shape[0]);
  const auto bytes_of = [&](int64_t columns) {
    return static_cast<uint64_t>(plan.bytes_of_columns(columns));
  };
  const uint64_t row_bytes = bytes_of(plan.columns());
  const uint64_t end = source.slices.empty() ? 0 : source.size();  // without slices of all bytes
  uint64_t to = (end + kAlignment - 1) / kAlignment * kAlignment;
  const auto add = [&](WeightSlice slice) {
    slice.to = to;
    source.slices.push_back(slice);
    to = slice.end();
  };
  if (rule.by == SplitBy::none) return add({.from = from, .row_bytes = rows * row_bytes});
  if (!rule.columns) {
    for (const SplitShare& share : shares_of(rule, rank)) {
      add({.from = from + static_cast<uint64_t>(share.first) * row_bytes,
           .row_bytes = static_cast<uint64_t>(share.count) * row_bytes});
    }
    return;
  }
  // Columns are of one part.
  const SplitShare share = shares_of(rule, rank).front();
  add({.from = from + bytes_of(share.first),
       .row_bytes = bytes_of(share.count),
       .rows = rows,
       .pitch = row_bytes});
}

// What a backend is to have, and where each tensor will be.
struct Placement {
  WeightSource source;
  Places places;
};

Placement place_tensors(const ModelFile& file, const ModelConfig& config, RankPlace rank) {
  Placement placement{.source = weights_to_load(file, config), .places = {}};
  WeightSource& source = placement.source;
  const uint64_t first = source.offset;
  std::map<TensorId, TensorPlan> share;  // as the rank's description has them
  if (rank.count > 1) {
    for (TensorPlan& plan : tensor_plan(share_of(config, rank))) share[plan.id] = std::move(plan);
  }
  for (const TensorPlan& plan : tensor_plan(config)) {
    const TensorInfo& tensor = file.require(plan.name, plan.stored_as(), plan.stored_shape());
    uint64_t& place = placement.places[plan.id] = tensor.offset - first;
    if (rank.count == 1) continue;
    const size_t slices = source.slices.size();
    const bool is_whole = share.at(plan.id).shape == plan.shape;
    add_slices(plan, is_whole ? SplitRule{} : plan.split, tensor.offset - first, rank, source);
    place = source.slices[slices].to;
  }
  return placement;
}

}  // namespace

ModelConfig read_config(const ModelFile& file) {
  return config_from_json(file.section("model"), file.name());
}

WeightSource weights_to_load(const ModelFile& file, const ModelConfig& config) {
  WeightSource source = file.weights();
  uint64_t end = source.offset;
  for (const TensorPlan& plan : tensor_plan(config)) {
    const TensorInfo& tensor = file.require(plan.name, plan.stored_as(), plan.stored_shape());
    end = std::max(end, tensor.offset + tensor.bytes);
  }
  source.bytes = source.bytes.first(end - source.offset);
  return source;
}

WeightLookup load_weights(const ModelFile& file, const ModelConfig& config, Backend& backend,
                          const std::function<void(size_t)>& progress, RankPlace rank) {
  Placement placement = place_tensors(file, config, rank);
  backend.expect_products(config.weight_format, placement.source.size());
  const std::byte* base = backend.load_weights(placement.source, progress);
  return [base, places = std::move(placement.places)](const TensorId& id) {
    return base + places.at(id);
  };
}

size_t bytes_to_load(const ModelFile& file, const ModelConfig& config, RankPlace rank) {
  return place_tensors(file, config, rank).source.size();
}

}  // namespace faststream
