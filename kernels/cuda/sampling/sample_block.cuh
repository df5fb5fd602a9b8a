// What a block of threads does with a row of logits to draw from it: find its largest, collect and
// sort a few keys, and narrow down where the k-th key or a cumulative mass is by histograms.
//
// Nothing depends on the order of atomic operations: masses are integers (kernels/sampling.h), and
// keys that were collected in any order are sorted, all being different.
//
// Every function is called by all threads of a block with the same arguments (but for a thread's
// own key), unless it says otherwise, and leaves its shared memory free for the next call. Those
// called from several places are not inlined, as the loads in for_each() make them long; their
// small arguments are passed by value to be in registers.
#pragma once

#include <cub/block/block_scan.cuh>

#include <cstdint>
#include <limits>

#include "kernels/cuda/types.cuh"
#include "kernels/sampling.h"

namespace faststream::sampling {

inline constexpr int kThreads = 1024;
/// Keys that a block sorts: one for each thread.
inline constexpr int kMaxKeys = kThreads;

__device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }

/// A row of logits in global memory.
struct Row {
  float* logits = nullptr;
  int vocab = 0;

  /// f(id, logit) for each token, in loads of 16 bytes of which kInFlight are under way at a time
  /// (the more work f is, the fewer are needed). A thread sees ascending ids. f must not
  /// synchronize threads.
  template <int kInFlight, typename F>
  __device__ void for_each(const F& f) const {
    const int thread = thread_index();
    const auto misaligned = static_cast<int>(reinterpret_cast<uintptr_t>(logits) % 16 / 4);
    const int head = min(vocab, (4 - misaligned) % 4);
    if (thread < head) f(thread, logits[thread]);

    const auto* quads = reinterpret_cast<const float4*>(logits + head);
    const int n_quads = (vocab - head) / 4;
    for (int base = thread; base < n_quads; base += kInFlight * kThreads) {
      float4 quad[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (base + j * kThreads < n_quads) quad[j] = quads[base + j * kThreads];
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (base + j * kThreads >= n_quads) break;
        const int id = head + 4 * (base + j * kThreads);
        f(id, quad[j].x);
        f(id + 1, quad[j].y);
        f(id + 2, quad[j].z);
        f(id + 3, quad[j].w);
      }
    }

    const int tail = head + 4 * n_quads + thread;
    if (tail < vocab) f(tail, logits[tail]);
  }
};

/// A number of tokens and their mass.
struct Tally {
  uint64_t mass = 0;
  int count = 0;
};
__device__ inline Tally operator+(const Tally& a, const Tally& b) {
  return {a.mass + b.mass, a.count + b.count};
}
struct AddTallies {
  __device__ Tally operator()(const Tally& a, const Tally& b) const { return a + b; }
};

/// Without the default algorithm's array in shared memory for each thread.
using TallyScan = cub::BlockScan<Tally, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;

/// Tallies in kBins bins; after scan() cumulative ones.
template <int kBins>
class Histogram {
  static_assert(kBins % kThreads == 0);
  static constexpr int kEach = kBins / kThreads;  // bins of a thread

 public:
  /// Not synchronized with the first add().
  __device__ void clear() {
    for (int i = thread_index(); i < kBins; i += kThreads) count_[i] = low_[i] = high_[i] = 0;
  }

  /// By any thread. Shared memory has fast atomic additions of 32 bits only, so a carry is told
  /// from the old value; few masses reach beyond 32 bits, and few additions carry.
  __device__ void add(int bin, uint64_t mass) {
    const auto low = static_cast<uint32_t>(mass);
    const uint32_t old = atomicAdd(&low_[bin], low);
    const uint32_t high = static_cast<uint32_t>(mass >> 32) + (old + low < old ? 1 : 0);
    if (high != 0) atomicAdd(&high_[bin], high);
    atomicAdd(&count_[bin], 1U);
  }

