// The warps of a block that copy weights, as far ahead as there is room.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention/attention_decode_mma.cuh"
#include "kernels/cuda/experts/choose_experts.cuh"
#include "kernels/cuda/step_kernel/shared_memory.cuh"

namespace faststream::step_kernel {

/// Copies weights. By teams of two warps, whose the stages are in turn, half of a stage's rows
/// each: to begin a copy takes a warp 35 clocks, what comes before a stage's 600. The first warp
/// also brings instructions.
class Producer {
 public:
  __device__ Producer(Shared& shared, const RowMemory& rows)
      : shared_(shared),
        rows_(rows),
        warp_(static_cast<int>(threadIdx.x - kConsumerThreads) / kWarp),
        team_(warp_ / kTeamProducers),
        share_(warp_ % kTeamProducers),
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
        case Instruction::Kind::prepare:
          if (leads()) prefetch(instruction.product.norm.weight, instruction.product.inputs);
          break;
        case Instruction::Kind::multiply_floats:
          copy<1>(instruction.product, false);
          break;
        default:
          copy<kTileRows>(instruction.product,
                          instruction.kind == Instruction::Kind::multiply_in_order);
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
    Choice& choice = shared_.one.choices[warp_];
    take_experts(logits, p.n_experts, p.router, choice.experts, choice.weights, choice.memory);
    __syncwarp();
  }

  // Whether stage number filled_ is this warp's team's.
  [[nodiscard]] __device__ bool is_mine() const {
    return filled_ % kProducerTeams == static_cast<uint32_t>(team_);
  }
  // Until stage number filled_ may be filled.
  __device__ void await_empty(const Place& place) {
    wait_for_phase(shared_.empty[place.stage], place.parity ^ 1);
  }
  // Until copies of it may begin, too.
  __device__ void await_room(const Place& place) {
    await_empty(place);
    const bool looks = load_relaxed(shared_.looks) != 0;
    const uint32_t most = looks ? kOnTheWayBeside : kOnTheWay;
    if (filled_ >= most) await_full(filled_ - most);
  }
  // Until stage number n is full, or has been: where the other team has filled its place again
  // since, the barrier's parity says nothing of it.
  __device__ void await_full(uint32_t n) {
    const Place place(n);
    while (acquire(shared_.announced[n % kProducerTeams]) <= n + kStages &&
           !try_wait_for_phase(shared_.full[place.stage], place.parity)) {
    }
  }
  // That this warp's copies bring so many bytes of it. By one lane.
  __device__ void announce(const Place& place, uint32_t bytes) {
    arrive_and_expect(shared_.full[place.stage], bytes);
    if (share_ == 0) release(shared_.announced[team_], filled_ + 1);
  }

  // A stage for each turn of an attention's warp, or two: a team's first warp brings its tokens'
  // keys, the second their values. Only those of the query's own token are yet to be written. Few
  // blocks have them, and little, so they are asked for as soon as there is room.
  __device__ void copy(const AttendInstruction& a) {
    const AttentionArguments& attention = a.attention;
    const KvLayer& kv = attention.kv;
    if (leads() && a.transform.norm != NormKind::none) {
      prefetch(a.transform.q_weight, int64_t{attention.n_heads} * kv.head_dim);
      prefetch(a.transform.k_weight, int64_t{kv.n_kv_heads} * kv.head_dim);
    }
    const auto* from = static_cast<const T*>(share_ == 0 ? kv.k : kv.v);
    const int elements = kDecodeTokens * kv.head_dim;
    const auto bytes = static_cast<uint32_t>(elements * sizeof(T));
    const int stages = are_wide(kv.head_dim) ? 2 : 1;
    const ItemsOfBlock mine(a);
    for (int item = mine.first(); item < mine.items; item += mine.step()) {
      const Split split = mine.split(item);
      const int32_t* page_table =
          attention.page_table + split.sequence * int64_t{attention.max_pages};
      int32_t page = 0;  // of 32 in a row, this lane's
      for (int base = split.first; base < split.last; base += kDecodeTokens) {
        const int nth = (base - split.first) / kPageTokens % kWarp;
        if ((base - split.first) % (kPageTokens * kWarp) == 0) {
          const int from_table = base / kPageTokens + lane_;
          if (from_table < pages_for(split.last)) page = page_table[from_table];
        }
        const int64_t its_page = __shfl_sync(kAllLanes, page, nth);
        const int64_t row = row_of_token(kv, its_page, split.kv_head, base);
#pragma unroll 1
        for (int stage = 0; stage < stages; ++stage, ++filled_) {
          if (!is_mine()) continue;
          const Place place(filled_);
          await_empty(place);
          const bool copies = stages == 1 || share_ == stage;
          if (is_elected()) {
            announce(place, copies ? bytes : 0);
            const uint32_t to = shared_address(shared_.ring[place.stage].weights);
            if (copies) {
              copy_bulk(to + (stages == 1 ? share_ * bytes : 0), from + row * kv.head_dim, bytes,
                        shared_.full[place.stage], policy_);
            }
          }
          __syncwarp();
        }
      }
    }
  }

