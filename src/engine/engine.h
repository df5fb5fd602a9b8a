// The public C++ API: a model file in, text out.
//
//   faststream::Engine engine("model.bin", {});
//   const std::vector<int32_t> prompt = engine.tokenize("Once upon a time");
//   engine.generate(prompt, {.max_tokens = 64}, [](std::string_view text) {
//     std::cout << text << std::flush;
//     return true;
//   });
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampling.h"
#include "support/error.h"

namespace faststream {

struct EngineOptions {
  std::string device = "auto";  ///< "auto", "cpu", "cuda" or "cuda:N"
  int32_t threads = 0;          ///< CPU threads; 0: all that the process may use
  int64_t context = 0;  ///< tokens of prompt and answer; 0: the model's, or what memory allows
  /// Called while weights are loaded, with bytes done and bytes in all. May be empty.
  std::function<void(size_t, size_t)> load_progress = {};
};

enum class FinishReason {
  eos,        ///< the model ended its text
  length,     ///< max_tokens were generated
  context,    ///< the context is full
  cancelled,  ///< the callback returned false
};

struct GenerateOptions {
  int64_t max_tokens = -1;  ///< -1: until the model ends or the context is full
  bool ignore_eos = false;  ///< go on after an end-of-sequence token
  SamplingParams sampling = {};
};

struct GenerateResult {
  FinishReason finish_reason = FinishReason::length;
  std::vector<int32_t> tokens;    ///< generated, the end-of-sequence token included
  double prompt_seconds = 0;      ///< from the call to the first token
  double generation_seconds = 0;  ///< from the first token to the last
};

struct EngineInfo {
  std::string device;   ///< such as "CPU (2 threads, AMX)"
  int64_t context = 0;  ///< tokens
  double load_seconds = 0;
  size_t weight_bytes = 0;
  size_t kv_bytes = 0;
};

/// Runs one model. One call at a time.
class Engine {
 public:
  /// Loads a model. Throws UsageError for bad options, Error when the file is no sound model or the
  /// device does not suffice.
  Engine(const std::filesystem::path& model, const EngineOptions& options);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  [[nodiscard]] const EngineInfo& info() const;

  /// Token ids of a text, with the begin-of-sequence token if the model wants one.
  [[nodiscard]] std::vector<int32_t> tokenize(std::string_view text) const;

  /// Continues a prompt. `on_text` gets the text as it comes, in whole UTF-8 characters (sometimes
  /// an empty string), and returns false to stop. Throws Error when the prompt is empty or longer
  /// than the context.
  GenerateResult generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                          const std::function<bool(std::string_view)>& on_text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Token ids of a text by the tokenizer of a model file, without loading the model.
std::vector<int32_t> tokenize(const std::filesystem::path& model, std::string_view text);

}  // namespace faststream
