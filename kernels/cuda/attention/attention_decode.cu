// Attention of one query a sequence in float arithmetic, any types and any even widths, the path
// of f32 models and of odd and wide heads; and the merging of splits. Other 16-bit models take
// attention_decode_mma.cu.
//
// A token's key is read by a power of two of lanes, 16 bytes each where the heads allow it, so a
// warp takes 32 / lanes tokens at a time, four times before the first use. Every such slot keeps
// its own running maximum, sum and accumulator; slots, warps and splits are merged at the end only.
//
// Bytes: as there. Llama-2-7B at 2048 tokens, f32: 67 MB a layer, 22 us at 3.10 TB/s predicted.
#include "kernels/cuda/attention/attention_split.cuh"

namespace faststream {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kUnroll = 4;
constexpr int kMergeThreads = 64;  // for each head
constexpr int kMergedHeads = 4;    // by a block

template <typename T, int kVector, int kVectors, int kHeads, typename Rule>
__global__ __launch_bounds__(kThreads) void attention_decode_kernel(AttentionArguments a,
                                                                    Splits splits, int lanes) {
  // Elements of a head at most.
  constexpr int kDims = kVector * kVectors * kWarp;
  __shared__ WarpResults<kWarps, kHeads, kDims> results;
  begin_kernel();
  const Split split = split_of_block(a, splits, kHeads);
  if (split.empty()) return;

  const int dim = a.kv.head_dim;
  const int v_dim = a.kv.v_head_dim;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int in_token = lane % lanes;  // that read one token
  const int slots = kWarps * kWarp / lanes;
  const int slot = static_cast<int>(threadIdx.x) / lanes;
  const auto column = [&](int vector) { return (vector * lanes + in_token) * kVector; };

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
        const int64_t index =
            split.query * a.q.stride + static_cast<int64_t>(split.first_head + h) * dim + d;
        q[h][vector][i] = h < split.n_heads && d < dim
                              ? load_element(a.q.data, a.q.dtype, index) * a.scale_log2
                              : 0.0F;
      }
    }
  }

  const int first_seen = Rule(a, 0, split.position + 1).first_seen(split.position);
  // Whatever is in the place of other tokens may be NaN.
  const auto is_seen = [&](int token) {
    return token < split.last && (Rule::kPlain || token >= first_seen);
  };
  const auto* keys = static_cast<const T*>(a.kv.k);
  const auto* values = static_cast<const T*>(a.kv.v);
  const int32_t* pages = a.page_table + static_cast<int64_t>(split.sequence) * a.max_pages;
  for (int base = split.first + slot; base - slot < split.last; base += slots * kUnroll) {
    float k[kUnroll][kVectors][kVector];
    float v[kUnroll][kVectors][kVector];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int token = base + u * slots;
      int64_t row = 0;
      if (is_seen(token)) {
        const int64_t page = pages[token / kPageTokens];
        row = (page * a.kv.n_kv_heads + split.kv_head) * kPageTokens + token % kPageTokens;
      }
      const auto load = [&](const T* rows, int width, int vector, float(&to)[kVector]) {
        if (is_seen(token) && column(vector) < width) {
          load_floats(rows + row * width + column(vector), to);
        } else {
#pragma unroll
          for (float& element : to) element = 0;
        }
      };
#pragma unroll
      for (int vector = 0; vector < kVectors; ++vector) {
        load(keys, dim, vector, k[u][vector]);
        load(values, v_dim, vector, v[u][vector]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const Rule rule(a, split.first_head + min(h, split.n_heads - 1), split.position + 1);
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
        for (int step = lanes / 2; step > 0; step /= 2) {
          score += __shfl_xor_sync(kAllLanes, score, step);
        }
        const int token = base + u * slots;
        scores[u] = is_seen(token) ? rule.vary(score, split.position, token) : -INFINITY;
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

  // Merge the slots of a warp.
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    for (int step = lanes; step < kWarp; step *= 2) {
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
    if (lane < lanes) {
#pragma unroll
      for (int vector = 0; vector < kVectors; ++vector) {
        if (column(vector) >= v_dim) continue;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          results.sums[warp][h][column(vector) + i] = sums[h][vector][i];
        }
      }
    }
    if (lane == 0) {
      results.maxima[warp][h] = maxima[h];
      results.weights[warp][h] = weights[h];
    }
  }
  __syncthreads();
  store_split(a, splits, split, results);
}

__global__ __launch_bounds__(kMergedHeads* kMergeThreads) void merge_splits_kernel(
    AttentionArguments a, Splits splits) {
  begin_kernel();
  Split split;
  split.sequence = static_cast<int>(blockIdx.y);
  const int head =
      static_cast<int>(blockIdx.x) * kMergedHeads + static_cast<int>(threadIdx.x) / kMergeThreads;
  if (head >= a.n_heads) return;
  split.query = a.query_start[split.sequence];
  if (a.query_start[split.sequence + 1] - split.query != 1) return;
  const int parts = parts_of(a, a.kv_len[split.sequence]);
  if (parts == 1) return;
  const auto thread =
      static_cast<int>(blockIdx.z) * kMergeThreads + static_cast<int>(threadIdx.x) % kMergeThreads;
  merge_head(a, splits, split, head, parts, thread, static_cast<int>(gridDim.z) * kMergeThreads,
             StoreOutput{a, split.query});
}

template <typename T, int kVector, int kVectors, int kHeads>
void launch(const AttentionArguments& a, int32_t n_sequences, Splits splits, const Queue& queue) {
  splits.head_tiles = ceil_div(a.n_heads / a.kv.n_kv_heads, kHeads);
  int lanes = 1;  // that read one token
  while (lanes * kVector * kVectors < a.widest_head()) lanes *= 2;
  with_rule_of_last(a, [&]<typename Rule>() {
    queue.launch("computing attention", attention_decode_kernel<T, kVector, kVectors, kHeads, Rule>,
                 split_grid(a, splits, n_sequences, kThreads), a, splits, lanes);
  });
}

}  // namespace

