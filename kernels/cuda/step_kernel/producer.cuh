// The warps of a block that copy weights, as far ahead as there is room.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention/attention_decode_mma.cuh"
#include "kernels/cuda/experts/choose_experts.cuh"
#include "kernels/cuda/step_kernel/shared_memory.cuh"

namespace faststream::step_kernel {

/// Copies weights. By kProducers warps, each a share of every stage's rows: to start a copy takes a
/// warp 90 clocks, and a stage has sixteen. The first warp also brings instructions and
/// says what a stage is.
class Producer {
 public:
  __device__ Producer(Shared& shared, const RowMemory& rows)
      : shared_(shared),
        rows_(rows),
        warp_(static_cast<int>(threadIdx.x - kConsumerThreads) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        policy_(evict_first_policy()) {}

  __device__ void run(const Instruction* instructions, int count) {
    // The next instruction is on its way while one is carried out.
    uint4 piece = fetched(instructions, 0, count);
    for (int i = 0; i < count; ++i) {
      const InstructionPlace place(i);
      Instruction& instruction = shared_.instructions[place.stage];
      if (leads()) {
        wait_for_phase(shared_.carried_out[place.stage], place.parity ^ 1);
        if (lane_ < kPieces) reinterpret_cast<uint4*>(&instruction)[lane_] = piece;
        arrive(shared_.fetched[place.stage]);
        piece = fetched(instructions, i + 1, count);
      }
      wait_for_phase(shared_.fetched[place.stage], place.parity);
      switch (instruction.kind) {
        case Instruction::Kind::attend:
          copy(instruction.attend);
          break;
        case Instruction::Kind::convolve:
          if (leads()) prefetch(instruction.convolve);
          break;
        case Instruction::Kind::recur:
          if (leads()) prefetch(instruction.recur);
          break;
        case Instruction::Kind::norm:
          if (leads()) prefetch(instruction.norm.norm.weight, instruction.norm.columns);
          break;
        case Instruction::Kind::multiply_floats:
          copy<1>(instruction.product);
          break;
        default:
          copy<kTileRows>(instruction.product);
      }
      if (!leads()) arrive(shared_.carried_out[place.stage]);
      __syncwarp();
    }
  }

 private:
  static constexpr int kPieces = sizeof(Instruction) / sizeof(uint4);
  static_assert(kPieces <= kWarp);

  [[nodiscard]] __device__ bool leads() const { return warp_ == 0; }

  // This lane's piece of instruction i.
  [[nodiscard]] __device__ uint4 fetched(const Instruction* instructions, int i, int count) const {
    if (!leads() || lane_ >= kPieces || i >= count) return {};
    return __ldg(reinterpret_cast<const uint4*>(instructions + i) + lane_);
  }

  // This block's share of what the other warps will read, into the L2 cache.
  __device__ void prefetch(const float* numbers, int64_t count) {
    constexpr int kLine = 128 / static_cast<int>(sizeof(float));
    if (numbers == nullptr) return;
    for (int64_t i = (blockIdx.x + int64_t{gridDim.x} * lane_) * kLine; i < count;
         i += int64_t{gridDim.x} * kWarp * kLine) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(numbers + i));
    }
  }

  __device__ void prefetch(const ConvolveInstruction& c) {
    const Convolution& convolution = c.convolution;
    prefetch(convolution.weight, int64_t{convolution.taps} * c.channels);
    prefetch(convolution.bias, c.channels);
    prefetch(c.state.before(), int64_t{convolution.taps - 1} * c.channels);
  }
  __device__ void prefetch(const RecurInstruction& r) {
    const Recurrence& recurrence = r.recurrence;
    prefetch(r.state.before(),
             int64_t{recurrence.n_heads} * recurrence.key_dim * recurrence.value_dim);
  }

  // Experts: each warp for itself. Who sums their results weighs them.
  __device__ void choose(const ProductInstruction& p) {
    p.n_experts <= 4 * kWarp ? choose_from<4>(p) : choose_from<kMaxExpertsChosenFrom / kWarp>(p);
  }
  template <int kEach>
  __device__ void choose_from(const ProductInstruction& p) {
    const auto* row = static_cast<const uint32_t*>(rows_.at(p.logits)) + lane_;
    uint32_t words[kEach];
    bring(
        words, p.logits.awaited, [&](int i) { return lane_ + i * kWarp < p.n_experts; },
        [&](int i) { return row + i * kWarp; });
    float logits[kEach];
    memcpy(logits, words, sizeof logits);
    Choice& choice = shared_.choices[warp_];
    take_experts(logits, p.n_experts, p.router, choice.experts, choice.weights, choice.memory);
    __syncwarp();
  }

  // Until the next stage may be filled.
  __device__ void await_room(const Place& place) {
    wait_for_phase(shared_.empty[place.stage], place.parity ^ 1);
    const bool looks = load_relaxed(shared_.looks) != 0;
    const uint32_t most = looks ? kOnTheWayBeside : kOnTheWay;
    if (filled_ >= most) {
      const Place before(filled_ - most);
      wait_for_phase(shared_.full[before.stage], before.parity);
    }
  }
  // That this warp's copies bring so many bytes of it.
  __device__ void announce(uint64_t& full, uint32_t bytes) {
    if (lane_ == 0) {
      arrive_and_expect(full, bytes);
      if (leads()) release(shared_.announced, filled_ + 1);
    }
    __syncwarp();
  }

