#include "support/json.h"

#include <nlohmann/json.hpp>
#include <string>

#include "support/error.h"

namespace faststream {

nlohmann::json parse_json_object(std::string_view text, std::string_view where,
                                 std::string_view advice) {
  constexpr int kMaxDepth = 64;
  const auto limit_depth = [where, advice](int depth, nlohmann::json::parse_event_t,
                                           nlohmann::json&) {
    if (depth > kMaxDepth) {
      throw Error(std::string(where) + ": the JSON is nested more than " +
                  std::to_string(kMaxDepth) + " deep; " + std::string(advice));
    }
    return true;
  };
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(text, limit_depth);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(std::string(where) + ": is not valid JSON (at byte " + std::to_string(error.byte) +
                "); " + std::string(advice));
  } catch (const nlohmann::json::exception&) {  // a number that fits no type
    throw Error(std::string(where) + ": the JSON holds a number that is out of range");
  }
  if (!value.is_object()) {
    throw Error(std::string(where) + ": is JSON, but not an object as it must be");
  }
  return value;
}

}  // namespace faststream
