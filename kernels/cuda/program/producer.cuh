// The warp of a block that copies weights, as far ahead as there is room.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention/attention_split.cuh"
#include "kernels/cuda/experts/choose_experts.cuh"
#include "kernels/cuda/program/shared_memory.cuh"

namespace faststream::program {

/// Copies weights. By one warp.
class Producer {
 public:
  __device__ Producer(Shared& shared, const RowMemory& rows)
      : shared_(shared),
        rows_(rows),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        policy_(evict_first_policy()) {}

  __device__ void run(const Instruction* instructions, int count) {
    // The next instruction is on its way while one is carried out.
    constexpr int kPieces = sizeof(Instruction) / sizeof(uint4);
    static_assert(kPieces <= kWarp);
    uint4 piece{};
    const auto fetch = [&](int i) {
      if (lane_ < kPieces && i < count) {
        piece = __ldg(reinterpret_cast<const uint4*>(instructions + i) + lane_);
      }
    };
    fetch(0);
    for (int i = 0; i < count; ++i) {
      const InstructionPlace place(i);
      wait_for_phase(shared_.carried_out[place.stage], place.parity ^ 1);
      Instruction& instruction = shared_.instructions[place.stage];
      if (lane_ < kPieces) reinterpret_cast<uint4*>(&instruction)[lane_] = piece;
      if (lane_ == 0) shared_.ends[place.stage] = kNotEnded;
      __syncwarp();
      if (lane_ == 0) arrive(shared_.fetched[place.stage]);
      fetch(i + 1);
      if (instruction.kind == Instruction::Kind::attend) {
        prefetch(instruction.attend);
        continue;
      }
      const ProductInstruction& p = instruction.product;
      prefetch(p.norm.weight, p.inputs);
      if (in_turn(p)) choose(p);
      if (instruction.kind == Instruction::Kind::multiply_floats) {
        copy<1>(p);
      } else {
        copy<kTileRows>(p);
      }
      if (lane_ == 0) release(shared_.ends[place.stage], filled_);
    }
  }

