#include "engine/suffix_automaton.h"

namespace faststream {

SuffixAutomaton::SuffixAutomaton() { states_.push_back({}); }

int32_t SuffixAutomaton::add_state(const State& state) {
  states_.push_back(state);
  return static_cast<int32_t>(states_.size()) - 1;
}

int32_t* SuffixAutomaton::target(int32_t from, int32_t token) {
  const auto found = by_token_.find(key(from, token));
  return found == by_token_.end() ? nullptr : &transitions_[static_cast<size_t>(found->second)].to;
}

void SuffixAutomaton::connect(int32_t from, int32_t token, int32_t to) {
  const auto index = static_cast<int32_t>(transitions_.size());
  transitions_.push_back({.token = token, .to = to, .next = state(from).transitions});
  state(from).transitions = index;
  by_token_.emplace(key(from, token), index);
}

// Of the substrings of `to` those that `token` makes of the longest one of `from`, and shorter
// ones, get a state of their own.
int32_t SuffixAutomaton::split(int32_t from, int32_t token, int32_t to) {
  const int32_t copy = add_state(
      {.length = state(from).length + 1, .suffix = state(to).suffix, .end = state(to).end});
  for (int32_t i = state(to).transitions; i != kNone;) {
    const Transition transition = transitions_[static_cast<size_t>(i)];
    connect(copy, transition.token, transition.to);
    i = transition.next;
  }
  state(to).suffix = copy;
  for (int32_t s = from; s != kNone; s = state(s).suffix) {
    int32_t* old = target(s, token);
    if (old == nullptr || *old != to) break;
    *old = copy;
  }
  return copy;
}

SuffixAutomaton::Match SuffixAutomaton::append(int32_t token) {
  const int32_t whole = add_state({.length = ++n_tokens_, .end = n_tokens_});
  int32_t from = last_;
  last_ = whole;
  for (; from != kNone && target(from, token) == nullptr; from = state(from).suffix) {
    connect(from, token, whole);
  }
  if (from == kNone) {
    state(whole).suffix = kRoot;
    return {};
  }
  const int32_t to = *target(from, token);
  const bool is_longest = state(to).length == state(from).length + 1;
  const int32_t suffix = is_longest ? to : split(from, token, to);
  state(whole).suffix = suffix;
  const Match match{.length = state(suffix).length, .end = state(suffix).end};
  state(suffix).end = n_tokens_;
  return match;
}

}  // namespace faststream
