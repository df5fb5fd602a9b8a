// A token of each sequence, or a few one after the other: their head's matrix is read once and
// written once.
//
// A block has up to 128 columns of a head's matrix, a lane 4 of them and several keys, so that all
// of it is on its way in loads of 16 bytes before anything waits. Sums over keys are those of
// parts, which lanes of other warps have, through shared memory.
#include "kernels/cuda/recurrent/recur_token.h"

#include "kernels/cuda/recurrent/recur.cuh"

namespace faststream {

namespace {

constexpr int kWarps = 8;
constexpr int kColumns = 4;  // of a lane
constexpr int kTile = 4;     // tokens that are prepared together

__device__ void add(float4& to, const float4& other) {
  to.x += other.x;
  to.y += other.y;
  to.z += other.z;
  to.w += other.w;
}
__device__ void add_product(float4& to, float factor, const float4& other) {
  to.x = fmaf(factor, other.x, to.x);
  to.y = fmaf(factor, other.y, to.y);
  to.z = fmaf(factor, other.z, to.z);
  to.w = fmaf(factor, other.w, to.w);
}
__device__ void multiply(float4& by, float factor) {
  by.x *= factor;
  by.y *= factor;
  by.z *= factor;
  by.w *= factor;
}

// Four columns of a row.
__device__ float4 load_four(const Matrix& m, int64_t row, int64_t column) {
  const auto element = [&](int i) {
    return load_element(m.data, m.dtype, row * m.stride + column + i);
  };
  return make_float4(element(0), element(1), element(2), element(3));
}

// Values of a tile's tokens, queries and keys, scaled, zero beyond key_dim; and how matrices
// change.
template <int kWidth, int kLanes, bool kByChannel>
struct Tile {
  float4 values[kTile][kLanes];
  float query[kTile][kWidth];
  float keys[kTile][kWidth];
  float decays[kTile][kByChannel ? kWidth : 1];  // of rows, or of all
  float strengths[kTile];

  // By all threads: of `count` tokens, which begin in a row; values from a column of the head on.
  __device__ void prepare(const RecurArguments& a, int head, int first_column, int64_t row,
                          int count) {
    const Recurrence& r = a.recurrence;
    static_assert(kTile * kLanes <= kWarps * kWarp);
    const int thread = static_cast<int>(threadIdx.x);
    const int column = first_column + thread % kLanes * kColumns;
    if (thread < count * kLanes && column < r.value_dim) {
      values[thread / kLanes][thread % kLanes] =
          load_four(a.v, row + thread / kLanes, int64_t{head} * r.value_dim + column);
    }
    const int64_t key_first = int64_t{head / (r.n_heads / r.n_key_heads)} * r.key_dim;
    constexpr int kRows = kByChannel ? 3 : 2;  // of each token
#pragma unroll 1
    for (int i = thread / kWarp; i < kRows * count; i += kWarps) {
      const int t = i / kRows;
      if (i % kRows == 0) {
        prepare_row<kWidth>(a.q, row + t, key_first, r, r.query_scale, query[t]);
      } else if (i % kRows == 1) {
        prepare_row<kWidth>(a.k, row + t, key_first, r, 1.0F, keys[t]);
      } else if constexpr (kByChannel) {
        prepare_decays<kWidth>(a, row + t, head, decays[t]);
      }
    }
    // By a warp that has no row of a token alone.
    const int t = thread - (kWarps - 1) * kWarp;
    if (t < 0 || t >= count) return;
    if constexpr (kByChannel) {
      strengths[t] = strength_of(a, row + t, head);
    } else {
      const TokenGates gates = gates_of(a, row + t, head);
      decays[t][0] = expf(gates.log_decay);
      strengths[t] = gates.strength;
    }
  }
};

// kLanes lanes have a row of the matrix; each part of them kKeys keys in a row.
template <int kLanes, int kKeys, bool kByChannel>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    recur_token_kernel(const RecurArguments a, Tokens tokens) {
  constexpr int kParts = kWarps * kWarp / kLanes;
  begin_kernel();
  __shared__ Tile<kParts * kKeys, kLanes, kByChannel> tile;
  __shared__ float4 sums[2][kParts][kLanes];  // by turns, so that one barrier a sum is enough
  const Recurrence& r = a.recurrence;
  const int s = blockIdx.z;
  const int head = blockIdx.y;
  const int64_t first = a.batch.query_start[s];
  const int n_tokens = a.batch.query_start[s + 1] - static_cast<int>(first);
  const int32_t kv_len = a.batch.kv_len[s];
  const TokenSpan span = span_of(tokens, kv_len, n_tokens);
  if (span.begin == span.end) return;
  const int lane = threadIdx.x % kLanes;
  const int part = threadIdx.x / kLanes;
  const int column = (blockIdx.x * kLanes + lane) * kColumns;
  const bool has_column = column < r.value_dim;
  const auto place = [&](int32_t n) {
    return a.states.data + n * a.states.stride +
           (int64_t{head} * r.key_dim + part * kKeys) * r.value_dim + column;
  };
  const auto has_key = [&](int i) { return has_column && part * kKeys + i < r.key_dim; };

  float4 state[kKeys];
  const float* from = place(span.begin == 0 ? a.batch.state_from[s] : a.batch.state_to[s]);
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    state[i] = has_key(i) ? *reinterpret_cast<const float4*>(from + int64_t{i} * r.value_dim)
                          : make_float4(0, 0, 0, 0);
  }
  const auto store = [&](float* to) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (has_key(i)) *reinterpret_cast<float4*>(to + int64_t{i} * r.value_dim) = state[i];
    }
  };
  const int until_border = border_of(kv_len) - (kv_len - n_tokens);
  const int32_t border = a.batch.state_border[s];
  const int64_t at = int64_t{head} * r.value_dim + column;

  int turn = 0;
  // Of all parts, in order.
  const auto sum_of_parts = [&](const float4& of_part) {
    auto& parts = sums[turn];
    turn ^= 1;
    parts[part][lane] = of_part;
    __syncthreads();
    float4 sum = parts[0][lane];
#pragma unroll
    for (int other = 1; other < kParts; ++other) add(sum, parts[other][lane]);
    return sum;
  };
