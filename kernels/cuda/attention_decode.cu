// Attention of one query a sequence (flash-decoding: arXiv:2205.14135 with the cache split among
// blocks). Memory-bound: K and V are read once for all query heads that share them.
//
// A token's key is read by a power of two of lanes, 16 bytes each, so a warp takes 32 / lanes
// tokens at a time, four times before the first use. Every such slot keeps its own running maximum,
// sum and accumulator; slots, warps and splits are merged at the end only. How a cache is split
// depends on its own length alone, so a result does not depend on the other sequences of a batch.
//
// Bytes: 2 kv_len n_kv_heads head_dim elements. Llama-2-7B at 2048 tokens, bf16: 33.6 MB a layer,
// 10.8 us at 3.10 TB/s predicted.
#include <algorithm>
#include <cfloat>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kUnroll = 4;
constexpr int kMinSplitTokens = 128;
constexpr int kMaxSplits = 32;       // of one cache
constexpr float kLowest = -FLT_MAX;  // finite: the difference of two is no NaN

struct Split {
  int count = 1;              // a bound of the splits of every sequence
  int lanes = 0;              // that read one token
  int head_tiles = 1;         // blocks that share a KV head's query heads
  float* partials = nullptr;  // [sequence, head, split, 2 + head_dim]: maximum, sum, accumulator
};

// Tokens of each split: short ones keep all multiprocessors busy, merging many would cost more.
__device__ int split_tokens(int kv_len) {
  const int pages = pages_for(kv_len);
  return max(kMinSplitTokens, (pages + kMaxSplits - 1) / kMaxSplits * kPageTokens);
}

__device__ int64_t partial_index(const AttentionArguments& a, const Split& split, int sequence,
                                 int head, int part) {
  return ((static_cast<int64_t>(sequence) * a.n_heads + head) * split.count + part) *
         (2 + a.kv.head_dim);
}

template <typename T, int kVector, int kVectors, int kHeads>
__global__ __launch_bounds__(kThreads) void attention_decode_kernel(AttentionArguments a,
                                                                    Split split) {
  begin_kernel();
  const int sequence = static_cast<int>(blockIdx.z);
  const int64_t query = a.query_start[sequence];
  if (a.query_start[sequence + 1] - query != 1) return;
  const int kv_len = a.kv_len[sequence];
  const int tokens = split_tokens(kv_len);
  const int first = static_cast<int>(blockIdx.x) * tokens;
  if (first >= kv_len) return;
  const int last = min(first + tokens, kv_len);

  const int dim = a.kv.head_dim;
  const int group = a.n_heads / a.kv.n_kv_heads;
  const int kv_head = static_cast<int>(blockIdx.y) / split.head_tiles;
  const int first_in_group = static_cast<int>(blockIdx.y) % split.head_tiles * kHeads;
  const int first_head = kv_head * group + first_in_group;
  const int n_heads = min(kHeads, group - first_in_group);

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int in_token = lane % split.lanes;
  const int slots = kWarps * kWarp / split.lanes;
  const int slot = static_cast<int>(threadIdx.x) / split.lanes;
  const auto column = [&](int vector) { return (vector * split.lanes + in_token) * kVector; };

  float q[kHeads][kVectors][kVector];
  float sums[kHeads][kVectors][kVector] = {};
  float maxima[kHeads];
  float weights[kHeads] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    maxima[h] = kLowest;
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int d = column(vector) + i;
        const int64_t index = query * a.q.stride + static_cast<int64_t>(first_head + h) * dim + d;
        q[h][vector][i] =
            h < n_heads && d < dim ? load_element(a.q.data, a.q.dtype, index) * a.scale_log2 : 0.0F;
      }
    }
  }

  const auto* keys = static_cast<const T*>(a.kv.k);
  const auto* values = static_cast<const T*>(a.kv.v);
  const int32_t* pages = a.page_table + static_cast<int64_t>(sequence) * a.max_pages;
  for (int base = first + slot; base - slot < last; base += slots * kUnroll) {
    float k[kUnroll][kVectors][kVector];
    float v[kUnroll][kVectors][kVector];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int token = base + u * slots;
      int64_t row = 0;
      if (token < last) {
        const int64_t page = pages[token / kPageTokens];
        row = ((page * a.kv.n_kv_heads + kv_head) * kPageTokens + token % kPageTokens) * dim;
      }
#pragma unroll
      for (int vector = 0; vector < kVectors; ++vector) {
        if (token < last && column(vector) < dim) {
          load_floats(keys + row + column(vector), k[u][vector]);
          load_floats(values + row + column(vector), v[u][vector]);
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) k[u][vector][i] = v[u][vector][i] = 0;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float scores[kUnroll];
      float maximum = maxima[h];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float score = 0;
#pragma unroll
        for (int vector = 0; vector < kVectors; ++vector) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) score += q[h][vector][i] * k[u][vector][i];
        }
        for (int step = split.lanes / 2; step > 0; step /= 2) {
          score += __shfl_xor_sync(kAllLanes, score, step);
        }
        scores[u] = base + u * slots < last ? score : -INFINITY;
        maximum = fmaxf(maximum, scores[u]);
      }
      const float correction = exp2f(maxima[h] - maximum);
      maxima[h] = maximum;
      weights[h] *= correction;
#pragma unroll
      for (int vector = 0; vector < kVectors; ++vector) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[h][vector][i] *= correction;
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const float p = exp2f(scores[u] - maximum);
        weights[h] += p;
