#include "text/tool_calls.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "support/error.h"
#include "support/json.h"
#include "support/utf8.h"
#include "text/tokenizer.h"

namespace faststream {
namespace {

using nlohmann::ordered_json;
using Calls = std::vector<ToolCall>;

std::string_view trimmed(std::string_view text) { return strip_left(strip_right(text)); }

std::optional<ordered_json> parse(std::string_view text) {
  try {
    return parse_ordered_json(text, "a tool call");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// An object with a name and arguments, which are an object or the text of one.
std::optional<ToolCall> to_call(const ordered_json& json) {
  if (!json.is_object()) return std::nullopt;
  const auto name = json.find("name");
  auto arguments = json.find("arguments");
  if (arguments == json.end()) arguments = json.find("parameters");
  if (name == json.end() || !name->is_string() || arguments == json.end()) return std::nullopt;
  if (arguments->is_object()) {
    return ToolCall{.name = name->get<std::string>(), .arguments = arguments->dump()};
  }
  if (!arguments->is_string()) return std::nullopt;
  const auto inner = parse(arguments->get_ref<const std::string&>());
  if (!inner || !inner->is_object()) return std::nullopt;
  return ToolCall{.name = name->get<std::string>(), .arguments = inner->dump()};
}

// A list of calls, or one; nothing where any element is none.
std::optional<Calls> to_calls(std::string_view text) {
  const auto json = parse(text);
  if (!json) return std::nullopt;
  Calls calls;
  const auto add = [&](const ordered_json& one) {
    auto call = to_call(one);
    if (!call) return false;
    calls.push_back(*std::move(call));
    return true;
  };
  if (!json->is_array()) return add(*json) ? std::optional(std::move(calls)) : std::nullopt;
  for (const ordered_json& one : *json) {
    if (!add(one)) return std::nullopt;
  }
  return calls.empty() ? std::nullopt : std::optional(std::move(calls));
}

// Where the JSON object at the start of `text` ends; 0 where it does not.
size_t object_end(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        in_string = false;
    } else if (text[i] == '"') {
      in_string = true;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return 0;
}

std::optional<ParsedAnswer> parse_hermes(std::string_view text) {
  constexpr std::string_view kBegin = "<tool_call>";
  constexpr std::string_view kEnd = "</tool_call>";
  ParsedAnswer parsed;
  std::string content;
  for (size_t begin = text.find(kBegin); begin != std::string_view::npos;
       begin = text.find(kBegin)) {
    content += text.substr(0, begin);
    text.remove_prefix(begin + kBegin.size());
    const size_t end = std::min(text.find(kEnd), text.size());  // the last one may have none
    auto calls = to_calls(trimmed(text.substr(0, end)));
    if (!calls) return std::nullopt;
    parsed.tool_calls.insert(parsed.tool_calls.end(), calls->begin(), calls->end());
    text.remove_prefix(std::min(end + kEnd.size(), text.size()));
  }
  if (parsed.tool_calls.empty()) return std::nullopt;
  parsed.content = trimmed(content += text);
  return parsed;
}

std::optional<ParsedAnswer> parse_mistral(std::string_view text) {
  constexpr std::string_view kMark = "[TOOL_CALLS]";
  const size_t mark = text.find(kMark);
  const bool marked = mark != std::string_view::npos;
  const std::string_view list = trimmed(marked ? text.substr(mark + kMark.size()) : text);
  if (!list.starts_with('[')) return std::nullopt;
  auto calls = to_calls(list);
  if (!calls) return std::nullopt;
  return ParsedAnswer{.content = std::string(trimmed(text.substr(0, marked ? mark : 0))),
                      .tool_calls = *std::move(calls)};
}

std::optional<ParsedAnswer> parse_llama(std::string_view text) {
  constexpr std::string_view kMark = "<|python_tag|>";
  text = trimmed(text);
  if (text.starts_with(kMark)) text = trimmed(text.substr(kMark.size()));
  ParsedAnswer parsed;
  while (text.starts_with('{')) {
    const size_t end = object_end(text);
    const auto calls = to_calls(text.substr(0, end));
    if (!calls) return std::nullopt;
    parsed.tool_calls.push_back(calls->front());
    text = trimmed(text.substr(end));
    if (!text.starts_with(';')) break;
    text = trimmed(text.substr(1));
  }
  if (parsed.tool_calls.empty() || !text.empty()) return std::nullopt;
  return parsed;
}

}  // namespace

std::vector<int32_t> tool_call_marks(const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  for (const char* mark :
       {"<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}) {
    if (const auto token = tokenizer.find_token(mark)) tokens.push_back(*token);
  }
  return tokens;
}

ParsedAnswer parse_tool_calls(std::string_view answer) {
  constexpr std::string_view kThought = "</think>";
  const size_t thought = answer.rfind(kThought);
  const size_t begin = thought == std::string_view::npos ? 0 : thought + kThought.size();
  const std::string_view text = answer.substr(begin);
  for (const auto format : {&parse_hermes, &parse_mistral, &parse_llama}) {
    if (auto parsed = format(text)) {
      if (begin > 0) {
        const std::string rest = parsed->content;
        parsed->content = trimmed(answer.substr(0, begin));
        if (!rest.empty()) parsed->content += "\n\n" + rest;
      }
      return *std::move(parsed);
    }
  }
  return {.content = std::string(answer), .tool_calls = {}};
}

bool has_tool_calls(const ordered_json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

}  // namespace faststream
