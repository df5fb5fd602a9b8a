// The kernel that runs a program: one block on each multiprocessor, which stays for all
// instructions.
//
// A step of one token reads every weight once: memory is to be busy all the time, and what a kernel
// for each operation loses is the time between them, in which nothing is on its way. Here a warp of
// each block does nothing but copy the weights that the block will need, instruction after
// instruction, into a ring in shared memory, as far ahead as there is room: 166 kB a block and 22
// MB in all, as much as memory gives in 7 us. Weights depend on nothing, so this goes on while the
// other warps wait for the blocks' results of the instruction before, prepare their input, or
// attend.
//
// The other eight warps multiply, eight bits by eight into 32: a warp makes 16 outputs alone, its
// lanes sharing the inputs. Tiles are dealt to blocks in turn over all instructions, so that all
// blocks read equally much, and to a block's warps in turn. Integers are exact in any order, so a
// row has the same bits as beside others; norms, attention and routing share their code with the
// kernels of one operation. 16-bit products, which have to be summed in cuBLASLt's order, gain
// nothing here.
//
// Between instructions the blocks meet at a counter in memory. A layer is five instructions:
// queries, keys and values; attention; its output; gate and up; down. Each reads its input from the
// L2 cache, normalizes and quantizes it, every block for itself. That is latency, not bytes
// (measured: RESULTS.md). What would not fit into registers would be in local memory, for which the
// L1 cache has no room beside the ring: as slow as the L2 cache. So functions are inlined and hold
// little.
//
// Bytes and time, Llama-3-8B in INT8: 8.03 GB, 2.59 ms at 3.10 TB/s, 386 tokens/s.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention/attention_decode_mma.cuh"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/experts/choose_experts.cuh"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/program/program.h"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/row.cuh"

namespace faststream::program {

using T = __nv_bfloat16;  // activations, keys and values

inline constexpr int kConsumers = 8;  // warps
inline constexpr int kConsumerThreads = kConsumers * kWarp;
inline constexpr int kThreads = kConsumerThreads + kWarp;
inline constexpr int kTileRows = 16;
inline constexpr int kChunkBytes = 1024;         // of a weight's row
inline constexpr int kPitch = kChunkBytes + 16;  // between rows of a stage
inline constexpr int kStageBytes = kTileRows * kPitch;
inline constexpr int kFloatChunkBytes = 16384;  // of the one row of a tile of floats
inline constexpr int kStages = 10;
inline constexpr uint32_t kOnTheWay = 4;  // stages
inline constexpr int kPieceBytes = 16;    // that a lane multiplies at a time
static_assert(kFloatChunkBytes <= kStageBytes);

using Place = PipelinePlace<kStages>;

struct Shared {
  alignas(128) unsigned char ring[kStages][kStageBytes];
  /// What is multiplied: rows of the weight's type, or of the program's. In attention something
  /// else.
  alignas(16) unsigned char x[kMaxInputBytes];
  alignas(16) Instruction instruction_memory[2];
  Instruction producer_instruction;
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t routed;     // experts are chosen
  uint32_t announced;  // stages, in all, whose copies have begun
  float parts[kRowLanes / kWarp];
  float row_scales[kMaxExpertsUsed];
  int32_t experts[kMaxExpertsUsed];
  float expert_weights[kMaxExpertsUsed];
  alignas(16) std::byte choice[kChoiceBytes];
  bool is_last[2];
};

/// The block's.
inline __device__ Shared& shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return *reinterpret_cast<Shared*>(memory);
}

/// The number that all blocks count up at the end of an instruction.
struct Meeting {
  uint32_t* counter;

  __device__ void arrive() const {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
  }
  /// Until all blocks have ended so many instructions.
  __device__ void wait(int instructions) const {
    const uint32_t wanted = static_cast<uint32_t>(instructions) * gridDim.x;
    uint32_t seen = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (seen < wanted);
  }
};

