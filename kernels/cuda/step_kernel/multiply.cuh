// Products of a block's tiles.
#pragma once

#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ranks/terms.cuh"
#include "kernels/cuda/step_kernel/multiply_e4m3.cuh"
#include "kernels/cuda/step_kernel/tile_stages.cuh"

namespace faststream::step_kernel {

/// By kConsumers warps. Stages are theirs in turn, over all instructions: a warp multiplies its
/// stage's chunk of sixteen rows, and the one that has the last chunk of a tile's part finishes
/// what all have summed. Integers are exact in any order; a tile of 16-bit weights, which are not,
/// is one warp's. Codes of floats are chains in each block of columns, whose sums are added in
/// order. A row of floats is one stage. kMixed: whether results may be terms of
/// sums over ranks; kPacked: which packed weights there may be.
template <bool kMixed, Packed kPacked>
class Multiplier {
 public:
  explicit __device__ Multiplier(const RowMemory& rows) : rows_(rows) {}

  /// A product of the kind, whose input is prepared.
  __device__ void run(Instruction::Kind kind, const ProductInstruction& p,
                      StageReader& stages) const {
    if (kind == Instruction::Kind::multiply_floats) {
      multiply_floats(p, stages);
    } else if (kind == Instruction::Kind::multiply_in_order) {
      multiply_in_order(p, stages);
    } else if (has_codes(p.weight_format)) {
      if constexpr (kPacked == Packed::widened) multiply_codes(p, stages);
      if constexpr (kPacked == Packed::e4m3) {
        const bool few = e4m3_columns(e4m3_chunks(parts_of(p), p.inputs)) == 16;
        few ? multiply_e4m3<16>(p, stages) : multiply_e4m3<kMaxE4m3Columns>(p, stages);
      }
    } else {
      multiply(p, stages);
    }
  }

 private:
  // Of floats. Steps of E4M3 have no others.
  static __device__ bool has_codes(WeightFormat format) {
    return kPacked == Packed::e4m3 ? format == WeightFormat::fp8
                                   : kPacked == Packed::widened && is_coded(format);
  }

  static constexpr bool kInt4 = kPacked != Packed::none;
  static constexpr int kLanes = 2;  // that have the same sum

  // A lane's place in a tile: what it finishes.
  struct Result {
    bool exists = false;
    bool is_up = false;
    int row = 0;     // of the output
    int output = 0;  // column
  };
  static __device__ Result result_of(const ProductInstruction& p, int tile, int row) {
    constexpr int kHalf = kTileRows / 2;
    const int in_tile = lane() / kLanes % kTileRows;  // this lane has its sum
    Result r;
    r.row = row;
    r.is_up = p.gated && in_tile >= kHalf;
    r.output = p.gated ? tile * kHalf + in_tile % kHalf : tile * kTileRows + in_tile;
    r.exists = r.output < p.outputs;
    return r;
  }
  // What a result is added to, if to anything. Memory takes long: to be asked for early.
  __device__ uint32_t ask_added(const ProductInstruction& p, const Result& r) const {
    return p.to.add && r.exists ? load_word(added_to(p, r)) : 0;
  }
  [[nodiscard]] __device__ const float* added_to(const ProductInstruction& p,
                                                 const Result& r) const {
    return static_cast<const float*>(rows_.at(p.added)) + r.row * p.to.stride + r.output;
  }

  // Stores a lane's result, or two of bf16 with that of the next lane that has one: outputs are
  // multiples of four. added: what ask_added() gave.
  __device__ void store(const ProductInstruction& p, const Result& r, bool stores, float value,
                        uint32_t added) const {
    if (p.to.add && stores) {
      while (p.added.awaited && is_unset(added)) added = load_word(added_to(p, r));
      value = __fadd_rn(value, __uint_as_float(added));
    }
    publish_result(p, r, stores, activate(p.to.activation, value));
  }
  __device__ void publish_result(const ProductInstruction& p, const Result& r, bool stores,
                                 float value) const {
    const int64_t index = r.row * p.to.stride + r.output;
    if (stores && p.to.out != nullptr) store_element(p.to.out, p.to.dtype, index, value);
    if (kMixed && p.terms.exist()) send_term(p, r, stores, value);
    if (p.result.offset < 0) return;
    if (p.to.dtype == DType::f32) {
      if (stores) publish(static_cast<float*>(rows_.at(p.result)) + index, __float_as_uint(value));
      return;
    }
    const float next = __shfl_down_sync(kAllLanes, value, kLanes);
    if (stores && lane() % (2 * kLanes) == 0) {
      publish(static_cast<T*>(rows_.at(p.result)) + index, pack_pair<T>(value, next));
    }
  }

