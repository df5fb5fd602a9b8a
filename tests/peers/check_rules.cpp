// Compiles rules of output for grammar.py, tries texts, and times masks.
//
//     check-rules [TOKENS]
//
// Reads lines of JSON: {"schema" or "regex" or "grammar": text, "texts": [...] or "values": [...]}.
// Values are written with their members in an order that the rule takes, if there is one. For each
// line writes one: {"error": why it is refused}, or {"accepted": [...], "texts": [...],
// "compile_us": number, "mask_us": [...]}: how long masks took, first that of an empty text where
// nothing else was asked of the rule yet, then one for each token of each text. TOKENS: a line of
// hexadecimal digits for each token, by which texts are split, the longest token first.
#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "support/bit_mask.h"
#include "support/error.h"
#include "text/rules/grammar_text.h"
#include "text/rules/json_schema.h"
#include "text/rules/output_rule.h"
#include "text/rules/regex.h"

namespace {

using namespace faststream::rules;
using Json = nlohmann::ordered_json;

// Of this thread: what others do on the machine does not count.
double microseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

class Vocabulary {
 public:
  explicit Vocabulary(const char* path) {
    std::vector<std::string> tokens;
    std::ifstream file(path != nullptr ? path : "/dev/null");
    for (std::string line; std::getline(file, line);) {
      std::string bytes;
      for (size_t i = 0; i + 1 < line.size(); i += 2) {
        bytes += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
      }
      if (!bytes.empty()) ids_.emplace(bytes, static_cast<int32_t>(tokens.size()));
      longest_ = std::max(longest_, bytes.size());
      tokens.push_back(std::move(bytes));
    }
    trie_ = std::make_shared<const TokenTrie>(
        static_cast<int32_t>(tokens.size()),
        [&](int32_t token) { return tokens[static_cast<size_t>(token)]; });
  }

  [[nodiscard]] const std::shared_ptr<const TokenTrie>& trie() const { return trie_; }
  [[nodiscard]] std::vector<int32_t> split(const std::string& text) const {
    std::vector<int32_t> ids;
    for (size_t at = 0; at < text.size();) {
      size_t n = std::min(longest_, text.size() - at);
      while (n > 0 && !ids_.contains(text.substr(at, n))) --n;
      if (n == 0) throw faststream::Error("no token fits");
      ids.push_back(ids_.at(text.substr(at, n)));
      at += n;
    }
    return ids;
  }

 private:
  std::shared_ptr<const TokenTrie> trie_;
  std::unordered_map<std::string, int32_t> ids_;
  size_t longest_ = 0;
};

Grammar read(const nlohmann::json& line) {
  if (line.contains("schema")) return parse_json_schema(line["schema"].get<std::string>());
  if (line.contains("grammar")) return parse_grammar(line["grammar"].get<std::string>());
  return {{{"text", parse_regex(line.at("regex").get<std::string>())}}};
}

bool accepts(RuleMatcher matcher, const std::string& text) {
  return (text.empty() || matcher.accept(text)) && matcher.complete();
}

// Writes values as a rule takes them: an object's members in the order that the rule has, numbers
// without exponents.
class Writer {
 public:
  // The value's text, as far as the rule takes it.
  std::string write(const RuleMatcher& start, const Json& value) {
    Written written{start, {}};
    (void)add(written, value);
    return written.text;
  }

 private:
  struct Written {
    RuleMatcher matcher;
    std::string text;
  };
  static constexpr size_t kMostTries = 100000;

  bool feed(Written& to, const std::string& text) {
    to.text += text;
    return ++n_tries_ < kMostTries && to.matcher.accept(text);
  }

  bool add(Written& to, const Json& value) {
    if (value.is_object()) return add_object(to, value);
    if (value.is_array()) {
      std::string before = "[";
      for (const Json& one : value) {
        if (!feed(to, std::exchange(before, ", ")) || !add(to, one)) return false;
      }
      return feed(to, value.empty() ? "[]" : "]");
    }
    if (!value.is_number_float()) return feed(to, value.dump());
    std::array<char, 400> digits{};
    char* end = std::to_chars(digits.data(), digits.data() + digits.size(), value.get<double>(),
                              std::chars_format::fixed)
                    .ptr;
    std::string number(digits.data(), end);
    if (number.find('.') == std::string::npos) number += ".0";
    return feed(to, number);
  }