  /// Makes the tallies cumulative, from `above` on. Returns the last. Call between
  /// synchronizations.
  __device__ Tally scan(const Tally& above, TallyScan::TempStorage& storage) {
    const int first = thread_index() * kEach;
    Tally own;
    for (int i = 0; i < kEach; ++i) own = own + (*this)[first + i];
    Tally before;
    Tally all;
    TallyScan(storage).ExclusiveScan(own, before, Tally{}, AddTallies{}, all);
    before = above + before;
    for (int i = 0; i < kEach; ++i) {
      before = before + (*this)[first + i];
      low_[first + i] = static_cast<uint32_t>(before.mass);
      high_[first + i] = static_cast<uint32_t>(before.mass >> 32);
      count_[first + i] = static_cast<uint32_t>(before.count);
    }
    return above + all;
  }

  __device__ Tally operator[](int bin) const {
    return {uint64_t{high_[bin]} << 32 | low_[bin], static_cast<int>(count_[bin])};
  }

  /// The first bin whose cumulative tally satisfies `reached`, into `bin`. There must be one. Call
  /// between synchronizations.
  template <typename Reached>
  __device__ void find(const Reached& reached, int& bin) const {
    const int first = thread_index() * kEach;
    for (int i = first; i < first + kEach; ++i) {
      if (reached((*this)[i]) && (i == 0 || !reached((*this)[i - 1]))) bin = i;
    }
  }

 private:
  uint32_t low_[kBins];
  uint32_t high_[kBins];
  uint32_t count_[kBins];
};

inline constexpr int kCoarseBins = 2 * kThreads;
inline constexpr int kFineBins = kThreads;

/// Shared memory of a block.
struct Storage {
  Histogram<kCoarseBins> coarse;
  union {
    Histogram<kFineBins> fine;
    uint64_t keys[kMaxKeys];
  };
  TallyScan::TempStorage scan;
  uint64_t warp_best[kThreads / kWarp];
  float warp_lowest[kThreads / kWarp];
  Tally found;
  uint64_t found_key;
  int bin;
  int count;
};

/// What all draws need to know of a row.
struct Survey {
  uint64_t best = 0;      ///< the largest key
  uint64_t own_best = 0;  ///< of the tokens that this thread saw; 0 if it saw none
  float lowest = 0;       ///< logit above minus infinity
  DrawFault fault = DrawFault::none;
};

inline __device__ __noinline__ Survey survey(Row row, Storage& storage) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float best = std::numeric_limits<float>::quiet_NaN();  // less or equal is no logit
  float lowest = kInfinity;
  int best_id = -1;
  int has_nan = 0;
  row.for_each<4>([&](int id, float logit) {
    has_nan |= logit != logit ? 1 : 0;
    if (logit > -kInfinity) lowest = fminf(lowest, logit);
    if (!(logit <= best)) {
      best = logit;
      best_id = id;
    }
  });
  Survey result;
  if (best_id >= 0) result.own_best = token_key(best, best_id);
  result.best = result.own_best;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, result.best, step);
    result.best = other > result.best ? other : result.best;
    lowest = fminf(lowest, __shfl_xor_sync(kAllLanes, lowest, step));
  }
  if (thread_index() % kWarp == 0) {
    storage.warp_best[thread_index() / kWarp] = result.best;
    storage.warp_lowest[thread_index() / kWarp] = lowest;
  }
  has_nan = __syncthreads_or(has_nan);
  for (int warp = 0; warp < kThreads / kWarp; ++warp) {
    const uint64_t other = storage.warp_best[warp];
    result.best = other > result.best ? other : result.best;
    lowest = fminf(lowest, storage.warp_lowest[warp]);
  }
  __syncthreads();
  result.lowest = lowest;
  if (has_nan != 0 || key_logit(result.best) == kInfinity) {
    result.fault = DrawFault::not_a_number;
  } else if (key_logit(result.best) == -kInfinity) {
    result.fault = DrawFault::nothing_left;
  }
  return result;
}