  // Terms are of sixteen or 32 bits, the former two from a lane.
  static __device__ void send_term(const ProductInstruction& p, const Result& r, bool stores,
                                   float value) {
    const bool is_float = p.terms.dtype == DType::f32;
    const float next = __shfl_down_sync(kAllLanes, value, 2);
    if (!stores || (!is_float && lane() % 4 != 0)) return;
    const uint32_t word = is_float ? __float_as_uint(value) : pack_pair<T>(value, next);
    send(p.terms, r.output * (is_float ? 4 : 2), word);
  }

  __device__ void multiply(const ProductInstruction& p, StageReader& stages) const {
    const auto row_bytes = static_cast<int>(p.row_bytes);
    const int chunks = ceil_div(row_bytes, kInt4 ? p.chunk_bytes : kChunkBytes);
    const int parts = parts_of(p);
    const int n_stages = TilesOfBlock(p).count * parts * chunks;
    const uint32_t end = stages.begin() + n_stages;
    for (uint32_t n = first_in_turn(stages); n < end; n += kConsumers) {
      const Stage& stage = stages.await(n);
      const int part = stage.part;
      const int chunk = stage.chunk;
      const Result result = result_of(p, stage.tile, stage.row);
      const bool ends_part = chunk + 1 == chunks;
      const bool ends_tile = ends_part && part + 1 == parts;
      const uint32_t added = ends_tile ? ask_added(p, result) : 0;
      int sum = kInt4 && p.weight_format == WeightFormat::int4
                    ? multiply_int4_chunk(p, stage, part, chunk)
                    : multiply_chunk(p, stage, part, chunk);
      const float scale = stage.scales[lane() / 2];
      const float bias = stage.biases[lane() / 2];
      const uint32_t first_of_part = n - chunk;
      StageReader::release(n);

      PartSums& part_sums = shared_memory().one.part_sums[first_of_part % kPartSums];
      if (!ends_part) {
        give(part_sums, sum);
        continue;
      }
      if (chunks > 1) sum += taken(part_sums, chunks - 1);
      const float row_scale = shared_memory().row_scales[part];
      float value = scaled(static_cast<float>(sum), row_scale, scale);
      if (p.to.bias != nullptr) value = __fadd_rn(value, bias);
      finish_part(p, {first_of_part, part, parts, chunks}, result, value, added);
    }
    stages.pass(n_stages);
  }

  // A part of a tile's work, by the number of its first stage.
  struct Part {
    uint32_t first;
    int part;
    int parts;   // of the tile
    int chunks;  // of each
  };
  // value: of row lane / 2 of a part. Whoever has the tile's last finishes what all have.
  __device__ void finish_part(const ProductInstruction& p, const Part& part, const Result& result,
                              float value, uint32_t added) const {
    if (p.sums_experts) {
      PartSums& own = shared_memory().one.part_sums[part.first % kPartSums];
      if (lane() % 2 == 0) own.values[lane() / 2] = value;
      const uint32_t first = part.first - part.part * part.chunks;
      PartSums& of_tile = shared_memory().one.part_sums[first % kPartSums];
      if (part.part + 1 < part.parts) return count(of_tile.parts);
      await_count(of_tile.parts, part.parts - 1);
      value = sum_of_parts(first, part.parts, part.chunks);
    }
    const bool stores = result.exists && lane() % 2 == 0;
    if (p.gated) {
      const float up = __shfl_down_sync(kAllLanes, value, kWarp / 2);
      publish_result(p, result, stores && !result.is_up,
                     gate_value(p.to.activation, p.to.gate_limit, value, up));
    } else {
      store(p, result, stores, value, added);
    }
  }

