// The states of an automaton that calls itself, and which tokens go on from them, made when they
// are first needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "text/rules/automaton.h"
#include "text/rules/interner.h"
#include "text/rules/move_table.h"
#include "text/rules/token_set.h"
#include "text/rules/token_trie.h"

namespace faststream::rules {

/// A set of automaton states in one rule is a "place"; a "stack" is the places at which the calls
/// that led there go on. A state of the machine is a set of places with their stacks: all that the
/// text so far can mean. Places, stacks and states have numbers; the moves between states by bytes
/// are remembered, so that most of a walk is a table's lookups.
///
/// Which tokens go on from a state is found place by place. From a place alone, whatever its stack:
/// tokens that end within its rule, or in rules called from there, by one walk of the trie, which
/// is remembered; it notes the trie's nodes at which the rule may end, and from there tokens are
/// followed from where the stack goes on. Where a place takes any text that a JSON string has as it
/// is, the tokens of this kind are not walked. A counter's places are walked once for all counts
/// that no short token can bring to a bound.
///
/// For one thread at a time. Automaton and trie must outlive it.
class Machine {
 public:
  using State = int32_t;
  static constexpr State kDead = 0;

  Machine(const Automaton& automaton, const TokenTrie& trie);

  [[nodiscard]] State start() const { return start_; }
  /// Throws Error where the text can mean too much at once.
  State next(State state, uint8_t byte) {
    const int32_t to = moves_.at(state, class_of_[byte]);
    return to >= 0 ? to : make_move(state, class_of_[byte]);
  }
  State next(State state, std::string_view text) {
    for (size_t i = 0; i < text.size() && state != kDead; ++i) {
      state = next(state, static_cast<uint8_t>(text[i]));
    }
    return state;
  }
  /// Whether the text may end.
  [[nodiscard]] bool is_complete(State state) const { return (flags(state) & kComplete) != 0; }
  /// Whether it may go on.
  [[nodiscard]] bool goes_on(State state) const { return states_[state].size() > 1; }
  /// Sets the bits of the tokens that may come next. bits: [trie.words()], zeros.
  void mask(State state, std::span<uint32_t> bits);
  /// The only byte that the text can go on with, unless it may end.
  std::optional<uint8_t> only_byte(State state);

  /// Steps that were made so far, about (WorkBudget).
  [[nodiscard]] size_t work() const { return work_; }
  /// Numbers that all states, and their places, are made of together.
  [[nodiscard]] size_t states_length() const { return states_.length() + places_.length(); }
  /// Of memory, about.
  [[nodiscard]] size_t bytes() const;
  /// Whether it holds so much that users are to go on in a fresh one.
  [[nodiscard]] bool is_full() const;
  /// The state of this machine that is `state` of another one of the same automaton.
  State import(const Machine& other, State state);

 private:
  using Place = int32_t;
  using Stack = int32_t;
  static constexpr int32_t kUnknown = MoveTable::kUnknown;
  static constexpr int32_t kNone = -2;
  // Stacks of no place: the text's end, and an end at which a walk from a place alone stops.
  static constexpr Stack kEnd = 0;
  static constexpr Stack kOpen = 1;
  // A state's list begins with flags.
  static constexpr uint32_t kComplete = 1;  // the stack kEnd was reached
  static constexpr uint32_t kLeft = 2;      // kOpen was

  /// A state of the automaton with a loop's count.
  struct Item {
    int32_t state = 0;
    int32_t count = 0;
    friend auto operator<=>(const Item&, const Item&) = default;  // NOLINT(modernize-use-nullptr)
  };
  struct Call {
    Place start = 0;
    Place then = 0;
  };
  /// Tokens that go on from a place, with any stack.
  struct Tokens {
    explicit Tokens(size_t words) : set(words) {}
    TokenSet set;
    /// Nodes of the trie's parts with others below, at which the place's rule may end.
    std::vector<uint32_t> leaving[TokenTrie::kParts];
  };
  struct PlaceInfo {
    bool may_end = false;
    ByteSet classes;  ///< of bytes that it goes on with, in its rule
    bool has_counts = false;
    bool knows_calls = false;
    std::vector<Call> calls;
    std::shared_ptr<const Tokens> tokens;       ///< where there are counts, short ones alone
    std::shared_ptr<const Tokens> long_tokens;  ///< then
  };
  struct Frame {
    Place then = 0;
    Stack below = 0;
  };

  [[nodiscard]] uint32_t flags(State state) const { return states_[state][0]; }
  [[nodiscard]] size_t n_items(Place place) const { return places_[place].size() / 2; }
  [[nodiscard]] Item item(Place place, size_t index) const {
    const std::span<const uint32_t> list = places_[place].subspan(1 + 2 * index, 2);
    return {static_cast<int32_t>(list[0]), static_cast<int32_t>(list[1])};
  }
  [[nodiscard]] std::vector<Item> items_of(Place place) const;
  Place make_place(std::span<const Item> from);
  Place make_start(const Automaton::Rule& rule);
  Place place_after(Place place, uint8_t byte_class);
  const std::vector<Call>& calls_of(Place place);
  Place farthest_from_bounds(Place place);
  Stack push(Place then, Stack below);
  void reach_nothing();
  void note(Place place, Stack stack);
  void reach(Place place, Stack stack);
  State take_reached();
  State intern_state(std::span<const uint32_t> list);
  State make_move(State state, uint8_t byte_class);
  State state_below(Stack stack);
  bool takes_any_text(State state);
  Place add_place(std::span<const uint32_t> list, const ByteSet& classes, bool has_counts);
  void find_tokens(Place place);
  std::shared_ptr<const Tokens> walk_parts(Place place,
                                           std::initializer_list<TokenTrie::Part> parts);
  template <class Visit>
  void walk(State state, std::span<const TokenTrie::Entry> nodes, size_t first, size_t last,
            const Visit& visit);
  Place import_place(const Machine& other, Place place);
  Stack import_stack(const Machine& other, Stack stack);

  const Automaton& automaton_;
  const TokenTrie& trie_;
  const uint8_t* class_of_;
  Interner places_;  // pairs of Item
  std::vector<PlaceInfo> place_infos_;
  MoveTable place_moves_{kNone};
  std::vector<Place> starts_;  // of rules
  Interner stacks_;            // Frame
  std::vector<State> below_;   // by stack: see state_below()
  Interner states_;            // flags, then pairs of place and stack
  MoveTable moves_{kDead};
  State start_ = kDead;
  size_t token_bytes_ = 0;  // of all Tokens
  size_t work_ = 0;

  // Scratch:
  std::vector<uint32_t> seen_;  // by automaton state, with count 0
  uint32_t seen_mark_ = 0;
  std::vector<Item> todo_;
  std::vector<Item> kept_;
  std::vector<Item> targets_;
  std::vector<uint32_t> list_;
  std::vector<std::pair<Place, Stack>> reached_;
  size_t n_followed_ = 0;  // of reached_
  Interner reached_set_;   // of them, where they are many
  uint32_t reached_flags_ = 0;
  std::vector<State> path_;
};

}  // namespace faststream::rules
