// Matrices that go from token to token, or over whole pages of tokens at once.
//
//   pages of which the step has all tokens, 16-bit queries, keys and
//   values, rows at multiples of 16 bytes, keys and values of
//   multiples of 16 elements, all of a head's matrix decaying alike   recur_chunks.cu
//   other pages                                                       token by token, here
//   a piece's tokens before and after these, decode, columns in fours recur_token.cu
//     of a sequence alone, on Hopper                                    in the step's kernel
//   else                                                              token by token, here
//
// So a token's result depends on its position and the text alone, as long as pieces of prompts end
// at page borders, and not on what else the step computes.
//
// Token by token: a warp has 8 columns of a head's matrix in registers while tokens pass: lane l
// has column l % 8 and, of each 16 keys, the 4 from 4 (l / 8) on. So a key's columns are a sector
// of memory, and sums over keys need two exchanges between lanes. A block's warps share queries and
// keys, which they prepare for several tokens at a time.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/recurrent/recur.cuh"
#include "kernels/cuda/recurrent/recur_token.h"
#include "kernels/cuda/types.cuh"
#include "support/error.h"

namespace faststream {

namespace {

constexpr int kWarps = 4;
constexpr int kColumns = 8;                       // of a warp
constexpr int kBlockColumns = kWarps * kColumns;  // of a block
constexpr int kParts = kWarp / kColumns;          // lanes that share a column
constexpr int kKeys = 4;                          // that a lane has in a row
constexpr int kGroup = kParts * kKeys;            // keys that a column's lanes have in a row
// Tokens that are prepared together.
template <bool kByChannel>
constexpr int kTile = kByChannel ? 8 : 16;
constexpr int kMostGroups = 16;

// Queries and keys of a tile's tokens, scaled, zero beyond key_dim; and how matrices change.
template <int kGroups, bool kByChannel>
struct Tile {
  static constexpr int kTokens = kTile<kByChannel>;
  static constexpr int kKeyDim = kGroups * kGroup;
  float q[kTokens][kKeyDim];
  float k[kTokens][kKeyDim];
  float decays[kTokens][kByChannel ? kKeyDim : 1];  // of rows, or of all
  float strengths[kTokens];
};

__device__ float sum_of_parts(float value) {
#pragma unroll
  for (int distance = kColumns; distance < kWarp; distance *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

template <int kGroups, bool kByChannel>
__global__ void __launch_bounds__(kWarps* kWarp)
    recur_kernel(const RecurArguments a, Tokens tokens) {
  begin_kernel();
  using TileOf = Tile<kGroups, kByChannel>;
  __shared__ TileOf tile;
  const Recurrence& r = a.recurrence;
  const int s = blockIdx.z;
  const int head = blockIdx.y;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int part = lane / kColumns;
  const int column = blockIdx.x * kBlockColumns + warp * kColumns + lane % kColumns;
  const bool has_column = column < r.value_dim;
  const int64_t first = a.batch.query_start[s];
  const int n_tokens = a.batch.query_start[s + 1] - static_cast<int>(first);
  const int32_t kv_len = a.batch.kv_len[s];
  const TokenSpan span = span_of(tokens, kv_len, n_tokens);
  if (span.begin == span.end) return;
  const int64_t key_first = int64_t{head / (r.n_heads / r.n_key_heads)} * r.key_dim;

  float state[kGroups][kKeys];
  const auto key_of = [&](int group, int i) { return group * kGroup + part * kKeys + i; };
  const auto place = [&](int32_t n) {
    return a.states.data + n * a.states.stride + int64_t{head} * r.key_dim * r.value_dim + column;
  };
  const auto store = [&](float* to) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        const int key = key_of(group, i);
        if (has_column && key < r.key_dim) to[int64_t{key} * r.value_dim] = state[group][i];
      }
    }
  };
  const float* from = place(span.begin == 0 ? a.batch.state_from[s] : a.batch.state_to[s]);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = key_of(group, i);
      state[group][i] = has_column && key < r.key_dim ? from[int64_t{key} * r.value_dim] : 0.0F;
    }
  }
  const int until_border = border_of(kv_len) - (kv_len - n_tokens);
  const int32_t border = a.batch.state_border[s];
  const float skip = r.skips != nullptr ? r.skips[head] : 0.0F;

  for (int begin = span.begin; begin < span.end; begin += TileOf::kTokens) {
    const int count = min(TileOf::kTokens, span.end - begin);
    __syncthreads();
    constexpr int kRows = kByChannel ? 3 : 2;  // of each token
    for (int i = warp; i < kRows * count; i += kWarps) {
      const int t = i / kRows;
      const int64_t row = first + begin + t;
      if (i % kRows == 0) {
        prepare_row<TileOf::kKeyDim>(a.q, row, key_first, r, r.query_scale, tile.q[t]);
      } else if (i % kRows == 1) {
        prepare_row<TileOf::kKeyDim>(a.k, row, key_first, r, 1.0F, tile.k[t]);
      } else if constexpr (kByChannel) {
        prepare_decays<TileOf::kKeyDim>(a, row, head, tile.decays[t]);
      }
    }
    if (threadIdx.x < count) {
      const int64_t row = first + begin + threadIdx.x;
      if constexpr (kByChannel) {
        tile.strengths[threadIdx.x] = strength_of(a, row, head);
      } else {
        const TokenGates gates = gates_of(a, row, head);
        tile.decays[threadIdx.x][0] = expf(gates.log_decay);
        tile.strengths[threadIdx.x] = gates.strength;
      }
    }
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      const int64_t row = first + begin + t;
      const int64_t at = int64_t{head} * r.value_dim + column;
      const float value =
          has_column ? load_element(a.v.data, a.v.dtype, row * a.v.stride + at) : 0.0F;
      float known = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const float4 k = *reinterpret_cast<const float4*>(&tile.k[t][key_of(group, 0)]);
        const float keys[kKeys] = {k.x, k.y, k.z, k.w};
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
          state[group][i] *= tile.decays[t][kByChannel ? key_of(group, i) : 0];
          known = fmaf(state[group][i], keys[i], known);
        }
      }
      if (r.delta) known = sum_of_parts(known);
      const float written = tile.strengths[t] * (r.delta ? value - known : value);
      float sum = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const float4 k = *reinterpret_cast<const float4*>(&tile.k[t][key_of(group, 0)]);
        const float4 q = *reinterpret_cast<const float4*>(&tile.q[t][key_of(group, 0)]);
        const float keys[kKeys] = {k.x, k.y, k.z, k.w};
        const float queries[kKeys] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
          state[group][i] = fmaf(keys[i], written, state[group][i]);
          sum = fmaf(state[group][i], queries[i], sum);
        }
      }
      sum = sum_of_parts(sum);
      if (part == 0 && has_column) {
        store_element(a.out.data, a.out.dtype, row * a.out.stride + at, fmaf(skip, value, sum));
      }
      if (border != 0 && begin + t + 1 == until_border) store(place(border));
    }
  }
  store(place(a.batch.state_to[s]));
}