#pragma unroll
        for (int vector = 0; vector < kVectors; ++vector) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) sums[h][vector][i] += p * v[u][vector][i];
        }
      }
    }
  }

  // Merge the slots of a warp, then the warps.
  __shared__ float merged[kWarps][kHeads][kMaxHeadDim];
  __shared__ float merged_maxima[kWarps][kHeads];
  __shared__ float merged_weights[kWarps][kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    for (int step = split.lanes; step < kWarp; step *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, maxima[h], step);
      const float maximum = fmaxf(maxima[h], other);
      const float mine = exp2f(maxima[h] - maximum);
      const float theirs = exp2f(other - maximum);
      maxima[h] = maximum;
      weights[h] = weights[h] * mine + __shfl_xor_sync(kAllLanes, weights[h], step) * theirs;
#pragma unroll
      for (int vector = 0; vector < kVectors; ++vector) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          float& sum = sums[h][vector][i];
          sum = sum * mine + __shfl_xor_sync(kAllLanes, sum, step) * theirs;
        }
      }
    }
    if (lane < split.lanes) {
#pragma unroll
      for (int vector = 0; vector < kVectors; ++vector) {
        if (column(vector) >= dim) continue;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          merged[warp][h][column(vector) + i] = sums[h][vector][i];
        }
      }
    }
    if (lane == 0) {
      merged_maxima[warp][h] = maxima[h];
      merged_weights[warp][h] = weights[h];
    }
  }
  __syncthreads();

  for (int i = static_cast<int>(threadIdx.x); i < n_heads * dim; i += kThreads) {
    const int h = i / dim;
    const int d = i % dim;
    float maximum = kLowest;
    for (int w = 0; w < kWarps; ++w) maximum = fmaxf(maximum, merged_maxima[w][h]);
    float sum = 0;
    float weight = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2f(merged_maxima[w][h] - maximum);
      sum += merged[w][h][d] * factor;
      weight += merged_weights[w][h] * factor;
    }
    if (split.count == 1) {
      store_element(a.out.data, a.out.dtype,
                    query * a.out.stride + static_cast<int64_t>(first_head + h) * dim + d,
                    sum / weight);
    } else {
      float* partial = split.partials + partial_index(a, split, sequence, first_head + h,
                                                      static_cast<int>(blockIdx.x));
      if (d == 0) {
        partial[0] = maximum;
        partial[1] = weight;
      }
      partial[2 + d] = sum;
    }
  }
}

__global__ void merge_splits_kernel(AttentionArguments a, Split split) {
  begin_kernel();
  const int head = static_cast<int>(blockIdx.x);
  const int sequence = static_cast<int>(blockIdx.y);
  const int64_t query = a.query_start[sequence];
  if (a.query_start[sequence + 1] - query != 1) return;
  const int kv_len = a.kv_len[sequence];
  const int tokens = split_tokens(kv_len);
  const int parts = (kv_len + tokens - 1) / tokens;
  const int dim = a.kv.head_dim;
  const float* partials = split.partials + partial_index(a, split, sequence, head, 0);
  const int step = 2 + dim;

  float maximum = kLowest;
  for (int part = 0; part < parts; ++part) maximum = fmaxf(maximum, partials[part * step]);
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += static_cast<int>(blockDim.x)) {
    float sum = 0;
    float weight = 0;
    for (int part = 0; part < parts; ++part) {
      const float factor = exp2f(partials[part * step] - maximum);
      weight += partials[part * step + 1] * factor;
      sum += partials[part * step + 2 + d] * factor;
    }
    store_element(a.out.data, a.out.dtype,
                  query * a.out.stride + static_cast<int64_t>(head) * dim + d, sum / weight);
  }
}

template <typename T, int kVector, int kVectors, int kHeads>
void launch(const AttentionArguments& a, const BatchView& batch, DeviceBuffer& scratch,
            const Queue& queue) {
  const int group = a.n_heads / a.kv.n_kv_heads;
  Split split;
  split.head_tiles = ceil_div(group, kHeads);
  split.lanes = 1;
  while (split.lanes * kVector * kVectors < a.kv.head_dim) split.lanes *= 2;

  split.count = std::min(ceil_div(batch.max_kv_len, kMinSplitTokens), kMaxSplits);
  if (split.count > 1) {
    split.partials = reinterpret_cast<float*>(
        scratch.at_least(static_cast<size_t>(batch.n_sequences) * a.n_heads * split.count *
                         (2 + a.kv.head_dim) * sizeof(float)));
  }
  const dim3 grid(split.count, a.kv.n_kv_heads * split.head_tiles, batch.n_sequences);
  queue.launch("computing attention", attention_decode_kernel<T, kVector, kVectors, kHeads>,
               {grid, kThreads}, a, split);
  if (split.count > 1) {
    queue.launch("merging attention", merge_splits_kernel,
                 {dim3(a.n_heads, batch.n_sequences), 128}, a, split);
  }
}

}  // namespace

void attention_decode(const AttentionArguments& a, const BatchView& batch, DeviceBuffer& scratch,
                      const Queue& queue) {
  const int group = a.n_heads / a.kv.n_kv_heads;
  with_float_type(a.kv.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWide = 16 / sizeof(T);
    const auto with_heads = [&]<int kVector, int kVectors>() {
      const auto run = group == 1   ? launch<T, kVector, kVectors, 1>
                       : group == 2 ? launch<T, kVector, kVectors, 2>
                                    : launch<T, kVector, kVectors, 4>;
      run(a, batch, scratch, queue);
    };
    if (a.kv.head_dim % kWide != 0) {
      with_heads.template operator()<2, kMaxHeadDim / 2 / kWarp>();
    } else if (a.kv.head_dim <= kWide * kWarp) {
      with_heads.template operator()<kWide, 1>();
    } else {
      with_heads.template operator()<kWide, kMaxHeadDim / kWide / kWarp>();
    }
  });
}

}  // namespace faststream
