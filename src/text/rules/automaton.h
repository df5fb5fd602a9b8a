// A grammar as automata over bytes that call each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/rules/byte_set.h"
#include "text/rules/expression.h"
#include "text/rules/lists_by_number.h"

namespace faststream::rules {

/// States that the automata of a grammar may have together.
constexpr size_t kMaxAutomatonStates = size_t{1} << 21U;
/// Likewise edges by bytes.
constexpr size_t kMaxAutomatonEdges = size_t{1} << 22U;

/// One nondeterministic automaton a rule (Thompson's construction, doi:10.1145/363347.363387), all
/// in one space of states. A repetition of many times is a loop with a counter: each state of its
/// body stands for as many as there are counts. Loops with counters do not nest: what would be
/// inside is a rule of its own. Immutable once made.
class Automaton {
 public:
  struct ByteEdge {
    int32_t set = 0;  ///< of bytes, by number
    int32_t to = 0;
  };
  struct CallEdge {
    int32_t rule = 0;
    int32_t to = 0;
  };
  /// An empty move.
  struct Move {
    enum class Kind : uint8_t {
      plain,
      again,   ///< one more has passed
      leave,   ///< the last one has passed
      within,  ///< where there is room for `left` more behind this one
    };
    int32_t to = 0;
    Kind kind = Kind::plain;
    int32_t loop = -1;  ///< of all but `plain`, index in loops()
    int32_t left = 0;
  };
  struct Loop {
    int32_t least = 0;
    int32_t most = kUnbounded;
    int32_t most_left = 0;  ///< of all moves `within`
  };
  struct State {
    int32_t loop = -1;  ///< whose body it is in
    /// Whether any text that the rule has anywhere goes on and ends from here.
    bool takes_rest = false;
  };
  struct Rule {
    int32_t start = 0;
    int32_t final = 0;
    std::string name;
  };

  /// Throws Error where a rule is left-recursive, no text fits the grammar, or it is too large.
  explicit Automaton(const Grammar& grammar);

  /// Of memory, about.
  [[nodiscard]] size_t bytes() const;
  [[nodiscard]] std::span<const State> states() const { return states_; }
  [[nodiscard]] std::span<const ByteEdge> bytes_from(int32_t state) const {
    return bytes_.of(state);
  }
  [[nodiscard]] std::span<const CallEdge> calls_from(int32_t state) const {
    return calls_.of(state);
  }
  [[nodiscard]] std::span<const Move> moves_from(int32_t state) const { return moves_.of(state); }
  /// The classes of bytes (see class_of()) that an edge's set has.
  [[nodiscard]] const ByteSet& classes_of(const ByteEdge& edge) const {
    return class_sets_[static_cast<size_t>(edge.set)];
  }
  [[nodiscard]] std::span<const Rule> rules() const { return rules_; }  ///< the first is the text
  [[nodiscard]] std::span<const Loop> loops() const { return loops_; }

  /// Bytes that no edge tells apart are of one class.
  [[nodiscard]] int32_t n_classes() const { return n_classes_; }
  [[nodiscard]] const std::array<uint8_t, 256>& class_of() const { return class_of_; }
  [[nodiscard]] std::span<const uint8_t> bytes_of_class(int32_t byte_class) const {
    return bytes_of_classes_.of(byte_class);
  }

 private:
  friend class AutomatonBuilder;
  void refuse_left_recursion() const;
  void classify();

  std::vector<State> states_;
  ListsByNumber<ByteEdge> bytes_;
  ListsByNumber<CallEdge> calls_;
  ListsByNumber<Move> moves_;
  std::vector<ByteSet> sets_;        // of bytes, each once
  std::vector<ByteSet> class_sets_;  // of their classes
  std::vector<Rule> rules_;
  std::vector<Loop> loops_;
  std::array<uint8_t, 256> class_of_ = {};
  int32_t n_classes_ = 0;
  ListsByNumber<uint8_t> bytes_of_classes_;
};

}  // namespace faststream::rules
