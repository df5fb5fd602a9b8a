// Drawing tokens from logits, one block a row.
//
// A logit and its id make one 64-bit key whose descending order is the order of Backend::sample
// (larger logit, then smaller id), and all keys differ. Up to kMaxSelected candidates are found by
// a radix select, eight bits of the key at a time, and ranked by counting; more are sorted whole
// with CUB. Probabilities are float32 as on the CPU, their sums double, so that the order of
// summation does not decide a draw.
#include <curand_kernel.h>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 1024;
constexpr int kMaxSelected = kThreads;  // a thread for each candidate

struct Drawn {
  int32_t token = 0;
  int32_t invalid = 0;  // a logit is NaN, or the largest is infinite
};

__device__ uint64_t make_key(float logit, int id) {
  const uint32_t bits = logit == 0 ? 0U : __float_as_uint(logit);  // -0 equals +0
  const uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffU - static_cast<uint32_t>(id));
}
__device__ int key_id(uint64_t key) {
  return static_cast<int>(0xffffffffU - static_cast<uint32_t>(key));
}
__device__ float key_logit(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000U) != 0 ? ordered & 0x7fffffffU : ~ordered);
}

/// Candidates that top-k leaves.
__host__ __device__ int kept_by_top_k(const SamplingRow& rule, int vocab) {
  return rule.top_k > 0 && rule.top_k < vocab ? rule.top_k : vocab;
}
/// Whether a row has too many candidates to select one by one.
__host__ __device__ bool wants_sort(const SamplingRow& rule, int vocab) {
  return rule.temperature > 0 && kept_by_top_k(rule, vocab) > kMaxSelected;
}

/// Shared memory of a draw.
struct DrawStorage {
  union {
    cub::BlockScan<double, kThreads>::TempStorage scan;
    cub::BlockReduce<double, kThreads>::TempStorage reduce;
  };
  double sum;
  int first;
};

/// Draws from keys [n] in descending order.
class Draw {
 public:
  __device__ Draw(const uint64_t* keys, int n, const SamplingRow& rule, DrawStorage& storage)
      : keys_(keys), kept_(n), temperature_(rule.temperature), storage_(storage) {
    largest_ = key_logit(keys[0]);
  }

  /// The token; the same in all threads.
  __device__ int run(const SamplingRow& rule) {
    double total = sum_all();
    if (rule.top_p < 1) {
      const double wanted = static_cast<double>(rule.top_p) * total;
      kept_ = find_first([=](double sum) { return sum >= wanted; }, total) + 1;
    }
    curandStatePhilox4_32_10_t state;
    curand_init(rule.seed, rule.sequence, 4 * rule.position, &state);
    const float u = static_cast<float>(curand(&state) >> 8) * 0x1p-24F;
    const double threshold = static_cast<double>(u) * total;
    return key_id(keys_[find_first([=](double sum) { return sum > threshold; }, total)]);
  }

 private:
  /// Rounded from the double result, as good libraries round expf.
  __device__ double probability(int i) const {
    const float exponent = (key_logit(keys_[i]) - largest_) / temperature_;
    return static_cast<double>(static_cast<float>(exp(static_cast<double>(exponent))));
  }

  __device__ double sum_all() {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < kept_; i += kThreads) sum += probability(i);
    sum = cub::BlockReduce<double, kThreads>(storage_.reduce).Sum(sum);
    if (threadIdx.x == 0) storage_.sum = sum;
    __syncthreads();
    sum = storage_.sum;
    __syncthreads();
    return sum;
  }

  /// The first index whose cumulative probability satisfies `reached`, or else the last with a
  /// probability; `sum` becomes the cumulative probability there.
  template <typename Reached>
  __device__ int find_first(Reached reached, double& sum) {
    double before = 0;
    int last_possible = 0;
    for (int base = 0; base < kept_; base += kThreads) {
      const int i = base + static_cast<int>(threadIdx.x);
      const double p = i < kept_ ? probability(i) : 0.0;
      double cumulative = 0;
      double all = 0;
      cub::BlockScan<double, kThreads>(storage_.scan).InclusiveSum(p, cumulative, all);
      cumulative += before;
      before += all;
      if (threadIdx.x == 0) storage_.first = kept_;
      const int n_possible = __syncthreads_count(p > 0 ? 1 : 0);
      if (p > 0 && reached(cumulative)) atomicMin(&storage_.first, i);
      __syncthreads();
      const int first = storage_.first;
      if (first == i) storage_.sum = cumulative;
      __syncthreads();
      if (first < kept_) {
        sum = storage_.sum;
        __syncthreads();
        return first;
      }
      // Probabilities descend: the possible ones are a prefix.
      if (n_possible > 0) last_possible = base + n_possible - 1;
      if (n_possible < kThreads) break;
    }
    sum = before;
    return last_possible;
  }

  const uint64_t* keys_;
  int kept_;
  float temperature_;
  float largest_ = 0;
  DrawStorage& storage_;
};

