// A model file that is placed on a device: what everything that runs a model begins with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "support/check_interrupted.h"
#include "text/tokenizer.h"

namespace faststream {

/// In the order in which it must be destroyed (last first).
struct ModelOnDevice {
  /// Called while weights are loaded, with bytes done and bytes in all. May be empty.
  using LoadProgress = std::function<void(size_t, size_t)>;

  /// Opens the file; it is on no device yet. Throws Error when it is no sound model.
  /// `check_interrupted`: as the tokenizer takes it.
  explicit ModelOnDevice(const std::filesystem::path& path,
                         const CheckInterrupted& check_interrupted = {});

  /// Chooses a device (choose_backend()) and has load(progress) allocate memory there and load the
  /// weights, of so many bytes; waits until they are there. `progress` is as load_weights() wants
  /// it.
  void place(const std::string& device, int32_t threads, size_t bytes, const LoadProgress& told,
             const std::function<void(const std::function<void(size_t)>& progress)>& load);

  [[nodiscard]] size_t weight_bytes() const;

  ModelFile file;
  ModelConfig config;                          ///< without_predictors(), until some are wanted
  std::shared_ptr<const Tokenizer> tokenizer;  ///< of what the model writes
  std::unique_ptr<Backend> backend;            ///< once it is placed
  double load_seconds = 0;                     ///< likewise
};

/// What a user can do about results that are not finite.
inline constexpr const char* kOverflowAdvice =
    "convert it to bf16 or f32, or get the checkpoint again if it is that already";

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