  // A stage for each turn of an attention's warp, or two: the first producer brings its tokens'
  // keys, the second their values. Only those of the query's own token are yet to be written. Few
  // blocks have them, and little, so they are asked for as soon as there is room.
  __device__ void copy(const AttendInstruction& a) {
    const AttentionArguments& attention = a.attention;
    const KvLayer& kv = attention.kv;
    if (leads() && a.transform.norm != NormKind::none) {
      prefetch(a.transform.q_weight, int64_t{attention.n_heads} * kv.head_dim);
      prefetch(a.transform.k_weight, int64_t{kv.n_kv_heads} * kv.head_dim);
    }
    const auto* from = static_cast<const T*>(leads() ? kv.k : kv.v);
    const int elements = kDecodeTokens * kv.head_dim;
    const auto bytes = static_cast<uint32_t>(elements * sizeof(T));
    const int stages = are_wide(kv.head_dim) ? 2 : 1;
    const ItemsOfBlock mine(a);
    for (int item = mine.first(); item < mine.items; item += mine.step()) {
      const Split split = mine.split(item);
      int32_t page = 0;  // of 32 in a row, this lane's
      for (int base = split.first; base < split.last; base += kDecodeTokens) {
        const int nth = (base - split.first) / kPageTokens % kWarp;
        if ((base - split.first) % (kPageTokens * kWarp) == 0) {
          const int from_table = base / kPageTokens + lane_;
          if (from_table < pages_for(split.last)) page = attention.page_table[from_table];
        }
        const int64_t its_page = __shfl_sync(kAllLanes, page, nth);
#pragma unroll 1
        for (int stage = 0; stage < stages; ++stage, ++filled_) {
          const Place place(filled_);
          wait_for_phase(shared_.empty[place.stage], place.parity ^ 1);
          uint64_t& full = shared_.full[place.stage];
          const bool copies = warp_ < 2 && (stages == 1 || warp_ == stage);
          announce(full, copies ? bytes : 0);
          if (copies && lane_ == 0) {
            copy_bulk(shared_address(shared_.ring[place.stage].weights) +
                          (stages == 1 ? warp_ * bytes : 0),
                      from + row_of_token(kv, its_page, split.kv_head, base) * kv.head_dim, bytes,
                      full, policy_);
          }
          __syncwarp();
        }
      }
    }
  }

  template <int kRows>
  __device__ void copy(const ProductInstruction& p) {
    if (leads()) prefetch(p.norm.weight, p.inputs);
    const int64_t most = kRows == 1 ? sizeof(Stage::weights) : p.chunk_bytes;
    constexpr int kShare = kRows == 1 ? 1 : kRows / kProducers;  // rows
    const auto* weight = static_cast<const unsigned char*>(p.weight);
    const int64_t row_bytes = p.row_bytes;
    const int outputs = p.outputs;
    const int64_t expert_rows = p.gated ? 2 * int64_t{outputs} : outputs;
    const bool of_experts = p.n_experts > 0;
    const int parts = parts_of(p);
    const bool has_scales = kRows > 1 && p.to.scales != nullptr;
    const bool has_biases = kRows > 1 && p.to.bias != nullptr;

    const TilesOfBlock mine(p);
    if (kRows > 1 && in_turn(p)) choose(p);
    for (int n = 0; n < mine.count; ++n) {
      const int t = mine[n];
      const int nth = kRows > 1 && in_turn(p) ? t / p.tiles : 0;  // expert
      const int tile = t - nth * p.tiles;
      // The row of the tile that this lane copies, that of the weight, and whether there is one.
      const int in_tile = warp_ * kShare + lane_;
      int output = tile * kRows + in_tile;
      int64_t row = output;
      if (kRows > 1 && p.gated) {
        output = tile * (kRows / 2) + in_tile % (kTileRows / 2);
        row = in_tile < kRows / 2 ? output : int64_t{outputs} + output;
      }
      const bool exists = lane_ < kShare && in_tile < kRows && output < outputs;
      const auto rows = static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, exists)));
      for (int part = 0; part < parts; ++part) {
        const int64_t expert = of_experts ? shared_.choices[warp_].experts[nth + part] : 0;
        const int64_t channel = expert * expert_rows + row;
        const unsigned char* from = weight + channel * row_bytes;
        int chunk = 0;
        for (int64_t first = 0; first < row_bytes; first += most, ++filled_, ++chunk) {
          const auto bytes = static_cast<uint32_t>(min(most, row_bytes - first));
          const bool ends_row = first + most >= row_bytes;
          const uint32_t more = ends_row ? (has_scales + has_biases) * sizeof(float) : 0;
          const Place place(filled_);
          await_room(place);
          uint64_t& full = shared_.full[place.stage];
          Stage& stage = shared_.ring[place.stage];
          if (lane_ == 0 && leads()) {
            stage.tile = tile;
            stage.row = nth;
            stage.part = part;
            stage.chunk = chunk;
          }
          announce(full, rows * (bytes + more));
          if (exists) {
            copy_bulk(shared_address(stage.weights) + in_tile * kPitch, from + first, bytes, full,
                      policy_);
          }
          // Channels four by four.
          if (ends_row && exists && lane_ % 4 == 0) {
            if (has_scales) {
              copy_bulk(shared_address(stage.scales + in_tile), p.to.scales + channel, 16, full,
                        policy_);
            }
            if (has_biases) {
              copy_bulk(shared_address(stage.biases + in_tile), p.to.bias + channel, 16, full,
                        policy_);
            }
          }
        }
      }
    }
  }

  Shared& shared_;
  RowMemory rows_;
  int warp_;  // of the producers
  int lane_;
  uint64_t policy_;
  uint32_t filled_ = 0;  // stages, in all
};

}  // namespace faststream::step_kernel