/// Sorts one key of each thread by a bitonic network: thread i gets the i-th largest. Only the
/// first n threads may have keys other than 0.
inline __device__ __noinline__ uint64_t sort_descending(uint64_t key, int n, Storage& storage) {
  const int thread = thread_index();
#pragma unroll 1
  for (int size = 2; size < 2 * n; size *= 2) {
#pragma unroll 1
    for (int stride = size / 2; stride > 0; stride /= 2) {
      uint64_t other = 0;
      if (stride < kWarp) {
        other = __shfl_xor_sync(kAllLanes, key, stride);
      } else {
        storage.keys[thread] = key;
        __syncthreads();
        other = storage.keys[thread ^ stride];
        __syncthreads();
      }
      const bool wants_larger = ((thread & stride) == 0) == ((thread & size) == 0);
      if ((other > key) == wants_larger) key = other;
    }
  }
  return key;
}

/// Keys from `low` to `high`, both included.
struct Interval {
  uint64_t low = 0;
  uint64_t high = 0;

  [[nodiscard]] __device__ bool contains(uint64_t key) const { return low <= key && key <= high; }
};

/// Thread i's key is the i-th largest of a few.
struct SortedKeys {
  uint64_t own = 0;  ///< 0 in threads from n on
  int n = 0;
};

/// Collects a row's keys in `interval`. Where they are more than kMaxKeys, only n is useful. Calls
/// also(logit) for each logit of the row.
template <int kInFlight, typename Also>
__device__ __forceinline__ SortedKeys collect_beside(const Row& row, const Interval& interval,
                                                     Storage& storage, const Also& also) {
  if (thread_index() == 0) storage.count = 0;
  __syncthreads();
  const float lowest = key_logit(interval.low);  // NaN rejects nothing
  row.for_each<kInFlight>([&](int id, float logit) {
    also(logit);
    if (logit < lowest) return;
    const uint64_t key = token_key(logit, id);
    if (!interval.contains(key)) return;
    const int place = atomicAdd(&storage.count, 1);
    if (place < kMaxKeys) storage.keys[place] = key;
  });
  __syncthreads();
  SortedKeys sorted;
  sorted.n = storage.count;
  if (thread_index() < sorted.n) sorted.own = storage.keys[thread_index()];
  __syncthreads();
  if (sorted.n <= kMaxKeys) sorted.own = sort_descending(sorted.own, sorted.n, storage);
  return sorted;
}

inline __device__ __noinline__ SortedKeys collect(Row row, Interval interval, Storage& storage) {
  return collect_beside<4>(row, interval, storage, [](float) {});
}

/// The sum of what each thread has.
inline __device__ uint64_t add_masses(uint64_t own, Storage& storage) {
  Tally before;
  Tally all;
  TallyScan(storage.scan).ExclusiveScan(Tally{own, 0}, before, Tally{}, AddTallies{}, all);
  __syncthreads();
  return all.mass;
}

/// The mass of a row.
inline __device__ __noinline__ uint64_t weigh(Row row, Softmax softmax, Storage& storage) {
  uint64_t mass = 0;
  row.for_each<2>([&](int /*id*/, float logit) { mass += softmax.mass(logit); });
  return add_masses(mass, storage);
}

struct WeighedKeys {
  SortedKeys keys;
  uint64_t mass = 0;
};

/// collect() and weigh() in one reading.
inline __device__ __noinline__ WeighedKeys collect_and_weigh(Row row, Interval interval,
                                                             Softmax softmax, Storage& storage) {
  WeighedKeys result;
  uint64_t mass = 0;
  result.keys =
      collect_beside<2>(row, interval, storage, [&](float logit) { mass += softmax.mass(logit); });
  result.mass = add_masses(mass, storage);
  return result;
}

/// Keys of an interval and the tally of all larger keys.
struct Span {
  Interval interval;
  int count = 0;  ///< of keys in the interval
  Tally above;
};

