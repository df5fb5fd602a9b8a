#include "api/openai_answer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "api/response_answer.h"
#include "support/utf8.h"

namespace faststream::api {
namespace {

using nlohmann::ordered_json;

// An array of what `write` makes of each position.
template <class Write>
std::string list_of(std::span<const PositionLogprobs> positions, const Write& write) {
  std::string list = "[";
  for (const PositionLogprobs& position : positions) {
    if (list.size() > 1) list += ',';
    list += write(position);
  }
  return list + "]";
}

std::string text_of_token(int32_t token, const TokenTexts& texts) {
  return valid_utf8(texts.bytes_of(token));
}

// Members of a text of chats: "token", "logprob", "bytes".
std::string token_members(const TokenLogprob& entry, const TokenTexts& texts) {
  const std::string bytes = texts.bytes_of(entry.token);
  std::string numbers;
  for (const char byte : bytes) {
    if (!numbers.empty()) numbers += ',';
    numbers += std::to_string(static_cast<unsigned char>(byte));
  }
  return "\"token\":" + json_quoted(valid_utf8(bytes)) +
         ",\"logprob\":" + logprob_json(entry.logprob) + ",\"bytes\":[" + numbers + "]";
}

std::string chat_logprobs(std::span<const PositionLogprobs> positions, const TokenTexts& texts) {
  return "{\"content\":" +
         list_of(positions,
                 [&](const PositionLogprobs& position) {
                   std::string top;
                   for (const TokenLogprob& token : position.top) {
                     top += (top.empty() ? "{" : ",{") + token_members(token, texts) + "}";
                   }
                   return "{" + token_members(position.chosen, texts) + ",\"top_logprobs\":[" +
                          top + "]}";
                 }) +
         ",\"refusal\":null}";
}

// The likeliest tokens by their texts, and the chosen one; of several with the same text, bytes of
// characters for example, the likeliest.
std::string top_of_completion(const PositionLogprobs& position, const TokenTexts& texts) {
  if (position.top.empty()) return "null";
  std::string members;
  std::set<std::string> written;
  const auto add = [&](const TokenLogprob& entry) {
    const auto [text, is_new] = written.insert(json_quoted(text_of_token(entry.token, texts)));
    if (!is_new) return;
    members += (members.empty() ? "" : ",") + *text + ":" + logprob_json(entry.logprob);
  };
  for (const TokenLogprob& token : position.top) add(token);
  add(position.chosen);
  return "{" + members + "}";
}

size_t n_characters(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

// The form of /v1/completions; `offset`: characters of the text before, which it counts on.
// `drops_space`: the text is without the space that its first token begins with.
std::string completion_logprobs(std::span<const PositionLogprobs> positions,
                                const TokenTexts& texts, bool drops_space, size_t& offset) {
  const auto offset_before = [&](const PositionLogprobs& position) {
    const size_t before = offset;
    const std::string text = text_of_token(position.chosen.token, texts);
    offset += n_characters(text);
    if (drops_space && before == 0 && text.starts_with(' ')) --offset;
    return std::to_string(before);
  };
  const auto text_of = [&](const PositionLogprobs& position) {
    return json_quoted(text_of_token(position.chosen.token, texts));
  };
  const auto logprob_of = [](const PositionLogprobs& position) {
    return logprob_json(position.chosen.logprob);
  };
  const auto top_of = [&](const PositionLogprobs& position) {
    return top_of_completion(position, texts);
  };
  return "{\"tokens\":" + list_of(positions, text_of) +
         ",\"token_logprobs\":" + list_of(positions, logprob_of) +
         ",\"top_logprobs\":" + list_of(positions, top_of) +
         ",\"text_offset\":" + list_of(positions, offset_before) + "}";
}

std::string event(const std::string& data) { return "data: " + data + "\n\n"; }

// Of chats and completions.
class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(AnswerHead head, TokenTexts texts)
      : head_(std::move(head)),
        texts_(std::move(texts)),
        chat_(head_.form == AnswerForm::chat),
        choices_(head_.n_choices) {}

  std::string whole(std::span<const Output> choices, const AnswerUsage& usage) override {
    std::string list;
    for (const Output& output : choices) list += (list.empty() ? "" : ",") + choice(output);
    return start(chat_ ? "chat.completion" : "text_completion") + list +
           "],\"usage\":" + json_text(usage_json(usage)) + "}";
  }

  std::string begin() override {
    chunk_start_ = start(chat_ ? "chat.completion.chunk" : "text_completion");
    std::string events;
    for (size_t i = 0; chat_ && i < choices_.size(); ++i) {
      events += chunk(i, R"({"role":"assistant","content":""})", "null", "null");
    }
    return events;
  }

  std::string piece(size_t choice, std::string_view text,
                    std::span<const PositionLogprobs> logprobs) override {
    Choice& state = choices_.at(choice);
    state.n_logprobs += logprobs.size();
    std::string filtered;
    if (head_.has_tools) {
      filtered = state.filter.push(text);
      text = filtered;
    } else {
      state.n_bytes += text.size();
    }
    if (text.empty() && logprobs.empty()) return "";
    return chunk(choice, text_member(text), logprobs_member(state, logprobs), "null");
  }

  std::string finish(size_t choice, const Output& output) override {
    Choice& state = choices_.at(choice);
    const ParsedAnswer answer = parsed(output);
    const std::string_view content = answer.content;
    const std::string_view rest = head_.has_tools
                                      ? state.filter.rest_of(content)
                                      : content.substr(std::min(content.size(), state.n_bytes));
    const std::span<const PositionLogprobs> logprobs =
        std::span(output.logprobs).subspan(std::min(output.logprobs.size(), state.n_logprobs));
    std::string events;
    if (!rest.empty() || !logprobs.empty()) {
      events += chunk(choice, text_member(rest), logprobs_member(state, logprobs), "null");
    }
    ordered_json calls = tool_calls_json(answer.tool_calls, call_id(choice));
    for (size_t i = 0; i < calls.size(); ++i) {
      ordered_json call = {{"index", i}};
      call.update(calls[i]);
      events += chunk(choice, R"({"tool_calls":[)" + json_text(call) + "]}", "null", "null");
    }
    return events + chunk(choice, chat_ ? "{}" : "\"\"", "null", reason(output, answer));
  }

  std::string end(const AnswerUsage& usage) override {
    std::string events;
    if (head_.usage_at_end) {
      events = event(chunk_start_ + "],\"usage\":" + json_text(usage_json(usage)) + "}");
    }
    return events + event("[DONE]");
  }

 private:
  struct Choice {
    ToolCallFilter filter;
    size_t n_bytes = 0;        // shown
    size_t n_logprobs = 0;     // likewise
    size_t offset = 0;         // characters of tokens whose log-probabilities were told
    bool drops_space = false;  // as completion_logprobs() has it
  };

  [[nodiscard]] std::string start(std::string_view object) const {
    return "{\"id\":" + json_quoted(head_.id) + ",\"object\":" + json_quoted(object) +
           ",\"created\":" + std::to_string(head_.created) +
           ",\"model\":" + json_quoted(head_.model) + ",\"choices\":[";
  }

  [[nodiscard]] std::string call_id(size_t choice) const {
    return "call_" + head_.id.substr(head_.id.find('-') + 1) + "_" + std::to_string(choice) + "_";
  }

  [[nodiscard]] ParsedAnswer parsed(const Output& output) const {
    return parse_answer(output, head_.has_tools, head_.show_special, texts_.text_of);
  }

  [[nodiscard]] static std::string reason(const Output& output, const ParsedAnswer& answer) {
    return json_quoted(openai_finish_reason(output.finish_reason, !answer.tool_calls.empty()));
  }

  [[nodiscard]] std::string text_member(std::string_view text) const {
    return chat_ ? "{\"content\":" + json_quoted(text) + "}" : json_quoted(text);
  }

  std::string logprobs_member(Choice& state, std::span<const PositionLogprobs> logprobs) const {
    if (!head_.logprobs) return "null";
    return chat_ ? chat_logprobs(logprobs, texts_)
                 : completion_logprobs(logprobs, texts_, state.drops_space, state.offset);
  }

  // The next choice.
  std::string choice(const Output& output) {
    Choice& state = choices_.at(n_written_);
    const size_t index = n_written_++;
    const ParsedAnswer answer = parsed(output);
    state.drops_space = !answer.content.starts_with(' ');
    std::string text = "{\"index\":" + std::to_string(index);
    if (chat_) {
      ordered_json message = {{"role", "assistant"}, {"content", answer.content}};
      message["refusal"] = nullptr;
      if (!answer.tool_calls.empty()) {
        if (answer.content.empty()) message["content"] = nullptr;
        message["tool_calls"] = tool_calls_json(answer.tool_calls, call_id(index));
      }
      text += ",\"message\":" + json_text(message);
    } else {
      text += ",\"text\":" + json_quoted(answer.content);
    }
    return text + ",\"logprobs\":" + logprobs_member(state, output.logprobs) +
           ",\"finish_reason\":" + reason(output, answer) + "}";
  }

  [[nodiscard]] std::string chunk(size_t choice, const std::string& value,
                                  const std::string& logprobs, const std::string& reason) const {
    return event(chunk_start_ + "{\"index\":" + std::to_string(choice) +
                 (chat_ ? ",\"delta\":" : ",\"text\":") + value + ",\"logprobs\":" + logprobs +
                 ",\"finish_reason\":" + reason + "}]" +
                 (head_.usage_at_end ? ",\"usage\":null}" : "}"));
  }

  AnswerHead head_;
  TokenTexts texts_;
  bool chat_;
  std::vector<Choice> choices_;
  std::string chunk_start_;
  size_t n_written_ = 0;
};

}  // namespace

std::string_view openai_finish_reason(FinishReason reason, bool has_calls) {
  const bool full = reason == FinishReason::length || reason == FinishReason::context;
  if (has_calls) return "tool_calls";
  return full ? "length" : "stop";
}

ordered_json usage_json(const AnswerUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

std::unique_ptr<AnswerWriter> make_answer_writer(AnswerHead head, TokenTexts texts) {
  if (head.form == AnswerForm::response) {
    return make_response_writer(std::move(head), std::move(texts));
  }
  return std::make_unique<OpenAiWriter>(std::move(head), std::move(texts));
}

}  // namespace faststream::api
