// What a body asks a model to write.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai_answer.h"
#include "engine/request.h"
#include "server/errors.h"
#include "support/error.h"

namespace faststream::server {

struct ServedModel;

/// A request is refused.
class RequestError : public Error {
 public:
  explicit RequestError(ApiError error) : Error(error.message), error_(std::move(error)) {}
  [[nodiscard]] const ApiError& error() const { return error_; }

 private:
  ApiError error_;
};

/// What bodies are called in messages, and what to do about those that are no JSON.
inline constexpr std::string_view kBody = "the body";
inline constexpr std::string_view kBodyAdvice = "send a JSON object";

/// Finds a model that writes text by its name. Throws RequestError.
using FindModel = std::function<ServedModel&(std::string_view name)>;

struct GenerationTask {
  ServedModel* model = nullptr;
  std::vector<Request> requests;  ///< one a prompt, each with the same n
  api::AnswerHead head;           ///< all but its id
  bool stream = false;
  bool echo = false;  ///< answers begin with their prompts
};

/// Throws RequestError when the model has no chat template.
void require_chat(const ServedModel& model);

/// Reads a body of /v1/chat/completions, /v1/completions or /v1/responses. Throws Error, naming the
/// member, when it makes no sense. What depends on the model is left to Engine::submit().
GenerationTask read_generation_task(std::string_view body, api::AnswerForm form,
                                    const FindModel& find_model);

/// The error of a request that was refused with this sentence. `prompt`: what the body calls its
/// prompt, which is at fault where nothing else is named.
ApiError error_of_request(std::string_view message, std::string_view prompt);

}  // namespace faststream::server