void attention_decode_float(const AttentionArguments& a, int32_t n_sequences, const Splits& splits,
                            const Queue& queue) {
  const int group = a.n_heads / a.kv.n_kv_heads;
  const int dim = a.widest_head();
  const bool is_of_fours = a.kv.head_dim % 4 == 0 && a.kv.v_head_dim % 4 == 0;
  with_float_type(a.kv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto with_heads = [&]<int kVector, int kVectors, int kMostHeads>() {
      const auto run = group == 1   ? launch<T, kVector, kVectors, 1>
                       : group == 2 ? launch<T, kVector, kVectors, 2>
                                    : launch<T, kVector, kVectors, kMostHeads>;
      run(a, n_sequences, splits, queue);
    };
    if (dim > 256) {  // whose accumulators leave room for two heads
      if (is_of_fours) return with_heads.template operator()<4, kLargestHeadDim / 4 / kWarp, 2>();
      return with_heads.template operator()<2, kLargestHeadDim / 2 / kWarp, 2>();
    }
    if constexpr (sizeof(T) == 4) {
      if (is_of_fours && dim <= 4 * kWarp) return with_heads.template operator()<4, 1, 4>();
      if (is_of_fours) return with_heads.template operator()<4, 256 / 4 / kWarp, 4>();
    }
    with_heads.template operator()<2, 256 / 2 / kWarp, 4>();
  });
}

void merge_splits(const AttentionArguments& a, int32_t n_sequences, const Splits& splits,
                  const Queue& queue) {
  queue.launch("merging attention", merge_splits_kernel,
               {dim3(ceil_div(a.n_heads, kMergedHeads), n_sequences,
                     ceil_div(a.kv.v_head_dim, 2 * kMergeThreads)),
                kMergedHeads * kMergeThreads},
               a, splits);
}

}  // namespace faststream
