#include "api/answer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "support/utf8.h"

namespace faststream::api {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kThoughtEnd = "</think>";
// What calls begin with (text/tool_calls.h), besides JSON at the start.
constexpr std::array<std::string_view, 3> kCallMarks = {"<tool_call>", "[TOOL_CALLS]",
                                                        "<|python_tag|>"};

// How many bytes at the end of `text` may be the beginning of `mark`.
size_t begun_at_end(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

std::string json_text(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string json_quoted(std::string_view text) { return json_text(ordered_json(text)); }

double six_decimals(double number) { return std::round(number * 1e6) / 1e6 + 0.0; }  // no -0

std::string logprob_json(float logprob) {
  constexpr double kImpossible = -9999;
  const double number = double{logprob};
  return json_text(number < kImpossible ? kImpossible : six_decimals(number));
}

void begin_with_prompt(Result& result, std::string_view text) {
  const std::vector<PositionLogprobs>& of_prompt = result.prompt_logprobs;
  for (Output& output : result.outputs) {
    output.text.insert(0, text);
    output.logprobs.insert(output.logprobs.begin(), of_prompt.begin(), of_prompt.end());
  }
}

ParsedAnswer parse_answer(const Output& output, bool has_tools, bool show_special,
                          const TokensText& text_of) {
  if (has_tools) {
    // Special tokens may stand around a call; that of the end is no part of it.
    ParsedAnswer answer = parse_tool_calls(show_special ? text_of(output.tokens) : output.text);
    if (!answer.tool_calls.empty()) return answer;
  }
  return {.content = output.text, .tool_calls = {}};
}

ordered_json tool_calls_json(std::span<const ToolCall> calls, std::string_view id) {
  ordered_json list = ordered_json::array();
  for (const ToolCall& call : calls) {
    list.push_back({{"id", std::string(id) + std::to_string(list.size())},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return list;
}

std::string ToolCallFilter::push(std::string_view piece) {
  text_ += piece;
  // Marks in thoughts are no calls.
  const size_t from = scanned_ > kThoughtEnd.size() ? scanned_ - kThoughtEnd.size() : 0;
  const size_t thought = std::string_view(text_).substr(from).rfind(kThoughtEnd);
  scanned_ = text_.size();
  if (thought != std::string::npos && from + thought + kThoughtEnd.size() > part_) {
    part_ = from + thought + kThoughtEnd.size();
    holding_ = false;
  }
  if (holding_) return "";
  const size_t end = find_hold();
  std::string shown = text_.substr(shown_, end - shown_);
  shown_ = end;
  return shown;
}

// Up to where the text can be shown.
size_t ToolCallFilter::find_hold() {
  const std::string_view all = text_;
  const size_t begin = std::max(shown_, part_);
  const std::string_view open = all.substr(begin);
  const std::string_view written = strip_left(open);
  const bool at_start = strip_left(all.substr(part_, begin - part_)).empty();
  if (at_start && (written.starts_with('{') || written.starts_with('['))) {
    holding_ = true;
    return begin;
  }
  size_t shown = open.size();
  size_t begun = 0;
  for (const std::string_view mark : kCallMarks) {
    shown = std::min(shown, open.find(mark));
    begun = std::max(begun, begun_at_end(open, mark));
  }
  holding_ = shown < open.size();
  if (!holding_) shown -= begun;
  return begin + strip_right(open.substr(0, shown)).size();
}

std::string_view ToolCallFilter::rest_of(std::string_view content) const {
  const std::string_view shown = std::string_view(text_).substr(0, shown_);
  return content.starts_with(shown) ? content.substr(shown.size()) : std::string_view();
}

}  // namespace faststream::api
