// What the warps of a step's block share.
#pragma once

#include "kernels/cuda/attention/attention_split.cuh"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/step_kernel/kernels.h"
#include "kernels/cuda/step_kernel/rows.cuh"
#include "kernels/cuda/step_kernel/step_kernel.h"

namespace faststream::step_kernel {

using T = __nv_bfloat16;  // activations, keys and values

inline constexpr int kConsumers = 8;  // warps
inline constexpr int kConsumerThreads = kConsumers * kWarp;
inline constexpr int kProducers = 4;  // warps
// Of these, teams, whose stages are in turn. A stage's place in the ring is always the same team's.
inline constexpr int kProducerTeams = 2;
inline constexpr int kTeamProducers = kProducers / kProducerTeams;
inline constexpr int kThreads = kConsumerThreads + kProducers * kWarp;
inline constexpr int kTileRows = 16;
inline constexpr int kChunkBytes = 1024;         // of a weight's row
inline constexpr int kPitch = kChunkBytes + 16;  // between rows of a stage
// Of packed weights a stage has whole blocks, of fp8 their codes.
inline constexpr int kInt4ChunkBlocks = kChunkBytes / kInt4BlockBytes;
inline constexpr int kMaxCodedBlocks = 2;  // whose sums PartSums has room for
constexpr int chunk_bytes_of(WeightFormat format) {
  if (stored_type(format) != DType::packed || format == WeightFormat::fp8) return kChunkBytes;
  const auto block_bytes = static_cast<int>(packed_block_bytes(format));
  const int blocks = kChunkBytes / block_bytes;
  return (is_coded(format) ? std::min(blocks, kMaxCodedBlocks) : blocks) * block_bytes;
}
inline constexpr int kPairBytes = 64;  // of a row, for two tensor core instructions
inline constexpr int kMaxE4m3Columns = 32;
static_assert(kMaxE4m3Columns * kChunkBytes <= kMaxInputBytes);
inline constexpr int kStages = 10;
static_assert(kStages % kProducerTeams == 0);
// Stages that are on their way from memory: enough to keep it busy, and fewer while the block looks
// for an instruction's input, whose words wait in the L2 cache behind all copies asked for before.
// (On an H200, Llama 3 8B in INT8 and MXFP4, one run: 467 and 449 tokens/s; with 3 and 3 455 and
// 436, with 4 and 2 448 and 450.)
inline constexpr uint32_t kOnTheWay = 3;
inline constexpr uint32_t kOnTheWayBeside = 1;
inline constexpr int kInstructions = 7;  // that the producers are ahead at most

/// A chunk of a tile's weights, or a row of floats, and what it is.
struct Stage {
  alignas(16) unsigned char weights[kTileRows * kPitch];
  float scales[kTileRows];  ///< with a part's last chunk
  float biases[kTileRows];  ///< likewise, if there are any
  int32_t tile;             ///< of the part's weight
  int32_t row;              ///< of the result
  int32_t part;
  int32_t chunk;
};
static_assert(kMaxFloatInputs * sizeof(float) <= sizeof(Stage::weights));

using Place = PipelinePlace<kStages>;
using InstructionPlace = PipelinePlace<kInstructions>;

/// What several warps make of a tile's part: each its chunks.
struct PartSums {
  int32_t sums[kTileRows];  ///< of the chunks but the last
  float values[kTileRows];  ///< of the part, where the tile has several
  uint32_t chunks;          ///< that are in `sums`
  uint32_t parts;           ///< that have `values`: of the tile, at its first part

