// The public C++ API: a model in memory that any number of requests share.
//
//   faststream::Engine engine("model.bin", {});
//   std::future<faststream::Result> answer = engine.submit({.prompt = "Once upon a time"});
//   std::cout << answer.get().outputs.front().text;
//
// docs/cpp-api.md is a guide with a complete example.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/options.h"
#include "engine/request.h"
#include "support/error.h"

namespace faststream {

struct EngineInfo {
  std::string device;                                 ///< such as "CPU (2 threads, AMX)"
  int64_t context = 0;                                ///< tokens
  int64_t max_context = 0;                            ///< what the model allows, if memory does
  std::string context_end = "the model has no more";  ///< why no more than that, as a clause
  int32_t slots = 0;
  int64_t kv_tokens = 0;
  int32_t chunk = 0;
  int64_t vocab = 0;  ///< token ids of answers are below it
  double load_seconds = 0;
  size_t weight_bytes = 0;
  size_t kv_bytes = 0;
  int64_t kv_layers = 0;                   ///< that keep keys and values
  int64_t kv_in_eight = 0;                 ///< of them, those with the format of EngineOptions::kv
  std::vector<std::string> adapters = {};  ///< by name, as EngineOptions has them
  int64_t source_context = 0;  ///< tokens of a prompt where the model has an encoder, else 0;
                               ///< then `context` is of answers
  // What the makers of the model recommend:
  SamplingParams sampling = {};
  BeamParams search = {};
  int64_t max_tokens = -1;  ///< of an answer; -1: no limit
  int64_t min_tokens = 0;
};

/// A request of the model, without a prompt yet, as its makers recommend it.
Request recommended_request(const EngineInfo& info);

/// Counts since the engine was made.
struct EngineStats {
  int64_t steps = 0;          ///< forward passes
  int64_t prompt_tokens = 0;  ///< processed (recomputation after a preemption included)
  int64_t cached_tokens = 0;  ///< of prompts, found in the KV cache instead
  int64_t generated_tokens = 0;
  int64_t proposed_tokens = 0;  ///< by speculation
  int64_t accepted_tokens = 0;  ///< of them, those that were generated
  int64_t preemptions = 0;
  int64_t finished = 0;       ///< requests
  int32_t running = 0;        ///< sequences now in slots
  int32_t waiting = 0;        ///< sequences now waiting for one
  int64_t free_tokens = 0;    ///< of the KV cache, what cached prefixes occupy included
  double device_seconds = 0;  ///< time spent in forward passes and draws
};

/// Runs one model for any number of requests at once (continuous batching): a thread of its own
/// takes waiting requests into slots as others finish. Any thread may call any member at any time.
class Engine {
 public:
  /// Loads a model. Throws UsageError for bad options, Error when the file is no sound model or the
  /// device does not suffice, std::system_error when the system gives no thread.
  Engine(const std::filesystem::path& model, const EngineOptions& options);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  /// Cancels what is not finished, and what callbacks submit meanwhile, and waits until all of it
  /// has had its on_finish.
  ~Engine();

  [[nodiscard]] const EngineInfo& info() const;
  [[nodiscard]] EngineStats stats() const;

  /// Token ids of a text, with the begin-of-sequence token if the model wants one. `parse_special`,
  /// here and below: as Request has it.
  [[nodiscard]] std::vector<int32_t> tokenize(std::string_view text,
                                              bool parse_special = false) const;
  /// Token ids of a conversation, up to where the answer begins. Throws UsageError when the model
  /// has no chat template, Error when that refuses the conversation or fails.
  [[nodiscard]] std::vector<int32_t> tokenize(const ChatPrompt& prompt,
                                              bool parse_special = false) const;
  /// The same conversation as text, for people. Throws as tokenize() does.
  [[nodiscard]] std::string chat_text(const ChatPrompt& prompt) const;
  /// The text of tokens that continue a prompt, without special tokens.
  [[nodiscard]] std::string detokenize(std::span<const int32_t> tokens) const;
  /// The text of a token alone, with U+FFFD for what is not a whole character.
  [[nodiscard]] std::string token_text(int32_t token) const;
  /// The bytes of a token alone, which need not be whole characters.
  [[nodiscard]] std::string token_bytes(int32_t token) const;
  /// Whether the model has a chat template.
  [[nodiscard]] bool can_chat() const;
  /// Whether it has one that knows the variable "tools" or "documents".
  [[nodiscard]] bool chat_template_mentions(std::string_view variable) const;

  /// The natural logarithm of the probability that the model gives to each token but the first
  /// after those before it: [tokens - 1]; a request with prompt_logprobs, which it waits for.
  /// Throws UsageError when the model has an encoder, Error when the tokens are none of its own, or
  /// more than the context. Not for callbacks.
  [[nodiscard]] std::vector<float> score(std::span<const int32_t> tokens);
  /// The same of a text of any length: of the tokens of each window of the context's length, which
  /// begins with the begin-of-sequence token if the model wants one, one after the other. Minus the
  /// mean is the logarithm of the text's perplexity. `between` is called between windows; what it
  /// throws ends the call. Throws Error when there is no token to predict, too.
  [[nodiscard]] std::vector<float> score(std::string_view text,
                                         const std::function<void()>& between = {});

  /// Queues a request. Conversations also end at their template's stop tokens and texts. Throws
  /// UsageError when the request makes no sense, Error when its prompt is empty, longer than the
  /// context, without room there for an answer (unless max_tokens is 0) or refused by the chat
  /// template; nothing is queued then.
  RequestId submit(Request request, Callbacks callbacks);
  /// The same; the future's get() throws Error where the device failed.
  std::future<Result> submit(Request request);

  /// Ends a request soon, with what it has generated so far and FinishReason::cancelled. Nothing
  /// happens when it is finished already.
  void cancel(RequestId request);

  /// submit(), and waits; `on_text` gets the first sample's text as it comes, or "" every now and
  /// then, and returns false to cancel. `on_prompt` is told of a long prompt's progress, as in
  /// Callbacks. Both are called by this thread.
  Result generate(Request request, const std::function<bool(std::string_view)>& on_text,
                  const std::function<void(const PromptProgress&)>& on_prompt = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Token ids of a text by the tokenizer of a model file, without loading the model.
/// `check_interrupted`: as EngineOptions has it.
std::vector<int32_t> tokenize(const std::filesystem::path& model, std::string_view text,
                              bool parse_special = false,
                              const std::function<void()>& check_interrupted = {});

}  // namespace faststream
