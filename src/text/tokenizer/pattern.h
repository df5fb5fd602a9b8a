// Patterns of tokenizer.json: Oniguruma's regular expressions (Ruby's syntax), run by PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer/budget.h"

namespace faststream {

/// Immutable; any number of threads may use it.
class Pattern {
 public:
  /// Throws Error, starting with `where`, for what is no pattern, and for what Oniguruma knows and
  /// this program does not.
  Pattern(std::string_view oniguruma, std::string_view where);

  using OnMatch = std::function<void(size_t begin, size_t end)>;

  /// Calls on_match for each match in valid UTF-8, from left to right, as Rust's onig finds them.
  /// Throws Error when a match takes too many steps or `budget` is spent.
  void find_all(std::string_view text, TokenizerBudget& budget, const OnMatch& on_match) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

/// The same pattern in PCRE2's syntax. Throws Error as Pattern's constructor does.
std::string pcre2_from_oniguruma(std::string_view oniguruma, std::string_view where);

}  // namespace faststream
