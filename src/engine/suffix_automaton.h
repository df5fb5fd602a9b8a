// Where the end of a text stood before, however long that end is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace faststream {

/// All substrings of a text that grows, as the smallest automaton that accepts its suffixes (Blumer
/// et al., "The smallest automaton recognizing the subwords of a text", 1985): at most two states
/// and three transitions a token, made in constant time on average.
class SuffixAutomaton {
 public:
  /// The longest suffix of the text that ends before its end, too.
  struct Match {
    int32_t length = 0;  ///< tokens; 0: the last token is new
    int32_t end = 0;     ///< tokens of the text up to the end of an earlier occurrence
  };

  SuffixAutomaton();

  /// Adds a token to the text. Returns its longest suffix that occurred before, and the end of the
  /// latest such occurrence that was returned, or else of the first.
  Match append(int32_t token);

  [[nodiscard]] int32_t n_tokens() const { return n_tokens_; }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kRoot = 0;

  /// Substrings that end at the same places of the text.
  struct State {
    int32_t length = 0;           // of the longest of them
    int32_t suffix = kNone;       // state of its longest suffix that ends at more places
    int32_t end = 0;              // one of the places
    int32_t transitions = kNone;  // the last of them
  };
  struct Transition {
    int32_t token = 0;
    int32_t to = 0;
    int32_t next = kNone;  // of the same state
  };

  static uint64_t key(int32_t state, int32_t token) {
    return uint64_t{static_cast<uint32_t>(state)} << 32U | static_cast<uint32_t>(token);
  }
  State& state(int32_t i) { return states_[static_cast<size_t>(i)]; }
  int32_t add_state(const State& state);
  // kNone where there is none; until transitions are added.
  int32_t* target(int32_t from, int32_t token);
  void connect(int32_t from, int32_t token, int32_t to);
  int32_t split(int32_t from, int32_t token, int32_t to);

  std::vector<State> states_;
  std::vector<Transition> transitions_;
  std::unordered_map<uint64_t, int32_t> by_token_;  // transitions, by key()
  int32_t last_ = kRoot;                            // the state of the whole text
  int32_t n_tokens_ = 0;
};

}  // namespace faststream
