// A token of a recurrence.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/recurrent/recur.cuh"
#include "kernels/cuda/recurrent/recur_token.h"
#include "kernels/cuda/step_kernel/consumer_threads.cuh"

namespace faststream::step_kernel {

/// What kernels/cuda/recurrent/recur_token.cu computes, bit for bit. All consumers of a block have
/// 32 columns of a head's matrix, so that heads of a layer are on all multiprocessors: each lane
/// one column, each warp some keys in a row, which are one or two of the parts in which that
/// kernel's lanes sum. The matrix is in shared memory, so that there are loops: code that runs once
/// a layer is not in the instruction cache.
class Recurrer {
 public:
  explicit __device__ Recurrer(const RowMemory& rows) : rows_(rows) {}

  __device__ void recur(const RecurInstruction& r) const {
    for (int item = static_cast<int>(blockIdx.x); item < r.recurrence.n_heads * r.pieces;
         item += static_cast<int>(gridDim.x)) {
      const int head = item / r.pieces;
      recur(r, head, (item - head * r.pieces) * kWarp);
      synchronize();  // before what the warps share is another item's
    }
  }

 private:
  static constexpr int kMostParts = 16;
  struct Memory {
    alignas(16) float state[kMaxStateKeys][kWarp];
    float query[kMaxStateKeys];
    float keys[kMaxStateKeys];
    float sums[kMostParts][kWarp];
  };
  static_assert(sizeof(Memory) <= kMaxInputBytes);

  // Of columns from first_column on.
  __device__ void recur(const RecurInstruction& instruction, int head, int first_column) const {
    const Recurrence& r = instruction.recurrence;
    auto& memory = *reinterpret_cast<Memory*>(shared_memory().x);
    // This warp's keys, of which some may be past key_dim.
    const int n_keys = instruction.keys_of_part * instruction.parts_of_warp;
    const int first_key = warp() * n_keys;
    const int end = min(n_keys, r.key_dim - first_key);
    const int64_t place = (int64_t{head} * r.key_dim + first_key) * r.value_dim + first_column;
    const int column = first_column + lane();
    const bool has_column = column < r.value_dim;

    // Asked for before anything is awaited.
    fetch(instruction.state.before() + place, r.value_dim, min(kWarp, r.value_dim - first_column),
          n_keys, end, memory.state[first_key]);
    if (warp() < 2) {
      const bool is_query = warp() == 0;
      prepare(is_query ? instruction.q : instruction.k, head / instruction.heads_of_key, r,
              is_query ? r.query_scale : 1.0F, is_query ? memory.query : memory.keys);
    }
    // Value and gates: the words that have them.
    const auto* v = static_cast<const T*>(rows_.at(instruction.v)) + int64_t{head} * r.value_dim;
    const auto* gates = static_cast<const float*>(rows_.at(instruction.gates)) + head;
    uint32_t words[3];
    bring(
        words, instruction.v.awaited || instruction.gates.awaited,
        [&](int i) { return i == 0 ? has_column : i == 1 || r.delta; },
        [&](int i) {
          return i == 0 ? static_cast<const void*>(v + column / 2 * 2)
                        : gates + (i - 1) * r.n_heads;
        });
    const float value = half_of(words[0], column);
    const TokenGates changes =
        token_gates(r, head, __uint_as_float(words[1]), __uint_as_float(words[2]));
    const float decay = expf(changes.log_decay);
    wait_for_copies<0>();
    synchronize();

    float* state = memory.state[first_key] + lane();
    const float* keys = memory.keys + first_key;
    float written = value;
    if (r.delta) {
      sum_keys(instruction, memory,
               [&](int i, float& known) { known = fmaf(keys[i], state[i * kWarp], known); });
      written = fmaf(-decay, sum_of_parts(memory, instruction), written);
      synchronize();  // before sums are written again
    }
    written *= changes.strength;
    const float* query = memory.query + first_key;
    float* to = instruction.state.after() + place + lane();
    sum_keys(instruction, memory, [&](int i, float& result) {
      const float element = fmaf(keys[i], written, __fmul_rn(state[i * kWarp], decay));
      result = fmaf(query[i], element, result);
      if (has_column && i < end) to[i * r.value_dim] = element;
    });
    float sum = sum_of_parts(memory, instruction);
    if (r.skips != nullptr) sum = fmaf(r.skips[head], value, sum);
    if (warp() == 0) store(instruction, head * r.value_dim + column, has_column, sum);
  }

  // Begins to copy rows of so many columns, fours of them, `stride` apart; those from `end` on are
  // zeros. By a warp.
  static __device__ void fetch(const float* from, int stride, int columns, int rows, int end,
                               float* to) {
    const int column = lane() % 8 * 4;
#pragma unroll 1
    for (int row = lane() / 8; row < rows; row += kWarp / 8) {
      copy_async(shared_address(to + row * kWarp + column), from + int64_t{row} * stride + column,
                 row < end && column < columns);
    }
    close_copies();
  }

  // add(i, sum) for each of the warp's keys; a sum for each of its parts.
  template <typename Add>
  static __device__ void sum_keys(const RecurInstruction& instruction, Memory& memory,
                                  const Add& add) {
#pragma unroll 1
    for (int part = 0; part < instruction.parts_of_warp; ++part) {
      float sum = 0;
      const int first = part * instruction.keys_of_part;
#pragma unroll 4
      for (int i = 0; i < instruction.keys_of_part; ++i) add(first + i, sum);
      memory.sums[warp() * instruction.parts_of_warp + part][lane()] = sum;
    }
  }

  // Of a column, in order, once all warps have stored theirs.
  static __device__ float sum_of_parts(const Memory& memory, const RecurInstruction& instruction) {
    synchronize();
    float total = memory.sums[0][lane()];
#pragma unroll 4
    for (int part = 1; part < instruction.parts_of_warp * kConsumers; ++part) {
      total += memory.sums[part][lane()];
    }
    return total;
  }

  // A key head of queries or keys, once it is there, in shared memory: by a warp.
  __device__ void prepare(const Row& row, int key_head, const Recurrence& r, float scale,
                          float* to) const {
    constexpr int kTurns = kMaxStateKeys / kWarp;
    const auto* from = static_cast<const T*>(rows_.at(row)) + int64_t{key_head} * r.key_dim;
    const auto key = [](int turn) { return turn * kWarp + lane(); };
    uint32_t words[kTurns];
    bring(
        words, row.awaited, [&](int turn) { return key(turn) < r.key_dim; },
        [&](int turn) { return from + key(turn) / 2 * 2; });
    prepare_row<kMaxStateKeys>(
        r, scale, [&](int turn) { return half_of(words[turn], key(turn)); }, to);
  }

  // Element i of a row, of the word that has it.
  static __device__ float half_of(uint32_t word, int i) {
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
  }

  // By a warp: elements in a row of the result, two of an even lane.
  __device__ void store(const RecurInstruction& instruction, int index, bool exists,
                        float value) const {
    const float next = __shfl_down_sync(kAllLanes, value, 1);
    if (!exists || lane() % 2 != 0) return;
    const uint32_t pair = pack_pair<T>(value, next);
    if (instruction.result.offset >= 0) {
      publish(static_cast<T*>(rows_.at(instruction.result)) + index, pair);
    }
    if (instruction.out != nullptr) {
      *reinterpret_cast<uint32_t*>(static_cast<T*>(instruction.out) + index) = pair;
    }
  }

  RowMemory rows_;
};

}  // namespace faststream::step_kernel
