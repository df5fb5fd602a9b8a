// Ranking tokens for beam searches, a block each row, which most rules let it read once: 476 MB of
// 2,048 rows of 58,101 tokens take 155 us at 3.07 TB/s predicted.
//
// A thread sums the exponentials of what it reads, by its own largest so far, and remembers the
// largest. As many threads as candidates have seen a logit that is at least the threshold, so the
// candidates are in these threads' parts of the row, which are read again: for eight candidates of
// 256 parts a thirtieth.
//
// Sums do not depend on where a row lies, nor on the order of threads: which ids are a thread's is
// fixed, and threads' sums are added as integers.
#include <cub/block/block_reduce.cuh>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "kernels/cuda/sampling/rows.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream::sampling {

namespace {

constexpr int kRankThreads = 256;
constexpr int kRankWarps = kRankThreads / kWarp;
constexpr int kRankBlocks = 4;    // of a multiprocessor
constexpr int kRankInFlight = 4;  // loads of 16 bytes of a thread
constexpr int kMaxAtOnce = 64;    // candidates: each has a part to be read again
static_assert(2 * kMaxAtOnce <= kRankThreads);

/// A row in parts: thread t has the ids 4 n to 4 n + 3 of the quads n = t, t + kRankThreads, ...
class PartedRow {
 public:
  __device__ explicit PartedRow(const Row& row)
      : logits_(row.logits),
        vocab_(row.vocab),
        n_quads_(ceil_div(row.vocab, 4)),
        n_whole_(reinterpret_cast<uintptr_t>(row.logits) % 16 == 0 ? row.vocab / 4 : 0) {}

  /// f(n, quad) for the quads first, first + step, ..., some of them perhaps, beyond the last, of
  /// minus infinities, as are ids beyond the vocabulary.
  template <typename F>
  __device__ void for_quads(int first, int step, const F& f) const {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    int n = first;
    for (; n < n_whole_; n += kRankInFlight * step) {
      float4 quads[kRankInFlight];
#pragma unroll
      for (int j = 0; j < kRankInFlight; ++j) {
        quads[j] = make_float4(kNone, kNone, kNone, kNone);
        if (n + j * step < n_whole_) {
          quads[j] = reinterpret_cast<const float4*>(logits_)[n + j * step];
        }
      }
#pragma unroll
      for (int j = 0; j < kRankInFlight; ++j) f(n + j * step, quads[j]);
    }
    n = n_whole_ <= first ? first : first + ceil_div(n_whole_ - first, step) * step;
    for (; n < n_quads_; n += step) {
      const auto logit = [&](int id) { return id < vocab_ ? logits_[id] : kNone; };
      f(n, make_float4(logit(4 * n), logit(4 * n + 1), logit(4 * n + 2), logit(4 * n + 3)));
    }
  }

  /// f(id, logit) for the tokens of thread t's part. By a warp.
  template <typename F>
  __device__ void for_part(int t, const F& f) const {
    const int lane = thread_index() % kWarp;
    for_quads(t + lane * kRankThreads, kWarp * kRankThreads, [&](int n, const float4& quad) {
      const float logits[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (4 * n + i < vocab_) f(4 * n + i, logits[i]);
      }
    });
  }

 private:
  const float* logits_;
  int vocab_;
  int n_quads_;
  int n_whole_;  // that one load brings
};

/// What a thread finds in its part of a row.
class PartSum {
 public:
  __device__ void add(const float4& quad) {
    const float most = fmaxf(fmaxf(quad.x, quad.y), fmaxf(quad.z, quad.w));
    largest_ = fmaxf(largest_, most);
    if (most * kScale > reference_ + 1) {
      const float higher = rintf(most * kScale);
      sum_ *= exp2f(reference_ - higher);
      reference_ = higher;
    }
    sum_ += (term(quad.x) + term(quad.y)) + (term(quad.z) + term(quad.w));
  }

  /// Minus infinity where there was no larger logit.
  [[nodiscard]] __device__ float largest() const { return largest_; }
  /// Whether there was NaN or infinity.
  [[nodiscard]] __device__ bool is_nan() const { return sum_ != sum_; }
  /// The mass, as Softmax has it.
  [[nodiscard]] __device__ uint64_t mass(float largest_of_row) const {
    const double octaves = double{reference_} - double{largest_of_row} * double{kScale};
    return static_cast<uint64_t>(double{sum_} * exp2(octaves) * 0x1p40);
  }

 private:
  static constexpr auto kScale = static_cast<float>(kOctavesPerUnit);

  [[nodiscard]] __device__ float term(float logit) const {
    return exp2f(__fmaf_rn(logit, kScale, -reference_));
  }

