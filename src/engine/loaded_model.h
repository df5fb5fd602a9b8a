// A model that writes text, on a device.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/answer_rules.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "engine/model_on_device.h"
#include "engine/ranks.h"
#include "engine/runner.h"
#include "engine/speculation.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "support/kv_format.h"
#include "text/tokenizer.h"

namespace faststream {

/// What becomes of EngineOptions::kv where no layer of the model takes it.
enum class UntakenKv {
  is_refused,
  is_left_out,  ///< the model has it only as company of another one
};

/// A model that writes text, ready to run; all that belongs to it, in the order in which it must be
/// destroyed (last first).
struct LoadedModel : ModelOnDevice {
  /// max_logits: rows of logits that a step may ask for, at least one for each slot. Throws as
  /// Engine's constructor does.
  LoadedModel(const std::filesystem::path& path, const EngineOptions& options, int32_t max_logits,
              UntakenKv untaken_kv = UntakenKv::is_refused);

  /// What texts have of which nothing else is said, as TextKind has it.
  [[nodiscard]] int32_t default_adapter() const { return adapters.empty() ? 0 : 1; }

  std::vector<ModelFile> adapters;                    ///< files, in the order of info.adapters
  std::shared_ptr<const Tokenizer> prompt_tokenizer;  ///< of what it reads; most often the same
  std::optional<AnswerRules> answers;                 ///< where the model has an encoder
  std::unique_ptr<Ranks> ranks;
  Speculation speculation;
  int32_t proposed_tokens = 0;  ///< of a step, that its logits have rows for
  std::unique_ptr<Runner> runner;
  EngineInfo info;
};

/// The files of adapters. Throws UsageError when their names are not all different and printable,
/// or the model takes no adapters; Error when one is no sound file.
std::vector<ModelFile> open_adapters(const std::vector<AdapterOption>& adapters,
                                     const ModelConfig& config);

/// The format that EngineOptions::kv names. Throws UsageError when it is none, or is refused as no
/// layer of the model takes it.
KvFormat choose_kv_format(const std::string& name, const ModelConfig& config,
                          const std::string& file, UntakenKv untaken = UntakenKv::is_refused);

/// How the texts of a model with an encoder begin and end; nothing where it has none, or writes no
/// texts. Throws Error when the file does not say.
std::optional<AnswerRules> find_answer_rules(const ModelFile& file, const ModelConfig& config);

/// Throws Error when the model is an encoder, which writes no text.
void require_text(const ModelFile& file, const ModelConfig& config);

}  // namespace faststream