/// Which of an instruction's tiles are this block's: `count` from `first` on, each as many further
/// as there are blocks.
struct TilesOfBlock {
  explicit __device__ TilesOfBlock(const ProductInstruction& p)
      : first(static_cast<int>(blockIdx.x) - p.dealt) {
    if (first < 0) first += static_cast<int>(gridDim.x);
    count = p.tiles_of_each + (first < p.tiles_more ? 1 : 0);
  }
  [[nodiscard]] __device__ int operator[](int n) const {
    return first + n * static_cast<int>(gridDim.x);
  }
  int first;
  int count;
};

/// Parts of a tile's work: experts whose results it sums.
inline __device__ int parts_of(const ProductInstruction& p) {
  return p.sums_experts ? p.router.used : 1;
}

/// Copies weights. By one warp.
class Producer {
 public:
  __device__ Producer(Shared& shared, const Meeting& meeting)
      : shared_(shared),
        meeting_(meeting),
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
      const Instruction& instruction = shared_.producer_instruction;
      __syncwarp();
      if (lane_ < kPieces) {
        reinterpret_cast<uint4*>(&shared_.producer_instruction)[lane_] = piece;
      }
      __syncwarp();
      fetch(i + 1);
      if (instruction.kind == Instruction::Kind::attend) {
        prefetch(instruction.attend);
        continue;
      }
      const ProductInstruction& p = instruction.product;
      prefetch(p.norm.weight, p.inputs);
      if (p.logits == nullptr) prefetch(p.to.scales, p.gated ? 2 * p.outputs : p.outputs);
      if (p.logits != nullptr && !p.sums_experts) {
        meeting_.wait(i);
        choose_experts(p.logits, p.n_experts, p.router, shared_.experts, shared_.expert_weights,
                       shared_.choice);
        __syncwarp();
        if (lane_ == 0) arrive(shared_.routed);
      }
      if (instruction.kind == Instruction::Kind::multiply_floats) {
        copy<1, kFloatChunkBytes>(p);
      } else {
        copy<kTileRows, kChunkBytes>(p);
      }
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

  template <int kRows, int kBytes>
  __device__ void copy(const ProductInstruction& p) {
    const auto* weight = static_cast<const unsigned char*>(p.weight);
    const int64_t row_bytes = p.row_bytes;
    const int64_t outputs = p.outputs;
    const int64_t expert_rows = p.gated ? 2 * outputs : outputs;
    const bool gated = p.gated;
    const bool of_experts = p.logits != nullptr;
    const bool sums = p.sums_experts;
    const int tiles = p.tiles;
    const int parts = parts_of(p);

    const TilesOfBlock mine(p);
    for (int n = 0; n < mine.count; ++n) {
      const int t = mine[n];
      const int tile = sums || !of_experts ? t : t % tiles;
      // The row of the weight that this lane copies, and whether there is one.
      int64_t output = int64_t{tile} * kRows + lane_;
      int64_t row = output;
      if (gated) {
        output = int64_t{tile} * (kRows / 2) + lane_ % (kRows / 2 > 0 ? kRows / 2 : 1);
        row = lane_ < kRows / 2 ? output : outputs + output;
      }
      const bool exists = lane_ < kRows && output < outputs;
      const auto rows = static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, exists)));
      for (int part = 0; part < parts; ++part) {
        const int64_t expert = !of_experts ? 0 : shared_.experts[sums ? part : t / tiles];
        const unsigned char* from = weight + (expert * expert_rows + row) * row_bytes;
        for (int64_t first = 0; first < row_bytes; first += kBytes, ++filled_) {
          const auto bytes = static_cast<uint32_t>(min(int64_t{kBytes}, row_bytes - first));
          const Place place(filled_);
          wait_for_phase(shared_.empty[place.stage], place.parity ^ 1);
          if (filled_ >= kOnTheWay) {
            const Place before(filled_ - kOnTheWay);
            wait_for_phase(shared_.full[before.stage], before.parity);
          }
          uint64_t& full = shared_.full[place.stage];
          if (lane_ == 0) {
            arrive_and_expect(full, rows * bytes);
            *static_cast<volatile uint32_t*>(&shared_.announced) = filled_ + 1;
          }
          __syncwarp();
          if (exists) {
            copy_bulk(shared_address(shared_.ring[place.stage]) + lane_ * kPitch, from + first,
                      bytes, full, policy_);
          }
        }
      }
    }
  }

  Shared& shared_;
  const Meeting& meeting_;
  int lane_;
  uint64_t policy_;
  uint32_t filled_ = 0;  // stages, in all
};

