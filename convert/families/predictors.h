// Heads of a checkpoint that predict further tokens (multi-token prediction).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/families/modules.h"
#include "convert/source_model.h"
#include "models/config.h"

namespace faststream::convert {

/// What a checkpoint calls predictors.
struct PredictorModules {
  std::vector<Modules> each = {};  ///< of ModelConfig::predictors
  /// What names of their tensors begin with, or go on with after a dot, also of those that are not
  /// understood.
  std::vector<std::string> names = {};
};

/// The last of the model's kinds of layers that have attention, and experts or not; null: none has.
const LayerConfig* find_attention_layer(const ModelConfig& model, bool has_experts);

/// Adds a predictor of one layer, with norms like that layer's: its number in the checkpoint, and
/// modules like those of the model but for what they call the norms, the projection, the embedding
/// and the output matrix. Returns false when there can be no more of them.
bool add_predictor(const LayerConfig& layer, int64_t number, Modules modules, ModelConfig& model,
                   PredictorModules& predictors);

/// Those that are layers behind the model's, as DeepSeek V3 has them: `count` from number `first`
/// on. Those without a projection stay out.
void add_predicting_layers(int64_t first, int64_t count, const Checkpoint& weights,
                           const Modules& modules, ModelConfig& model,
                           PredictorModules& predictors);

/// Those that stand beside the model as "mtp.", as Qwen 3.5 has them: layers that share what stands
/// around them.
void add_predictors_beside(const Checkpoint& weights, Modules modules, ModelConfig& model,
                           PredictorModules& predictors);

/// Keeps predictors that are complete: adds their parts, shares with the model an embedding or an
/// output matrix that is the model's, and takes away what of them has no place. Where a tensor is
/// missing all of them are left out: the model runs without. Returns the tensors that are kept, and
/// adds those that are not to `left_out`.
std::vector<LeftOut> keep_predictors(const PredictorModules& predictors, const Modules& modules,
                                     ModelConfig& model, Checkpoint& weights, TensorParts& parts,
                                     std::vector<LeftOut>& left_out);

/// Leaves out those that were kept.
void leave_out_predictors(SourceModel& model);

}  // namespace faststream::convert