  /// Where weights are codes of floats: the sum of a block of this stage, of which there are
  /// kMaxCodedBlocks, until the part's values are made. Then there are no sums of chunks.
  __device__ void set_block(int block, int row, float sum) {
    if (block == 0) {
      sums[row] = __float_as_int(sum);
    } else {
      values[row] = sum;
    }
  }
  [[nodiscard]] __device__ float block(int block, int row) const {
    return block == 0 ? __int_as_float(sums[row]) : values[row];
  }
};
/// By the number of a part's first stage. Stages in use are less than two rings apart, and a tile
/// keeps its parts' values until the last is there.
inline constexpr uint32_t kPartSums = 64;
static_assert(kPartSums >= 2 * kStages + kMaxTileStages);

/// A product's experts.
struct Choice {
  int32_t experts[kMaxExpertsUsed];
  float weights[kMaxExpertsUsed];
  alignas(16) std::byte memory[kChoiceBytes];  ///< to choose in
};

/// What one token's products have.
struct OfOneToken {
  PartSums part_sums[kPartSums];
  Choice choices[kProducers];  ///< all the same
};
/// What those of several have, in sixteen bytes: of each stage under way the sums that its lanes
/// have of the tokens that there are, two tokens and two rows each, and behind them, of a tile's
/// first stage, how many stages have theirs.
using OfTokens = uint4[sizeof(OfOneToken) / sizeof(uint4)];
__host__ __device__ constexpr uint32_t token_sums_size(int tokens) {
  constexpr uint32_t kLanes = 8;  // that have sums of the same tokens
  return static_cast<uint32_t>(tokens + 1) / 2 * kLanes + 1;
}
__host__ __device__ constexpr uint32_t token_sums_count(int tokens) {
  return sizeof(OfTokens) / sizeof(uint4) / token_sums_size(tokens);
}
/// The most stages that a tile may have, as those in use are less than two rings apart.
__host__ __device__ constexpr int most_token_stages(int tokens) {
  return static_cast<int>(token_sums_count(tokens)) - 2 * kStages + 1;
}
static_assert(most_token_stages(kMaxTokens) >= ceil_div(kMaxInputBytes / kMaxTokens, kChunkBytes));

struct Shared {
  Stage ring[kStages];
  /// What is multiplied: rows of the weight's type, or of the step's. In attention something
  /// else.
  alignas(16) unsigned char x[kMaxInputBytes];
  alignas(16) Instruction instructions[kInstructions];
  uint64_t fetched[kInstructions];
  uint64_t carried_out[kInstructions];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint32_t announced[kProducerTeams];  // one more than a team's last stage whose copies begin
  RowParts parts[kConsumers];
  float row_scales[kMaxExpertsUsed];
  union {
    OfOneToken one;
    OfTokens of_tokens;
  };
  uint32_t looks;  // 1: the block, for an instruction's input
};
static_assert(sizeof(Shared) <= size_t{227} << 10);

/// What a thread wrote before it releases a number in shared memory is there for who acquired that.
__device__ inline void release(uint32_t& number, uint32_t value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(&number)), "r"(value)
               : "memory");
}
__device__ inline void release_one_more(uint32_t& number) {
  asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(shared_address(&number))
               : "memory");
}
__device__ inline uint32_t acquire(uint32_t& number) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
               : "=r"(value)
               : "r"(shared_address(&number))
               : "memory");
  return value;
}

/// Without order.
__device__ inline void store_relaxed(uint32_t& number, uint32_t value) {
  asm volatile("st.relaxed.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(&number)), "r"(value)
               : "memory");
}
__device__ inline uint32_t load_relaxed(const uint32_t& number) {
  uint32_t value;
  asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];"
               : "=r"(value)
               : "r"(shared_address(&number))
               : "memory");
  return value;
}

/// The block's.
inline __device__ Shared& shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return *reinterpret_cast<Shared*>(memory);
}

/// How many blocks this one is behind the block of that number.
__device__ inline int blocks_behind(int number) {
  const int behind = static_cast<int>(blockIdx.x) - number;
  return behind < 0 ? behind + static_cast<int>(gridDim.x) : behind;
}

/// Which of an instruction's tiles are this block's: `count` from `first` on, each as many further
/// as blocks have some; and of which part of the inputs, of which each block has one.
struct TilesOfBlock {
  explicit __device__ TilesOfBlock(const ProductInstruction& p)
      : first(blocks_behind(p.dealt)), step(p.blocks) {
    count = first < p.blocks ? p.tiles_of_each + (first < p.tiles_more ? 1 : 0) : 0;
    if (p.input_parts > 1) {
      part = first % p.input_parts;
      first /= p.input_parts;
      step /= p.input_parts;
    }
  }
  [[nodiscard]] __device__ int operator[](int n) const { return first + n * step; }
  int first;
  int step;
  int count;
  int part = 0;
};

