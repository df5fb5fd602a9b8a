#include "server/errors.h"

#include <nlohmann/json.hpp>

#include "api/answer.h"
#include "engine/request_settings.h"

namespace faststream::server {
namespace {

std::string_view error_type(int status) {
  if (status == 401 || status == 403) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

}  // namespace

std::string error_json(const ApiError& error) {
  return api::json_text({{"error",
                          {{"message", error.message},
                           {"type", error_type(error.status)},
                           {"param", or_null(error.param)},
                           {"code", or_null(error.code)}}}});
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error_json(error)};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string parameter_of(std::string_view message) {
  const std::string_view first_word = message.substr(0, message.find_first_of(" ,:"));
  if (find_request_setting(first_word) != nullptr) return std::string(first_word);
  const size_t begin = message.find('"');
  if (begin == std::string_view::npos) return "";
  const size_t end = message.find('"', begin + 1);
  if (end == std::string_view::npos) return "";
  const std::string_view name = message.substr(begin + 1, end - begin - 1);
  // Others are the client's own words.
  const bool is_member = begin == 0 || message.starts_with("unknown key ") ||
                         find_request_setting(name.substr(0, name.find_first_of("[."))) != nullptr;
  return is_member ? std::string(name) : "";
}

}  // namespace faststream::server