 private:
  // This block's share of what the other warps will read, into the L2 cache.
  __device__ void prefetch(const float* numbers, int64_t count) {
    constexpr int kLine = 128 / static_cast<int>(sizeof(float));
    if (numbers == nullptr) return;
    for (int64_t i = (blockIdx.x + int64_t{gridDim.x} * lane_) * kLine; i < count;
         i += int64_t{gridDim.x} * kWarp * kLine) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(numbers + i));
    }
  }
  // Pages that are seen: all but the last are not written any more.
  __device__ void prefetch(const AttendInstruction& a) {
    const AttentionArguments& attention = a.attention;
    const KvLayer& kv = attention.kv;
    const int kv_len = a.kv_len;
    if (a.transform.norm != NormKind::none) {
      prefetch(a.transform.q_weight, int64_t{attention.n_heads} * kv.head_dim);
      prefetch(a.transform.k_weight, int64_t{kv.n_kv_heads} * kv.head_dim);
    }
    const int first = first_split_token(attention, kv_len) / kPageTokens;
    const int pages = (kv_len - 1) / kPageTokens - first;
    const int64_t head_bytes = int64_t{kPageTokens} * kv.head_dim * static_cast<int64_t>(sizeof(T));
    for (int i = static_cast<int>(blockIdx.x + gridDim.x * lane_); i < pages * kv.n_kv_heads;
         i += static_cast<int>(gridDim.x) * kWarp) {
      const int64_t page = attention.page_table[first + i / kv.n_kv_heads];
      const int64_t offset = (page * kv.n_kv_heads + i % kv.n_kv_heads) * head_bytes;
      prefetch_bulk(static_cast<const unsigned char*>(kv.k) + offset, head_bytes);
      prefetch_bulk(static_cast<const unsigned char*>(kv.v) + offset, head_bytes);
    }
  }

  __device__ void choose(const ProductInstruction& p) {
    constexpr int kEach = 4;
    const auto* logits = static_cast<const uint32_t*>(rows_.at(p.logits));
    for (int first = 0; first < p.n_experts; first += kEach * kWarp) {
      const auto expert = [&](int i) { return first + i * kWarp + lane_; };
      uint32_t words[kEach];
      bring(words, p.logits.awaited,
            [&](int i) { return expert(i) < p.n_experts ? logits + expert(i) : nullptr; });
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (expert(i) < p.n_experts) shared_.logits[expert(i)] = __uint_as_float(words[i]);
      }
    }
    __syncwarp();
    choose_experts(shared_.logits, p.n_experts, p.router, shared_.experts, shared_.expert_weights,
                   shared_.choice);
    __syncwarp();
  }

  // The tiles that this block takes, one after the other.
  template <int kRows>
  __device__ void copy(const ProductInstruction& p) {
    constexpr int64_t kBytes = kRows == 1 ? sizeof(Stage::weights) : kChunkBytes;
    const auto* weight = static_cast<const unsigned char*>(p.weight);
    const int64_t row_bytes = p.row_bytes;
    const int outputs = p.outputs;
    const int64_t expert_rows = p.gated ? 2 * int64_t{outputs} : outputs;
    const bool of_experts = p.n_experts > 0;
    const bool sums = p.sums_experts;
    const int parts = parts_of(p);
    const auto blocks = static_cast<int>(gridDim.x);

    int t = first_tile(p);
    while (t < p.all_tiles) {
      // Which tile is next is known by the time that this one is copied.
      uint32_t taken = 0;
      if (lane_ == 0) taken = take_tile(p);
      const int tile = sums || !of_experts ? t : t % p.tiles;
      // The row of the weight that this lane copies, and whether there is one.
      int output = tile * kRows + lane_;
      int64_t row = output;
      if (kRows > 1 && p.gated) {
        output = tile * (kRows / 2) + lane_ % (kTileRows / 2);
        row = lane_ < kRows / 2 ? output : int64_t{outputs} + output;
      }
      const bool exists = lane_ < kRows && output < outputs;
      const auto rows = static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, exists)));
      for (int part = 0; part < parts; ++part) {
        const int64_t expert = !of_experts ? 0 : shared_.experts[sums ? part : t / p.tiles];
        const int64_t channel = expert * expert_rows + row;
        const unsigned char* from = weight + channel * row_bytes;
        int chunk = 0;
        for (int64_t first = 0; first < row_bytes; first += kBytes, ++filled_, ++chunk) {
          const auto bytes = static_cast<uint32_t>(min(kBytes, row_bytes - first));
          const bool has_scales = kRows > 1 && first + kBytes >= row_bytes;
          const uint32_t more = has_scales ? (p.to.bias != nullptr ? 2 : 1) * sizeof(float) : 0;
          const Place place(filled_);
          wait_for_phase(shared_.empty[place.stage], place.parity ^ 1);
          if (filled_ >= kOnTheWay) {
            const Place before(filled_ - kOnTheWay);
            wait_for_phase(shared_.full[before.stage], before.parity);
          }
          uint64_t& full = shared_.full[place.stage];
          Stage& stage = shared_.ring[place.stage];
          if (lane_ == 0) {
            stage.tile = t;
            stage.part = part;
            stage.chunk = chunk;
            arrive_and_expect(full, rows * (bytes + more));
            release(shared_.announced, filled_ + 1);
          }
          __syncwarp();
          if (exists) {
            copy_bulk(shared_address(stage.weights) + lane_ * kPitch, from + first, bytes, full,
                      policy_);
          }
          // Channels four by four.
          if (has_scales && exists && lane_ % 4 == 0) {
            copy_bulk(shared_address(stage.scales + lane_), p.to.scales + channel, 16, full,
                      policy_);
            if (p.to.bias != nullptr) {
              copy_bulk(shared_address(stage.biases + lane_), p.to.bias + channel, 16, full,
                        policy_);
            }
          }
        }
      }
      t = blocks + static_cast<int>(__shfl_sync(kAllLanes, taken, 0));
    }
  }
  // The number of a tile that no block has, after the first of each.
  __device__ uint32_t take_tile(const ProductInstruction& p) const {
    uint32_t before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(rows_.data + p.next_tile)
                 : "memory");
    return before + 1;  // it began with kUnset
  }

  Shared& shared_;
  RowMemory rows_;
  int lane_;
  uint64_t policy_;
  uint32_t filled_ = 0;  // stages, in all
};

}  // namespace faststream::program
