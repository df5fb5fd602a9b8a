// Beam search: the texts with the best scores, as Transformers' generate() finds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generation.h"
#include "engine/sequence_group.h"

namespace faststream {

/// The beams of a request. In each step the device ranks the tokens that could follow each beam;
/// the best continuations of all beams are looked at in the order of their scores (of equal ones
/// that of the smaller beam, then the smaller token first). Of as many as there are beams, those
/// that end a text are kept apart; as many that do not become the beams of the next step. What is
/// over when: BeamParams.
///
/// With groups all this happens in one group after the other, each with its share of the beams and
/// its own finished texts.
class BeamSearch final : public SequenceGroup {
 public:
  /// `rules` (with search.beams above 1) and `tokenizer` must outlive it.
  BeamSearch(const GenerationRules& rules, const Tokenizer& tokenizer);

  [[nodiscard]] int32_t width() const override { return rules_.search.beams; }
  [[nodiscard]] size_t n_sequences() const override;
  [[nodiscard]] const std::vector<int32_t>& tokens(size_t i) const override;
  [[nodiscard]] std::span<const int32_t> source() const override { return rules_.source; }
  [[nodiscard]] int32_t adapter() const override { return rules_.adapter; }
  [[nodiscard]] SamplingRow sampling_row(size_t i) const override;
  std::span<const int32_t> accept(std::span<SampledToken> sampled) override;
  std::string_view write() override;
  [[nodiscard]] int32_t newest_token() const override;
  void finish(FinishReason reason) override;
  [[nodiscard]] bool finished() const override { return groups_going_on() == 0; }
  std::vector<Output> take_outputs() override;

 private:
  /// A text that goes on.
  struct Beam {
    Generation text;
    double score = 0;  ///< sum of log-probabilities
  };
  /// A group of beams.
  struct Group {
    std::vector<Beam> beams;       ///< by score
    std::vector<Output> finished;  ///< by score, at most as many as beams
    bool is_over = false;
  };
  /// A beam with a token more.
  struct Continuation {
    double score = 0;
    size_t beam = 0;         ///< of its group
    LogProbability token{};  ///< as the device gave it
    bool ends = false;
  };
  /// The tokens that earlier groups' beams took in a step.
  using Taken = std::vector<int32_t>;

  [[nodiscard]] size_t groups_going_on() const;
  [[nodiscard]] const Beam& beam(size_t i) const;
  [[nodiscard]] std::vector<Continuation> choose(const Group& group,
                                                 std::span<const SampledToken> sampled,
                                                 Taken& taken) const;
  void add_continuations(const Beam& beam, size_t index, std::span<const LogProbability> candidates,
                         const Taken& taken, std::vector<Continuation>& to) const;
  void advance(Group& group, const std::vector<Continuation>& chosen,
               std::span<const SampledToken> sampled, size_t first_sequence);
  void keep(Group& group, Generation&& text, double score) const;
  [[nodiscard]] bool is_over(const Group& group, double best_score) const;
  /// Texts are then as Transformers 4 finds them, which differs in two things: a search may also go
  /// on for the sake of a text that has just ended, and texts that are full count only where those
  /// that ended did not end the search.
  [[nodiscard]] bool has_groups() const { return rules_.search.groups > 1; }
  [[nodiscard]] const Output* best() const;

  const GenerationRules& rules_;
  size_t group_size_;
  size_t n_looked_at_;    // continuations of a group in a step
  int32_t n_candidates_;  // tokens that the device ranks for a beam
  std::vector<Group> groups_;
  std::vector<int32_t> parents_;
  bool has_begun_ = false;  // else all groups' beams are one sequence, the prompt
  size_t n_printed_ = 0;    // bytes of the best text
  std::string new_text_;
};

}  // namespace faststream
