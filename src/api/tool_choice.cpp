#include "api/tool_choice.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream::api {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& what) { throw Error("\"tool_choice\" " + what); }

// The name of the only function that may be called; none: any.
std::optional<std::string> named_function(const json& choice) {
  if (choice == "required") return std::nullopt;
  constexpr const char* kAdvice =
      R"(is not "auto", "none", "required" or {"type": "function", "function": {"name": ...}})";
  if (!choice.is_object() || choice.value("type", json()) != "function") fail(kAdvice);
  const json& function = choice.contains("function") ? choice.at("function") : choice;
  if (!function.is_object() || !function.contains("name") || !function.at("name").is_string()) {
    fail(kAdvice);
  }
  return function.at("name").get<std::string>();
}

// A schema's references into itself, once it stands at `place` of another one.
void move_references(ordered_json& schema, const std::string& place) {
  if (schema.is_object()) {
    const auto reference = schema.find("$ref");
    if (reference != schema.end() && reference->is_string()) {
      const auto text = reference->get<std::string>();
      if (text.starts_with('#')) *reference = place + text.substr(1);
    }
  }
  if (!schema.is_structured()) return;
  for (ordered_json& member : schema) move_references(member, place);
}

ordered_json call_schema(const std::string& name, ordered_json arguments, size_t index) {
  if (!arguments.is_object()) arguments = ordered_json::object();
  if (!arguments.contains("type")) arguments["type"] = "object";
  move_references(arguments, "#/anyOf/" + std::to_string(index) + "/properties/arguments");
  return {{"type", "object"},
          {"properties", {{"name", {{"const", name}}}, {"arguments", std::move(arguments)}}},
          {"required", {"name", "arguments"}},
          {"additionalProperties", false}};
}

}  // namespace

std::optional<OutputRule> read_tool_choice(const json& choice, std::string_view tools) {
  if (choice.is_null() || choice == "auto" || choice == "none") return std::nullopt;
  const std::optional<std::string> wanted = named_function(choice);
  if (tools.empty()) fail("demands a call; give \"tools\"");
  ordered_json calls = ordered_json::array();
  for (const ordered_json& tool : parse_ordered_json(tools, "\"tools\"")) {
    if (!tool.is_object()) continue;
    const ordered_json& function = tool.contains("function") ? tool.at("function") : tool;
    if (!function.is_object() || !function.contains("name")) continue;
    if (!function.at("name").is_string()) continue;
    const auto name = function.at("name").get<std::string>();
    if (wanted && name != *wanted) continue;
    calls.push_back(call_schema(name, function.value("parameters", ordered_json()), calls.size()));
  }
  if (calls.empty()) {
    fail(wanted ? "names " + in_quotes(*wanted) + ", which is none of \"tools\""
                : "demands a call, but \"tools\" has no function with a name");
  }
  return OutputRule{.kind = OutputRule::Kind::json_schema,
                    .text = ordered_json({{"anyOf", std::move(calls)}}).dump(),
                    .name = "\"tool_choice\""};
}

}  // namespace faststream::api