  // Which of a block's stages of a product comes next.
  struct Next {
    int tile;  // of its weight
    int row;   // of the result
    int part = 0;
    int chunk = 0;
  };

  // in_order: two tiles' stages come by turns (StagesOfTile), as long as there are two.
  template <int kRows>
  __device__ void copy(const ProductInstruction& p, bool in_order) {
    static_assert(StagesOfTile::kAbreast == kProducerTeams);
    if (leads()) prefetch(p.norm.weight, p.inputs);
    const int chunk_bytes = kRows == 1 ? static_cast<int>(sizeof(Stage::weights)) : p.chunk_bytes;
    const int chunks = ceil_div(p.streamed_bytes, chunk_bytes);
    const int parts = parts_of(p);
    const TilesOfBlock mine(p);
    const auto* weights =
        static_cast<const unsigned char*>(p.weight) + int64_t{mine.part} * p.streamed_bytes;
    const uint32_t end = filled_ + static_cast<uint32_t>(mine.count * parts * chunks);
    if (kRows > 1 && in_turn(p)) choose(p);
    const int own = static_cast<int>((team_ - filled_) % kProducerTeams);  // the team's first stage
    int left = mine.count;                                                 // tiles
    bool by_turns = in_order && left > 1;
    Next next{mine.first, 0};
    const auto go_on = [&](int stages) {
      next.chunk += stages;
      while (next.chunk >= chunks) {
        next.chunk -= chunks;
        if (++next.part < parts) continue;
        next.part = 0;
        const int tiles = by_turns ? kProducerTeams : 1;
        next.tile += tiles * mine.step;
        left -= tiles;
        if (by_turns && left == 1) {  // the last one's stages are both teams'
          by_turns = false;
          next.tile -= own * mine.step;
          next.chunk = own;
        }
      }
      while (next.tile >= p.tiles) {
        next.tile -= p.tiles;
        ++next.row;
      }
    };
    if (by_turns) next.tile += own * mine.step;
    go_on(by_turns ? 0 : own);
    for (filled_ += own; filled_ < end; filled_ += kProducerTeams) {
      copy<kRows>(p, weights, next, chunk_bytes);
      go_on(by_turns ? 1 : kProducerTeams);
    }
    filled_ = end;
  }

  // A chunk of this warp's half of a tile's rows, and behind the last what is beside them. Rows of
  // gates are the first half, those of ups the second.
  template <int kRows>
  __device__ void copy(const ProductInstruction& p, const unsigned char* weights, const Next& next,
                       int chunk_bytes) {
    constexpr int kShare = kRows / kTeamProducers > 0 ? kRows / kTeamProducers : 1;  // rows
    const int64_t row_bytes = p.row_bytes;
    const int outputs = p.outputs;
    const int in_tile = share_ * kShare;
    int output = next.tile * kRows + in_tile;
    int64_t row = output;
    if (kRows > 1 && p.gated) {
      output = next.tile * kShare;
      row = output + share_ * int64_t{outputs};
    }
    if (p.n_experts > 0) {
      const int64_t expert = shared_.one.choices[warp_].experts[next.row + next.part];
      row += expert * (p.gated ? 2 : 1) * outputs;
    }
    const int count = in_tile < kRows ? min(max(outputs - output, 0), kShare) : 0;
    const int before = next.chunk * chunk_bytes;
    const auto bytes = static_cast<uint32_t>(min(chunk_bytes, p.streamed_bytes - before));
    const bool ends_row = kRows > 1 && count > 0 && before + chunk_bytes >= p.streamed_bytes;
    const float* scales = ends_row && p.to.scales != nullptr ? p.to.scales + row : nullptr;
    const float* biases = ends_row && p.to.bias != nullptr ? p.to.bias + row : nullptr;
    const auto beside = static_cast<uint32_t>(count * sizeof(float));
    const unsigned char* from = weights + row * row_bytes + before;
    const Place place(filled_);
    await_room(place);
    if (is_elected()) {
      Stage& stage = shared_.ring[place.stage];
      uint64_t& full = shared_.full[place.stage];
      if (share_ == 0) {
        stage.tile = next.tile;
        stage.row = next.row;
        stage.part = next.part;
        stage.chunk = next.chunk;
      }
      announce(place, count * bytes + ((scales != nullptr) + (biases != nullptr)) * beside);
      uint32_t to = shared_address(stage.weights) + in_tile * kPitch;
#pragma unroll kShare
      for (int i = 0; i < count; ++i, from += row_bytes, to += kPitch) {
        copy_bulk(to, from, bytes, full, policy_);
      }
      if (scales != nullptr) {
        copy_bulk(shared_address(stage.scales + in_tile), scales, beside, full, policy_);
      }
      if (biases != nullptr) {
        copy_bulk(shared_address(stage.biases + in_tile), biases, beside, full, policy_);
      }
    }
    __syncwarp();
  }

  Shared& shared_;
  RowMemory rows_;
  int warp_;  // of the producers
  int team_;
  int share_;  // of a stage
  int lane_;
  uint64_t policy_;
  uint32_t filled_ = 0;  // stages, in all
};

}  // namespace faststream::step_kernel
