// Temperature, top-k, top-p and the draw.
//
// The vocabulary is never sorted as a whole: candidates are selected in descending order in chunks
// that double, until the chunk that decides (the k-th candidate, the end of the nucleus, or the
// drawn token) has been reached. Probabilities are float32 as on the GPU; their sums are in double,
// so that the order of summation does not decide a draw.
#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/philox.h"
#include "support/error.h"

namespace faststream {
namespace {

bool comes_first(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/// The candidate with the largest logit, the smallest id among equals. Throws on NaN and where no
/// logit is finite.
Candidate find_best(std::span<const float> logits) {
  Candidate best{-std::numeric_limits<float>::infinity(), -1};
  bool has_nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    has_nan |= std::isnan(logits[i]);
    if (logits[i] > best.logit) best = {logits[i], static_cast<int32_t>(i)};
  }
  if (has_nan || best.id < 0 || std::isinf(best.logit)) {
    throw Error(
        "The model produced logits that are not numbers (NaN or infinity): its weights are damaged "
        "or "
        "overflow; check the model file with --verify or convert it again with --dtype f32.");
  }
  return best;
}

/// Candidates of which a growing prefix is in order.
class OrderedPrefix {
 public:
  explicit OrderedPrefix(std::span<Candidate> all) : all_(all) {}

  /// The candidate of rank `rank`.
  const Candidate& operator[](size_t rank) {
    while (rank >= ordered_) {
      grow();
    }
    return all_[rank];
  }

  /// Puts the first `count` in order at once.
  void reserve(size_t count) {
    chunk_ = count;
    grow();
  }

 private:
  void grow() {
    const auto first = all_.begin() + static_cast<std::ptrdiff_t>(ordered_);
    const size_t count = std::min(chunk_, all_.size() - ordered_);
    const auto last = first + static_cast<std::ptrdiff_t>(count);
    if (last != all_.end()) std::nth_element(first, last, all_.end(), comes_first);
    std::sort(first, last, comes_first);
    ordered_ += count;
    chunk_ = 2 * ordered_;
  }

  std::span<Candidate> all_;
  size_t ordered_ = 0;
  size_t chunk_ = 64;
};

}  // namespace

int32_t sample_row(std::span<const float> logits, const SamplingRow& rule,
                   std::vector<Candidate>& scratch) {
  const Candidate best = find_best(logits);
  if (rule.temperature <= 0) return best.id;

  scratch.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    scratch[i] = {logits[i], static_cast<int32_t>(i)};
  }
  const auto probability = [&](float logit) {
    return static_cast<double>(std::exp((logit - best.logit) / rule.temperature));
  };

  OrderedPrefix ordered(scratch);
  size_t kept = scratch.size();
  if (rule.top_k > 0 && static_cast<size_t>(rule.top_k) < kept) {
    kept = static_cast<size_t>(rule.top_k);
    ordered.reserve(kept);
  }
  double total = 0;
  for (size_t i = 0; i < kept; ++i) {
    total += probability(scratch[i].logit);
  }

  if (rule.top_p < 1) {
    const double wanted = static_cast<double>(rule.top_p) * total;
    double sum = 0;
    size_t nucleus = 0;
    do {
      sum += probability(ordered[nucleus++].logit);
    } while (sum < wanted && nucleus < kept);
    kept = nucleus;
    total = sum;
  }

  const double threshold =
      static_cast<double>(sampling_uniform(rule.seed, rule.sequence, rule.position)) * total;
  double cumulative = 0;
  int32_t token = best.id;
  for (size_t rank = 0; rank < kept; ++rank) {
    const double p = probability(ordered[rank].logit);
    if (p == 0) break;  // all others are as improbable: rounding of `total` brought us here
    token = ordered[rank].id;
    cumulative += p;
    if (cumulative > threshold) break;
  }
  return token;
}

void CpuBackend::sample(const Matrix& logits, std::span<const SamplingRow> rules,
                        std::span<SampledToken> sampled) {
  const auto rows = static_cast<int64_t>(rules.size());
  require_f32(logits, rows, logits.cols, "sample: logits must have one f32 row for each rule");
  require(sampled.size() == rules.size(), "sample: one token for each rule");
  pool_.parallel_for(rows, 1, [&](int64_t first, int64_t last) {
    std::vector<Candidate> scratch;
    for (int64_t r = first; r < last; ++r) {
      const float* row = static_cast<const float*>(logits.data) + r * logits.stride;
      sampled[static_cast<size_t>(r)].token = sample_row({row, static_cast<size_t>(logits.cols)},
                                                         rules[static_cast<size_t>(r)], scratch);
    }
  });
}

}  // namespace faststream
