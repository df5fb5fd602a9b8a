#include "engine/speculation_gate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>

namespace faststream {
namespace {

// Measurements so many steps ago say nothing of a step now: texts are longer, or others use the
// machine.
constexpr int64_t kMemory = 512;
constexpr size_t kWindow = 8;
// A token more in a step is supposed to cost this part of what it costs in a step without it: too
// little where it costs nearly as much, which a step or two show.
constexpr double kGuess = 0.25;
// Proposals may cost this part of the time.
constexpr double kAllowance = 0.01;
// Of steps without proposals: what the account may hold, and owe. No more than a trial takes: what
// was disturbed would close the gate for a hundred times as long.
constexpr double kMostSaved = 2;
constexpr double kMostOwed = 2;
// Of steps without proposals: what reading may take before it gains something, and what is kept of
// gains for it.
constexpr double kMostUnpaid = 4;
// Reading may take this part of the time, whatever it brings.
constexpr double kReadingAllowance = 0.005;
// With gains of so many such steps all texts are read.
constexpr double kLeastPaid = 1;
// Proposals are expected to gain so much at least: what is measured is not exact.
constexpr double kLeastGain = 1.02;
// Tokens that are less likely are not worth their row, however little it costs.
constexpr float kLeastLikely = 0.05F;
// After so many steps with proposals one is without, to see what that takes now.
constexpr int32_t kMostInARow = 64;

// Numbers up to 8, then in steps of an eighth to a quarter.
int32_t size_class(int32_t n) {
  if (n <= 8) return n;
  const int shift = std::bit_width(static_cast<uint32_t>(n)) - 3;
  return n >> shift << shift;
}

}  // namespace

void UsualTime::add(double seconds, int64_t now) {
  if (now - time_ > kMemory) last_.clear();
  time_ = now;
  if (last_.size() < kWindow) {
    last_.push_back(seconds);
  } else {
    last_[next_] = seconds;
    next_ = (next_ + 1) % kWindow;
  }
  std::vector<double> sorted = last_;
  std::ranges::sort(sorted);
  usual_ = sorted[sorted.size() / 4];
}

// Few measurements may all have been disturbed: they are worth trying again soon.
bool UsualTime::is_known(int64_t now) const {
  constexpr auto kMost = static_cast<int64_t>(kWindow * kWindow);
  const auto n = static_cast<int64_t>(last_.size());
  return n > 0 && now - time_ <= kMemory * n * n / kMost;
}

void StepCost::measured(int32_t n_sequences, int32_t n_proposed, double seconds) {
  steps_[{size_class(n_sequences), size_class(n_proposed)}].add(seconds, ++now_);
}

// On a straight line between what is known, or through the last that is.
double StepCost::seconds(int32_t n_sequences, int32_t n_proposed) const {
  const int32_t sequences = size_class(n_sequences);
  const auto first = steps_.find({sequences, 0});
  if (first == steps_.end()) return 0;
  const double plain = first->second.seconds();
  const int32_t proposed = size_class(n_proposed);
  std::pair<int32_t, double> before{0, plain};
  for (auto step = std::next(first); step != steps_.end(); ++step) {
    const auto& [key, times] = *step;
    if (key.first != sequences || before.first == proposed) break;
    if (!times.is_known(now_)) continue;
    const double usual = std::max(times.seconds(), before.second);
    if (key.second > proposed) {
      const double part =
          static_cast<double>(proposed - before.first) / (key.second - before.first);
      return before.second + part * (usual - before.second);
    }
    before = {key.second, usual};
  }
  const double of_token =
      before.first == 0 ? kGuess * plain / n_sequences : (before.second - plain) / before.first;
  return before.second + (proposed - before.first) * of_token;
}

void SpeculationGate::measured(int32_t n_sequences, int32_t n_proposed, double seconds) {
  cost_.measured(n_sequences, n_proposed, seconds);
  n_since_plain_ = n_proposed == 0 ? 0 : n_since_plain_ + 1;
  const double plain = cost_.seconds(n_sequences, 0);
  if (!has_account_) account_ += plain;
  has_account_ = true;
  account_ = std::clamp(account_, -kMostOwed * plain, kMostSaved * plain) + kAllowance * plain;
  plain_ = plain;
  n_plain_ = n_sequences;
  if (n_proposed == 0) return;
  // One that took longer than its tokens one by one was disturbed.
  const double one_by_one = plain / n_sequences * (n_sequences + n_proposed);
  gain(-std::min(cost_.seconds(n_sequences, n_proposed), one_by_one));
}

void SpeculationGate::accepted(int32_t n_sequences, int32_t n_tokens) {
  gain(n_tokens * cost_.seconds(n_sequences, 0) / n_sequences);
}

// Or lose.
void SpeculationGate::gain(double seconds) {
  account_ += seconds;
  of_reading_ = std::min(of_reading_ + seconds, kMostUnpaid * plain_);
}

void SpeculationGate::passed(double seconds) {
  of_reading_ = std::min(of_reading_ + kReadingAllowance * seconds, kMostUnpaid * plain_);
}

void SpeculationGate::read_states(double seconds) { of_reading_ -= seconds; }

int32_t SpeculationGate::most_followed() const {
  if (of_reading_ < -kMostUnpaid * plain_ && plain_ > 0) return 0;
  return plain_ > 0 && of_reading_ >= kLeastPaid * plain_ ? kMostSpeculating : 1;
}

// No longer than a step: what did was disturbed, and of the first ones nothing else tells.
void SpeculationGate::spent(double seconds) {
  choice_.add(seconds, cost_.now());
  account_ -= std::min(choice_.seconds(), plain_);
}

void SpeculationGate::drafted(const DraftPass& pass) { gain(-price(pass)); }

void SpeculationGate::read(const DraftPass& pass) { of_reading_ -= price(pass); }

// What such a pass takes: no longer than steps of as many tokens. One that did was disturbed, and
// of the first ones nothing else tells.
double SpeculationGate::price(const DraftPass& pass) {
  UsualTime& usual = passes_[size_class(pass.n_tokens)];
  usual.add(pass.seconds, cost_.now());
  const double n_steps = std::max(1.0, static_cast<double>(pass.n_tokens) / n_plain_);
  return plain_ > 0 ? std::min(usual.seconds(), n_steps * plain_) : usual.seconds();
}

// As long as one of as many tokens, or the next that is known of fewer: what is not is worth
// trying.
double SpeculationGate::pass_seconds(int32_t n_tokens) const {
  double seconds = 0;
  for (const auto& [size, pass] : passes_) {
    if (size > size_class(n_tokens)) break;
    if (pass.is_known(cost_.now())) seconds = pass.seconds();
  }
  return n_tokens == 0 ? 0 : seconds;
}

bool SpeculationGate::is_open(int32_t n_sequences) const {
  return account_ > 0 && n_since_plain_ < kMostInARow && cost_.seconds(n_sequences, 0) > 0;
}

// A token that is the i-th in a row fits with the i-th power of the rate. Of all that are offered
// the likeliest are taken, as many as give the most tokens a second.
std::vector<int32_t> SpeculationGate::choose(std::span<const ProposalOffer> offers,
                                             int32_t n_sequences, int32_t n_most) const {
  struct Row {
    float likelihood = 0;
    size_t offer = 0;
    int32_t depth = 0;
  };
  std::vector<int32_t> chosen(offers.size());
  std::vector<Row> rows;
  double tokens = n_sequences;
  for (size_t o = 0; o < offers.size(); ++o) {
    float likelihood = offers[o].chance;
    for (int32_t depth = 1; depth <= offers[o].most; ++depth) {
      likelihood *= offers[o].acceptance;
      if (likelihood < kLeastLikely) break;
      rows.push_back({likelihood, o, depth});
      tokens += static_cast<double>(likelihood);
    }
  }
  if (tokens <= kLeastGain * n_sequences) return chosen;  // not even if they cost nothing
  std::ranges::stable_sort(rows, std::greater<>(), &Row::likelihood);
  if (rows.size() > static_cast<size_t>(n_most)) rows.resize(static_cast<size_t>(n_most));

  std::array<int32_t, kMostProposed + 1> drafted{};  // tokens of each pass, from 1
  double of_drafts = 0;
  tokens = n_sequences;
  double best = kLeastGain * tokens / cost_.seconds(n_sequences, 0);
  size_t n_chosen = 0;
  for (size_t n = 1; n <= rows.size(); ++n) {
    const auto& [likelihood, o, depth] = rows[n - 1];
    tokens += static_cast<double>(likelihood);
    if (offers[o].is_draft) {
      int32_t& n_tokens = drafted[static_cast<size_t>(depth)];
      of_drafts -= pass_seconds(n_tokens);
      n_tokens += depth == 1 ? offers[o].n_unread : 1;
      of_drafts += pass_seconds(n_tokens);
    }
    const double seconds = cost_.seconds(n_sequences, static_cast<int32_t>(n)) + of_drafts;
    if (tokens / seconds <= best) continue;
    best = tokens / seconds;
    n_chosen = n;
  }
  for (size_t n = 0; n < n_chosen; ++n) ++chosen[rows[n].offer];
  return chosen;
}

}  // namespace faststream