/// Does the work. By kConsumers warps.
template <int kDim, typename Rule>
class Consumer {
 public:
  explicit __device__ Consumer(const Meeting& meeting) : meeting_(meeting) {}

  __device__ void run(const Instruction* instructions, int count) {
    fetch(instructions, 0, count);
    synchronize();
    for (int i = 0; i < count; ++i) {
      fetch(instructions, i + 1, count);
      const Instruction& instruction = shared_memory().instruction_memory[i % 2];
      if (instruction.kind != Instruction::Kind::attend) deal(instruction);
      if (thread() == 0) meeting_.wait(i);
      synchronize();
      if (instruction.kind == Instruction::Kind::attend) {
        attend(instruction.attend);
      } else if (instruction.kind == Instruction::Kind::multiply_floats) {
        multiply_floats(instruction.product);
      } else {
        multiply(instruction.product);
      }
      synchronize();
      if (thread() == 0) meeting_.arrive();
    }
  }

 private:
  using Team = RowTeam<kConsumerThreads>;
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  static __device__ int warp() { return thread() / kWarp; }
  static __device__ int lane() { return thread() % kWarp; }
  static constexpr int kAll = 1;         // named barriers
  static constexpr int kTeam = 2;        // and the next: of an attention's warps
  static constexpr int kExpertTeam = 4;  // and the next three: of the threads of an expert's row
  static constexpr int kExpertThreads = 64;

  static __device__ void synchronize() { synchronize_threads(kAll, kConsumerThreads); }

  // Instruction i to shared memory, there after the next synchronize().
  static __device__ void fetch(const Instruction* instructions, int i, int count) {
    constexpr int kPieces = sizeof(Instruction) / sizeof(uint4);
    static_assert(kPieces <= kConsumerThreads);
    if (i >= count || thread() >= kPieces) return;
    reinterpret_cast<uint4*>(&shared_memory().instruction_memory[i % 2])[thread()] =
        __ldg(reinterpret_cast<const uint4*>(instructions + i) + thread());
  }

  // The input. ------------------------------------------------------------------------------------