  float largest_ = -std::numeric_limits<float>::infinity();
  float reference_ = -FLT_MAX;  // octaves, a whole number
  float sum_ = 0;               // of 2^(octaves of a logit - reference)
};

struct RankStorage {
  uint64_t keys[kRankThreads];
  uint64_t sorted[kMaxAtOnce];
  uint32_t largest[kRankWarps];
  int parts[kRankThreads];
  int n_parts;
  int n_keys;
  uint64_t low;
  uint64_t total;
  cub::BlockReduce<uint64_t, kRankThreads>::TempStorage sum;
};

/// The logarithm of the sum of a row's exponentials. total: their mass.
__device__ double log_total(float largest, uint64_t total) {
  return largest + log(static_cast<double>(total) * 0x1p-40);
}

/// What tokens are ordered by: their logits, or log-probabilities, which are equal where they are
/// rounded to the same number.
struct Order {
  bool is_of_logits = true;
  double log_total = 0;

  __device__ float operator()(float logit) const {
    return is_of_logits ? logit : static_cast<float>(logit - log_total);
  }
};

/// The count-th largest of what the threads have; 0 if there are fewer above it.
__device__ uint32_t nth_largest(uint32_t own, int count) {
  uint32_t found = 0;
  for (uint32_t bit = 0x80000000U; bit != 0; bit /= 2) {
    if (__syncthreads_count(own >= (found | bit) ? 1 : 0) >= count) found |= bit;
  }
  return found;
}

/// The largest of what the threads have.
__device__ uint32_t largest_of_all(uint32_t own, RankStorage& storage) {
  uint32_t most = __reduce_max_sync(kAllLanes, own);
  if (thread_index() % kWarp == 0) storage.largest[thread_index() / kWarp] = most;
  __syncthreads();
#pragma unroll
  for (const uint32_t other : storage.largest) most = max(most, other);
  return most;
}

/// How many of the first n keys in storage are larger.
__device__ int rank_of(uint64_t key, int n, const RankStorage& storage) {
  int rank = 0;
  for (int i = 0; i < n; ++i) rank += storage.keys[i] > key ? 1 : 0;
  return rank;
}

/// Collects keys from `low` on, the number of which it returns: as many as fit are in storage.
/// largest: of the thread's part, 0 if it has none, else as in keys.
__device__ int collect_from(uint64_t low, const PartedRow& row, const Order& order,
                            uint32_t largest, RankStorage& storage) {
  if (thread_index() == 0) storage.n_parts = storage.n_keys = 0;
  __syncthreads();
  if (largest != 0 && largest >= low >> 32) {
    storage.parts[atomicAdd(&storage.n_parts, 1)] = thread_index();
  }
  __syncthreads();
  for (int i = thread_index() / kWarp; i < storage.n_parts; i += kRankWarps) {
    row.for_part(storage.parts[i], [&](int id, float logit) {
      const uint64_t key = token_key(order(logit), id);
      if (key < low) return;
      const int place = atomicAdd(&storage.n_keys, 1);
      if (place < kRankThreads) storage.keys[place] = key;
    });
  }
  __syncthreads();
  return storage.n_keys;
}

/// Puts the `count` largest of the first n keys in storage, of which only zeros are equal, to
/// storage.sorted, the largest first.
__device__ void sort_keys(int n, int count, RankStorage& storage) {
  if (thread_index() < n) {
    const uint64_t own = storage.keys[thread_index()];
    const int rank = rank_of(own, n, storage);
    if (rank < count) storage.sorted[rank] = own;
  }
  __syncthreads();
}

/// The `count` largest keys of a row, in storage.sorted, largest first. count <= min(kMaxAtOnce,
/// vocab).
__device__ void find_largest(const PartedRow& row, const Order& order, uint32_t largest, int count,
                             RankStorage& storage) {
  uint64_t low = uint64_t{nth_largest(largest, count)} << 32;
  int n = collect_from(low, row, order, largest, storage);
  // Of keys that do not fit, those that do tell a higher threshold.
  while (n > kRankThreads) {
    const uint64_t own = storage.keys[thread_index()];
    if (rank_of(own, kRankThreads, storage) == count - 1) storage.low = own;
    __syncthreads();
    low = storage.low;
    n = collect_from(low, row, order, largest, storage);
  }
  sort_keys(n, count, storage);
}

/// Applies edits to log-probabilities, of which storage.sorted has the n largest and as many as
/// there are edits more, or all: it gets the n largest after that.
__device__ void apply_edits(const Row& row, const LogitEdit* edits, int n_edits, const Order& order,
                            int n_sorted, int n, RankStorage& storage) {
  const int thread = thread_index();
  uint64_t own = 0;
  if (thread < n_sorted) {
    own = storage.sorted[thread];
    for (int i = 0; i < n_edits; ++i) {
      if (edits[i].token == key_id(own)) own = 0;
    }
  } else if (thread < n_sorted + n_edits) {
    const LogitEdit& edit = edits[thread - n_sorted];
    own = token_key(edited(order(row.logits[edit.token]), edit), edit.token);
  }
  __syncthreads();
  storage.keys[thread] = own;
  __syncthreads();
  sort_keys(n_sorted + n_edits, n, storage);
}

__global__ __launch_bounds__(kRankThreads,
                             kRankBlocks) void rank_at_once_kernel(const Arguments arguments) {
  __shared__ RankStorage storage;
  begin_kernel();
  const RowRule& rule = arguments.rules[blockIdx.x];
  const Row whole{arguments.logits + rule.row * arguments.stride, arguments.vocab};
  const PartedRow row(whole);
  RowResult* out = arguments.result(rule.row);

  PartSum own;
  row.for_quads(thread_index(), kRankThreads,
                [&](int /*n*/, const float4& quad) { own.add(quad); });
  RowResult result;
  if (__syncthreads_or(own.is_nan() ? 1 : 0) != 0) {
    result.fault = DrawFault::not_a_number;
    if (thread_index() == 0) *out = result;
    return;
  }
  const float largest = order_logit(largest_of_all(logit_order(own.largest()), storage));
  if (largest == -std::numeric_limits<float>::infinity()) {
    result.fault = DrawFault::nothing_left;
    if (thread_index() == 0) *out = result;
    return;
  }
  const uint64_t sum = cub::BlockReduce<uint64_t, kRankThreads>(storage.sum).Sum(own.mass(largest));
  if (thread_index() == 0) storage.total = sum;
  __syncthreads();
  result.largest = largest;
  result.total = storage.total;

  Order order;
  if (rule.n_edits > 0) order = {false, log_total(largest, storage.total)};
  const uint32_t own_largest =
      4 * thread_index() < arguments.vocab ? logit_order(order(own.largest())) : 0;
  int n = min(n_described(rule), arguments.vocab);
  auto* keys = reinterpret_cast<uint64_t*>(out + 1);
  if (rule.n_edits == 0) {
    find_largest(row, order, own_largest, n, storage);
  } else {
    n = min(rule.n_candidates, arguments.vocab);
    const int n_before = min(n + rule.n_edits, arguments.vocab);
    find_largest(row, order, own_largest, n_before, storage);
    apply_edits(whole, arguments.edits + rule.first_edit, rule.n_edits, order, n_before, n,
                storage);
    keys = arguments.candidates(rule.row);
    result.n_candidates = n;
  }
  if (thread_index() == 0) *out = result;
  if (thread_index() < n) keys[thread_index()] = storage.sorted[thread_index()];
}

/// Makes the logits of a row log-probabilities. total: their mass.
__device__ void take_log_softmax(const Row& row, float largest, uint64_t total) {
  const Order order{false, log_total(largest, total)};
  row.for_each<4>([&](int id, float logit) { row.logits[id] = order(logit); });
  __syncthreads();
}

static_assert(kMaxCandidates <= kMaxKeys);

/// Any rule: the row is read twice, with edits five times, all but the first from the L2 cache.
/// Without edits the order of the logits is that of the log-probabilities.
__global__ __launch_bounds__(kThreads) void rank_kernel(const Arguments arguments) {
  alignas(16) __shared__ unsigned char memory[sizeof(Storage)];
  Storage& storage = *reinterpret_cast<Storage*>(memory);
  begin_kernel();
  const RowRule& rule = arguments.rules[blockIdx.x];
  const Row row{arguments.logits + rule.row * arguments.stride, arguments.vocab};
  RowResult* out = arguments.result(rule.row);

  RowResult result;
  Survey seen = survey(row, storage);
  result.fault = seen.fault;
  if (seen.fault == DrawFault::none) {
    describe(row, seen, n_described(rule), result, reinterpret_cast<uint64_t*>(out + 1), storage);
  }
  if (seen.fault == DrawFault::none && rule.n_edits > 0) {
    take_log_softmax(row, result.largest, result.total);
    apply(row, arguments.edits + rule.first_edit, rule.n_edits, nullptr);
    seen = survey(row, storage);
    if (seen.fault == DrawFault::none) {  // else nothing is left
      const int n = min(rule.n_candidates, row.vocab);
      const Softmax softmax{key_logit(seen.best), static_cast<float>(kOctavesPerUnit)};
      const WeighedKeys found = weigh_and_collect_largest(row, softmax, seen, n, storage);
      if (thread_index() < n) arguments.candidates(rule.row)[thread_index()] = found.keys.own;
      result.edited_largest = softmax.largest;
      result.edited_total = found.mass;
      result.n_candidates = n;
    }
  }
  if (thread_index() == 0) *out = result;
}

}  // namespace

bool ranks_at_once(const SamplingRow& rule) {
  if (rule.edits.empty()) return std::max(rule.n_candidates, rule.n_logprobs) <= kMaxAtOnce;
  // Some of the candidates before the edits may be none after them.
  return rule.n_logprobs <= 0 && !rule.renormalizes &&
         static_cast<size_t>(rule.n_candidates) + rule.edits.size() <= kMaxAtOnce;
}

void rank(const Arguments& arguments, size_t n_rows, const Queue& queue) {
  queue.launch("ranking tokens", rank_kernel, {static_cast<unsigned>(n_rows), kThreads}, arguments);
}

void rank_at_once(const Arguments& arguments, size_t n_rows, const Queue& queue) {
  queue.launch("ranking tokens", rank_at_once_kernel, {static_cast<unsigned>(n_rows), kRankThreads},
               arguments);
}

}  // namespace faststream::sampling
