#include "cli/batch/batch_record.h"

#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>

#include "support/hash.h"

namespace faststream {
namespace {

using Record = nlohmann::ordered_json;
using TokenText = std::function<std::string(int32_t)>;

Record start(const RecordHead& head) {
  Record record = Record::object();
  if (!head.id.is_null()) record["id"] = head.id;
  record["line"] = head.line;
  record["line_hash"] = head.line_hash;
  return record;
}

std::string finish(const Record& record) {
  return record.dump(-1, ' ', false, Record::error_handler_t::replace);
}

Record token_entry(const TokenLogprob& entry, const TokenText& token_text) {
  constexpr double kDecimals = 1e6;
  Record record = {{"token", entry.token}, {"text", token_text(entry.token)}};
  record["logprob"] = std::round(double{entry.logprob} * kDecimals) / kDecimals;
  return record;
}

Record positions(const std::vector<PositionLogprobs>& logprobs, const TokenText& token_text) {
  Record list = Record::array();
  for (const PositionLogprobs& position : logprobs) {
    Record entry = token_entry(position.chosen, token_text);
    if (!position.top.empty()) {
      Record top = Record::array();
      for (const TokenLogprob& token : position.top) top.push_back(token_entry(token, token_text));
      entry["top"] = std::move(top);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

void add_text(Record& record, const Output& output) {
  record["text"] = output.text;
  record["finish_reason"] = finish_reason_name(output.finish_reason);
}

}  // namespace

std::string line_hash(std::string_view text) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016" PRIx64, stable_hash(text));
  return digits.data();
}

std::string result_record(const RecordHead& head, const Result& result,
                          const TokenText& token_text) {
  Record record = start(head);
  size_t n_tokens = 0;
  for (const Output& output : result.outputs) n_tokens += output.tokens.size();
  if (head.n > 1) {
    Record choices = Record::array();
    for (const Output& output : result.outputs) {
      Record choice = Record::object();
      add_text(choice, output);
      choice["completion_tokens"] = output.tokens.size();
      if (head.logprobs) choice["logprobs"] = positions(output.logprobs, token_text);
      choices.push_back(std::move(choice));
    }
    record["choices"] = std::move(choices);
  } else {
    add_text(record, result.outputs.at(0));
  }
  record["prompt_tokens"] = result.prompt_tokens;
  record["completion_tokens"] = n_tokens;
  record["seed"] = result.seed;
  if (head.n == 1 && head.logprobs) {
    record["logprobs"] = positions(result.outputs.at(0).logprobs, token_text);
  }
  return finish(record);
}

std::string error_record(const RecordHead& head, const std::string& error) {
  Record record = start(head);
  record["error"] = error;
  return finish(record);
}

}  // namespace faststream
