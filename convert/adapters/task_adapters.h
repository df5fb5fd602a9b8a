// Adapters of low rank that a checkpoint has beside its own weights, one for each task, as PyTorch
// names parametrizations: Jina Embeddings v3 (arXiv:2409.10173) as its authors' code has it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "convert/adapters/merge_adapter.h"
#include "convert/checkpoint.h"
#include "support/json.h"

namespace faststream::convert {

/// The task by which weights stay as they are without adapters.
inline constexpr std::string_view kNoTask = "none";

struct MergedTask {
  std::optional<MergedAdapter> adapter = {};  ///< none: nothing was merged
  std::string instruction = {};               ///< stands before every text of that task
};

/// Gives the weights that have adapters their plain names, "x.weight", and has them read in float32
/// as the task's adapter changes them, W + lora_alpha / lora_rank · B · A, and of embeddings A · B.
/// Throws Error when the checkpoint has adapters and `task` is empty, or neither "none" nor one of
/// "lora_adaptations"; when it has none and `task` is not empty; and when they are damaged.
MergedTask merge_task(const JsonView& config, std::string_view task, Checkpoint& weights);

}  // namespace faststream::convert
