// Adapters beside a Hugging Face folder: which of its tensors they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "convert/adapters/merge_adapter.h"
#include "convert/families/family.h"
#include "convert/source_model.h"

namespace faststream::convert {

/// Tokens for which adapters have the whole embedding or output matrix, where the checkpoint's has
/// another number. Throws Error when they do not agree.
std::optional<int64_t> changed_vocabulary(std::span<const Adapter> adapters,
                                          const FamilyModel& family, const Checkpoint& weights);

/// Merges the adapters, in this order, into the tensors of a model that were left under their names
/// when `left_out` was taken away. Where a tied matrix is changed in one of its places alone the
/// checkpoint has two of them after that. own_files: of the checkpoint without adapters;
/// vocabulary: what changed_vocabulary() gave; `is_part`: the model is the text model of a
/// multimodal one. Throws Error as Adapter::merge() does.
std::vector<MergedAdapter> merge_adapters(std::vector<Adapter> adapters, size_t own_files,
                                          std::optional<int64_t> vocabulary, bool is_part,
                                          const FamilyModel& family,
                                          std::span<const LeftOut> left_out, Checkpoint& weights);

}  // namespace faststream::convert