/// The key with the largest logit; sets `invalid` where a logit is NaN or the largest is infinite.
__device__ uint64_t find_best(const float* logits, int vocab, int& invalid) {
  __shared__ uint64_t warp_best[kThreads / kWarp];
  uint64_t best = 0;
  int has_nan = 0;
  for (int i = static_cast<int>(threadIdx.x); i < vocab; i += kThreads) {
    const float logit = logits[i];
    has_nan |= isnan(logit) ? 1 : 0;
    best = max(best, make_key(logit, i));
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    best = max(best, static_cast<uint64_t>(__shfl_xor_sync(kAllLanes, best, step)));
  }
  if (threadIdx.x % kWarp == 0) warp_best[threadIdx.x / kWarp] = best;
  has_nan = __syncthreads_or(has_nan);
  for (const uint64_t other : warp_best) best = max(best, other);
  invalid = has_nan != 0 || isinf(key_logit(best)) ? 1 : 0;
  return best;
}

/// Puts the k largest keys of a row into keys [k] in descending order. k <= min(kMaxSelected,
/// vocab).
__device__ void select(const float* logits, int vocab, int k, uint64_t* keys) {
  __shared__ int histogram[256];
  __shared__ uint64_t unordered[kMaxSelected];
  __shared__ int digit;
  __shared__ int above;
  __shared__ int count;
  const int thread = static_cast<int>(threadIdx.x);

  // The prefix of the k-th largest key, from the top, until all keys that share it are wanted.
  uint64_t prefix = 0;
  int shift = 64;
  int wanted = k;
  bool done = false;
  while (!done) {
    shift -= 8;
    if (thread < 256) histogram[thread] = 0;
    __syncthreads();
    for (int base = 0; base < vocab; base += kThreads) {
      const int i = base + thread;
      int bin = -1;
      if (i < vocab) {
        const uint64_t key = make_key(logits[i], i);
        if (shift == 56 || (key ^ prefix) >> (shift + 8) == 0) {
          bin = static_cast<int>(key >> shift & 0xff);
        }
      }
      // Most logits share their upper bits: lanes of one bin count together.
      const unsigned peers = __match_any_sync(kAllLanes, bin);
      const int leader = __ffs(static_cast<int>(peers)) - 1;
      if (bin >= 0 && thread % kWarp == leader) atomicAdd(&histogram[bin], __popc(peers));
    }
    __syncthreads();
    if (thread < kWarp) {
      // Each lane owns eight bins, from the top; the lane that reaches `wanted` walks its own.
      constexpr int kBins = 256 / kWarp;
      const int top = 255 - thread * kBins;
      int reached = 0;
      for (int i = 0; i < kBins; ++i) reached += histogram[top - i];
      const int own = reached;
      for (int step = 1; step < kWarp; step *= 2) {
        const int before = __shfl_up_sync(kAllLanes, reached, step);
        if (thread >= step) reached += before;
      }
      int larger = reached - own;
      if (larger < wanted && wanted <= reached) {
        int bin = top;
        while (larger + histogram[bin] < wanted) larger += histogram[bin--];
        digit = bin;
        above = larger;
        count = histogram[bin];
      }
    }
    __syncthreads();
    prefix |= static_cast<uint64_t>(digit) << shift;
    wanted -= above;
    done = count == wanted;  // at the last digit at the latest: keys differ
    __syncthreads();
  }

  if (thread == 0) count = 0;
  __syncthreads();
  for (int i = thread; i < vocab; i += kThreads) {
    const uint64_t key = make_key(logits[i], i);
    if (key >= prefix) unordered[atomicAdd(&count, 1)] = key;
  }
  __syncthreads();
  if (thread < k) {
    const uint64_t key = unordered[thread];
    int rank = 0;
    for (int other = 0; other < k; ++other) rank += unordered[other] > key ? 1 : 0;
    keys[rank] = key;
  }
  __syncthreads();
}