  // A row of x to shared memory, by a team that has kEights eights of its elements a thread:
  // rounded to T, or to eight bits beside i8 weights. of_eight(e, values) gives a thread's e-th.
  template <int kEights, int kThreads, typename OfEight>
  static __device__ void store_row(const ProductInstruction& p, int row,
                                   const RowTeam<kThreads>& team, const OfEight& of_eight) {
    const int n = p.inputs;
    const auto for_each_eight = [&](const auto& use) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const int c = 8 * (team.thread + kThreads * e);
        if (c < n) {
          float values[8];
          of_eight(e, values);
          use(c, values);
        }
      }
    };
    if (p.weight_dtype != DType::i8) {
      T* to = reinterpret_cast<T*>(shared_memory().x) + static_cast<int64_t>(row) * n;
      for_each_eight([&](int c, const float(&values)[8]) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = pack_pair<T>(values[2 * i], values[2 * i + 1]);
        *reinterpret_cast<uint4*>(to + c) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      });
      return;
    }
    RowScale scale;
    for_each_eight([&](int /*c*/, const float(&values)[8]) {
#pragma unroll
      for (const float value : values) scale.see(value);
    });
    scale.join(team);
    if (team.thread == 0) shared_memory().row_scales[row] = scale.scale();
    const float inverse = scale.inverse();
    unsigned char* to = shared_memory().x + static_cast<int64_t>(row) * n;
    for_each_eight([&](int c, const float(&values)[8]) {
      int8_t bytes[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) bytes[i] = static_cast<int8_t>(quantized(values[i], inverse));
      uint2 packed;
      memcpy(&packed, bytes, sizeof packed);
      *reinterpret_cast<uint2*>(to + c) = packed;
    });
  }

  // A row of the residual stream, normalized.
  template <int kEights>
  static __device__ void prepare_floats(const ProductInstruction& p) {
    const auto* x = static_cast<const float*>(p.x);
    const bool has_norm = p.norm.kind != NormKind::none;
    const auto element = [](int e) { return 8 * (thread() + kConsumerThreads * e); };
    float values[kEights][8] = {};
    float weights[kEights][8] = {};
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (element(e) < p.inputs) {
        load_floats(x + element(e), values[e]);
        if (has_norm) load_floats(p.norm.weight + element(e), weights[e]);
      }
    }
    const Team team{thread(), kAll, shared_memory().parts};
    const MeasuredNorm norm = measure(p.inputs, p.norm, team, [&](const auto& add) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        if (element(e) < p.inputs) {
#pragma unroll
          for (const float value : values[e]) add(e % Team::kTurns, value);
        }
      }
    });
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& value = values[e][i];
        const bool biased = p.norm.bias != nullptr && element(e) < p.inputs;
        if (has_norm) {
          value = norm.apply(value, weights[e][i], biased ? p.norm.bias[element(e) + i] : 0);
        }
        value = to_float(from_float<T>(value));
      }
    }
    store_row<kEights>(p, 0, team, [&](int e, float(&eight)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) eight[i] = values[e][i];
    });
  }

  // A row of T.
  template <int kThreads>
  static __device__ void prepare_row(const ProductInstruction& p, const T* x, int row,
                                     const RowTeam<kThreads>& team) {
    uint4 raw[kMaxEights];
#pragma unroll
    for (int e = 0; e < kMaxEights; ++e) {
      const int c = 8 * (team.thread + kThreads * e);
      if (c < p.inputs) raw[e] = *reinterpret_cast<const uint4*>(x + c);
    }
    store_row<kMaxEights>(p, row, team, [&](int e, float(&eight)[8]) {
      T elements[8];
      memcpy(elements, &raw[e], sizeof elements);
#pragma unroll
      for (int i = 0; i < 8; ++i) eight[i] = to_float(elements[i]);
    });
  }

  static __device__ void prepare(const ProductInstruction& p) {
    const T* x = static_cast<const T*>(p.x);
    if (p.x_dtype == DType::f32) {
      constexpr int kMost = kMaxNormalized / 8 / kConsumerThreads;
      p.inputs <= kMaxNormalized / 2 ? prepare_floats<kMost / 2>(p) : prepare_floats<kMost>(p);
    } else if (p.x_rows == 1) {
      prepare_row(p, x, 0, Team{thread(), kAll, shared_memory().parts});
    } else {
      const int nth = thread() / kExpertThreads;
      const RowTeam<kExpertThreads> team{thread() % kExpertThreads, kExpertTeam + nth,
                                         shared_memory().parts + nth * kExpertThreads / kWarp};
      for (int row = nth; row < p.x_rows; row += kConsumerThreads / kExpertThreads) {
        prepare_row<kExpertThreads>(p, x + row * p.x_stride, row, team);
      }
    }
    synchronize();
  }

  // Products. -------------------------------------------------------------------------------------

  // A lane's place in a tile: what it finishes, and what that takes besides the sum.
  struct Result {
    bool exists = false;
    bool is_up = false;
    int row = 0;      // of the output
    int output = 0;   // column
    int channel = 0;  // row of the weight, among the expert's
    float scale = 0;
    float bias = 0;
  };
  static __device__ Result result_of(const ProductInstruction& p, int t) {
    constexpr int kHalf = kTileRows / 2;
    const bool in_turn = p.logits != nullptr && !p.sums_experts;  // expert after expert
    const int in_tile = lane() / 2;                               // this lane has its sum
    const int tile = in_turn ? t % p.tiles : t;
    Result r;
    r.row = in_turn ? t / p.tiles : 0;
    r.is_up = p.gated && in_tile >= kHalf;
    r.output = p.gated ? tile * kHalf + in_tile % kHalf : tile * kTileRows + in_tile;
    r.exists = r.output < p.outputs;
    r.channel = r.is_up ? p.outputs + r.output : r.output;
    return r;
  }
  // The scale and the bias of a result; of experts, once they are chosen.
  static __device__ void load_channel(const ProductInstruction& p, int expert, Result& r) {
    if (!r.exists) return;
    const int64_t channel = int64_t{expert} * (p.gated ? 2 : 1) * p.outputs + r.channel;
    r.scale = p.to.scales[channel];
    if (p.to.bias != nullptr) r.bias = p.to.bias[channel];
  }

  // Which tiles of the next instruction are this warp's. What the first needs besides sums, which
  // depends on no instruction, is then on its way.
  __device__ void deal(const Instruction& instruction) {
    const ProductInstruction& p = instruction.product;
    const TilesOfBlock mine(p);
    nth_ = warp() - turn_;
    if (nth_ < 0) nth_ += kConsumers;
    turn_ = (turn_ + mine.count) % kConsumers;
    if (instruction.kind != Instruction::Kind::multiply || p.logits != nullptr) return;
    first_ = result_of(p, mine[nth_]);
    load_channel(p, 0, first_);
  }

  // Calls use(tile, its first stage, whether it is the first) for the tiles of this warp.
  template <typename Use>
  __device__ void for_each_tile(const ProductInstruction& p, int stages, const Use& use) {
    const TilesOfBlock mine(p);
    for (int n = nth_; n < mine.count; n += kConsumers) {
      use(mine[n], used_ + n * stages, n == nth_);
    }
    used_ += mine.count * stages;
  }

  __device__ void multiply(const ProductInstruction& p) {
    const bool in_turn = p.logits != nullptr && !p.sums_experts;
    // Only this warp touches what it adds to.
    const bool adds = p.to.add && p.logits == nullptr;
    const auto old_of = [&](const Result& r) {
      return adds && r.exists ? load_element(p.to.out, p.to.dtype, r.output) : 0;
    };
    const float first_old = p.logits == nullptr ? old_of(first_) : 0;
    prepare(p);
    const int chunks = ceil_div(p.row_bytes, kChunkBytes);
    if (in_turn) {
      wait_for_phase(shared_memory().routed, routed_ % 2);
      ++routed_;
    }
    for_each_tile(p, chunks * parts_of(p), [&](int t, uint32_t stage, bool is_first) {
      if (p.sums_experts) {
        sum_experts(p, result_of(p, t), stage, chunks);
        return;
      }
      const bool known = is_first && !in_turn;
      Result r = known ? first_ : result_of(p, t);
      if (!known) load_channel(p, in_turn ? shared_memory().experts[r.row] : 0, r);
      const float old = known ? first_old : old_of(r);
      const int sum = multiply_tile(p.row_bytes, 0, stage);
      float value = scaled(static_cast<float>(sum), shared_memory().row_scales[0], r.scale);
      if (p.to.bias != nullptr) value = __fadd_rn(value, r.bias);
      const bool stores = r.exists && lane() % 2 == 0;
      if (p.gated) {
        const float up = __shfl_down_sync(kAllLanes, value, kWarp / 2);
        if (stores && !r.is_up) finish_gate(p.to, r.row, r.output, value, up);
      } else if (stores) {
        if (adds) value = __fadd_rn(value, old);
        store_element(p.to.out, p.to.dtype, r.row * p.to.stride + r.output,
                      activate(p.to.activation, value));
      }
    });
  }

  // The sum of the experts' results, by their weights.
  static __device__ void sum_experts(const ProductInstruction& p, const Result& result,
                                     uint32_t stage, int chunks) {
    // The next expert's scale and bias are on their way while one is multiplied.
    Result next = result;
    load_channel(p, shared_memory().experts[0], next);
    float total = 0;
    for (int k = 0; k < p.router.used; ++k) {
      const Result r = next;
      if (k + 1 < p.router.used) load_channel(p, shared_memory().experts[k + 1], next);
      const int sum = multiply_tile(p.row_bytes, k, stage + k * chunks);
      float value = scaled(static_cast<float>(sum), shared_memory().row_scales[k], r.scale);
      if (p.to.bias != nullptr) value = __fadd_rn(value, r.bias);
      total = __fmaf_rn(shared_memory().expert_weights[k], value, total);
    }
    if (!result.exists || lane() % 2 != 0) return;
    float& element = static_cast<float*>(p.to.out)[result.output];
    element = p.to.add ? __fadd_rn(element, total) : total;
  }

  // Row lane / 2 of the tile that begins at `stage` times row `row` of x. Lanes share the inputs,
  // sixteen bytes of 512 each.
  static __device__ int multiply_tile(int64_t row_bytes, int row, uint32_t stage) {
    constexpr int kPieces = kChunkBytes / 16 / kWarp;
    int sums[kTileRows] = {};
    const unsigned char* x = shared_memory().x + row * row_bytes + lane() * 16;
    for (int64_t first = 0; first < row_bytes; first += kChunkBytes, ++stage) {
      const Place place = wait_for_stage(stage);
      const unsigned char* weights = shared_memory().ring[place.stage] + lane() * 16;
      const int n = static_cast<int>(min(int64_t{kChunkBytes}, row_bytes - first));
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const int at = j * kWarp * 16;
        if (at >= n) break;
        // Past the row's end the ring has whatever was there, which zeros make nothing of.
        const uint4 inputs = at + lane() * 16 < n ? *reinterpret_cast<const uint4*>(x + first + at)
                                                  : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < kTileRows; ++r) {
          const uint4 w = *reinterpret_cast<const uint4*>(weights + r * kPitch + at);
          sums[r] = __dp4a(static_cast<int>(w.x), static_cast<int>(inputs.x), sums[r]);
          sums[r] = __dp4a(static_cast<int>(w.y), static_cast<int>(inputs.y), sums[r]);
          sums[r] = __dp4a(static_cast<int>(w.z), static_cast<int>(inputs.z), sums[r]);
          sums[r] = __dp4a(static_cast<int>(w.w), static_cast<int>(inputs.w), sums[r]);
        }
      }
      __syncwarp();
      if (lane() == 0) arrive(shared_memory().empty[place.stage]);
    }
    // Each step halves the rows that a lane has, and the lanes that have parts of a row.
