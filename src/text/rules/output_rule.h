// What a text must be: a rule, compiled for a vocabulary, and where texts stand in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/rules/automaton.h"
#include "text/rules/machine.h"
#include "text/rules/token_trie.h"

namespace faststream {
class Tokenizer;
}

namespace faststream::rules {

/// The tokens that a rule may allow: those that stand for bytes.
std::shared_ptr<const TokenTrie> make_token_trie(const Tokenizer& tokenizer, int64_t vocab);

/// A rule of any number of texts. Threads may share it.
class CompiledRule {
 public:
  /// Throws Error where the grammar is left-recursive, unsatisfiable or too large.
  CompiledRule(const Grammar& grammar, std::shared_ptr<const TokenTrie> trie);

  [[nodiscard]] const TokenTrie& trie() const { return *trie_; }
  /// Of memory, about, without the trie's.
  [[nodiscard]] size_t bytes() const;

 private:
  friend class RuleMatcher;
  /// What is found out about the rule, by one thread at a time.
  struct Memory {
    Memory(const Automaton& automaton, const TokenTrie& trie) : machine(automaton, trie) {}
    std::mutex mutex;
    Machine machine;
  };
  [[nodiscard]] std::shared_ptr<Memory> memory() const;
  [[nodiscard]] std::shared_ptr<Memory> memory_after(const std::shared_ptr<Memory>& full) const;

  std::shared_ptr<const TokenTrie> trie_;
  Automaton automaton_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Memory> memory_;  // guarded by mutex_; another one once it is full
};

/// Where one text stands in its rule. A copy goes on by itself, which costs next to nothing.
class RuleMatcher {
 public:
  explicit RuleMatcher(std::shared_ptr<const CompiledRule> rule);

  /// Sets the bits of the tokens that may come next: those after which some text completes the
  /// rule. bits: [words()], of which token t has bit t % 32 of word t / 32; others become zero.
  /// Throws Error where the text so far can mean too much at once.
  void mask(std::span<uint32_t> bits) const;
  [[nodiscard]] size_t words() const { return rule_->trie().words(); }

  /// Goes on by a token's bytes. Returns false, and stays, where the rule does not allow that.
  bool accept(int32_t token);
  bool accept(std::string_view bytes);

  /// The bytes that are certain to come next, at most `most`.
  [[nodiscard]] std::string forced(size_t most) const;
  /// Tokens that a model is nearly certain to write next, at most `most`: those that the bytes that
  /// are certain to come next are split into, the longest first. None that another token may take
  /// the place of which goes beyond these bytes.
  [[nodiscard]] std::vector<int32_t> forced_tokens(size_t most) const;
  /// Whether the text may end here.
  [[nodiscard]] bool complete() const;
  /// Whether it may go on.
  [[nodiscard]] bool goes_on() const;

 private:
  std::string forced_from(Machine::State& state, size_t most) const;

  std::shared_ptr<const CompiledRule> rule_;
  std::shared_ptr<CompiledRule::Memory> memory_;
  Machine::State state_;
};

}  // namespace faststream::rules
