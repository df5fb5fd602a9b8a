#include "cli/batch/batch_record.h"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <utility>
#include <vector>

#include "api/answer.h"
#include "support/hash.h"

namespace faststream::cli {
namespace {

using Record = nlohmann::ordered_json;

Record start(const RecordHead& head) {
  Record record = Record::object();
  record["id"] = head.id;
  record["line"] = head.line;
  record["line_hash"] = head.line_hash;
  return record;
}

using api::six_decimals;

std::string finish(const Record& record) { return api::json_text(record); }

Record token_entry(const TokenLogprob& entry, const TokensText& text_of) {
  Record record = {{"token", entry.token}, {"text", text_of({&entry.token, 1})}};
  record["logprob"] = six_decimals(double{entry.logprob});
  return record;
}

std::string position_text(const PositionLogprobs& position, const TokensText& text_of) {
  Record entry = token_entry(position.chosen, text_of);
  if (!position.top.empty()) {
    Record top = Record::array();
    for (const TokenLogprob& token : position.top) top.push_back(token_entry(token, text_of));
    entry["top"] = std::move(top);
  }
  return finish(entry);
}

// Adds a list as the last member of an object that is text already: a tree of a long list would
// take ten times the memory of its text.
template <typename Value, typename TextOf>
void append_list(std::string& object, const std::string& key, const std::vector<Value>& values,
                 TextOf&& text_of) {
  object.back() = ',';  // in place of its brace
  object += '"' + key + "\":[";
  for (const Value& value : values) object += text_of(value) + ',';
  if (values.empty()) object += ']';
  object.back() = ']';
  object += '}';
}

void add_text(Record& record, const RecordHead& head, const Output& output,
              const TokensText& text_of) {
  ParsedAnswer answer = api::parse_answer(output, head.has_tools, head.show_special, text_of);
  record["text"] = std::move(answer.content);
  if (!answer.tool_calls.empty()) {
    record["tool_calls"] = api::tool_calls_json(answer.tool_calls, "call_");
  }
  record["finish_reason"] = finish_reason_name(output.finish_reason);
  if (head.scores) record["score"] = six_decimals(output.score);
}

}  // namespace

std::string line_hash(std::string_view text) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016" PRIx64, stable_hash(text));
  return digits.data();
}

std::string result_record(const RecordHead& head, const Result& result, const TokensText& text_of) {
  const auto append_logprobs = [&](std::string& text, const Output& output) {
    if (!head.logprobs) return;
    append_list(text, "logprobs", output.logprobs,
                [&](const PositionLogprobs& position) { return position_text(position, text_of); });
  };
  Record record = start(head);
  if (head.n == 1) add_text(record, head, result.outputs.at(0), text_of);
  size_t n_tokens = 0;
  for (const Output& output : result.outputs) n_tokens += output.tokens.size();
  record["prompt_tokens"] = result.prompt_tokens;
  record["completion_tokens"] = n_tokens;
  record["seed"] = result.seed;
  std::string text = finish(record);
  if (head.n == 1) {
    append_logprobs(text, result.outputs.at(0));
    return text;
  }
  append_list(text, "choices", result.outputs, [&](const Output& output) {
    Record choice = Record::object();
    add_text(choice, head, output, text_of);
    choice["completion_tokens"] = output.tokens.size();
    std::string choice_text = finish(choice);
    append_logprobs(choice_text, output);
    return choice_text;
  });
  return text;
}

std::string error_record(const RecordHead& head, const std::string& error) {
  Record record = start(head);
  record["error"] = error;
  return finish(record);
}

}  // namespace faststream::cli
