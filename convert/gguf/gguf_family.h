// Descriptions of the models in GGUF files, by their metadata and tensors.
#pragma once

#include <functional>

#include "convert/checkpoint.h"
#include "convert/families/modules.h"
#include "convert/families/predictors.h"
#include "convert/gguf/metadata.h"
#include "engine/answer_rules.h"
#include "models/config.h"

namespace faststream::convert {

/// A description and what the tensors are called.
struct GgufFamilyModel {
  ModelConfig config;  ///< valid; types of weights left as they are by default
  Modules modules;
  Modules encoder_modules = {};  ///< of config.encoder
  AnswerRules answers = {};      ///< of a model with an encoder
  PredictorModules predictors = {};
  /// Changes what modules cannot say; may be empty.
  std::function<void(const ModelConfig&, TensorParts&)> finish = {};
};

/// What "general.architecture" and its metadata describe. `weights` tells what metadata leave out:
/// rows of the vocabulary, an output matrix of its own, biases, factors of rotary frequencies.
/// Throws Error, starting with the file's name, when something is missing, out of range or not
/// supported.
GgufFamilyModel describe_gguf(const GgufMetadata& metadata, const Checkpoint& weights);

}  // namespace faststream::convert
