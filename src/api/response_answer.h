// Answers of /v1/responses (https://platform.openai.com/docs/api-reference/responses): an object
// with a list of items, or events of its own kinds.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "api/openai_answer.h"

namespace faststream::api {

/// As make_answer_writer() has it, of AnswerForm::response. The head's id is "resp_...".
std::unique_ptr<AnswerWriter> make_response_writer(AnswerHead head, TokenTexts texts);

/// Turns a body of /v1/responses into one of /v1/chat/completions: "input", a text or a list of
/// messages, calls and their outputs, becomes "messages", after "instructions"; other members get
/// the names that they have there. Throws Error, naming the member, for what there is not: earlier
/// responses, since none is kept, files and images, tools but functions.
nlohmann::ordered_json chat_body_of_response(nlohmann::ordered_json body);

/// Of such a body, the members that a response repeats.
nlohmann::ordered_json repeated_members(const nlohmann::ordered_json& body);

}  // namespace faststream::api
