// A token of each sequence: its head's matrix is read once and written once.
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

// kLanes lanes have a row of the matrix; each part of them kKeys keys in a row.
template <int kLanes, int kKeys, bool kByChannel>
__global__ void __launch_bounds__(kWarps* kWarp, 2) recur_token_kernel(const RecurArguments a) {
  constexpr int kParts = kWarps * kWarp / kLanes;
  constexpr int kWidth = kParts * kKeys;
  begin_kernel();
  __shared__ float query[kWidth];
  __shared__ float keys[kWidth];
  __shared__ float decays[kByChannel ? kWidth : 1];
  __shared__ float4 sums[kParts][kLanes];
  const Recurrence& r = a.recurrence;
  const int s = blockIdx.z;
  const int head = blockIdx.y;
  const int64_t row = a.batch.query_start[s];
  if (a.batch.query_start[s + 1] == row) return;
  const int lane = threadIdx.x % kLanes;
  const int part = threadIdx.x / kLanes;
  const int column = (blockIdx.x * kLanes + lane) * kColumns;
  const bool has_column = column < r.value_dim;
  const auto place = [&](int32_t n) {
    return a.states.data + n * a.states.stride + int64_t{head} * r.key_dim * r.value_dim + column;
  };

  float4 state[kKeys];
  const float* from = place(a.batch.state_from[s]);
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const int key = part * kKeys + i;
    state[i] = has_column && key < r.key_dim
                   ? *reinterpret_cast<const float4*>(from + int64_t{key} * r.value_dim)
                   : make_float4(0, 0, 0, 0);
  }
  const int64_t key_first = int64_t{head / (r.n_heads / r.n_key_heads)} * r.key_dim;
  if (threadIdx.x < kWarp) {
    prepare_row<kWidth>(a.q, row, key_first, r, r.query_scale, query);
  } else if (threadIdx.x < 2 * kWarp) {
    prepare_row<kWidth>(a.k, row, key_first, r, 1.0F, keys);
  } else if constexpr (kByChannel) {
    if (threadIdx.x < 3 * kWarp) prepare_decays<kWidth>(a, row, head, decays);
  }
  float decay = 1;  // of all of the matrix
  float strength = 0;
  if constexpr (kByChannel) {
    strength = strength_of(a, row, head);
  } else {
    const TokenGates gates = gates_of(a, row, head);
    decay = expf(gates.log_decay);
    strength = gates.strength;
  }
  const int64_t at = int64_t{head} * r.value_dim + column;
  float4 value = make_float4(0, 0, 0, 0);
  if (has_column) {
    const auto element = [&](int i) {
      return load_element(a.v.data, a.v.dtype, row * a.v.stride + at + i);
    };
    value = make_float4(element(0), element(1), element(2), element(3));
  }
  __syncthreads();

  // Of all parts, in order.
  const auto sum_of_parts = [&](const float4& of_part) {
    sums[part][lane] = of_part;
    __syncthreads();
    float4 sum = sums[0][lane];
#pragma unroll
    for (int other = 1; other < kParts; ++other) add(sum, sums[other][lane]);
    return sum;
  };
  if constexpr (kByChannel) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) multiply(state[i], decays[part * kKeys + i]);
  }
  float4 written = value;
  if (r.delta) {
    float4 known = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) add_product(known, keys[part * kKeys + i], state[i]);
    known = sum_of_parts(known);
    add_product(written, -decay, known);
    __syncthreads();  // before sums are written again
  }
  multiply(written, strength);
  float4 result = make_float4(0, 0, 0, 0);
  float* to = place(a.batch.state_to[s]);
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const int key = part * kKeys + i;
    if constexpr (!kByChannel) multiply(state[i], decay);
    add_product(state[i], keys[key], written);
    add_product(result, query[key], state[i]);
    if (has_column && key < r.key_dim) {
      *reinterpret_cast<float4*>(to + int64_t{key} * r.value_dim) = state[i];
    }
  }
  result = sum_of_parts(result);
  if (part != 0 || !has_column) return;
  if (r.skips != nullptr) add_product(result, r.skips[head], value);
  const float results[kColumns] = {result.x, result.y, result.z, result.w};
  for (int i = 0; i < kColumns; ++i) {
    store_element(a.out.data, a.out.dtype, row * a.out.stride + at + i, results[i]);
  }
}

constexpr int kMostKeys = 32;  // of a part

// The kernel whose parts have keys enough.
template <int kLanes, bool kByChannel, int kKeys = 4>
void launch_with(const Queue& queue, const RecurArguments& arguments) {
  const Recurrence& r = arguments.recurrence;
  if constexpr (kKeys < kMostKeys) {
    if (token_keys_of_part(r) > kKeys) {
      return launch_with<kLanes, kByChannel, 2 * kKeys>(queue, arguments);
    }
  }
  const Grid grid{
      {static_cast<unsigned>(ceil_div(r.value_dim, kLanes * kColumns)),
       static_cast<unsigned>(r.n_heads), static_cast<unsigned>(arguments.batch.n_sequences)},
      kWarps * kWarp};
  queue.launch("going on with states", recur_token_kernel<kLanes, kKeys, kByChannel>, grid,
               arguments);
}

template <int kLanes>
void launch(const Queue& queue, const RecurArguments& arguments) {
  if (arguments.recurrence.by_channel) {
    launch_with<kLanes, true>(queue, arguments);
  } else {
    launch_with<kLanes, false>(queue, arguments);
  }
}

}  // namespace

bool recur_token_fits(const Recurrence& recurrence, const StateLayer& states) {
  return recurrence.value_dim % kColumns == 0 && states.stride % kColumns == 0 &&
         reinterpret_cast<uintptr_t>(states.data) % sizeof(float4) == 0 &&
         token_keys_of_part(recurrence) <= kMostKeys;
}

bool recur_token(const Queue& queue, const RecurArguments& arguments) {
  const Recurrence& r = arguments.recurrence;
  if (arguments.batch.max_query_len != 1 || !recur_token_fits(r, arguments.states)) return false;
  if (token_parts(r) == kWarps * kWarp / (kWarp / 2)) {
    launch<kWarp / 2>(queue, arguments);
  } else {
    launch<kWarp>(queue, arguments);
  }
  return true;
}

}  // namespace faststream
