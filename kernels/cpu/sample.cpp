// Edits, temperature, top-k, top-p, min-p, the draw, and log-probabilities.
//
// The vocabulary is never sorted as a whole: candidates are selected in descending order in chunks
// that double, until the chunk that decides (the k-th candidate, the end of the nucleus, or the
// drawn token) has been reached.
#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/philox.h"
#include "kernels/sampling.h"

namespace faststream {
namespace {

bool comes_first(const Candidate& a, const Candidate& b) { return a.key > b.key; }

/// The key of the likeliest token. Throws where nothing can be drawn.
uint64_t find_best(std::span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  size_t id = 0;
  bool has_nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    has_nan |= std::isnan(logits[i]);
    if (logits[i] > best) {
      best = logits[i];
      id = i;
    }
  }
  if (has_nan || best == std::numeric_limits<float>::infinity()) {
    check_draw(DrawFault::not_a_number);
  }
  if (std::isinf(best)) check_draw(DrawFault::nothing_left);
  return token_key(best, static_cast<int32_t>(id));
}

/// The candidates of draw_among(), of which a growing prefix is in order.
class OrderedPrefix {
 public:
  /// Takes the tokens that have a mass, and of them the `kept` likeliest.
  OrderedPrefix(std::span<const float> logits, const Softmax& softmax, int32_t kept,
                std::vector<Candidate>& candidates)
      : softmax_(softmax), all_(candidates) {
    all_.clear();
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!softmax.has_mass(logits[i])) continue;
      all_.push_back({token_key(logits[i], static_cast<int32_t>(i)), softmax.mass(logits[i])});
    }
    if (static_cast<size_t>(kept) < all_.size()) {
      grow(static_cast<size_t>(kept));
      all_.resize(static_cast<size_t>(kept));
    }
  }

  [[nodiscard]] uint64_t total() const {
    uint64_t sum = 0;
    for (const Candidate& candidate : all_) sum += candidate.mass;
    return sum;
  }

  [[nodiscard]] uint64_t mass_within(float octaves) const {
    uint64_t sum = 0;
    for (const Candidate& candidate : all_) {
      if (softmax_.octaves(key_logit(candidate.key)) <= octaves) sum += candidate.mass;
    }
    return sum;
  }

  struct Found {
    uint64_t key;
    uint64_t cumulative;
  };
  Found find(uint64_t mass) {
    uint64_t cumulative = 0;
    for (size_t rank = 0;; ++rank) {
      if (rank == ordered_) grow(std::max<size_t>(ordered_, kFirstChunk));
      cumulative += all_[rank].mass;
      if (cumulative >= mass) return {all_[rank].key, cumulative};
    }
  }

 private:
  static constexpr size_t kFirstChunk = 64;

  /// Puts `count` more, or all, in order.
  void grow(size_t count) {
    const auto first = all_.begin() + static_cast<std::ptrdiff_t>(ordered_);
    count = std::min(count, all_.size() - ordered_);
    const auto last = first + static_cast<std::ptrdiff_t>(count);
    if (last != all_.end()) std::nth_element(first, last, all_.end(), comes_first);
    std::sort(first, last, comes_first);
    ordered_ += count;
  }

  Softmax softmax_;
  std::vector<Candidate>& all_;
  size_t ordered_ = 0;
};

/// The model's distribution and, in `top`, its `count` likeliest tokens.
LogSoftmax log_softmax(std::span<const float> logits, int32_t count,
                       std::vector<Candidate>& scratch, std::vector<LogProbability>& top) {
  const float largest = key_logit(find_best(logits));
  const Softmax softmax{largest, softmax_scale(1)};
  uint64_t total = 0;
  scratch.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t mass = softmax.mass(logits[i]);
    total += mass;
    scratch.push_back({token_key(logits[i], static_cast<int32_t>(i)), mass});
  }
  const LogSoftmax result(largest, total);
  const auto last = scratch.begin() +
                    std::min(static_cast<std::ptrdiff_t>(scratch.size()), std::ptrdiff_t{count});
  std::partial_sort(scratch.begin(), last, scratch.end(), comes_first);
  top.clear();
  for (auto it = scratch.begin(); it != last; ++it) {
    top.push_back({key_id(it->key), result(key_logit(it->key))});
  }
  return result;
}

/// Applies the edits and keeps the logits that they change.
void apply(std::span<const LogitEdit> edits, std::span<float> logits,
           std::vector<float>& unedited) {
  unedited.clear();
  for (const LogitEdit& edit : edits) {
    float& logit = logits[static_cast<size_t>(edit.token)];
    unedited.push_back(logit);
    const float scaled = logit > 0 ? logit / edit.repetition : logit * edit.repetition;
    logit = scaled + edit.bias;
  }
}

int32_t draw(std::span<const float> logits, const SamplingRow& rule,
             std::vector<Candidate>& candidates) {
  const uint64_t best = find_best(logits);
  const DrawRule draw = draw_rule(rule, static_cast<int64_t>(logits.size()));
  if (draw.scale == 0) return key_id(best);
  OrderedPrefix prefix(logits, {key_logit(best), draw.scale}, draw.kept, candidates);
  return draw_among(prefix, draw, sampling_uniform(rule.seed, rule.sequence, rule.position));
}

}  // namespace

SampledToken sample_row(std::span<float> logits, const SamplingRow& rule, SampleScratch& scratch) {
  require_rule(rule, static_cast<int64_t>(logits.size()));
  SampledToken result;
  if (rule.n_logprobs < 0) {
    apply(rule.edits, logits, scratch.unedited);
    result.token = draw(logits, rule, scratch.candidates);
    return result;
  }
  const LogSoftmax model = log_softmax(logits, rule.n_logprobs, scratch.candidates, result.top);
  apply(rule.edits, logits, scratch.unedited);
  result.token = draw(logits, rule, scratch.candidates);
  float logit = logits[static_cast<size_t>(result.token)];
  for (size_t i = 0; i < rule.edits.size(); ++i) {
    if (rule.edits[i].token == result.token) logit = scratch.unedited[i];
  }
  result.logprob = model(logit);
  return result;
}

void CpuBackend::sample(const Matrix& logits, std::span<const SamplingRow> rules,
                        std::span<SampledToken> sampled) {
  const auto rows = static_cast<int64_t>(rules.size());
  require_f32(logits, rows, logits.cols, "sample: logits must have one f32 row for each rule");
  require(sampled.size() == rules.size(), "sample: one token for each rule");
  pool_.parallel_for(rows, 1, [&](int64_t first, int64_t last) {
    SampleScratch scratch;
    for (int64_t r = first; r < last; ++r) {
      float* row = static_cast<float*>(logits.data) + r * logits.stride;
      sampled[static_cast<size_t>(r)] = sample_row({row, static_cast<size_t>(logits.cols)},
                                                   rules[static_cast<size_t>(r)], scratch);
    }
  });
}

}  // namespace faststream
