#include "engine/load_weights.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "models/adapter_plan.h"
#include "models/shares.h"
#include "models/tensor_plan.h"
#include "support/error.h"

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

// What a backend is to have, the matrices among it, and where each tensor will be.
struct Placement {
  WeightSource source;
  std::vector<TensorPlan> matrices;
  Places places;
};

// Tensors of a file that are to be loaded, as its description has them and as the rank's does.
struct Planned {
  std::vector<TensorPlan> whole;
  std::vector<TensorPlan> share;
};

// From the first tensor that is not u8 to the last of those that are planned.
WeightSource range_of(const ModelFile& file, std::span<const TensorPlan> plans) {
  WeightSource source = file.weights();
  uint64_t end = source.offset;
  for (const TensorPlan& plan : plans) {
    const TensorInfo& tensor = file.require(plan.name, plan.stored_as(), plan.stored_shape());
    end = std::max(end, tensor.offset + tensor.bytes);
  }
  source.bytes = source.bytes.first(end - source.offset);
  return source;
}

Placement place_tensors(const ModelFile& file, const Planned& planned, RankPlace rank) {
  Placement placement{.source = range_of(file, planned.whole), .matrices = {}, .places = {}};
  WeightSource& source = placement.source;
  const uint64_t first = source.offset;
  std::map<TensorId, const TensorPlan*> share;
  for (const TensorPlan& plan : planned.share) share[plan.id] = &plan;
  for (const TensorPlan& plan : planned.whole) {
    const TensorInfo& tensor = file.require(plan.name, plan.stored_as(), plan.stored_shape());
    uint64_t& place = placement.places[plan.id] = tensor.offset - first;
    if (rank == RankPlace{}) {
      placement.matrices.push_back(plan);
      continue;
    }
    const auto own = share.find(plan.id);
    if (own == share.end()) {  // another stage's
      placement.places.erase(plan.id);
      continue;
    }
    const size_t slices = source.slices.size();
    const bool is_whole = own->second->shape == plan.shape;
    add_slices(plan, is_whole ? SplitRule{} : plan.split, tensor.offset - first, rank, source);
    place = source.slices[slices].to;
    placement.matrices.push_back(*own->second);
  }
  std::erase_if(placement.matrices, [](const TensorPlan& plan) { return plan.shape.size() != 2; });
  return placement;
}

// Of the model's file, then of each adapter's.
std::vector<Placement> place_all(const ModelFiles& files, const ModelConfig& config,
                                 RankPlace rank) {
  const bool is_share = rank != RankPlace{};
  const ModelConfig share = is_share ? share_of(config, rank) : ModelConfig{};
  const auto planned = [&](auto plan) {
    return Planned{plan(config), is_share ? plan(share) : std::vector<TensorPlan>{}};
  };
  std::vector<Placement> all;
  all.push_back(place_tensors(files.model, planned(tensor_plan), rank));
  for (size_t n = 0; n < files.adapters.size(); ++n) {
    const auto of_adapter = [n](const ModelConfig& of) {
      return adapter_plan(of, of.adapters.at(n), static_cast<int64_t>(n) + 1);
    };
    all.push_back(place_tensors(files.adapters[n], planned(of_adapter), rank));
  }
  return all;
}

}  // namespace

ModelConfig read_config(const ModelFile& file) {
  if (is_adapter_file(file)) {
    throw Error(file.name() + ": is an adapter; give it beside its model, as --adapter NAME=FILE");
  }
  return config_from_json(file.section("model"), file.name());
}

ModelConfig config_of_files(const ModelFiles& files) {
  ModelConfig config = without_predictors(read_config(files.model));
  for (const ModelFile& adapter : files.adapters) {
    config.adapters.push_back(read_adapter(adapter, files.model, config));
  }
  return config;
}

WeightSource weights_to_load(const ModelFile& file, const ModelConfig& config) {
  return range_of(file, tensor_plan(config));
}

WeightLookup load_weights(const ModelFiles& files, const ModelConfig& config, Backend& backend,
                          const std::function<void(size_t)>& progress, RankPlace rank) {
  std::vector<Placement> placements = place_all(files, config, rank);
  backend.expect_products(config.weight_format, placements.front().source.size());
  std::vector<std::pair<const std::byte*, Places>> loaded;
  size_t before = 0;
  for (Placement& placement : placements) {
    const auto told = [&](size_t done) { progress(before + done); };
    const std::byte* base = backend.load_weights(
        placement.source, progress ? std::function<void(size_t)>(told) : nullptr);
    before += placement.source.size();
    for (const TensorPlan& plan : placement.matrices) {
      backend.arrange({.data = base + placement.places.at(plan.id),
                       .format = plan.format,
                       .rows = plan.shape[0],
                       .cols = plan.shape[1]});
    }
    loaded.emplace_back(base, std::move(placement.places));
  }
  return [loaded = std::move(loaded)](const TensorId& id) {
    const auto& [base, places] = loaded.at(static_cast<size_t>(id.adapter));
    return base + places.at(id);
  };
}

size_t bytes_to_load(const ModelFiles& files, const ModelConfig& config, RankPlace rank) {
  size_t bytes = 0;
  for (const Placement& placement : place_all(files, config, rank))
    bytes += placement.source.size();
  return bytes;
}

}  // namespace faststream
