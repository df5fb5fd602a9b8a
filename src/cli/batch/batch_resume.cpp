#include "cli/batch/batch_resume.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/batch/batch_reader.h"
#include "support/error.h"

namespace faststream {
namespace {

using nlohmann::json;

// Far more than a record needs: it was in memory when it was written.
constexpr size_t kMaxRecordBytes = size_t{4} << 30;

uint32_t hash(const json& id) { return static_cast<uint32_t>(std::hash<std::string>{}(id.dump())); }

struct Answered {
  uint64_t line = 0;  // 0: the text is no record
  json id;
};

Answered read_record(const LineReader::Line& text) {
  // Of the record's own members, only these two are kept.
  const auto keep = [](int depth, json::parse_event_t event, json& parsed) {
    return depth != 1 || event != json::parse_event_t::key || parsed == "id" || parsed == "line";
  };
  if (text.too_long) return {};
  const json record = json::parse(text.text, keep, false);
  if (!record.is_object() || !record.contains("line")) return {};
  const json& line = record.at("line");
  const json id = record.value("id", json());
  const bool sound =
      line.is_number_unsigned() && (id.is_null() || id.is_string() || id.is_number_integer());
  return sound ? Answered{.line = line.get<uint64_t>(), .id = id} : Answered{};
}

}  // namespace

DoneLines::DoneLines(int fd, const std::string& name) : name_(name) {
  LineReader reader(fd, name, kMaxRecordBytes);
  while (const auto text = reader.next()) {
    if (!text->ended) break;
    const Answered answered = read_record(*text);
    if (answered.line == 0) {
      throw Error(name + ": line " + std::to_string(text->number) +
                  " is no result of a batch; resume with the file that the former run wrote");
    }
    records_.push_back({.line_high = static_cast<uint32_t>(answered.line >> 32),
                        .line_low = static_cast<uint32_t>(answered.line),
                        .id_hash = hash(answered.id)});
    whole_bytes_ = reader.position();
  }
  const auto by_line = [](const Record& a, const Record& b) { return a.line() < b.line(); };
  const auto same_line = [](const Record& a, const Record& b) { return a.line() == b.line(); };
  std::sort(records_.begin(), records_.end(), by_line);
  const auto twice = std::adjacent_find(records_.begin(), records_.end(), same_line);
  if (twice != records_.end()) {
    throw Error(name + " has two results of the input's line " + std::to_string(twice->line()) +
                "; delete the wrong one");
  }
}

std::deque<DoneLines::Record>::const_iterator DoneLines::find(uint64_t line) const {
  const auto found =
      std::lower_bound(records_.begin(), records_.end(), line,
                       [](const Record& record, uint64_t n) { return record.line() < n; });
  return found != records_.end() && found->line() == line ? found : records_.end();
}

void DoneLines::check_id(uint64_t line, const json& id) const {
  if (find(line)->id_hash == hash(id)) return;
  throw Error(name_ + ": the result of line " + std::to_string(line) +
              " has another id than that line of the input; resume with the input that the former "
              "run had");
}

void DoneLines::check_blank(uint64_t line) const {
  if (!contains(line)) return;
  throw Error(
      name_ + " has a result of line " + std::to_string(line) +
      ", but that line of the input is blank; resume with the input that the former run had");
}

void DoneLines::check_end(uint64_t last_line) const {
  if (records_.empty() || records_.back().line() <= last_line) return;
  throw Error(name_ + " has a result of line " + std::to_string(records_.back().line()) +
              ", but the input only " + std::to_string(last_line) +
              " lines; resume with the input that the former run had");
}

}  // namespace faststream