#pragma unroll
    for (int rows = kTileRows / 2; rows > 0; rows /= 2) {
      const bool upper = (lane() & (2 * rows)) != 0;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const int kept = upper ? sums[r + rows] : sums[r];
        const int given = upper ? sums[r] : sums[r + rows];
        sums[r] = kept + __shfl_xor_sync(kAllLanes, given, 2 * rows);
      }
    }
    return sums[0] + __shfl_xor_sync(kAllLanes, sums[0], 1);
  }

  // Until a stage, counted from the first of all, is full. A warp may be several rounds of the ring
  // ahead of the others, where a barrier's parity would say nothing: its turn has come when copies
  // have begun.
  static __device__ Place wait_for_stage(uint32_t stage) {
    while (*static_cast<volatile uint32_t*>(&shared_memory().announced) <= stage) __nanosleep(32);
    const Place place(stage);
    wait_for_phase(shared_memory().full[place.stage], place.parity);
    return place;
  }

  // The order of any_rows_kernel's sums (linear_few_rows.cu).
  __device__ void multiply_floats(const ProductInstruction& p) {
    prepare(p);
    for_each_tile(
        p, ceil_div(p.row_bytes, kFloatChunkBytes),
        [&](int output, uint32_t stage, bool /*is_first*/) {
          constexpr int kVector = 4;
          const T* x = reinterpret_cast<const T*>(shared_memory().x);
          float sum = 0;
          for (int64_t first = 0; first < p.row_bytes; first += kFloatChunkBytes, ++stage) {
            const Place place = wait_for_stage(stage);
            const auto* weights = reinterpret_cast<const float*>(shared_memory().ring[place.stage]);
            const int n = static_cast<int>(min(int64_t{kFloatChunkBytes}, p.row_bytes - first)) /
                          static_cast<int>(sizeof(float));
#pragma unroll 4
            for (int c = lane() * kVector; c < n; c += kWarp * kVector) {
              float w[kVector];
              float a[kVector];
              load_floats(weights + c, w);
              load_floats(x + first / 4 + c, a);
#pragma unroll
              for (int i = 0; i < kVector; ++i) sum = __fmaf_rn(w[i], a[i], sum);
            }
            __syncwarp();
            if (lane() == 0) arrive(shared_memory().empty[place.stage]);
          }
          sum = warp_sum(sum);
          if (lane() == 0) finish_product(p.to, 0, output, sum);
        });
  }

  // Attention. ------------------------------------------------------------------------------------

  struct Attention {
    alignas(16) T queries[kDecodeHeads * kDim];
    DecodeResults<kDim> results;
  };
  static constexpr int kTeamThreads = kDecodeWarps * kWarp;
  static constexpr int kTeams =
      2 * sizeof(Attention) <= kMaxInputBytes ? kConsumers / kDecodeWarps : 1;
  static_assert(sizeof(Attention) <= kMaxInputBytes);

  static __device__ void attend(const AttendInstruction& a) {
    const AttentionArguments& attention = a.attention;
    const int head_tiles = attention.kv.n_kv_heads * a.splits.head_tiles;
    const int items = head_tiles * faststream::parts_of(attention, a.kv_len);
    auto* memory = reinterpret_cast<Attention*>(shared_memory().x);
    const auto split_of_item = [&](int item) {
      return split_of(attention, a.splits, kDecodeHeads, {0, 0, a.kv_len}, item % head_tiles,
                      item / head_tiles);
    };
    const int team = warp() / kDecodeWarps;
    const auto synchronize_team = [&] { synchronize_threads(kTeam + team, kTeamThreads); };
    const auto blocks = static_cast<int>(gridDim.x);
    for (int first = static_cast<int>(blockIdx.x); first < items; first += blocks * kTeams) {
      // All warps together transform, for each team's item, queries, the key and the value.
      int task = warp();
      for (int t = 0; t < kTeams && first + t * blocks < items; ++t) {
        const Split split = split_of_item(first + t * blocks);
        const int tasks = split.n_heads + (split.last == a.kv_len ? 2 : 0);
        for (; task < tasks; task += kConsumers) transform(a, split, task, memory[t].queries);
        task -= tasks;
      }
      synchronize();
      const int item = first + team * blocks;
      if (team < kTeams && item < items) {
        const Split split = split_of_item(item);
        auto& mine = memory[team];
        attend_split<T, kDim, Rule>(attention, split, mine.queries, mine.results);
        synchronize_team();
        store_split(attention, a.splits, split, mine.results);
        if (a.splits.count > 1) merge(a, split, item % head_tiles, team, synchronize_team);
      }
      synchronize();
    }
  }

  // The last team of a head tile puts together what all have stored.
  template <typename Synchronize>
  static __device__ void merge(const AttendInstruction& a, const Split& split, int head_tile,
                               int team, const Synchronize& synchronize_team) {
    const int parts = faststream::parts_of(a.attention, a.kv_len);
    bool& is_last = shared_memory().is_last[team];
    __threadfence();
    synchronize_team();
    if (thread() % kTeamThreads == 0) {
      is_last = atomicAdd(&a.arrivals[head_tile], 1) == parts - 1;
      if (is_last) a.arrivals[head_tile] = 0;
      __threadfence();
    }
    synchronize_team();
    if (!is_last) return;
    for (int h = warp() % kDecodeWarps; h < split.n_heads; h += kDecodeWarps) {
      merge_head(a.attention, a.splits, split, split.first_head + h, parts, lane(), kWarp);
    }
  }

  // By a warp: task h < n_heads brings the split's query h to `queries`, the next two bring the
  // token's key and value to their page.
  static __device__ void transform(const AttendInstruction& a, const Split& split, int task,
                                   T* queries) {
    const AttentionArguments& attention = a.attention;
    const KvLayer& kv = attention.kv;
    const int dim = kv.head_dim;
    const T* qkv = static_cast<const T*>(attention.q.data);
    if (task < split.n_heads) {
      const int64_t head = split.first_head + task;
      const float factor = query_factor(a.transform, split.position);
      transform_head(qkv + head * dim, dim, a.transform, a.transform.q_weight + head * dim,
                     a.cos_sin, a.rotated_dims, [&](int i, float value) {
                       queries[task * dim + i] = from_float<T>(__fmul_rn(value, factor));
                     });
      return;
    }
    const int64_t page = attention.page_table[split.position / kPageTokens];
    const int64_t slot =
        ((page * kv.n_kv_heads + split.kv_head) * kPageTokens + split.position % kPageTokens) * dim;
    const T* key = qkv + static_cast<int64_t>(attention.n_heads + split.kv_head) * dim;
    if (task == split.n_heads) {
      T* to = static_cast<T*>(kv.k) + slot;
      transform_head(key, dim, a.transform,
                     a.transform.k_weight + static_cast<int64_t>(split.kv_head) * dim, a.cos_sin,
                     a.rotated_dims, [&](int i, float k) { to[i] = from_float<T>(k); });
    } else {
      const T* value = key + static_cast<int64_t>(kv.n_kv_heads) * dim;
      T* to = static_cast<T*>(kv.v) + slot;
      for (int i = lane(); i < dim; i += kWarp) to[i] = value[i];
    }
  }

  Meeting meeting_;
  uint32_t used_ = 0;    // stages, in all
  uint32_t routed_ = 0;  // choices of experts
  int turn_ = 0;         // the warp that takes the block's next tile
  int nth_ = 0;          // of the block's tiles is this warp's first
  Result first_;         // of that tile
};

/// One block a multiprocessor. counter: zero.
template <int kDim, typename Rule>
__global__ __launch_bounds__(kThreads, 1) void run_kernel(const Instruction* instructions,
                                                          int count, uint32_t* counter) {
#if __CUDA_ARCH__ >= 900
  Shared& shared = shared_memory();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(shared.full[stage], 1);
      init_barrier(shared.empty[stage], 1);
    }
    init_barrier(shared.routed, 1);
    shared.announced = 0;
    publish_barriers();
  }
  __syncthreads();
  begin_kernel();
  const Meeting meeting{counter};
  if (threadIdx.x < kConsumerThreads) {
    Consumer<kDim, Rule>(meeting).run(instructions, count);
  } else {
    Producer(shared, meeting).run(instructions, count);
  }
#endif
}

}  // namespace faststream::program