  bool add_object(Written& to, const Json& value) {
    std::vector<std::string> names;
    for (const auto& [name, member] : value.items()) names.push_back(name);
    return feed(to, "{") && add_members(to, value, names, "");
  }

  // Members after which all those that might have come instead still may are tried first.
  bool add_members(Written& to, const Json& value, const std::vector<std::string>& left,
                   const std::string& before) {
    if (left.empty()) return feed(to, "}");
    struct Way {
      std::string name;
      Written with;
      size_t n_next = 0;
    };
    const auto go_on = [&](Way& way) {
      std::vector<std::string> others = left;
      std::erase(others, way.name);
      if (!add_members(way.with, value, others, ", ")) return false;
      to = std::move(way.with);
      return true;
    };
    std::vector<Way> ways;
    const std::vector<std::string> possible = names_after(to, before, left);
    for (const std::string& name : possible) {
      Way way{name, to};
      if (!feed(way.with, before + Json(name).dump() + ": ") || !add(way.with, value[name])) {
        continue;
      }
      const std::vector<std::string> next = names_after(way.with, ", ", possible);
      way.n_next = next.size() - static_cast<size_t>(std::ranges::count(next, name));
      if (way.n_next + 1 < possible.size()) {
        ways.push_back(std::move(way));
      } else if (go_on(way)) {
        return true;
      }
    }
    std::ranges::stable_sort(ways, std::greater(), &Way::n_next);
    if (std::ranges::any_of(ways, go_on)) return true;
    return feed(to, before + Json(left.front()).dump() + ": ") && false;
  }

  // Those with which a text may go on.
  std::vector<std::string> names_after(const Written& written, const std::string& before,
                                       const std::vector<std::string>& names) {
    std::vector<std::string> possible;
    for (const std::string& name : names) {
      Written with = written;
      if (feed(with, before + Json(name).dump() + ": ")) possible.push_back(name);
    }
    return possible;
  }

  size_t n_tries_ = 0;
};

double time_mask(const RuleMatcher& matcher) {
  std::vector<uint32_t> bits(matcher.words());
  const double begin = microseconds();
  matcher.mask(bits);
  return microseconds() - begin;
}

// Masks before each token and at the end. False where a mask lacks a token that the rule takes.
bool time_masks(RuleMatcher matcher, const std::vector<int32_t>& ids, nlohmann::json& times) {
  std::vector<uint32_t> bits(matcher.words());
  for (size_t i = 0; i <= ids.size(); ++i) {
    const double begin = microseconds();
    matcher.mask(bits);
    times.push_back(microseconds() - begin);
    if (i == ids.size()) break;
    const bool allowed = faststream::has_bit(bits, ids[i]);
    if (allowed != matcher.accept(ids[i])) return false;
    if (!allowed) break;
  }
  return true;
}

nlohmann::json answer(const nlohmann::json& line, const Vocabulary& vocabulary) {
  const double begin = microseconds();
  try {
    const auto rule = std::make_shared<const CompiledRule>(read(line), vocabulary.trie());
    nlohmann::json result = {{"compile_us", microseconds() - begin},
                             {"accepted", nlohmann::json::array()},
                             {"mask_us", nlohmann::json::array()},
                             {"texts", line.value("texts", nlohmann::json::array())}};
    const bool has_texts = !line.value("values", line.value("texts", nlohmann::json())).empty();
    if (vocabulary.trie()->vocab() > 0 && has_texts) {
      result["mask_us"].push_back(time_mask(RuleMatcher(rule)));
    }
    for (const auto& text : line.value("values", nlohmann::json::array())) {
      const Json value = Json::parse(text.get<std::string>());
      result["texts"].push_back(Writer().write(RuleMatcher(rule), value));
    }
    for (const auto& text : result["texts"]) {
      const auto bytes = text.get<std::string>();
      if (vocabulary.trie()->vocab() > 0 &&
          !time_masks(RuleMatcher(rule), vocabulary.split(bytes), result["mask_us"])) {
        return {{"error", "a mask is wrong"}};
      }
      result["accepted"].push_back(accepts(RuleMatcher(rule), bytes));
    }
    return result;
  } catch (const faststream::Error& error) {
    return {{"error", error.what()}, {"compile_us", microseconds() - begin}};
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Vocabulary vocabulary(argc > 1 ? argv[1] : nullptr);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(nlohmann::json::parse(line), vocabulary).dump() << std::endl;
  }
}
