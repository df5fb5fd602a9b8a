// What the kernels of this folder are given and give: a rule and a result for each row.
#pragma once

#include "kernels/cuda/queue.h"
#include "kernels/cuda/sampling/sample_block.cuh"

namespace faststream::sampling {

/// A rule as it is uploaded.
struct RowRule {
  int64_t row = 0;
  DrawRule draw;
  int32_t n_logprobs = -1;   ///< at most kMaxLogprobs
  int32_t n_candidates = 0;  ///< at most kMaxKeys; above 0: the row is ranked
  int32_t n_edits = 0;
  int64_t first_edit = 0;   ///< in the array of all rows' edits
  int64_t first_mask = -1;  ///< word in the array of all rows' masks; -1: no mask
  uint64_t seed = 0;
  uint64_t sequence = 0;
  uint64_t position = 0;
};

/// A result as it is read back; keys of the logits of the likeliest tokens (at most the vocabulary)
/// follow it, and from Arguments::candidates_at on keys of edited log-probabilities.
struct RowResult {
  DrawFault fault = DrawFault::none;
  int32_t token = 0;
  int32_t n_candidates = 0;  ///< keys of edited log-probabilities
  // For log-probabilities, before edits and at temperature 1:
  float logit = 0;  ///< the token's
  float largest = 0;
  uint64_t total = 0;  ///< mass
  // Likewise after the edits, of a ranking:
  float edited_largest = 0;
  uint64_t edited_total = 0;
};

/// Arguments of the kernel. Row r of `results` begins at byte r * result_bytes.
struct Arguments {
  float* logits;
  int64_t stride;
  int vocab;
  const RowRule* rules;
  const LogitEdit* edits;
  const uint32_t* masks;
  float* unedited;  ///< logits before each edit, of rows with log-probabilities
  int32_t* chosen;  ///< [rows] tokens that are drawn, for steps that begin before they are read
  std::byte* results;
  int64_t result_bytes;
  int64_t candidates_at;  ///< byte of a row's result

  __device__ RowResult* result(int64_t row) const {
    return reinterpret_cast<RowResult*>(results + row * result_bytes);
  }
  __device__ uint64_t* candidates(int64_t row) const {
    return reinterpret_cast<uint64_t*>(results + row * result_bytes + candidates_at);
  }
};

/// Describes the model's own distribution, for log-probabilities.
inline __device__ void describe(const Row& row, const Survey& survey, int n_largest,
                                RowResult& result, uint64_t* largest, Storage& storage) {
  const Softmax softmax{key_logit(survey.best), static_cast<float>(kOctavesPerUnit)};
  result.largest = softmax.largest;
  n_largest = min(n_largest, row.vocab);
  if (n_largest == 0) {
    result.total = weigh(row, softmax, storage);
    return;
  }
  const WeighedKeys found = weigh_and_collect_largest(row, softmax, survey, n_largest, storage);
  result.total = found.mass;
  if (thread_index() < n_largest) largest[thread_index()] = found.keys.own;
}

/// A logit, or a log-probability, after an edit.
inline __device__ float edited(float logit, const LogitEdit& edit) {
  const float scaled =
      logit > 0 ? __fdiv_rn(logit, edit.repetition) : __fmul_rn(logit, edit.repetition);
  return __fadd_rn(scaled, edit.bias);  // not fused, as on the CPU
}

/// Makes the logits of tokens that are not in the mask minus infinity.
inline __device__ void apply(const Row& row, const uint32_t* mask) {
  for (int t = thread_index(); t < row.vocab; t += kThreads) {
    if ((mask[t / 32] >> t % 32 & 1U) == 0) row.logits[t] = -INFINITY;
  }
  __syncthreads();
}

/// Applies edits, all to different logits, and keeps the old ones in `unedited` unless it is null.
inline __device__ void apply(const Row& row, const LogitEdit* edits, int n_edits, float* unedited) {
  for (int i = thread_index(); i < n_edits; i += kThreads) {
    const LogitEdit edit = edits[i];
    const float logit = row.logits[edit.token];
    if (unedited != nullptr) unedited[i] = logit;
    row.logits[edit.token] = edited(logit, edit);
  }
  __syncthreads();
}

/// How many of a row's likeliest tokens are wanted before the edits of a ranking.
inline __device__ int n_described(const RowRule& rule) {
  const int n_top = max(rule.n_logprobs, 0);
  return rule.n_edits > 0 ? n_top : max(n_top, rule.n_candidates);
}

/// Whether rank_at_once() serves a rule.
bool ranks_at_once(const SamplingRow& rule);

/// Ranks the tokens of n_rows rows with n_candidates, whose rules are the first; any, or those that
/// one reading serves.
void rank(const Arguments& arguments, size_t n_rows, const Queue& queue);
void rank_at_once(const Arguments& arguments, size_t n_rows, const Queue& queue);

}  // namespace faststream::sampling
