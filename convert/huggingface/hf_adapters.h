// Adapters beside a Hugging Face folder: which of its tensors they mean.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "convert/adapters/merge_adapter.h"
#include "convert/families/family.h"
#include "convert/source_model.h"

namespace faststream::convert {

/// merge_adapter() for each folder, in this order, into the tensors of a model that were left under
/// their names when `left_out` was taken away. Where a tied matrix is changed in one of its places
/// alone the checkpoint has two of them after that. `is_part`: the model is the text model of a
/// multimodal one. Throws Error as merge_adapter() does.
std::vector<MergedAdapter> merge_adapters(std::span<const std::filesystem::path> folders,
                                          bool is_part, const FamilyModel& family,
                                          std::span<const LeftOut> left_out, Checkpoint& weights,
                                          SourceFiles& files);

}  // namespace faststream::convert
