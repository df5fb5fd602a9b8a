// A model file on a device, ready to run.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "engine/answer_rules.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "engine/runner.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "text/tokenizer.h"

namespace faststream {

/// Everything that belongs to a model in use, in the order in which it must be destroyed (last
/// first).
struct LoadedModel {
  /// max_logits: rows of logits that a step may ask for, at least one for each slot. Throws as
  /// Engine's constructor does.
  LoadedModel(const std::filesystem::path& path, const EngineOptions& options, int32_t max_logits);

  ModelFile file;
  ModelConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;         ///< of what the model writes
  std::shared_ptr<const Tokenizer> prompt_tokenizer;  ///< of what it reads; most often the same
  std::optional<AnswerRules> answers;                 ///< where the model has an encoder
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Runner> runner;
  EngineInfo info;
};

/// What a user can do about results that are not finite.
inline constexpr const char* kOverflowAdvice =
    "convert it to bf16 or f32, or get the checkpoint again if it is that already";

/// What a runner may hold by a plan.
RunnerLimits runner_limits(const MemoryPlan& plan);

/// How the texts of a model with an encoder begin and end; nothing where it has none. Throws Error
/// when the file does not say.
std::optional<AnswerRules> find_answer_rules(const ModelFile& file, const ModelConfig& config);

/// Throws Error when the model is an encoder, which writes no text.
void require_text(const ModelFile& file, const ModelConfig& config);

/// The tokenizer in a model file. Throws Error, naming the file, when there is none, or when it has
/// more tokens than the model's vocabulary. `check_interrupted`: as the tokenizer takes it.
std::shared_ptr<const Tokenizer> make_tokenizer(const ModelFile& file, const ModelConfig& config,
                                                const CheckInterrupted& check_interrupted = {});

/// The tokenizer of prompts: the encoder's, where the file has one of its own, else `tokenizer`.
/// Throws Error as make_tokenizer() does.
std::shared_ptr<const Tokenizer> make_prompt_tokenizer(
    const ModelFile& file, const ModelConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
    const CheckInterrupted& check_interrupted = {});

}  // namespace faststream
