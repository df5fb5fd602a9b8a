#include "api/response_format.h"

#include <nlohmann/json.hpp>

#include "support/error.h"
#include "support/json.h"

namespace faststream::api {

std::optional<OutputRule> read_response_format(const std::string& text) {
  constexpr const char* kWhere = "\"response_format\"";
  constexpr const char* kAdvice =
      R"(give {"type": "json_schema", "json_schema": {"schema": {...}}}, "json_object" or "text")";
  const auto fail = [&](const std::string& what) {
    throw Error(std::string(kWhere) + " " + what + "; " + kAdvice);
  };
  const nlohmann::ordered_json format = parse_ordered_json(text, kWhere, kAdvice);
  if (!format.is_object()) fail("is not an object");
  const auto type = format.find("type");
  if (type == format.end() || !type->is_string()) fail("has no \"type\"");
  if (*type == "text") return std::nullopt;
  if (*type == "json_object") return OutputRule{.kind = OutputRule::Kind::json_object, .text = {}};
  if (*type != "json_schema") fail("has a \"type\" that is unknown");
  const auto named = format.find("json_schema");
  if (named == format.end() || !named->is_object()) fail("has no object \"json_schema\"");
  const auto schema = named->find("schema");
  if (schema == named->end()) fail("has no \"schema\" in its \"json_schema\"");
  return OutputRule{.kind = OutputRule::Kind::json_schema, .text = schema->dump(), .name = kWhere};
}

}  // namespace faststream::api
