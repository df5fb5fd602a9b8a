// Who answers in a chat.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace faststream::cli {

/// What a chat needs of an engine; tests put a fake in its place.
class Answerer {
 public:
  virtual ~Answerer() = default;

  /// Tokens that a prompt and its answer can have together.
  [[nodiscard]] virtual int64_t context() const = 0;
  /// As many as the model allows.
  [[nodiscard]] virtual int64_t max_context() const = 0;
  /// Why no more, as EngineInfo has it.
  [[nodiscard]] virtual std::string context_end() const = 0;
  /// Names of the adapters that run beside the model, of which answers have the first unless they
  /// ask for another.
  [[nodiscard]] virtual std::vector<std::string> adapters() const = 0;
  /// Tokens of a conversation's prompt. Throws Error when the chat template refuses it.
  [[nodiscard]] virtual int64_t count_tokens(const ChatPrompt& prompt) const = 0;
  /// The text of an answer's tokens, without special ones.
  [[nodiscard]] virtual std::string text_of(std::span<const int32_t> tokens) const = 0;
  /// Answers, with the text as it comes. Ctrl-C, or false from `on_text`, ends the answer with
  /// FinishReason::cancelled. Throws as Engine::generate() does.
  virtual Result answer(Request request, const std::function<bool(std::string_view)>& on_text) = 0;
};

class EngineAnswerer : public Answerer {
 public:
  /// `engine` must outlive this. `parse_special`: as Request has it, for count_tokens().
  EngineAnswerer(Engine& engine, bool parse_special)
      : engine_(&engine), parse_special_(parse_special) {}

  [[nodiscard]] int64_t context() const override;
  [[nodiscard]] int64_t max_context() const override;
  [[nodiscard]] std::string context_end() const override;
  [[nodiscard]] std::vector<std::string> adapters() const override;
  [[nodiscard]] int64_t count_tokens(const ChatPrompt& prompt) const override;
  [[nodiscard]] std::string text_of(std::span<const int32_t> tokens) const override;
  Result answer(Request request, const std::function<bool(std::string_view)>& on_text) override;

 private:
  Engine* engine_;
  bool parse_special_;
};

}  // namespace faststream::cli
