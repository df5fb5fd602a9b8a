#include "cli/batch/batch_resume.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/batch/batch_reader.h"
#include "support/error.h"
#include "support/hash.h"

namespace faststream::cli {
namespace {

using nlohmann::json;

// Far more than a record needs: it was in memory when it was written.
constexpr size_t kMaxRecordBytes = size_t{4} << 30;

// 0 for null alone.
uint32_t digest(const json& value) {
  if (value.is_null()) return 0;
  return std::max<uint32_t>(static_cast<uint32_t>(stable_hash(value.dump())), 1);
}

// Of a record's own members those that a resumed run needs; nothing else is kept, however long the
// record is.
class RecordReader final : public nlohmann::json_sax<json> {
 public:
  json id;
  json line;
  json line_hash;
  json seed;
  bool has_answer = false;  // any other member: a text, an error, ...

  bool null() override { return set(nullptr); }
  bool boolean(bool value) override { return set(value); }
  bool number_integer(number_integer_t value) override { return set(value); }
  bool number_unsigned(number_unsigned_t value) override { return set(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return set(value); }
  bool string(string_t& value) override { return set(std::move(value)); }
  bool binary(binary_t& value) override { return set(std::move(value)); }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    member_ = find(name);
    has_answer = has_answer || member_ == nullptr;
    return true;
  }
  bool start_object(size_t /*size*/) override { return open(json::object()); }
  bool start_array(size_t /*size*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    return false;
  }

 private:
  json* find(std::string_view name) {
    if (name == "id") return &id;
    if (name == "line") return &line;
    if (name == "line_hash") return &line_hash;
    return name == "seed" ? &seed : nullptr;
  }
  bool set(json value) {
    if (depth_ == 1 && member_ != nullptr) *member_ = std::move(value);
    return depth_ > 0;  // a record is an object
  }
  bool open(json kind) {
    const bool sound = depth_ == 0 ? kind.is_object() : set(std::move(kind));
    ++depth_;
    return sound;
  }
  bool close() {
    --depth_;
    return true;
  }

  size_t depth_ = 0;
  json* member_ = nullptr;  // where the value after the last key of the record goes
};

bool is_absent_or(const json& value, bool expected) { return value.is_null() || expected; }

// False when the text is no record.
bool read_record(const LineReader::Line& text, RecordReader& record) {
  return !text.too_long && json::sax_parse(text.text, &record) &&
         record.line.is_number_unsigned() && record.line.get<uint64_t>() > 0 && record.has_answer &&
         is_absent_or(record.id, record.id.is_string() || record.id.is_number_integer()) &&
         is_absent_or(record.line_hash, record.line_hash.is_string()) &&
         is_absent_or(record.seed, record.seed.is_number_unsigned());
}

// Bytes of the JSON object or array that `text` begins with, or all where it does not end.
size_t first_value_bytes(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return text.size();
}

// Whether `text`, which was cut somewhere, may be the start of one record as batch_record.h writes
// them: {"id":ID,"line":NUMBER," and so on, or without the id.
bool may_begin_record(std::string_view text) {
  const auto passes = [](std::string_view& rest, std::string_view expected) {
    const size_t n = std::min(rest.size(), expected.size());
    const bool same = rest.substr(0, n) == expected.substr(0, n);
    rest.remove_prefix(n);
    return same;
  };
  const auto pass_all_of = [](std::string_view& rest, std::string_view characters) {
    rest.remove_prefix(std::min(rest.find_first_not_of(characters), rest.size()));
  };
  std::string_view rest = text;
  if (!passes(rest, R"({"line":)")) {
    rest = text;
    if (!passes(rest, R"({"id":)")) return false;
    if (rest.starts_with('"')) {
      size_t end = 1;
      while (end < rest.size() && rest[end] != '"') end += rest[end] == '\\' ? 2 : 1;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    } else {
      pass_all_of(rest, "-0123456789");
    }
    if (!passes(rest, R"(,"line":)")) return false;
  }
  pass_all_of(rest, "0123456789");
  return passes(rest, ",\"") && first_value_bytes(text) == text.size();
}

}  // namespace

DoneLines::DoneLines(int fd, const std::string& name) : name_(name) {
  LineReader reader(fd, name, kMaxRecordBytes);
  while (const auto text = reader.next()) {
    RecordReader record;
    const bool sound = text->ended ? read_record(*text, record) : may_begin_record(text->text);
    if (!sound) {
      throw Error(name + ": line " + std::to_string(text->number) +
                  " is no result of a batch; resume with the file that the former run wrote");
    }
    if (!text->ended) break;
    const auto line = record.line.get<uint64_t>();
    records_.push_back({.line_high = static_cast<uint32_t>(line >> 32),
                        .line_low = static_cast<uint32_t>(line),
                        .id = digest(record.id),
                        .line_hash = digest(record.line_hash),
                        .seed = digest(record.seed)});
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

void DoneLines::check_same(uint64_t line, const json& id, const std::string& line_hash,
                           std::optional<uint64_t> seed) const {
  const Record& record = *find(line);
  const std::string result = name_ + ": the result of line " + std::to_string(line);
  if (record.id != 0 && record.id != digest(id)) {
    throw Error(result +
                " has another id than that line of the input; resume with the input that the "
                "former run had");
  }
  if (record.line_hash != 0 && record.line_hash != digest(line_hash)) {
    throw Error(result +
                " is of another line than the input has there now; resume with the input that the "
                "former run had, or delete the results of changed lines");
  }
  if (record.seed != 0 && seed && record.seed != digest(*seed)) {
    throw Error(result +
                " has another seed than --seed gives it; resume with the former run's --seed, or "
                "without, or delete that result");
  }
}

void DoneLines::check_blank(uint64_t line) const {
  if (!contains(line)) return;
  throw Error(
      name_ + " has a result of line " + std::to_string(line) +
      ", but that line of the input is blank; resume with the input that the former run had");
}

void DoneLines::check_other_part(uint64_t line) const {
  if (!contains(line)) return;
  throw Error(name_ + " has a result of line " + std::to_string(line) +
              ", which is in another part of the input; resume with the former run's --part");
}

void DoneLines::check_end(uint64_t last_line) const {
  if (records_.empty() || records_.back().line() <= last_line) return;
  throw Error(name_ + " has a result of line " + std::to_string(records_.back().line()) +
              ", but the input only " + std::to_string(last_line) +
              " lines; resume with the input that the former run had");
}

}  // namespace faststream::cli
