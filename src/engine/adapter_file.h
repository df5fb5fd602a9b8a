// The file of an adapter that runs beside a model: a model file whose header has an "adapter" in
// place of a "model". docs/model-file.md has the format.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>

#include "model_file/model_file.h"
#include "models/config.h"

namespace faststream {

/// Of an adapter, all its matrices joined; larger ones are for merging.
inline constexpr int64_t kMostAdapterRank = 4096;
inline constexpr size_t kMostAdapters = 1024;  ///< beside a model

/// What a model runs from: its own file, and those of adapters beside it, which all outlive this.
struct ModelFiles {
  ModelFiles(const ModelFile& file, std::span<const ModelFile> beside = {})  // NOLINT: it is one
      : model(file), adapters(beside) {}

  const ModelFile& model;
  std::span<const ModelFile> adapters;
};

/// The "adapter" of the header: which model it is for.
nlohmann::json adapter_to_json(const ModelFile& model);

/// Whether a file is an adapter's, and whether it is for the weights of this checksum.
bool is_adapter_file(const ModelFile& file);
bool is_adapter_for(const ModelFile& file, uint64_t weights_checksum);

/// What the adapter in a file changes in a model of this description. Throws Error, naming the
/// file, when it is no adapter, or one for another model, has tensors that none of the model's
/// matrices can have, of other types or shapes, or values that are not finite.
AdapterRanks read_adapter(const ModelFile& file, const ModelFile& model, const ModelConfig& config);

}  // namespace faststream
