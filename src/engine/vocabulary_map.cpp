#include "engine/vocabulary_map.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "support/bit_mask.h"

namespace faststream {
// The choices of rows, with the rules that they are made by.
class VocabularyMap::Mapped final : public Choices {
 public:
  Mapped(const VocabularyMap& map, std::span<const SamplingRow> rules, const ChooseRows& choose)
      : map_(map), rules_(rules.begin(), rules.end()), edits_(rules.size()), masks_(rules.size()) {
    for (size_t r = 0; r < rules_.size(); ++r) {
      SamplingRow& rule = rules_[r];
      edits_[r] = map.edits_of_rows(rule.edits);
      masks_[r] = map.mask_of_rows(rule.mask);
      const bool leaves_one = map.leave_a_row(edits_[r], masks_[r]);
      rule.edits = leaves_one ? std::span<const LogitEdit>(edits_[r]) : rule.edits.first(0);
      rule.mask = leaves_one ? std::span<const uint32_t>(masks_[r]) : rule.mask.first(0);
    }
    of_rows_ = choose(rules_);
  }

  void wait() override { of_rows_->wait(); }

  void read(size_t r, SampledToken& to) override {
    of_rows_->read(r, to);
    if (rules_[r].n_candidates == 0) to.token = map_.tokens_[static_cast<size_t>(to.token)];
    for (auto* list : {&to.top, &to.candidates}) {
      for (LogProbability& each : *list) each.token = map_.tokens_[static_cast<size_t>(each.token)];
    }
  }

 private:
  const VocabularyMap& map_;
  std::vector<SamplingRow> rules_;
  std::vector<std::vector<LogitEdit>> edits_;
  std::vector<std::vector<uint32_t>> masks_;
  std::unique_ptr<Choices> of_rows_;
};

VocabularyMap::VocabularyMap(std::vector<int32_t> tokens, int64_t vocab)
    : tokens_(std::move(tokens)), rows_(static_cast<size_t>(vocab), -1) {
  for (size_t row = 0; row < tokens_.size(); ++row) {
    rows_[static_cast<size_t>(tokens_[row])] = static_cast<int32_t>(row);
  }
}

std::unique_ptr<Choices> VocabularyMap::choose(std::span<const SamplingRow> rules,
                                               const ChooseRows& choose_rows) const {
  return std::make_unique<Mapped>(*this, rules, choose_rows);
}

std::vector<LogitEdit> VocabularyMap::edits_of_rows(std::span<const LogitEdit> edits) const {
  std::vector<LogitEdit> of_rows;
  for (LogitEdit edit : edits) {
    edit.token = row_of(edit.token);
    if (edit.token >= 0) of_rows.push_back(edit);
  }
  return of_rows;
}

std::vector<uint32_t> VocabularyMap::mask_of_rows(std::span<const uint32_t> mask) const {
  if (mask.empty()) return {};
  std::vector<uint32_t> of_rows(mask_words(tokens_.size()));
  for (size_t row = 0; row < tokens_.size(); ++row) {
    if (has_bit(mask, tokens_[row])) set_bit(of_rows, row);
  }
  return of_rows;
}

// Both of rows. Most rules forbid far fewer than there are.
bool VocabularyMap::leave_a_row(std::span<const LogitEdit> edits,
                                std::span<const uint32_t> mask) const {
  const auto is_forbidden = [&](const LogitEdit& edit) {
    const bool is_in = mask.empty() || has_bit(mask, edit.token);
    return is_in && edit.bias == -std::numeric_limits<float>::infinity();
  };
  const size_t n_left = mask.empty() ? tokens_.size() : count_bits(mask);
  return n_left > static_cast<size_t>(std::ranges::count_if(edits, is_forbidden));
}

}  // namespace faststream
