// Choices from logits of some of a vocabulary's tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace faststream {

/// Tells rows of an output matrix that has not one for each token (OutputConfig::tokens) from
/// tokens: rules speak of tokens, and so does what is chosen, whatever rows there are.
class VocabularyMap {
 public:
  /// tokens: of each row, all different and below `vocab`.
  VocabularyMap(std::vector<int32_t> tokens, int64_t vocab);

  /// What choose_rows(rules) gives, whose rules and choices are those of rows. What rules say of
  /// tokens without a row is left out; a rule by which no row could be chosen has neither mask nor
  /// edits then: what it gives does not fit the text's rules, which whoever proposes it finds.
  using ChooseRows = std::function<std::unique_ptr<Choices>(std::span<const SamplingRow> rules)>;
  [[nodiscard]] std::unique_ptr<Choices> choose(std::span<const SamplingRow> rules,
                                                const ChooseRows& choose_rows) const;

 private:
  class Mapped;

  // -1: the token has none.
  [[nodiscard]] int32_t row_of(int32_t token) const { return rows_[static_cast<size_t>(token)]; }
  [[nodiscard]] std::vector<LogitEdit> edits_of_rows(std::span<const LogitEdit> edits) const;
  [[nodiscard]] std::vector<uint32_t> mask_of_rows(std::span<const uint32_t> mask) const;
  [[nodiscard]] bool leave_a_row(std::span<const LogitEdit> edits,
                                 std::span<const uint32_t> mask) const;

  std::vector<int32_t> tokens_;
  std::vector<int32_t> rows_;  // [vocab]
};

}  // namespace faststream