  // A warp's sums of a chunk that is not its part's last.
  static __device__ void give(PartSums& to, int sum) {
    if (lane() % 2 == 0) atomicAdd(&to.sums[lane() / 2], sum);
    count(to.chunks);
  }
  // Those of all so many, once they are there; then there are none again.
  static __device__ int taken(PartSums& from, int chunks) {
    await_count(from.chunks, chunks);
    const int sum = from.sums[lane() / 2];
    __syncwarp();
    if (lane() % 2 == 0) from.sums[lane() / 2] = 0;
    return sum;
  }
  // Row lane / 2 of a stage times its inputs. Lanes share these, sixteen bytes of 512 each.
  static __device__ int multiply_chunk(const ProductInstruction& p, const Stage& stage, int part,
                                       int chunk) {
    constexpr int kPieces = kChunkBytes / 16 / kWarp;
    const int first = chunk * kChunkBytes;
    const int bytes = static_cast<int>(p.row_bytes);
    const int n = min(kChunkBytes, bytes - first);
    const unsigned char* x = shared_memory().x + part * bytes + first + lane() * 16;
    const unsigned char* weights = stage.weights + lane() * 16;
    int sums[kTileRows] = {};
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int at = j * kWarp * 16;
      if (at >= n) break;
      // Past the row's end the ring has whatever was there, which zeros make nothing of.
      const uint4 inputs =
          at + lane() * 16 < n ? *reinterpret_cast<const uint4*>(x + at) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
        const uint4 w = *reinterpret_cast<const uint4*>(weights + r * kPitch + at);
        sums[r] = __dp4a(static_cast<int>(w.x), static_cast<int>(inputs.x), sums[r]);
        sums[r] = __dp4a(static_cast<int>(w.y), static_cast<int>(inputs.y), sums[r]);
        sums[r] = __dp4a(static_cast<int>(w.z), static_cast<int>(inputs.z), sums[r]);
        sums[r] = __dp4a(static_cast<int>(w.w), static_cast<int>(inputs.w), sums[r]);
      }
    }
    return summed(sums);
  }

  // The same of int4. Half of the lanes have even rows, the others odd ones, and a lane a group of
  // each block: its q times the inputs, which step and offset make what levels would.
  static __device__ int multiply_int4_chunk(const ProductInstruction& p, const Stage& stage,
                                            int part, int chunk) {
    constexpr int kGroups = kInt4Block / kInt4Group;  // of a block
    constexpr int kRows = kTileRows / 2;              // of a lane
    static_assert(kGroups == kWarp / 2);
    const int odd = lane() / kGroups;
    const int group = lane() % kGroups;
    const unsigned char* x = shared_memory().x + part * p.x_bytes;
    const int groups = p.x_bytes / kInt4Group;
    int sums[kRows] = {};
#pragma unroll 1
    for (int block = 0; block < kInt4ChunkBlocks; ++block) {
      const int first = (chunk * kInt4ChunkBlocks + block) * kGroups;
      if (first >= groups) break;
      // Past the row's end zeros again.
      uint4 low = {};
      uint4 high = {};
      if (first + group < groups) {
        const auto* inputs = reinterpret_cast<const uint4*>(x + (first + group) * kInt4Group);
        low = inputs[0];
        high = inputs[1];
      }
      constexpr uint32_t kOnes = 0x01010101;
      int of_inputs = 0;
      for (const uint32_t word : {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}) {
        of_inputs = multiply_unsigned(kOnes, word, of_inputs);
      }
      const unsigned char* weights = stage.weights + odd * kPitch + block * kInt4BlockBytes;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const unsigned char* row = weights + 2 * r * kPitch;
        const Int4Levels levels(static_cast<std::byte>(row[group]));
        const uint4 q =
            *reinterpret_cast<const uint4*>(row + kInt4CodeBytes + group * kInt4GroupBytes);
        sums[r] += levels.step * multiply_int4(q, low, high) - levels.offset * of_inputs;
      }
    }
    const int sum = summed(sums);
    return __shfl_sync(kAllLanes, sum, lane() / 2 % 2 * kGroups + lane() / 4 * 2);
  }
  // Sixteen bytes' low halves times as many inputs, and their high halves times others.
  static __device__ int multiply_int4(const uint4& q, const uint4& low, const uint4& high) {
    constexpr uint32_t kLow = 0x0f0f0f0f;
    int of_low = multiply_unsigned(q.x & kLow, low.x, 0);
    int of_high = multiply_unsigned(q.x & ~kLow, high.x, 0);  // sixteen times as much
    of_low = multiply_unsigned(q.y & kLow, low.y, of_low);
    of_high = multiply_unsigned(q.y & ~kLow, high.y, of_high);
    of_low = multiply_unsigned(q.z & kLow, low.z, of_low);
    of_high = multiply_unsigned(q.z & ~kLow, high.z, of_high);
    of_low = multiply_unsigned(q.w & kLow, low.w, of_low);
    of_high = multiply_unsigned(q.w & ~kLow, high.w, of_high);
    return of_low + (of_high >> 4);
  }
  // sum + four unsigned bytes times signed ones.
  static __device__ int multiply_unsigned(uint32_t bytes, uint32_t by, int sum) {
    int result;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(bytes), "r"(by), "r"(sum));
    return result;
  }

  // Of a lane's sums of kRows rows each, those of all lanes: of 2 · kRows lanes, which have the
  // same rows, lanes 2r and 2r + 1 get that of row r. Each step halves the rows that a lane has,
  // and the lanes that have parts of a row.
  template <int kRows>
  static __device__ int summed(int (&sums)[kRows]) {
#pragma unroll
    for (int step = 1; step < kRows; step *= 2) {
      constexpr int kHalf = kRows / 2;
      const int rows = kHalf / step;
      const bool upper = (lane() & (2 * rows)) != 0;
#pragma unroll
      for (int r = 0; r < kHalf; ++r) {
        if (r >= rows) break;
        const int kept = upper ? sums[r + rows] : sums[r];
        const int given = upper ? sums[r] : sums[r + rows];
        sums[r] = kept + __shfl_xor_sync(kAllLanes, given, 2 * rows);
      }
    }
    return sums[0] + __shfl_xor_sync(kAllLanes, sums[0], 1);
  }

  // Codes of floats, as multiply() does integers.
  __device__ void multiply_codes(const ProductInstruction& p, StageReader& stages) const {
    const CodedStep coded(CodedLayout(p.weight_format), lane());
    const int chunks = ceil_div(p.row_bytes, p.chunk_bytes);
    const int parts = parts_of(p);
    const int n_stages = TilesOfBlock(p).count * parts * chunks;
    const uint32_t end = stages.begin() + n_stages;
    for (uint32_t n = first_in_turn(stages); n < end; n += kConsumers) {
      const Stage& stage = stages.await(n);
      const int part = stage.part;
      const int chunk = stage.chunk;
      const Result result = result_of(p, stage.tile, stage.row);
      const bool ends_part = chunk + 1 == chunks;
      const bool ends_tile = ends_part && part + 1 == parts;
      const uint32_t added = ends_tile ? ask_added(p, result) : 0;
      PartSums& own = shared_memory().one.part_sums[n % kPartSums];
      with_codes(p.weight_format, [&]<WeightFormat kFormat>() {
        CodedStep::with_scales<kFormat>(has_large_scale(coded, stage), [&]<bool kLarge>() {
          multiply_codes_of_chunk<kFormat, kLarge>(p, coded, stage, part, chunk, own);
        });
      });
      const float bias = stage.biases[lane() / 2];
      const uint32_t first_of_part = n - chunk;
      StageReader::release(n);

      PartSums& part_sums = shared_memory().one.part_sums[first_of_part % kPartSums];
      if (!ends_part) {
        count(part_sums.chunks);
        continue;
      }
      __syncwarp();
      if (chunks > 1) await_count(part_sums.chunks, chunks - 1);
      float value = sum_of_blocks(p, coded, first_of_part);
      __syncwarp();
      if (p.to.bias != nullptr) value = __fadd_rn(value, bias);
      if (p.gated && p.n_experts == 0) value = to_float(from_float<T>(value));  // as of many rows
      finish_part(p, {first_of_part, part, parts, chunks}, result, value, added);
    }
    stages.pass(n_stages);
    // As products of integers want them.
    synchronize();
    for (int i = thread(); i < static_cast<int>(kPartSums) * kTileRows; i += kConsumerThreads) {
      shared_memory().one.part_sums[i / kTileRows].sums[i % kTileRows] = 0;
    }
  }

  // E4M3, as multiply() does integers: a warp has the sums of a stage's groups, and each chunk's
  // goes on from that of the chunk before, in another warp. Those of a warpgroup multiply together,
  // some of them nothing at an instruction's begin or end. The compiler lets products go on beside
  // each other only where nothing is called and the loop is the same for all warps.
  template <int kColumns>
  __device__ void multiply_e4m3(const ProductInstruction& p, StageReader& stages) const {
    const int chunks = ceil_div(p.streamed_bytes, kChunkBytes);
    const int parts = parts_of(p);
    const int n_stages = TilesOfBlock(p).count * parts * chunks;
    const uint32_t begin = stages.begin();
    const uint32_t end = begin + n_stages;
    // Experts' products have no halves (product_consumer_sm90a.cuh).
    const int half = p.n_experts > 0 ? 0 : ceil_div(p.inputs, kPackedBlock) / 2;
    const int own = __shfl_sync(kAllLanes, warp(), 0);  // as the compiler knows it to be one
    constexpr int kWarps = kWarpgroup / kWarp;
    const int in_group = own % kWarps;
    uint32_t n = begin / kConsumers * kConsumers + own;
    if (n - in_group + kWarps <= begin) n += kConsumers;  // none of the warpgroup has one
#pragma unroll 1
    for (; n - in_group < end; n += kConsumers) {
      const bool exists = begin <= n && n < end;
      const Stage& stage = shared_memory().ring[Place(n).stage];
      float4 scales = {};
      uint32_t added = 0;
      E4m3Chunk<kColumns> groups;
      if (exists) {
        StageReader::await_begun(n);
        scales = E4m3Scales(p, stage).ask(n);
        const bool ends_tile = stage.chunk + 1 == chunks && stage.part + 1 == parts;
        if (ends_tile) added = ask_added(p, result_of(p, stage.tile, stage.row));
        StageReader::await(n);
        groups = {stage, p.streamed_bytes, stage.part * chunks + stage.chunk};
      }
      groups.multiply();
      if (!exists) continue;
      const int part = stage.part;
      const int chunk = stage.chunk;
      const Result result = result_of(p, stage.tile, stage.row);
      const float bias = p.to.bias != nullptr ? stage.biases[lane() / 2] : 0;
      StageReader::release(n);

      groups.take_scales(scales);
      E4m3Sum sum;
      if (chunk > 0) sum = taken(shared_memory().one.part_sums[(n - 1) % kPartSums]);
      groups.add_to(sum, half - chunk * E4m3Scales::kBlocks);
      if (chunk + 1 < chunks) {
        give(shared_memory().one.part_sums[n % kPartSums], sum);
        continue;
      }
      const float value = __fmul_rn(sum.whole(half > 0), shared_memory().row_scales[part]);
      finish_part(p, {n - chunk, part, parts, chunks}, result, __fadd_rn(value, bias), added);
    }
    stages.pass(n_stages);
  }

  // What a chunk's warp leaves to the next one's.
  static __device__ void give(PartSums& to, const E4m3Sum& sum) {
    if (lane() % 2 == 0) {
      to.values[lane() / 2] = sum.of_half;
      to.sums[lane() / 2] = __float_as_int(sum.first_half);
    }
    count(to.chunks);
  }
  static __device__ E4m3Sum taken(PartSums& from) {
    await_count(from.chunks, 1);
    const E4m3Sum sum{from.values[lane() / 2], __int_as_float(from.sums[lane() / 2])};
    __syncwarp();
    if (lane() % 2 == 0) from.sums[lane() / 2] = 0;
    return sum;
  }

  // Of row lane / 2 of a part whose first stage is `first`: of each half of the inputs the blocks
  // in order, of experts of all together, as product_consumer_sm90a.cuh has it.
  static __device__ float sum_of_blocks(const ProductInstruction& p, const CodedStep& coded,
                                        uint32_t first) {
    const int of_chunk = static_cast<int>(p.chunk_bytes) / coded.layout().block_bytes;
    const int blocks = ceil_div(p.inputs, kPackedBlock);
    const int half = p.n_experts > 0 ? 0 : blocks / 2;
    float first_half = 0;
    float sum = 0;
    int chunk = 0;
    int in_chunk = 0;
    for (int block = 0; block < blocks; ++block) {
      const PartSums& from = shared_memory().one.part_sums[(first + chunk) % kPartSums];
      const float more = from.block(in_chunk, lane() / 2);
      if (block == half) first_half = sum;
      sum = block == 0 || block == half ? more : __fadd_rn(sum, more);
      if (++in_chunk == of_chunk) {
        in_chunk = 0;
        ++chunk;
      }
    }
    return half > 0 ? __fadd_rn(first_half, sum) : sum;
  }

  // The tile's experts' by their weights. first: the tile's first stage.
  static __device__ float sum_of_parts(uint32_t first, int parts, int chunks) {
    float value = 0;
    for (int k = 0; k < parts; ++k) {
      const PartSums& of_part = shared_memory().one.part_sums[(first + k * chunks) % kPartSums];
      value =
          __fmaf_rn(shared_memory().one.choices[0].weights[k], of_part.values[lane() / 2], value);
    }
    return value;
  }

  // Of any block of a stage.
  static __device__ bool has_large_scale(const CodedStep& coded, const Stage& stage) {
    const unsigned char* block = stage.weights + lane() / 4 * kPitch;
    bool is_large = false;
#pragma unroll
    for (int i = 0; i < kMaxCodedBlocks; ++i, block += coded.layout().block_bytes) {
      is_large |= coded.has_large_scale(block, block + 8 * kPitch);
    }
    return is_large;
  }

  // Adds the products of steps from `first` to before `last` of a stage's first kBlocks blocks to
  // their sums, all columns of the right operand being x. No block's waits for another one's.
  template <WeightFormat kFormat, bool kLarge, int kBlocks, int kMost>
  static __device__ void multiply_steps(const CodedStep& coded, const unsigned char* rows,
                                        uint32_t x, int first, int last, float (&sums)[kMost][4]) {
    constexpr auto kBlockSteps = static_cast<int>(kPackedBlock / kPackedStep);
    constexpr int kStepBytes = kPackedStep * static_cast<int>(sizeof(T));  // of x
    const CodedLayout layout = layout_of<kFormat>(coded.layout());
    const int group_steps = 1 << layout.group_shift;
#pragma unroll 2
    for (int begin = first, end = 0; begin < last; begin = end) {
      end = group_steps == 1 ? begin + 1 : min((begin | (group_steps - 1)) + 1, last);
      CodedStep::Group groups[kBlocks][2];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned char* from = rows + block * layout.block_bytes + half * 8 * kPitch;
          groups[block][half] = coded.group<kFormat, kLarge>(from, begin);
        }
      }
