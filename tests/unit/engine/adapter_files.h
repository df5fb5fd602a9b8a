// Adapters with random factors beside models with random weights, as files.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/adapter_file.h"
#include "engine/load_weights.h"
#include "model_file/model_writer.h"
#include "models/adapter_plan.h"
#include "unit/convert/checkpoint_files.h"

namespace faststream {

/// Rank 16 of each matrix that adapters can change.
inline AdapterRanks ranks_of_all(const ModelConfig& config) {
  AdapterRanks ranks;
  for (const TensorPlan& plan : tensor_plan(config)) {
    if (takes_adapter(plan)) ranks[plan.name] = kAdapterRankStep;
  }
  return ranks;
}

/// A file that `change`, if set, has made other than it should be.
struct AdapterContents {
  nlohmann::json header;
  std::vector<TensorSpec> specs;
  std::vector<std::vector<float>> values;  ///< of each tensor
};

inline void write_adapter_file(const std::filesystem::path& path, const ModelFile& model,
                               uint32_t seed,
                               const std::function<void(AdapterContents&)>& change = {}) {
  const ModelConfig config = read_config(model);
  AdapterContents contents{
      .header = {{"adapter", adapter_to_json(model)}}, .specs = {}, .values = {}};
  for (const TensorPlan& plan : adapter_plan(config, ranks_of_all(config))) {
    contents.specs.push_back({plan.name, plan.stored_as(), plan.stored_shape()});
    contents.values.push_back(
        convert::random_values(static_cast<size_t>(plan.shape[0] * plan.shape[1]), seed++));
  }
  if (change) change(contents);
  ModelWriter writer(path, contents.header, contents.specs, true);
  for (size_t i = 0; i < contents.specs.size(); ++i) {
    const TensorSpec& spec = contents.specs[i];
    std::vector<std::byte> bytes(contents.values[i].size() * dtype_size(spec.dtype));
    for (size_t n = 0; n < contents.values[i].size(); ++n) {
      store_float(bytes.data(), spec.dtype, n, contents.values[i][n]);
    }
    writer.append(bytes);
  }
  writer.finish();
}

}  // namespace faststream
