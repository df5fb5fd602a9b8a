#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "support/error.h"

namespace faststream {
namespace {

bool scores_higher(const Output& a, const Output& b) { return a.score > b.score; }

// Of a text of so many tokens.
double normalized(double sum, size_t length, float length_penalty) {
  return sum / std::pow(static_cast<double>(length), static_cast<double>(length_penalty));
}

// Of two texts, the characters that both begin with; they agree on the first `known` bytes.
std::string_view common_start(std::string_view a, std::string_view b, size_t known) {
  const std::string_view shorter = a.size() < b.size() ? a : b;
  const std::string_view longer = a.size() < b.size() ? b : a;
  size_t n = known;
  while (n < shorter.size() && shorter[n] == longer[n]) ++n;
  const auto is_inside_character = [&] { return (longer[n] & 0xC0) == 0x80; };
  while (n > known && n < longer.size() && is_inside_character()) --n;
  return longer.substr(0, n);
}

}  // namespace

BeamSearch::BeamSearch(const GenerationRules& rules, const Tokenizer& tokenizer)
    : rules_(rules), group_size_(static_cast<size_t>(rules.search.beams / rules.search.groups)) {
  const size_t n_ends = ending_tokens(rules, tokenizer).size();
  n_looked_at_ = std::max<size_t>(2, 1 + n_ends) * group_size_;
  // Beside those that go on, a beam may have as many that end (stop strings may end any), and as
  // many that the groups before took.
  const size_t n_taken = static_cast<size_t>(rules.search.beams) - group_size_;
  n_candidates_ = static_cast<int32_t>(group_size_ + std::max(group_size_, n_ends) + n_taken);
  const Generation prompt(rules, tokenizer, 0);
  for (int32_t g = 0; g < rules.search.groups; ++g) groups_.emplace_back().beams = {{prompt, 0}};
}

size_t BeamSearch::groups_going_on() const {
  return static_cast<size_t>(
      std::ranges::count_if(groups_, [](const Group& group) { return !group.is_over; }));
}

size_t BeamSearch::n_sequences() const {
  if (!has_begun_) return 1;
  size_t n = 0;
  for (const Group& group : groups_) n += group.beams.size();
  return n;
}

const BeamSearch::Beam& BeamSearch::beam(size_t i) const {
  auto group = groups_.begin();
  for (; i >= group->beams.size(); ++group) i -= group->beams.size();
  return group->beams[i];
}

const std::vector<int32_t>& BeamSearch::tokens(size_t i) const { return beam(i).text.tokens(); }

SamplingRow BeamSearch::sampling_row(size_t i) const {
  SamplingRow row = beam(i).text.sampling_row();
  row.n_candidates = n_candidates_;
  return row;
}

std::span<const int32_t> BeamSearch::accept(std::span<SampledToken> sampled) {
  parents_.clear();
  Taken taken;
  size_t first = 0;  // the group's first sequence
  for (Group& group : groups_) {
    if (group.is_over) continue;
    const size_t n = group.beams.size();
    const auto own = sampled.subspan(first, n);
    advance(group, choose(group, own, taken), own, first);
    if (has_begun_) first += n;
  }
  has_begun_ = true;
  return parents_;
}

// The best continuations of a group's beams, in order, as far as they matter. Adds the tokens that
// it takes.
std::vector<BeamSearch::Continuation> BeamSearch::choose(const Group& group,
                                                         std::span<const SampledToken> sampled,
                                                         Taken& taken) const {
  const auto ranks_higher = [](const Continuation& a, const Continuation& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.beam != b.beam ? a.beam < b.beam : a.token.token < b.token.token;
  };
  std::vector<Continuation> all;
  all.reserve(sampled.size() * static_cast<size_t>(n_candidates_));
  for (size_t b = 0; b < sampled.size(); ++b) {
    const Beam& beam = group.beams[b];
    if (const auto forced = beam.text.forced_token()) {  // though other groups have taken it
      all.push_back({.score = beam.score, .beam = b, .token = {.token = *forced, .value = 0}});
    } else {
      add_continuations(beam, b, sampled[b].candidates, taken, all);
    }
  }
  const size_t n_looked_at = std::min(n_looked_at_, all.size());
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(n_looked_at);
  std::partial_sort(all.begin(), end, all.end(), ranks_higher);

  std::vector<Continuation> chosen;
  chosen.reserve(n_looked_at);
  Taken own;
  for (size_t rank = 0; rank < n_looked_at && own.size() < group_size_; ++rank) {
    Continuation& best = all[rank];
    const Generation& text = group.beams[best.beam].text;
    best.ends = text.ends_with(best.token.token);
    if (!best.ends) own.push_back(best.token.token);
    best.ends |= text.is_nearly_full() && !has_groups();
    if (!best.ends || rank < group_size_) chosen.push_back(best);
  }
  taken.insert(taken.end(), own.begin(), own.end());
  return chosen;
}

// Adds what the device found for a beam, with scores: worse for tokens that other groups took.
void BeamSearch::add_continuations(const Beam& beam, size_t index,
                                   std::span<const LogProbability> candidates, const Taken& taken,
                                   std::vector<Continuation>& to) const {
  for (const LogProbability& token : candidates) {
    const auto times = static_cast<float>(std::ranges::count(taken, token.token));
    const float value = token.value - times * rules_.search.diversity_penalty;
    to.push_back({.score = beam.score + static_cast<double>(value), .beam = index, .token = token});
  }
}

// Takes a step with a group.
void BeamSearch::advance(Group& group, const std::vector<Continuation>& chosen,
                         std::span<const SampledToken> sampled, size_t first_sequence) {
  if (chosen.empty() && group.finished.empty()) {
    throw Error(
        "no token is left to go on with: all are forbidden; forbid fewer by biases, min_tokens or "
        "no_repeat_ngram");
  }
  std::vector<size_t> n_uses(group.beams.size());
  for (const Continuation& next : chosen) ++n_uses[next.beam];
  // A copy takes the memory of a beam that does not go on: as many end as others fork.
  size_t ended = 0;
  const auto copy = [&](const Generation& text) {
    while (ended < n_uses.size() && n_uses[ended] > 0) ++ended;
    if (ended == n_uses.size()) return text;
    Generation copied = std::move(group.beams[ended++].text);
    copied = text;
    return copied;
  };
  std::vector<Beam> beams;
  beams.reserve(chosen.size());
  for (const Continuation& next : chosen) {
    Generation& parent = group.beams[next.beam].text;
    const float renormalization = parent.forced_token() ? 0 : sampled[next.beam].renormalization;
    Generation text = --n_uses[next.beam] > 0 ? copy(parent) : std::move(parent);
    text.accept({.token = next.token.token,
                 .logprob = text.unedited(next.token, renormalization),
                 .top = sampled[next.beam].top});
    if (next.ends) {
      keep(group, std::move(text), next.score);
    } else {
      beams.push_back({std::move(text), next.score});
      parents_.push_back(static_cast<int32_t>(first_sequence + next.beam));
    }
  }
  group.beams = std::move(beams);
  group.is_over = group.beams.empty() ||
                  is_over(group, has_groups() ? chosen.front().score : group.beams.front().score);
  if (!group.is_over && group.beams.front().text.finished()) {  // with groups: all are full
    for (Beam& beam : group.beams) keep(group, std::move(beam.text), beam.score);
    group.is_over = true;
  }
  if (!group.is_over) return;
  parents_.resize(parents_.size() - group.beams.size());
  group.beams.clear();
}

// Adds a finished text to a group's, if it is one of the best.
void BeamSearch::keep(Group& group, Generation&& text, double score) const {
  const size_t length = std::max<size_t>(text.output().tokens.size(), 1);
  score = normalized(score, length, rules_.search.length_penalty);
  if (group.finished.size() == group_size_ && score <= group.finished.back().score) return;
  (void)text.write();
  Output output = std::move(text.output());
  output.score = score;
  group.finished.insert(std::ranges::upper_bound(group.finished, output, scores_higher),
                        std::move(output));
  if (group.finished.size() > group_size_) group.finished.pop_back();
}

// Whether a group's finished texts are what it finds, while it has beams, of this score at best.
bool BeamSearch::is_over(const Group& group, double best_score) const {
  if (group.finished.size() < group_size_) return false;
  const BeamParams& search = rules_.search;
  if (search.early_stopping == EarlyStopping::yes) return true;
  const Generation& text = group.beams.front().text;
  const bool grows = search.early_stopping == EarlyStopping::never && search.length_penalty > 0;
  const size_t length =
      grows ? static_cast<size_t>(text.rules().max_new_tokens()) : text.output().tokens.size();
  return normalized(best_score, length, search.length_penalty) <= group.finished.back().score;
}

int32_t BeamSearch::newest_token() const {
  return finished() ? best()->tokens.back() : beam(0).text.tokens().back();
}

void BeamSearch::finish(FinishReason reason) {
  for (Group& group : groups_) {
    for (Beam& beam : group.beams) {
      beam.text.finish(reason);
      keep(group, std::move(beam.text), beam.score);
    }
    group.beams.clear();
    group.is_over = true;
  }
}

// The best of the finished texts; null if there is none.
const Output* BeamSearch::best() const {
  const Output* best = nullptr;
  for (const Group& group : groups_) {
    if (group.finished.empty()) continue;
    const Output& first = group.finished.front();
    if (best == nullptr || scores_higher(first, *best)) best = &first;
  }
  return best;
}

// What all texts agree on that may be the best in the end.
std::string_view BeamSearch::write() {
  std::optional<std::string_view> common;
  const auto agree = [&](std::string_view text) {
    common = common ? common_start(*common, text, n_printed_) : text;
  };
  if (const Output* finished = best()) agree(finished->text);
  for (Group& group : groups_) {
    for (Beam& beam : group.beams) {
      (void)beam.text.write();
      agree(beam.text.output().text);
    }
  }
  new_text_ = common.value_or("").substr(n_printed_);
  n_printed_ += new_text_.size();
  return new_text_;
}

std::vector<Output> BeamSearch::take_outputs() {
  std::vector<Output> outputs;
  for (Group& group : groups_) std::ranges::move(group.finished, std::back_inserter(outputs));
  std::ranges::stable_sort(outputs, scores_higher);
  if (outputs.size() > static_cast<size_t>(rules_.n_best)) {
    outputs.resize(static_cast<size_t>(rules_.n_best));
  }
  return outputs;
}

}  // namespace faststream
