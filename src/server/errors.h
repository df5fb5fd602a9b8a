// Errors as OpenAI's API tells them.
#pragma once

#include <string>
#include <string_view>

#include "server/http_message.h"

namespace faststream::server {

/// What is wrong with a request, or with its answer.
struct ApiError {
  int status = 400;
  std::string message;     ///< a sentence without a full stop
  std::string param = {};  ///< the member of the body that is at fault; may be empty
  std::string code = {};   ///< for programs, such as "model_not_found"; may be empty
};

/// {"error": {"message", "type", "param", "code"}}, without white space.
std::string error_json(const ApiError& error);
HttpResponse error_response(const ApiError& error);

/// The member of a body that the sentence of an Error is about: the name in quotation marks or the
/// key that it begins with, the key that it does not know, or the first name in quotation marks if
/// requests have such a member. Empty where there is none.
std::string parameter_of(std::string_view message);

}  // namespace faststream::server
