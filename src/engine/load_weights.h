// A model file's weights in a backend's memory.
#pragma once

#include <cstddef>
#include <functional>

#include "backend/backend.h"
#include "engine/adapter_file.h"
#include "model_file/model_file.h"
#include "models/model.h"

namespace faststream {

/// The description in a model file. Throws Error, naming the file, when there is no valid one.
ModelConfig read_config(const ModelFile& file);

/// What runs of files: the model's description without predictors, and what adapters change. Throws
/// Error as read_adapter() does.
ModelConfig config_of_files(const ModelFiles& files);

// Each takes the file's description, or that without_predictors(), which then cost a device
// nothing.

/// What a device is to have of a file: all that load_weights() gives it alone, as one range.
WeightSource weights_to_load(const ModelFile& file, const ModelConfig& config);

/// Makes the tensors of tensor_plan(config) and of its adapters, whose files these are in the same
/// order, or a rank's share of each (models/shares.h), readable by operations; `progress`, if set,
/// is called with the bytes done so far. Throws Error, naming the file, when a tensor is missing or
/// of another type or shape, before anything is allocated.
WeightLookup load_weights(const ModelFiles& files, const ModelConfig& config, Backend& backend,
                          const std::function<void(size_t)>& progress, RankPlace rank = {});

/// Bytes of memory that they take there.
size_t bytes_to_load(const ModelFiles& files, const ModelConfig& config, RankPlace rank = {});

}  // namespace faststream
