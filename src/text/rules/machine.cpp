#include "text/rules/machine.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <utility>

#include "support/bit_mask.h"
#include "support/error.h"

namespace faststream::rules {
namespace {

constexpr size_t kMaxMeanings = 5000;             // of a text: places and stacks of a state
constexpr size_t kMaxItems = 100000;              // of a place
constexpr size_t kMaxBytes = size_t{256} << 20U;  // of a machine, about

[[noreturn]] void refuse_ambiguity() {
  throw Error("the rule of output is too ambiguous: the text so far can mean too much at once");
}

}  // namespace

Machine::Machine(const Automaton& automaton, const TokenTrie& trie)
    : automaton_(automaton),
      trie_(trie),
      class_of_(automaton.class_of().data()),
      seen_(automaton.states().size(), 0) {
  path_.resize(trie.depth() + 1);
  // What most texts need, instead of growing to it.
  constexpr size_t kUsualStates = 256;
  moves_.reserve(kUsualStates);
  place_moves_.reserve(kUsualStates);
  place_infos_.reserve(kUsualStates);
  constexpr std::array<uint32_t, 2> kNoFrame = {~0U, 0};
  constexpr std::array<uint32_t, 2> kNoOtherFrame = {~0U, 1};
  stacks_.intern(kNoFrame);       // kEnd
  stacks_.intern(kNoOtherFrame);  // kOpen
  constexpr uint32_t kNothing = 0;
  intern_state({&kNothing, 1});  // kDead
  starts_.assign(automaton.rules().size(), kUnknown);
  reach(make_start(automaton.rules().front()), kEnd);
  start_ = take_reached();
}

// Follows moves from items to all states that they reach. kNone: nothing goes on there.
Machine::Place Machine::make_place(std::span<const Item> from) {
  ++seen_mark_;
  std::set<Item> seen_counts;
  todo_.clear();
  kept_.clear();
  bool may_end = false;
  ByteSet classes;
  bool has_counts = false;
  bool is_rest = false;
  const auto is_new = [&](const Item& item) {
    if (item.count != 0) return seen_counts.insert(item).second;
    return std::exchange(seen_[static_cast<size_t>(item.state)], seen_mark_) != seen_mark_;
  };
  std::ranges::copy_if(from, std::back_inserter(todo_), is_new);
  for (size_t done = 0; !todo_.empty(); ++done) {
    if (done > kMaxItems) refuse_ambiguity();
    const Item item = todo_.back();
    todo_.pop_back();
    const Automaton::State& state = automaton_.states()[static_cast<size_t>(item.state)];
    ++work_;
    if (state.takes_rest && !is_rest) {  // all else is left out
      is_rest = true;
      ++seen_mark_;
      kept_.clear();
      todo_.assign(1, item);
      may_end = has_counts = false;
      classes = {};
      continue;
    }
    has_counts = has_counts || state.loop >= 0;
    const std::span<const Automaton::ByteEdge> edges = automaton_.bytes_from(item.state);
    const bool takes_calls = !automaton_.calls_from(item.state).empty();
    const std::span<const Automaton::Move> moves = automaton_.moves_from(item.state);
    for (const Automaton::ByteEdge& edge : edges) classes.add(automaton_.classes_of(edge));
    if (!edges.empty() || takes_calls) kept_.push_back(item);
    // Final states have no edges: nothing follows the end of a rule in it.
    if (edges.empty() && !takes_calls && moves.empty()) may_end = true;
    for (const Automaton::Move& move : moves) {
      Item to{move.to, item.count};
      if (move.kind != Automaton::Move::Kind::plain) {
        const Automaton::Loop& loop = automaton_.loops()[static_cast<size_t>(move.loop)];
        const int32_t count = item.count + 1;
        if (move.kind == Automaton::Move::Kind::within) {
          if (loop.most != kUnbounded && count > loop.most - move.left) continue;
        } else if (move.kind == Automaton::Move::Kind::leave) {
          if (count < loop.least) continue;
          to.count = 0;
        } else {
          if (loop.most != kUnbounded && count >= loop.most) continue;
          to.count = loop.most == kUnbounded ? std::min(count, loop.least) : count;
        }
      }
      if (is_new(to)) todo_.push_back(to);
    }
  }
  if (kept_.empty() && !may_end) return kNone;
  std::ranges::sort(kept_);
  list_.assign(1, may_end ? 1U : 0U);
  for (const Item& item : kept_) {
    list_.push_back(static_cast<uint32_t>(item.state));
    list_.push_back(static_cast<uint32_t>(item.count));
  }
  return add_place(list_, classes, has_counts);
}

// The place of a list, as places_ has it.
Machine::Place Machine::add_place(std::span<const uint32_t> list, const ByteSet& classes,
                                  bool has_counts) {
  const auto [id, is_new] = places_.intern(list);
  if (is_new) {
    PlaceInfo& info = place_infos_.emplace_back();
    info.may_end = list.front() != 0;
    info.classes = classes;
    info.has_counts = has_counts;
    place_moves_.add_row(classes);
  }
  return id;
}

Machine::Place Machine::make_start(const Automaton::Rule& rule) {
  const Item item{rule.start, 0};
  return make_place({&item, 1});
}

std::vector<Machine::Item> Machine::items_of(Place place) const {
  std::vector<Item> items;
  for (size_t i = 0; i < n_items(place); ++i) items.push_back(item(place, i));
  return items;
}

Machine::Place Machine::place_after(Place place, uint8_t byte_class) {
  const int32_t known = place_moves_.at(place, byte_class);
  if (known != kUnknown) return known;
  targets_.clear();
  const std::span<const uint32_t> items = places_[place];
  for (size_t i = 1; i < items.size(); i += 2) {
    const Item from{static_cast<int32_t>(items[i]), static_cast<int32_t>(items[i + 1])};
    const std::span<const Automaton::ByteEdge> edges = automaton_.bytes_from(from.state);
    work_ += edges.size();
    for (const Automaton::ByteEdge& edge : edges) {
      if (!automaton_.classes_of(edge).has(byte_class)) continue;
      targets_.push_back({edge.to, from.count});
    }
  }
  const Place after = targets_.empty() ? kNone : make_place(targets_);
  place_moves_.set(place, byte_class, after);
  return after;
}

const std::vector<Machine::Call>& Machine::calls_of(Place place) {
  const auto p = static_cast<size_t>(place);
  if (place_infos_[p].knows_calls) return place_infos_[p].calls;
  std::vector<std::pair<int32_t, Item>> targets;  // by rule
  for (size_t i = 0; i < n_items(place); ++i) {
    const Item from = item(place, i);
    for (const Automaton::CallEdge& edge : automaton_.calls_from(from.state)) {
      targets.emplace_back(edge.rule, Item{edge.to, from.count});
    }
  }
  std::ranges::sort(targets);
  std::vector<Call> calls;
  for (size_t i = 0; i < targets.size();) {
    const int32_t rule = targets[i].first;
    std::vector<Item> then;
    for (; i < targets.size() && targets[i].first == rule; ++i) then.push_back(targets[i].second);
    Place& start = starts_[static_cast<size_t>(rule)];
    if (start == kUnknown) {
      start = make_start(automaton_.rules()[static_cast<size_t>(rule)]);
    }
    const Place after = make_place(then);
    if (start >= 0 && after >= 0) calls.push_back({start, after});
  }
  PlaceInfo& info = place_infos_[p];
  info.calls = std::move(calls);
  info.knows_calls = true;
  return info.calls;
}

Machine::Stack Machine::push(Place then, Stack below) {
  const PlaceInfo& info = place_infos_[static_cast<size_t>(then)];
  const bool only_ends = places_[then].size() == 1 && info.may_end;
  if (only_ends) return below;  // a call at a rule's end
  const std::array<uint32_t, 2> frame = {static_cast<uint32_t>(then), static_cast<uint32_t>(below)};
  return stacks_.intern(frame).id;
}

// Before reach(), whatever an error has left.
void Machine::reach_nothing() {
  reached_.clear();
  n_followed_ = 0;
  if (reached_set_.size() > 0) reached_set_.clear();
  reached_flags_ = 0;
}

// Adds a place with its stack to what was reached, once.
void Machine::note(Place place, Stack stack) {
  constexpr size_t kFew = 16;
  const std::pair<Place, Stack> pair(place, stack);
  const auto is_in_set = [this](const std::pair<Place, Stack>& each) {
    const std::array<uint32_t, 2> key = {static_cast<uint32_t>(each.first),
                                         static_cast<uint32_t>(each.second)};
    return !reached_set_.intern(key).is_new;
  };
  if (reached_.size() < kFew) {
    if (std::ranges::find(reached_, pair) == reached_.end()) reached_.push_back(pair);
    return;
  }
  if (reached_.size() == kFew) std::ranges::for_each(reached_, is_in_set);
  if (!is_in_set(pair)) reached_.push_back(pair);
}

// Notes a place with its stack, and where calls and ends lead from there.
void Machine::reach(Place place, Stack stack) {
  note(place, stack);
  for (; n_followed_ < reached_.size(); ++n_followed_) {
    if (reached_.size() > kMaxMeanings) refuse_ambiguity();
    const auto [p, s] = reached_[n_followed_];
    ++work_;
    if (place_infos_[static_cast<size_t>(p)].may_end) {
      if (s == kEnd) {
        reached_flags_ |= kComplete;
      } else if (s == kOpen) {
        reached_flags_ |= kLeft;
      } else {
        const std::span<const uint32_t> frame = stacks_[s];
        note(static_cast<Place>(frame[0]), static_cast<Stack>(frame[1]));
      }
    }
    const size_t n_calls = calls_of(p).size();
    for (size_t i = 0; i < n_calls; ++i) {
      const Call each = place_infos_[static_cast<size_t>(p)].calls[i];
      note(each.start, push(each.then, s));
    }
  }
}

// The state of all that was reached.
Machine::State Machine::take_reached() {
  std::erase_if(reached_, [this](const auto& pair) {
    return place_infos_[static_cast<size_t>(pair.first)].classes.is_empty();
  });
  std::ranges::sort(reached_);
  list_.assign(1, reached_flags_);
  for (const auto& [place, stack] : reached_) {
    list_.push_back(static_cast<uint32_t>(place));
    list_.push_back(static_cast<uint32_t>(stack));
  }
  return intern_state(list_);
}

Machine::State Machine::intern_state(std::span<const uint32_t> list) {
  const auto [id, is_new] = states_.intern(list);
  if (!is_new) return id;
  ByteSet classes;
  for (size_t i = 1; i < list.size(); i += 2) classes.add(place_infos_[list[i]].classes);
  moves_.add_row(classes);
  return id;
}

Machine::State Machine::make_move(State state, uint8_t byte_class) {
  reach_nothing();
  const std::span<const uint32_t> list = states_[state];  // no state is made in the loop
  for (size_t i = 1; i < list.size(); i += 2) {
    const Place after = place_after(static_cast<Place>(list[i]), byte_class);
    if (after >= 0) reach(after, static_cast<Stack>(list[i + 1]));
  }
  const State to = reached_.empty() ? kDead : take_reached();
  moves_.set(state, byte_class, to);
  return to;
}

// Where a text goes on once the place on top of a stack has ended.
Machine::State Machine::state_below(Stack stack) {
  if (stack == kEnd || stack == kOpen) return kDead;
  const auto s = static_cast<size_t>(stack);
  if (below_.size() <= s) below_.resize(s + 1, kUnknown);
  if (below_[s] != kUnknown) return below_[s];
  const std::span<const uint32_t> frame = stacks_[stack];
  reach_nothing();
  reach(static_cast<Place>(frame[0]), static_cast<Stack>(frame[1]));
  const State below = take_reached();
  return below_[s] = below;
}

// The place with counts for which short tokens do the same: as far from the bounds as counts.
Machine::Place Machine::farthest_from_bounds(Place place) {
  constexpr auto kFar = static_cast<int32_t>(kShortToken) + 1;
  std::vector<Item> items = items_of(place);
  if (items.empty()) return place;
  for (Item& item : items) {
    const int32_t l = automaton_.states()[static_cast<size_t>(item.state)].loop;
    if (l < 0) continue;
    const Automaton::Loop& loop = automaton_.loops()[static_cast<size_t>(l)];
    const int32_t to_least = loop.least - item.count;
    const int32_t last = loop.most - loop.most_left;  // the bound that is met first
    const int32_t to_most = loop.most == kUnbounded ? kFar : last - item.count;
    if (to_most < kFar) continue;
    if (to_least >= kFar) {
      item.count = 0;
      if (loop.least > kFar) item.count = loop.least - kFar;
    } else if (to_least <= 0 && loop.most != kUnbounded) {
      item.count = std::max(loop.least, last - kFar);
    }
  }
  // The moves from these have been followed already; what may end stays so.
  std::ranges::sort(items);
  items.erase(std::unique(items.begin(), items.end()), items.end());
  const PlaceInfo& before = place_infos_[static_cast<size_t>(place)];
  std::vector<uint32_t> list = {before.may_end ? 1U : 0U};
  for (const Item& item : items) {
    list.push_back(static_cast<uint32_t>(item.state));
    list.push_back(static_cast<uint32_t>(item.count));
  }
  return add_place(list, ByteSet(before.classes), true);
}

// Whether every short text that a JSON string has as it is, of whole characters, goes on from here.
bool Machine::takes_any_text(State state) {
  constexpr size_t kMaxPairs = 2000;
  struct Range {
    uint8_t first, last;
    uint8_t to;
  };
  // What may follow within a character of UTF-8 (Unicode 15, table 3-7): 0 between characters, then
  // by how many bytes are missing, and after E0, ED, F0, F4 and E2, which 80 does not follow.
  static const std::array<std::vector<Range>, 9> utf8 = {{
      {{0x20, 0x21, 0},
       {0x23, 0x5B, 0},
       {0x5D, 0x7E, 0},
       {0xC2, 0xDF, 1},
       {0xE0, 0xE0, 4},
       {0xE1, 0xE1, 2},
       {0xE2, 0xE2, 8},
       {0xE3, 0xEC, 2},
       {0xED, 0xED, 5},
       {0xEE, 0xEF, 2},
       {0xF0, 0xF0, 6},
       {0xF1, 0xF3, 3},
       {0xF4, 0xF4, 7}},
      {{0x80, 0xBF, 0}},
      {{0x80, 0xBF, 1}},
      {{0x80, 0xBF, 2}},
      {{0xA0, 0xBF, 1}},
      {{0x80, 0x9F, 1}},
      {{0x90, 0xBF, 2}},
      {{0x80, 0x8F, 2}},
      {{0x81, 0xBF, 1}},
  }};
  std::vector<uint16_t> seen;  // by state: bits of where within a character
  size_t n_seen = 0;
  const auto is_new = [&](State s, uint8_t within) {
    if (seen.size() <= static_cast<size_t>(s)) seen.resize(states_.size(), 0);
    uint16_t& bits = seen[static_cast<size_t>(s)];
    const auto bit = static_cast<uint16_t>(1U << within);
    if ((bits & bit) != 0) return false;
    bits = static_cast<uint16_t>(bits | bit);
    ++n_seen;
    return true;
  };
  (void)is_new(state, 0);
  std::vector<std::pair<State, uint8_t>> now = {{state, 0}};
  std::vector<std::pair<State, uint8_t>> after;
  for (size_t depth = 0; depth < kShortToken && !now.empty(); ++depth) {
    after.clear();
    for (const auto& [from, within] : now) {
      for (const Range& range : utf8.at(within)) {
        int32_t before = -1;
        for (int byte = range.first; byte <= range.last; ++byte) {
          const int32_t byte_class = class_of_[byte];
          if (std::exchange(before, byte_class) == byte_class) continue;
          const State to = next(from, static_cast<uint8_t>(byte));
          if (to == kDead) return false;
          if (is_new(to, range.to)) after.emplace_back(to, range.to);
        }
      }
    }
    if (n_seen > kMaxPairs) return false;
    std::swap(now, after);
  }
  return true;
}

// Walks the nodes from `first` to `last`, which are below one of one depth less, from a state.
// Calls visit(node, state) for those that the state goes on to.
template <class Visit>
void Machine::walk(State state, std::span<const TokenTrie::Entry> nodes, size_t first, size_t last,
                   const Visit& visit) {
  if (first >= last) return;
  path_[nodes[first].depth] = state;
  for (size_t i = first; i < last;) {
    const TokenTrie::Entry& node = nodes[i];
    const State to = next(path_[node.depth], node.byte);
    if (to == kDead) {
      i = node.end;
      continue;
    }
    path_[node.depth + size_t{1}] = to;
    visit(i, to);
    ++i;
  }
}

// The tokens of some of the trie's parts that go on from a place.
std::shared_ptr<const Machine::Tokens> Machine::walk_parts(
    Place place, std::initializer_list<TokenTrie::Part> parts) {
  auto tokens = std::make_shared<Tokens>(trie_.words());
  const std::array<uint32_t, 3> alone = {0, static_cast<uint32_t>(place), kOpen};
  const State state = intern_state(alone);
  const ByteSet classes = place_infos_[static_cast<size_t>(place)].classes;
  for (const TokenTrie::Part part : parts) {
    if (part == TokenTrie::kText && takes_any_text(state)) {
      tokens->set.add(trie_.text_tokens());
      continue;
    }
    const auto nodes = trie_.part(part);
    const auto starts = trie_.starts(part);
    const auto visit = [&](size_t i, State to) {
      const TokenTrie::Entry& node = nodes[i];
      trie_.for_each_alike(node.token, [&](int32_t token) { tokens->set.add(token); });
      if (node.end > i + 1 && (flags(to) & kLeft) != 0) {
        tokens->leaving[part].push_back(static_cast<uint32_t>(i));
      }
    };
    classes.for_each([&](uint8_t byte_class) {
      for (const uint8_t byte : automaton_.bytes_of_class(byte_class)) {
        walk(state, nodes, starts[byte], starts[byte + size_t{1}], visit);
      }
    });
  }
  token_bytes_ += tokens->set.bytes();
  for (const auto& left : tokens->leaving) token_bytes_ += left.size() * sizeof(uint32_t);
  return tokens;
}

void Machine::find_tokens(Place place) {
  using enum TokenTrie::Part;
  const auto info = [this](Place p) -> PlaceInfo& { return place_infos_[static_cast<size_t>(p)]; };
  if (!info(place).has_counts) {
    if (info(place).tokens == nullptr) {
      auto tokens = walk_parts(place, {kOthers, kText, kLong});
      info(place).tokens = std::move(tokens);
    }
    return;
  }
  if (info(place).long_tokens != nullptr) return;
  const Place alike = farthest_from_bounds(place);
  if (info(alike).tokens == nullptr) {
    auto tokens = walk_parts(alike, {kOthers, kText});
    info(alike).tokens = std::move(tokens);
  }
  auto long_tokens = walk_parts(place, {kLong});
  info(place).tokens = info(alike).tokens;
  info(place).long_tokens = std::move(long_tokens);
}

void Machine::mask(State state, std::span<uint32_t> bits) {
  for (size_t i = 1; i < states_[state].size(); i += 2) {
    const std::span<const uint32_t> pair = states_[state].subspan(i, 2);
    const auto place = static_cast<Place>(pair[0]);
    const auto stack = static_cast<Stack>(pair[1]);
    find_tokens(place);
    const State below = state_below(stack);
    const bool goes_on_below = below != kDead && goes_on(below);
    const PlaceInfo& info = place_infos_[static_cast<size_t>(place)];
    for (const Tokens* tokens : {info.tokens.get(), info.long_tokens.get()}) {
      if (tokens == nullptr) continue;
      tokens->set.add_to(bits);
      for (int p = 0; p < TokenTrie::kParts && goes_on_below; ++p) {
        const auto nodes = trie_.part(static_cast<TokenTrie::Part>(p));
        const auto visit = [&](size_t n, State) { trie_.add(nodes[n].token, bits); };
        for (const uint32_t node : tokens->leaving[p]) {
          walk(below, nodes, node + size_t{1}, nodes[node].end, visit);
        }
      }
    }
  }
}

std::optional<uint8_t> Machine::only_byte(State state) {
  if (is_complete(state)) return std::nullopt;
  std::optional<uint8_t> only;
  moves_.for_each_class(state, [&](uint8_t byte_class) {
    const std::span<const uint8_t> bytes = automaton_.bytes_of_class(byte_class);
    if (next(state, bytes.front()) == kDead) return true;
    const bool is_first = !only && bytes.size() == 1;
    only = is_first ? std::optional(bytes.front()) : std::nullopt;
    return is_first;
  });
  return only;
}

size_t Machine::bytes() const {
  return token_bytes_ + places_.bytes() + stacks_.bytes() + states_.bytes() + moves_.bytes() +
         place_moves_.bytes() + place_infos_.size() * sizeof(PlaceInfo);
}

bool Machine::is_full() const { return bytes() > kMaxBytes; }

Machine::Place Machine::import_place(const Machine& other, Place place) {
  std::vector<Item> items = other.items_of(place);
  if (other.place_infos_[static_cast<size_t>(place)].may_end) {
    // Any final state says so.
    items.push_back({automaton_.rules().front().final, 0});
  }
  return make_place(items);
}

Machine::Stack Machine::import_stack(const Machine& other, Stack stack) {
  std::vector<Place> frames;
  for (; stack != kEnd && stack != kOpen;) {
    const std::span<const uint32_t> frame = other.stacks_[stack];
    frames.push_back(static_cast<Place>(frame[0]));
    stack = static_cast<Stack>(frame[1]);
  }
  for (size_t i = frames.size(); i-- > 0;) stack = push(import_place(other, frames[i]), stack);
  return stack;
}

Machine::State Machine::import(const Machine& other, State state) {
  const std::span<const uint32_t> list = other.states_[state];
  std::vector<uint32_t> mine = {list.front()};
  std::vector<std::pair<Place, Stack>> pairs;
  for (size_t i = 1; i < list.size(); i += 2) {
    const Place place = import_place(other, static_cast<Place>(list[i]));
    pairs.emplace_back(place, import_stack(other, static_cast<Stack>(list[i + 1])));
  }
  std::ranges::sort(pairs);
  for (const auto& [place, stack] : pairs) {
    mine.push_back(static_cast<uint32_t>(place));
    mine.push_back(static_cast<uint32_t>(stack));
  }
  return intern_state(mine);
}

}  // namespace faststream::rules
