// A chat whose answers the tests make up.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/chat/chat.h"
#include "unit/support/file_helpers.h"

namespace faststream::cli {

inline Output made(std::string text, std::vector<int32_t> tokens, FinishReason reason) {
  Output output;
  output.text = std::move(text);
  output.tokens = std::move(tokens);
  output.finish_reason = reason;
  return output;
}

// A token is a word; roles cost nothing.
class FakeAnswerer : public Answerer {
 public:
  [[nodiscard]] int64_t context() const override { return context_tokens; }
  [[nodiscard]] int64_t max_context() const override { return max_context_tokens; }
  [[nodiscard]] std::string context_end() const override { return "the model has no more"; }

  [[nodiscard]] std::vector<std::string> adapters() const override { return adapter_names; }

  [[nodiscard]] int64_t count_tokens(const ChatPrompt& prompt) const override {
    ++n_counts;
    int64_t tokens = 0;
    for (const Message& message : prompt.messages) {
      if (message.role == "system" && !knows_system) {
        throw UsageError("this chat template has no system prompts");
      }
      std::istringstream words(message.content);
      const auto n_words = std::distance(std::istream_iterator<std::string>(words), {});
      tokens += message.tokens.empty() ? n_words : std::ssize(message.tokens);
    }
    return tokens;
  }

  [[nodiscard]] std::string text_of(std::span<const int32_t> tokens) const override {
    return " " + std::to_string(tokens.size()) + " tokens END";
  }

  Result answer(Request request, const std::function<bool(std::string_view)>& on_text) override {
    requests.push_back(request);
    if (!error.empty()) {
      (void)on_text("half an ");
      throw Error(error);
    }
    Output output = made("fine", {10, 11, 2}, FinishReason::eos);
    if (!outputs.empty()) {
      output = outputs.front();
      outputs.pop_front();
    }
    if (!output.text.empty() && !on_text(output.text)) {
      output.finish_reason = FinishReason::cancelled;
    }
    recompute(std::get<ChatPrompt>(request.prompt).messages, output);
    Result result;
    result.outputs = {output};
    result.prompt_tokens = 8;
    result.cached_tokens = 5;
    result.seed = request.sampling.seed.value_or(100 + requests.size());
    result.prompt_seconds = 0.5;
    result.generation_seconds = 0.25;
    return result;
  }

  // Counts the words of a prompt that are not at the beginning of the last one and its answer.
  void recompute(const std::vector<Message>& prompt, const Output& output) {
    std::vector<std::string> words;
    for (const Message& message : prompt) {
      std::istringstream content(message.content);
      words.insert(words.end(), std::istream_iterator<std::string>(content), {});
    }
    n_recomputed += words.end() - std::ranges::mismatch(words, cache).in1;
    words.push_back(output.text);
    cache = std::move(words);
  }

  int64_t context_tokens = 1000;
  int64_t max_context_tokens = 1000;
  bool knows_system = true;
  std::vector<std::string> adapter_names;
  std::string error;
  std::deque<Output> outputs;  // the next answers; then "fine"
  std::vector<Request> requests;
  std::vector<std::string> cache;  // of keys and values
  int64_t n_recomputed = 0;
  mutable int n_counts = 0;
};

class ChatTest : public testing::Test {
 protected:
  // Whether the chat goes on after a line.
  bool type(const std::string& line) {
    answers.clear();
    notices.clear();
    const auto input = InputAssembler().add(line);
    return chat.take(input.value());
  }
  std::string refusal(const std::string& line) {
    const std::string before = state();
    std::string message = error_of([&] { (void)type(line); });
    EXPECT_EQ(state(), before) << line;
    return message;
  }
  // The conversation as one text.
  [[nodiscard]] std::string state() const {
    std::string text = chat.conversation().system.value_or("");
    for (const Message& message : chat.conversation().messages) {
      text += "|" + message.content;
      for (const int32_t token : message.tokens) text += "," + std::to_string(token);
    }
    return text;
  }
  [[nodiscard]] const std::vector<Message>& last_prompt() const {
    return std::get<ChatPrompt>(answerer.requests.back().prompt).messages;
  }
  [[nodiscard]] testing::AssertionResult told(const std::string& words) const {
    if (notices.find(words) != std::string::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "told was: " << notices;
  }

  FakeAnswerer answerer;
  std::string answers;
  std::string notices;
  ChatOutput output{.answer = [this](std::string_view text) { answers += text; },
                    .notice = [this](std::string_view lines) { notices += lines; }};
  Chat chat{answerer,
            {.name = "m.bin", .fingerprint = "f", .vocab = 100},
            {.prompt = {}, .stop = {"END"}},
            output};
};

}  // namespace faststream::cli
