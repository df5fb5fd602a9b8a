// Requests in JSON: OpenAI's bodies of /v1/chat/completions and /v1/completions, and ours. What a
// line of a batch and a request to the server ask for is read here, so that they get the same
// answer. docs/batch.md lists the keys.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "support/json.h"

namespace faststream::api {

struct ParsedRequest {
  Request request = {};  ///< the defaults, with what was said instead
  /// What was said without an effect: `"temperature" has no effect with beams`.
  std::vector<std::string> idle = {};
};

/// An object from outside that has a request, or one in its "body". Chat templates see the members
/// of conversations in the order in which they are written; all others are looked for by name.
class RequestObject {
 public:
  /// Throws Error, starting with `where`, for what is no JSON object; `advice` ends the sentence.
  RequestObject(std::string_view text, std::string_view where, std::string_view advice);
  RequestObject(const RequestObject&) = delete;
  RequestObject& operator=(const RequestObject&) = delete;
  ~RequestObject();

  /// With members of conversations; of the others the values are gone.
  [[nodiscard]] const nlohmann::ordered_json& object() const { return object_; }
  /// All other members.
  [[nodiscard]] nlohmann::json& options() { return options_; }

 private:
  void free() noexcept;

  nlohmann::ordered_json object_;
  nlohmann::json options_;
};

/// Whether OpenAI's bodies have the key, or our requests do.
bool is_of_requests(std::string_view name);
/// Throws Error for a key that nothing has.
[[noreturn]] void refuse_key(std::string_view name);

/// Reads our form from the two halves of a RequestObject, but for members that `passes_over`.
/// Throws Error, naming the key. A value of null is none, here and below. What depends on the model
/// is left to Engine::submit().
void read_own_request(
    const JsonView& options, const nlohmann::ordered_json& object,
    const std::function<bool(std::string_view name, const nlohmann::json& value)>& passes_over,
    ParsedRequest& parsed);

/// The same of OpenAI's form. "model", "stream" and other keys that do not change an answer are not
/// looked at.
void read_openai_request(const JsonView& options, const nlohmann::ordered_json& body,
                         ParsedRequest& parsed);

}  // namespace faststream::api