#pragma unroll 2
      for (int step = begin; step < end; ++step) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          uint32_t columns[4];
          load_matrices<false>(columns, x + (block * kBlockSteps + step) * kStepBytes);
          CodedStep::Registers upper;
          CodedStep::Registers lower;
          const unsigned char* from = rows + block * layout.block_bytes;
          coded.widen<kFormat, kLarge>(groups[block][0], from, step, upper);
          coded.widen<kFormat, kLarge>(groups[block][1], from + 8 * kPitch, step, lower);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t a[4] = {upper[i][0], lower[i][0], upper[i][1], lower[i][1]};
            mma_16x8x16<T>(sums[block], a, columns[2 * i], columns[2 * i + 1]);
          }
        }
      }
    }
  }

  // Makes the sums of a stage's blocks.
  template <WeightFormat kFormat, bool kLarge>
  static __device__ void multiply_codes_of_chunk(const ProductInstruction& p,
                                                 const CodedStep& coded, const Stage& stage,
                                                 int part, int chunk, PartSums& to) {
    constexpr auto kBlockSteps = static_cast<int>(kPackedBlock / kPackedStep);
    constexpr int kMost = chunk_bytes_of(kFormat) / static_cast<int>(packed_block_bytes(kFormat));
    constexpr int kStepBytes = kPackedStep * static_cast<int>(sizeof(T));  // of x
    const int block_bytes = layout_of<kFormat>(coded.layout()).block_bytes;
    const int of_chunk =
        kFormat == WeightFormat::int4_g128 ? static_cast<int>(p.chunk_bytes) / block_bytes : kMost;
    const int first = chunk * of_chunk * kBlockSteps;
    const int steps = min(p.inputs / static_cast<int>(kPackedStep) - first, of_chunk * kBlockSteps);
    const uint32_t x = shared_address(shared_memory().x) +
                       static_cast<uint32_t>(part * p.x_bytes + first * kStepBytes) +
                       lane() / 8 * 16;
    const unsigned char* rows = stage.weights + lane() / 4 * kPitch;
    float sums[kMost][4] = {};
    // The steps that all blocks have, and those that the first has alone.
    const int of_all = min(max(steps - (kMost - 1) * kBlockSteps, 0), kBlockSteps);
    multiply_steps<kFormat, kLarge, kMost>(coded, rows, x, 0, of_all, sums);
    multiply_steps<kFormat, kLarge, 1>(coded, rows, x, of_all, min(steps, kBlockSteps), sums);
    if (lane() % 4 != 0) return;
#pragma unroll
    for (int block = 0; block < kMost; ++block) {
      to.set_block(block, lane() / 4, sums[block][0]);
      to.set_block(block, lane() / 4 + 8, sums[block][2]);
    }
  }

  // Sixteen-bit weights. An output is one chain of tensor core instructions from the first input to
  // the last (linear_in_order.cu), each of which waits for the one before it. So a tile is one
  // warp's, which multiplies a stage in 1,100 clocks; memory brings one in 850 to 1,300.
  __device__ void multiply_in_order(const ProductInstruction& p, StageReader& stages) const {
    const TilesOfBlock mine(p);
    const int chunks = ceil_div(p.row_bytes, kChunkBytes);
    const int parts = parts_of(p);
    for (int n = warp(); n < mine.count; n += kConsumers) {
      OwnStages own(stages, n, mine.count, parts * chunks);
      const int row = in_turn(p) ? mine[n] / p.tiles : 0;
      const Result result = result_of(p, mine[n] - row * p.tiles, row);
      const uint32_t added = ask_added(p, result);
      float value = 0;
      for (int part = 0; part < parts; ++part) {
        const float sum = sum_in_order(p, part, own);
        value = p.sums_experts ? __fmaf_rn(shared_memory().one.choices[0].weights[part], sum, value)
                               : sum;
      }
      const bool stores = result.exists && lane() % 2 == 0;
      if (p.gated) {
        // Beside many rows, gate and up are products in memory; those of experts are not.
        if (p.n_experts == 0) value = to_float(from_float<T>(value));
        const float up = __shfl_down_sync(kAllLanes, value, kWarp / 2);
        publish_result(p, result, stores && !result.is_up,
                       gate_value(p.to.activation, p.to.gate_limit, value, up));
      } else {
        store(p, result, stores, value, added);
      }
    }
    stages.pass(mine.count * parts * chunks);
  }

  // Of row lane / 2 of the next stages, those of a tile's part; with its bias.
  static __device__ float sum_in_order(const ProductInstruction& p, int part, OwnStages& stages) {
    const uint32_t x =
        shared_address(shared_memory().x) + part * static_cast<int>(p.row_bytes) + lane() / 8 * 16;
    float sums[4] = {};
    const float bias = add_in_order(p, x, stages, sums);
    // Lane 4g has the sums of rows g and g + 8.
    const int from = lane() / 2 % 8 * 4;
    const float upper = __shfl_sync(kAllLanes, sums[0], from);
    const float lower = __shfl_sync(kAllLanes, sums[2], from);
    const float sum = lane() < kWarp / 2 ? upper : lower;
    return p.to.bias != nullptr ? __fadd_rn(sum, bias) : sum;
  }

  // The order of any_rows_kernel's sums (linear_few_rows.cu).
  __device__ void multiply_floats(const ProductInstruction& p, StageReader& stages) const {
    const int n_stages = TilesOfBlock(p).count;
    const uint32_t end = stages.begin() + n_stages;
    for (uint32_t n = first_in_turn(stages); n < end; n += kConsumers) {
      const Stage& stage = stages.await(n);
      Result result;
      result.output = stage.tile;
      result.exists = lane() == 0;
      const uint32_t added = ask_added(p, result);
      const float bias = p.to.bias != nullptr ? p.to.bias[result.output] : 0;
      constexpr int kVector = 4;
      const T* x = reinterpret_cast<const T*>(shared_memory().x);
      const auto* weights = reinterpret_cast<const float*>(stage.weights);
      float sum = 0;
#pragma unroll 4
      for (int c = lane() * kVector; c < p.inputs; c += kWarp * kVector) {
        float w[kVector];
        float a[kVector];
        load_floats(weights + c, w);
        load_floats(x + c, a);
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum = __fmaf_rn(w[i], a[i], sum);
      }
      StageReader::release(n);
      sum = warp_sum(sum);
      if (p.to.bias != nullptr) sum = __fadd_rn(sum, bias);
      store(p, result, result.exists, sum, added);
    }
    stages.pass(n_stages);
  }

  RowMemory rows_;
};

}  // namespace faststream::step_kernel
