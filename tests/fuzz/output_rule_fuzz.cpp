// Rules of output: whatever the bytes, a rule or an error. The first byte says which kind; of what
// is compiled a text is followed along forced bytes and masks, within bounds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_target.h"
#include "support/bit_mask.h"
#include "support/error.h"
#include "text/rules/grammar_text.h"
#include "text/rules/json_schema.h"
#include "text/rules/output_rule.h"
#include "text/rules/regex.h"

namespace {

using namespace faststream::rules;

Grammar read(uint8_t kind, std::string_view text) {
  if (kind % 3 == 0) return parse_json_schema(text);
  if (kind % 3 == 1) return parse_grammar(text);
  return {{{"text", parse_regex(text)}}};
}

void follow(RuleMatcher matcher, const std::vector<std::string>& tokens) {
  constexpr int kSteps = 8;
  std::vector<uint32_t> bits(matcher.words());
  for (int step = 0; step < kSteps; ++step) {
    matcher.mask(bits);
    const bool goes_on = matcher.goes_on();
    if (!goes_on && !matcher.complete()) std::abort();
    int32_t next = -1;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const bool allowed = faststream::has_bit(bits, t);
      RuleMatcher other = matcher;
      if (other.accept(static_cast<int32_t>(t)) != allowed) std::abort();
      if (allowed) next = static_cast<int32_t>(t);
    }
    const std::string forced = matcher.forced(4);
    if (!forced.empty()) {
      if (!matcher.accept(forced)) std::abort();
    } else if (next >= 0) {
      matcher.accept(next);
    } else {
      return;
    }
  }
}

}  // namespace

FUZZ_TARGET(output_rule) {
  constexpr size_t kMaxBytes = 2000;
  if (size == 0 || size > kMaxBytes) return;
  static const std::vector<std::string> tokens = {"a",  "\"",   "{\"", "}",  "1",   "0",    ":",
                                                  "ab", "true", "]",   "\n", "\\u", "\xC3", " [",
                                                  ", ", "\",",  "x",   "-",  "é"};
  static const auto trie = std::make_shared<const TokenTrie>(
      static_cast<int32_t>(tokens.size()),
      [](int32_t token) { return tokens[static_cast<size_t>(token)]; });
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const auto rule = std::make_shared<const CompiledRule>(read(data[0], text), trie);
    follow(RuleMatcher(rule), tokens);
  } catch (const faststream::Error& error) {
    if (std::string_view(error.what()).empty()) std::abort();
  }
}