/// The part of a span, about a thousandth of its width, where `reached` becomes true of the
/// cumulative tally. An interval of at most kFineBins keys shrinks to one key.
template <typename Reached>
__device__ Span narrow(const Row& row, const Softmax& softmax, const Span& span,
                       const Reached& reached, Storage& storage) {
  const Interval interval = span.interval;
  constexpr int kBinBits = 10;
  static_assert(kFineBins == 1 << kBinBits);
  const uint64_t width = interval.high - interval.low;
  const int shift = max(0, 64 - __clzll(static_cast<long long>(width)) - kBinBits);

  storage.fine.clear();
  __syncthreads();
  const float lowest = key_logit(interval.low);
  row.for_each<2>([&](int id, float logit) {
    if (logit < lowest) return;
    const uint64_t key = token_key(logit, id);
    if (!interval.contains(key)) return;
    storage.fine.add(static_cast<int>((interval.high - key) >> shift), softmax.mass(logit));
  });
  __syncthreads();
  storage.fine.scan(span.above, storage.scan);
  __syncthreads();
  storage.fine.find(reached, storage.bin);
  __syncthreads();
  const int bin = storage.bin;
  Span part;
  part.above = bin > 0 ? storage.fine[bin - 1] : span.above;
  part.count = storage.fine[bin].count - part.above.count;
  part.interval.high = interval.high - (static_cast<uint64_t>(bin) << shift);
  const uint64_t last = (uint64_t{1} << shift) - 1;
  part.interval.low =
      part.interval.high - interval.low > last ? part.interval.high - last : interval.low;
  __syncthreads();
  return part;
}

/// An interval of the `count` largest keys of a row, and perhaps more: as many threads have seen a
/// key that is in it. count <= min(kMaxKeys, vocab).
inline __device__ Interval around_largest(const Survey& survey, int count, Storage& storage) {
  const uint64_t own = sort_descending(survey.own_best, kThreads, storage);
  if (thread_index() == count - 1) storage.found_key = own;
  __syncthreads();
  const uint64_t low = storage.found_key;
  __syncthreads();
  return {low, survey.best};
}

/// The `count` largest keys of a row, and perhaps more, where they are more than kMaxKeys in
/// `interval`.
inline __device__ __noinline__ SortedKeys narrow_largest(Row row, Softmax softmax,
                                                         Interval interval, int count,
                                                         Storage& storage) {
  Span span;
  span.interval = interval;
  do {
    span = narrow(
        row, softmax, span, [=](const Tally& t) { return t.count >= count; }, storage);
  } while (span.above.count + span.count > kMaxKeys);
  return collect(row, {span.interval.low, interval.high}, storage);
}

/// The `count` largest keys of a row, and perhaps more. count <= min(kMaxKeys, vocab).
inline __device__ SortedKeys collect_largest(const Row& row, const Softmax& softmax,
                                             const Survey& survey, int count, Storage& storage) {
  const Interval interval = around_largest(survey, count, storage);
  const SortedKeys keys = collect(row, interval, storage);
  return keys.n <= kMaxKeys ? keys : narrow_largest(row, softmax, interval, count, storage);
}

/// The same, and the mass of the row.
inline __device__ WeighedKeys weigh_and_collect_largest(const Row& row, const Softmax& softmax,
                                                        const Survey& survey, int count,
                                                        Storage& storage) {
  const Interval interval = around_largest(survey, count, storage);
  WeighedKeys result = collect_and_weigh(row, interval, softmax, storage);
  if (result.keys.n > kMaxKeys) {
    result.keys = narrow_largest(row, softmax, interval, count, storage);
  }
  return result;
}

/// The smallest key of a logit of which `holds`, which must be true of `largest` and, with a logit,
/// of all larger ones up to there.
template <typename Holds>
__device__ uint64_t lowest_key(float largest, const Holds& holds) {
  uint64_t low = 0;
  uint64_t high = token_key(largest, 0) >> 32;
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (holds(key_logit(middle << 32))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low << 32;
}

}  // namespace faststream::sampling
