// Rules of output that are compiled for a model's vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/request.h"
#include "text/rules/output_rule.h"

namespace faststream {

class Tokenizer;

/// Compiles rules, and keeps the last ones with what has been found out about them. Any thread may
/// use it.
class RuleCache {
 public:
  /// `tokenizer` must outlive it. vocab: rows of the model's output. most_bytes: of the rules that
  /// are kept besides the last one, about; what is found out about them while they are used counts
  /// when another one is compiled.
  RuleCache(const Tokenizer& tokenizer, int64_t vocab, size_t most_bytes = size_t{256} << 20U)
      : tokenizer_(tokenizer), vocab_(vocab), most_bytes_(most_bytes) {}

  /// Throws Error, which begins with the rule's name, where the rule is none, or asks for what is
  /// not supported.
  std::shared_ptr<const rules::CompiledRule> compile(const OutputRule& rule);

 private:
  std::shared_ptr<const rules::TokenTrie> trie();
  std::shared_ptr<const rules::CompiledRule> compile_new(const OutputRule& rule);

  const Tokenizer& tokenizer_;
  int64_t vocab_;
  size_t most_bytes_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::shared_ptr<const rules::TokenTrie> trie_;
  std::list<std::pair<OutputRule, std::shared_ptr<const rules::CompiledRule>>> compiled_;
};

}  // namespace faststream