// The kernel for keys of so many groups.
template <bool kByChannel, int kGroups = 2>
void launch_with(const Queue& queue, const Grid& grid, const RecurArguments& arguments,
                 Tokens tokens) {
  if constexpr (kGroups < kMostGroups) {
    if (arguments.recurrence.key_dim > kGroups * kGroup) {
      return launch_with<kByChannel, 2 * kGroups>(queue, grid, arguments, tokens);
    }
  }
  queue.launch("going on with states", recur_kernel<kGroups, kByChannel>, grid, arguments, tokens);
}

void launch_recurrence(const Queue& queue, const Grid& grid, const RecurArguments& arguments,
                       Tokens tokens) {
  if (arguments.recurrence.by_channel) {
    launch_with<true>(queue, grid, arguments, tokens);
  } else {
    launch_with<false>(queue, grid, arguments, tokens);
  }
}

}  // namespace

void CudaBackend::recur(const BatchView& batch, const Matrix& q, const Matrix& k, const Matrix& v,
                        const Matrix& gates, const Recurrence& recurrence, const StateLayer& states,
                        const Matrix& out) {
  constexpr int kMostKeys = kMostGroups * kGroup;
  if (recurrence.key_dim > kMostKeys) {
    throw Error("recurrent layers with keys or states of more than " + std::to_string(kMostKeys) +
                " elements do not run on a GPU; use --device cpu");
  }
  if (batch.n_tokens == 0) return;
  const RecurArguments arguments{batch, q, k, v, gates, recurrence, states, out};
  if (step_kernel_.recur(arguments)) return;
  const auto pieces =
      static_cast<unsigned>((recurrence.value_dim + kBlockColumns - 1) / kBlockColumns);
  const Grid grid{
      {pieces, static_cast<unsigned>(recurrence.n_heads), static_cast<unsigned>(batch.n_sequences)},
      kWarps * kWarp};
  const auto go_over_few = [&](Tokens tokens) {
    if (!recur_token(arguments, tokens, queue())) {
      launch_recurrence(queue(), grid, arguments, tokens);
    }
  };
  go_over_few(Tokens::before_pages);
  if (batch.max_query_len < kPageTokens) return;
  if (chunks_fit(arguments)) {
    const ScratchPiece piece = chunks_piece(batch.n_tokens / kPageTokens, recurrence.n_heads);
    recur_chunks(arguments, scratch_.at_least(piece.bytes), is_hopper_, queue());
  } else {
    launch_recurrence(queue(), grid, arguments, Tokens::pages);
  }
  go_over_few(Tokens::after_pages);
}

}  // namespace faststream
