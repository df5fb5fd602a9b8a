#include "text/rules/output_rule.h"

#include <algorithm>
#include <utility>

#include "text/tokenizer.h"

namespace faststream::rules {

std::shared_ptr<const TokenTrie> make_token_trie(const Tokenizer& tokenizer, int64_t vocab) {
  const int32_t named = tokenizer.vocab_size();
  return std::make_shared<const TokenTrie>(static_cast<int32_t>(vocab), [&](int32_t token) {
    return token < named && !tokenizer.is_eos(token) ? tokenizer.token_bytes(token) : "";
  });
}

CompiledRule::CompiledRule(const Grammar& grammar, std::shared_ptr<const TokenTrie> trie)
    : trie_(std::move(trie)),
      automaton_(grammar),
      memory_(std::make_shared<Memory>(automaton_, *trie_)) {}

size_t CompiledRule::bytes() const {
  const std::shared_ptr<Memory> now = memory();
  const std::lock_guard lock(now->mutex);
  return automaton_.bytes() + now->machine.bytes();
}

std::shared_ptr<CompiledRule::Memory> CompiledRule::memory() const {
  const std::lock_guard lock(mutex_);
  return memory_;
}

std::shared_ptr<CompiledRule::Memory> CompiledRule::memory_after(
    const std::shared_ptr<Memory>& full) const {
  const std::lock_guard lock(mutex_);
  if (memory_ == full) memory_ = std::make_shared<Memory>(automaton_, *trie_);
  return memory_;
}

RuleMatcher::RuleMatcher(std::shared_ptr<const CompiledRule> rule)
    : rule_(std::move(rule)), memory_(rule_->memory()), state_(memory_->machine.start()) {}

void RuleMatcher::mask(std::span<uint32_t> bits) const {
  std::ranges::fill(bits, 0);
  const std::lock_guard lock(memory_->mutex);
  memory_->machine.mask(state_, bits);
}

bool RuleMatcher::accept(int32_t token) {
  if (token < 0 || token >= rule_->trie().vocab()) return false;
  const std::string_view bytes = rule_->trie().bytes(token);
  return !bytes.empty() && accept(bytes);
}

bool RuleMatcher::accept(std::string_view bytes) {
  std::unique_lock lock(memory_->mutex);
  const Machine::State after = memory_->machine.next(state_, bytes);
  if (after == Machine::kDead) return false;
  state_ = after;
  if (!memory_->machine.is_full()) return true;
  const std::shared_ptr<CompiledRule::Memory> fresh = rule_->memory_after(memory_);
  if (fresh != memory_) {
    const std::lock_guard other_lock(fresh->mutex);
    state_ = fresh->machine.import(memory_->machine, state_);
  }
  lock.unlock();
  memory_ = fresh;
  return true;
}

std::string RuleMatcher::forced(size_t most) const {
  const std::lock_guard lock(memory_->mutex);
  Machine::State state = state_;
  return forced_from(state, most);
}

// Moves the state to where the bytes end.
std::string RuleMatcher::forced_from(Machine::State& state, size_t most) const {
  std::string bytes;
  while (bytes.size() < most) {
    const auto only = memory_->machine.only_byte(state);
    if (!only) break;
    bytes += static_cast<char>(*only);
    state = memory_->machine.next(state, *only);
  }
  return bytes;
}

std::vector<int32_t> RuleMatcher::forced_tokens(size_t most) const {
  constexpr size_t kMostBytes = 8;  // of a token on average
  const std::lock_guard lock(memory_->mutex);
  Machine::State after = state_;
  const std::string bytes = forced_from(after, kMostBytes * most);
  const auto goes_beyond = [&](const ByteSet& with) {
    for (int byte = 0; byte < 256; ++byte) {
      const auto b = static_cast<uint8_t>(byte);
      if (with.has(b) && memory_->machine.next(after, b) != Machine::kDead) return true;
    }
    return false;
  };
  const TokenTrie& trie = rule_->trie();
  std::vector<int32_t> tokens;
  for (std::string_view left = bytes; !left.empty() && tokens.size() < most;) {
    const TokenTrie::Beginning next = trie.begin(left);
    if (next.token < 0 || goes_beyond(next.beyond)) break;
    tokens.push_back(next.token);
    left.remove_prefix(trie.bytes(next.token).size());
  }
  return tokens;
}

bool RuleMatcher::complete() const {
  const std::lock_guard lock(memory_->mutex);
  return memory_->machine.is_complete(state_);
}

bool RuleMatcher::goes_on() const {
  const std::lock_guard lock(memory_->mutex);
  return memory_->machine.goes_on(state_);
}

}  // namespace faststream::rules
