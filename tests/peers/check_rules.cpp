// Compiles rules of output for grammar.py, tries texts, and times masks.
//
//     check-rules [TOKENS]
//
// Reads lines of JSON: {"schema" or "regex" or "grammar": text, "texts": [...]}. For each writes
// one:
// {"error": why it is refused}, or {"accepted": [...], "compile_us": number, "mask_us": [...]}: for
// each token of each text how long its mask took, the first one of a rule first. TOKENS: a line of
// hexadecimal digits for each token, by which texts are split, the longest token first.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "support/error.h"
#include "text/rules/grammar_text.h"
#include "text/rules/json_schema.h"
#include "text/rules/output_rule.h"
#include "text/rules/regex.h"

namespace {

using namespace faststream::rules;
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

// Masks before each token and at the end. False where a mask lacks a token that the rule takes.
bool time_masks(RuleMatcher matcher, const std::vector<int32_t>& ids, nlohmann::json& times) {
  std::vector<uint32_t> bits(matcher.words());
  for (size_t i = 0; i <= ids.size(); ++i) {
    const double begin = microseconds();
    matcher.mask(bits);
    times.push_back(microseconds() - begin);
    if (i == ids.size()) break;
    const auto t = static_cast<size_t>(ids[i]);
    const bool allowed = (bits[t / 32] >> t % 32 & 1U) != 0;
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
                             {"mask_us", nlohmann::json::array()}};
    for (const auto& text : line.at("texts")) {
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
