#include "engine/rule_cache.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "support/error.h"
#include "text/rules/grammar_text.h"
#include "text/rules/json_schema.h"
#include "text/rules/regex.h"

namespace faststream {
namespace {

constexpr size_t kMaxKept = 32;

rules::Grammar read(const OutputRule& rule) {
  switch (rule.kind) {
    case OutputRule::Kind::json_schema:
      return rules::parse_json_schema(rule.text);
    case OutputRule::Kind::json_object:
      return rules::parse_json_schema(R"({"type": "object"})");
    case OutputRule::Kind::regex:
      return {{{"text", rules::parse_regex(rule.text)}}};
    case OutputRule::Kind::grammar:
      return rules::parse_grammar(rule.text);
  }
  return {};
}

}  // namespace

std::shared_ptr<const rules::TokenTrie> RuleCache::trie() {
  const std::lock_guard lock(mutex_);
  if (!trie_) trie_ = rules::make_token_trie(tokenizer_, vocab_);
  return trie_;
}

std::shared_ptr<const rules::CompiledRule> RuleCache::compile(const OutputRule& rule) {
  const auto find = [&]() -> std::shared_ptr<const rules::CompiledRule> {
    const auto found = std::ranges::find_if(compiled_, [&](const auto& known) {
      return known.first.kind == rule.kind && known.first.text == rule.text;
    });
    if (found == compiled_.end()) return nullptr;
    compiled_.splice(compiled_.begin(), compiled_, found);
    return found->second;
  };
  {
    const std::lock_guard lock(mutex_);
    if (auto known = find()) return known;
  }
  auto compiled = compile_new(rule);
  const std::lock_guard lock(mutex_);
  if (auto known = find()) return known;  // another thread's
  compiled_.emplace_front(rule, compiled);
  size_t bytes = 0;
  for (auto kept = std::next(compiled_.begin()); kept != compiled_.end(); ++kept) {
    bytes += kept->first.text.size() + kept->second->bytes();
    if (bytes <= most_bytes_) continue;
    compiled_.erase(kept, compiled_.end());
    break;
  }
  if (compiled_.size() > kMaxKept) compiled_.pop_back();
  return compiled;
}

std::shared_ptr<const rules::CompiledRule> RuleCache::compile_new(const OutputRule& rule) {
  try {
    return std::make_shared<const rules::CompiledRule>(read(rule), trie());
  } catch (const Error& error) {
    if (rule.name.empty()) throw;
    throw Error(rule.name + ": " + error.what());
  }
}

}  // namespace faststream