/// Whether heads take two warps for the tokens of a turn, each for so many columns, and two stages:
/// one of keys, and one of values.
inline constexpr int kWidestOfWarp = 256;
__host__ __device__ constexpr bool are_wide(int head_dim) { return head_dim > kWidestOfWarp; }

/// Which of an attention's items, each a part of a token's context for a tile of query heads, are
/// this block's: from the first on, each as many further as there are blocks.
struct ItemsOfBlock {
  explicit __device__ ItemsOfBlock(const AttendInstruction& instruction)
      : a(instruction), items(a.tokens * a.head_tiles * a.parts) {}
  [[nodiscard]] __device__ int first() const { return blocks_behind(a.dealt); }
  [[nodiscard]] __device__ int step() const { return static_cast<int>(gridDim.x); }
  // What split_of() gives, and of how many parts it is one.
  [[nodiscard]] __device__ Split split(int item, int& parts) const {
    Split split;
    int kv_len = a.kv_len;
    int first_token = a.first_token;
    int part_tokens = a.part_tokens;
    parts = a.parts;
    if (a.tokens > 1) {
      split.sequence = item / (a.head_tiles * a.parts);
      item -= split.sequence * a.head_tiles * a.parts;
      kv_len = __ldg(a.attention.kv_len + split.sequence);
      first_token = first_split_token(a.attention, kv_len);
      part_tokens = split_tokens(a.attention, kv_len - first_token);
      parts = ceil_div(kv_len - first_token, part_tokens);
    }
    split.part = item / a.head_tiles;
    const int tile = item - split.part * a.head_tiles;
    split.kv_head = tile / a.splits.head_tiles;
    const int first_in_group = (tile - split.kv_head * a.splits.head_tiles) * a.tile_heads;
    split.position = kv_len - 1;
    split.first = min(first_token + split.part * part_tokens, kv_len);
    split.last = min(split.first + part_tokens, kv_len);
    split.first_head = split.kv_head * a.group + first_in_group;
    split.n_heads = min(a.tile_heads, a.group - first_in_group);
    return split;
  }
  [[nodiscard]] __device__ Split split(int item) const {
    int ignored = 0;
    return split(item, ignored);
  }
  const AttendInstruction& a;
  int items;
};

/// The stages of a tile that one warp multiplies: of the instruction's from `first` on, each `step`
/// further. Two tiles' stages come by turns, but for a last one that has no other: a chain of sums
/// goes on no faster than 15 bytes a clock.
struct StagesOfTile {
  /// nth: of a block's `count` tiles, which have so many stages each.
  __device__ StagesOfTile(int nth, int count, int stages)
      : first(nth / kAbreast * kAbreast * stages + nth % kAbreast),
        step(nth / kAbreast * kAbreast + 1 < count ? kAbreast : 1) {}
  static constexpr int kAbreast = 2;
  int first;
  int step;
};

/// Columns of the matrix that x is beside E4M3: chunks of the row, or of all rows.
__host__ __device__ constexpr int e4m3_chunks(int rows, int inputs) {
  return rows * ((inputs + kChunkBytes - 1) / kChunkBytes);
}
/// That the matrix has, whether used or not.
__host__ __device__ constexpr int e4m3_columns(int chunks) {
  return chunks <= 16 ? 16 : kMaxE4m3Columns;
}

/// A product of experts whose results are rows of their own, expert after expert.
inline __device__ bool in_turn(const ProductInstruction& p) {
  return p.n_experts > 0 && !p.sums_experts;
}

/// Of several tokens' rows beside weights of the same type, or of integers: bytes of x, whole or a
/// part of it, and from one row to the next in shared memory: the same bytes of eight rows are in
/// banks of their own.
inline __device__ int token_bytes(const ProductInstruction& p) { return p.streamed_bytes; }
inline __device__ int token_pitch(const ProductInstruction& p) { return token_bytes(p) + 16; }

/// Parts of a tile's work: experts whose results it sums.
inline __device__ int parts_of(const ProductInstruction& p) {
  return p.sums_experts ? p.router.used : 1;
}

}  // namespace faststream::step_kernel
