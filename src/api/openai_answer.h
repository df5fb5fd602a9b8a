// Answers in OpenAI's form (https://platform.openai.com/docs/api-reference/chat): objects of
// /v1/chat/completions and /v1/completions, whole or as server-sent events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer.h"
#include "engine/request.h"

namespace faststream::api {

enum class AnswerForm {
  chat,        ///< of /v1/chat/completions
  completion,  ///< of /v1/completions
  response,    ///< of /v1/responses, of one choice
};

/// What all parts of an answer say.
struct AnswerHead {
  AnswerForm form = AnswerForm::chat;
  std::string id;       ///< unique; by form such as "chatcmpl-1"
  int64_t created = 0;  ///< seconds since 1970
  std::string model;
  size_t n_choices = 1;
  bool logprobs = false;       ///< asked for
  bool has_tools = false;      ///< answers may call them
  bool show_special = false;   ///< as Request has it
  bool usage_at_end = false;   ///< of events: a last one without choices has it
  std::string request = "{}";  ///< of a response: a JSON object, members that it repeats
};

struct AnswerUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  ///< of them, found in the cache
  int64_t completion_tokens = 0;
};

/// What JSON says of tokens.
struct TokenTexts {
  TokensText text_of;
  std::function<std::string(int32_t token)> bytes_of;
};

/// "stop", "length" or "tool_calls".
std::string_view openai_finish_reason(FinishReason reason, bool has_calls);

/// "usage" of an answer.
nlohmann::ordered_json usage_json(const AnswerUsage& usage);

/// One answer being written. Choices are numbered from 0 to n_choices - 1.
class AnswerWriter {
 public:
  AnswerWriter() = default;
  AnswerWriter(const AnswerWriter&) = delete;
  AnswerWriter& operator=(const AnswerWriter&) = delete;
  virtual ~AnswerWriter() = default;

  /// The whole answer, an object. `choices` has n_choices outputs.
  virtual std::string whole(std::span<const Output> choices, const AnswerUsage& usage) = 0;

  // The same as events, "data: {...}\n\n", in this order. -----------------------------------------

  /// What comes first; may be empty.
  virtual std::string begin() = 0;
  /// The next piece of a choice's text, with the log-probabilities of the tokens since the last.
  /// May be empty.
  virtual std::string piece(size_t choice, std::string_view text,
                            std::span<const PositionLogprobs> logprobs) = 0;
  /// The rest of a choice and its end; once each.
  virtual std::string finish(size_t choice, const Output& output) = 0;
  /// What comes last.
  virtual std::string end(const AnswerUsage& usage) = 0;
};

std::unique_ptr<AnswerWriter> make_answer_writer(AnswerHead head, TokenTexts texts);

}  // namespace faststream::api
