// A sequence's place in the caches, and what a step adds to it.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/batch.h"

namespace faststream {

class Source;

/// What a sequence holds in one cache: numbers that only this cache reads, such as a range of the
/// sequence's pages, or the state that a step reads from and those that it writes to.
struct CacheHold {
  int32_t from = 0;
  int32_t to = 0;
  int32_t border = 0;
};

/// What keys and values depend on besides a text's tokens.
struct TextKind {
  int32_t rope_length = 0;  ///< ModelConfig::rope_length() of the text when it began
  int32_t adapter = 0;      ///< which of the model's it is computed with, counted from 1; 0: none

  auto operator<=>(const TextKind&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// A sequence's place in the caches (SequenceCaches). It holds its pages once each, and what else
/// the caches have of it, until it is released, which must happen before it goes.
struct Sequence {
  int32_t n_cached = 0;  ///< tokens that are in the caches, or that a step adds
  TextKind kind = {};
  /// Tokens that it has in common with a known text, though the caches lacked something to go on
  /// from there: others will want to, so that a piece of it ends there.
  int32_t branch = 0;
  std::vector<int32_t> pages = {};      ///< one for each kPageTokens tokens
  std::vector<CacheHold> holds = {};    ///< in each cache; the caches' own
  std::shared_ptr<Source> source = {};  ///< what it looks at, where the model has an encoder

  /// Pages that it lacks to hold so many tokens.
  [[nodiscard]] int32_t missing_pages(int64_t tokens) const {
    return std::max(pages_for(tokens) - static_cast<int32_t>(pages.size()), 0);
  }
};

/// New tokens of one sequence, to be processed in one step.
struct NewTokens {
  enum class Logits { none, last, all };

  Sequence* sequence = nullptr;
  /// At least one; or one that nobody knows yet, chosen_from() a row of what was chosen last, where
  /// the executor reads choices.
  std::span<const int32_t> tokens;
  Logits logits = Logits::last;  ///< of which tokens the next-token logits are wanted
  /// Tokens that may come next and are processed after the others: how many of them stay is said
  /// after the step (SequenceCaches::commit()).
  std::span<const int32_t> proposed = {};
  bool one_by_one = false;  ///< see Batch
  /// Predictors read the hidden states of all of them; else at most, and where this is so of all
  /// inputs of a step, of those whose logits are wanted.
  bool with_states = true;

  [[nodiscard]] int32_t n_tokens() const {
    return static_cast<int32_t>(tokens.size() + proposed.size());
  }
  [[nodiscard]] int32_t n_logits() const {
    return logits == Logits::all ? n_tokens() : logits == Logits::last ? 1 : 0;
  }
};

/// Whether predictors read hidden states of a step that are not there for logits (Batch).
inline bool wants_states(std::span<const NewTokens> inputs) {
  return std::ranges::any_of(inputs, &NewTokens::with_states);
}

}  // namespace faststream