#pragma unroll 1
  for (int token = span.begin; token < span.end; ++token) {
    const int t = (token - span.begin) % kTile;
    if (t == 0) {
      if (token > span.begin) __syncthreads();  // before tokens are written over
      tile.prepare(a, head, blockIdx.x * kLanes * kColumns, first + token,
                   min(kTile, span.end - token));
      __syncthreads();
    }
    const float4 value = tile.values[t][lane];
    const float* keys = &tile.keys[t][part * kKeys];
    const float* query = &tile.query[t][part * kKeys];
    const float decay = kByChannel ? 1.0F : tile.decays[t][0];  // of all of the matrix
    if constexpr (kByChannel) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) multiply(state[i], tile.decays[t][part * kKeys + i]);
    }
    float4 written = value;
    if (r.delta) {
      float4 known = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kKeys; ++i) add_product(known, keys[i], state[i]);
      add_product(written, -decay, sum_of_parts(known));
    }
    multiply(written, tile.strengths[t]);
    float4 result = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if constexpr (!kByChannel) multiply(state[i], decay);
      add_product(state[i], keys[i], written);
      add_product(result, query[i], state[i]);
    }
    result = sum_of_parts(result);
    if (border != 0 && token + 1 == until_border) store(place(border));
    if (part != 0 || !has_column) continue;
    if (r.skips != nullptr) add_product(result, r.skips[head], value);
    const float results[kColumns] = {result.x, result.y, result.z, result.w};
    for (int i = 0; i < kColumns; ++i) {
      store_element(a.out.data, a.out.dtype, (first + token) * a.out.stride + at + i, results[i]);
    }
  }
  store(place(a.batch.state_to[s]));
}

constexpr int kMostKeys = 32;  // of a part

// The kernel whose parts have keys enough.
template <int kLanes, bool kByChannel, int kKeys = 4>
void launch_with(const Queue& queue, const RecurArguments& arguments, Tokens tokens) {
  const Recurrence& r = arguments.recurrence;
  if constexpr (kKeys < kMostKeys) {
    if (token_keys_of_part(r) > kKeys) {
      return launch_with<kLanes, kByChannel, 2 * kKeys>(queue, arguments, tokens);
    }
  }
  const Grid grid{
      {static_cast<unsigned>(ceil_div(r.value_dim, kLanes * kColumns)),
       static_cast<unsigned>(r.n_heads), static_cast<unsigned>(arguments.batch.n_sequences)},
      kWarps * kWarp};
  queue.launch("going on with states", recur_token_kernel<kLanes, kKeys, kByChannel>, grid,
               arguments, tokens);
}

template <int kLanes>
void launch(const Queue& queue, const RecurArguments& arguments, Tokens tokens) {
  if (arguments.recurrence.by_channel) {
    launch_with<kLanes, true>(queue, arguments, tokens);
  } else {
    launch_with<kLanes, false>(queue, arguments, tokens);
  }
}

}  // namespace

bool recur_token_fits(const Recurrence& recurrence, const StateLayer& states) {
  return recurrence.value_dim % kColumns == 0 && states.stride % kColumns == 0 &&
         reinterpret_cast<uintptr_t>(states.data) % sizeof(float4) == 0 &&
         token_keys_of_part(recurrence) <= kMostKeys;
}

bool recur_token(const RecurArguments& arguments, Tokens tokens, const Queue& queue) {
  const Recurrence& r = arguments.recurrence;
  if (!recur_token_fits(r, arguments.states)) return false;
  if (token_parts(r) == kWarps * kWarp / (kWarp / 2)) {
    launch<kWarp / 2>(queue, arguments, tokens);
  } else {
    launch<kWarp>(queue, arguments, tokens);
  }
  return true;
}

}  // namespace faststream