__global__ __launch_bounds__(kThreads) void sample_kernel(const float* logits, int64_t stride,
                                                          int vocab, const SamplingRow* rules,
                                                          Drawn* drawn) {
  __shared__ uint64_t keys[kMaxSelected];
  __shared__ DrawStorage storage;
  const float* row = logits + blockIdx.x * stride;
  const SamplingRow rule = rules[blockIdx.x];
  Drawn result;
  result.token = key_id(find_best(row, vocab, result.invalid));
  if (result.invalid == 0 && rule.temperature > 0 && !wants_sort(rule, vocab)) {
    const int k = kept_by_top_k(rule, vocab);
    select(row, vocab, k, keys);
    result.token = Draw(keys, k, rule, storage).run(rule);
  }
  if (threadIdx.x == 0) drawn[blockIdx.x] = result;
}

__global__ void make_keys_kernel(const float* logits, int vocab, uint64_t* keys) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < vocab) keys[i] = make_key(logits[i], i);
}

__global__ __launch_bounds__(kThreads) void draw_sorted_kernel(const uint64_t* keys, int n,
                                                               const SamplingRow* rule,
                                                               Drawn* drawn) {
  __shared__ DrawStorage storage;
  if (drawn->invalid != 0) return;
  const int token = Draw(keys, n, *rule, storage).run(*rule);
  if (threadIdx.x == 0) drawn->token = token;
}

cudaError_t sort_keys(void* temporary, size_t& bytes, const uint64_t* in, uint64_t* out, int n,
                      cudaStream_t stream) {
  return cub::DeviceRadixSort::SortKeysDescending(temporary, bytes, in, out, n, 0, 64, stream);
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

void CudaBackend::sample(const Matrix& logits, std::span<const SamplingRow> rules,
                         std::span<SampledToken> sampled) {
  if (logits.rows == 0) return;
  const cudaStream_t stream = this->stream();
  const auto rows = static_cast<size_t>(logits.rows);
  const int vocab = static_cast<int>(logits.cols);
  const bool any_sort = std::any_of(
      rules.begin(), rules.end(), [=](const SamplingRow& rule) { return wants_sort(rule, vocab); });

  const size_t rules_bytes = aligned(rows * sizeof(SamplingRow));
  const size_t drawn_bytes = aligned(rows * sizeof(Drawn));
  const size_t keys_bytes = any_sort ? aligned(static_cast<size_t>(vocab) * sizeof(uint64_t)) : 0;
  size_t sort_bytes = 0;
  if (any_sort) {
    cuda_check(sort_keys(nullptr, sort_bytes, nullptr, nullptr, vocab, stream), "sizing a sort");
  }
  std::byte* device = scratch_.at_least(rules_bytes + drawn_bytes + 2 * keys_bytes + sort_bytes);
  auto* device_rules = reinterpret_cast<SamplingRow*>(device);
  auto* drawn = reinterpret_cast<Drawn*>(device + rules_bytes);
  auto* keys = reinterpret_cast<uint64_t*>(device + rules_bytes + drawn_bytes);
  auto* sorted = reinterpret_cast<uint64_t*>(device + rules_bytes + drawn_bytes + keys_bytes);
  std::byte* temporary = device + rules_bytes + drawn_bytes + 2 * keys_bytes;

  std::byte* host = results_.at_least(rules_bytes + drawn_bytes);
  std::memcpy(host, rules.data(), rows * sizeof(SamplingRow));
  cuda_check(cudaMemcpyAsync(device, host, rules_bytes, cudaMemcpyHostToDevice, stream),
             "copying sampling rules");
  const auto* values = static_cast<const float*>(logits.data);
  sample_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(values, logits.stride, vocab,
                                                                      device_rules, drawn);
  check_launch("sampling");
  for (size_t row = 0; row < rows && any_sort; ++row) {
    const SamplingRow& rule = rules[row];
    if (!wants_sort(rule, vocab)) continue;
    make_keys_kernel<<<ceil_div(vocab, 256), 256, 0, stream>>>(
        values + static_cast<int64_t>(row) * logits.stride, vocab, keys);
    check_launch("sampling");
    cuda_check(sort_keys(temporary, sort_bytes, keys, sorted, vocab, stream), "sorting logits");
    draw_sorted_kernel<<<1, kThreads, 0, stream>>>(sorted, kept_by_top_k(rule, vocab),
                                                   device_rules + row, drawn + row);
    check_launch("sampling");
  }
  const auto* results = reinterpret_cast<const Drawn*>(host + rules_bytes);
  copy_to_host(host + rules_bytes, drawn, rows * sizeof(Drawn));
  for (size_t row = 0; row < rows; ++row) {
    if (results[row].invalid != 0) {
      throw Error(
          "The model produced logits that are not numbers (NaN or infinity): its weights are "
          "damaged or overflow; check the model file with --verify or convert it again with "
          "--dtype f32.");
    }
    sampled[row].token = results[row].token;
  }
}

}  // namespace faststream
