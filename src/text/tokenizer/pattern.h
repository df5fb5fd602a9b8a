// Patterns of tokenizer.json: Oniguruma's regular expressions (Ruby's syntax), run by PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace faststream {

/// What one call of a tokenizer may spend on patterns: a pattern can take exponential time.
class PatternBudget {
 public:
  /// Half a second of this thread's time and a microsecond for each byte of the text.
  explicit PatternBudget(size_t text_size);

  /// To be called for each match: most calls only count, some look().
  void spend() {
    if (++matches_ % kMatchesPerLook == 0) look();
  }
  /// Throws Error when all is spent.
  void look() const;

 private:
  static constexpr uint32_t kMatchesPerLook = 64;

  int64_t end_;  // of the thread's clock, in nanoseconds
  uint32_t matches_ = 0;
};

/// Immutable; any number of threads may use it.
class Pattern {
 public:
  /// Throws Error, starting with `where`, for what is no pattern, and for what Oniguruma knows and
  /// this program does not.
  Pattern(std::string_view oniguruma, std::string_view where);

  using OnMatch = std::function<void(size_t begin, size_t end)>;

  /// Calls on_match for each match in valid UTF-8, from left to right, as Rust's onig finds them.
  /// Throws Error when a match takes too many steps or `budget` is spent.
  void find_all(std::string_view text, PatternBudget& budget, const OnMatch& on_match) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

/// The same pattern in PCRE2's syntax. Throws Error as Pattern's constructor does.
std::string pcre2_from_oniguruma(std::string_view oniguruma, std::string_view where);

}  // namespace faststream
