// The warps of a block that do a program's work.
#pragma once

#include "kernels/cuda/attention/attention_decode_mma.cuh"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/program/shared_memory.cuh"
#include "kernels/cuda/rope.cuh"

namespace faststream::program {

/// By kConsumers warps. Stages are theirs in turn, over all instructions: a warp multiplies its
/// stage's chunk of sixteen rows, and the one that has the last chunk of a tile's part finishes
/// what all have summed. Integers are exact in any order; a tile of 16-bit weights, which are not,
/// is one warp's. A row of floats is one stage.
template <int kDim, typename Rule>
class Consumer {
 public:
  explicit __device__ Consumer(const RowMemory& rows)
      : rows_(rows), next_(static_cast<uint32_t>(warp())) {}

  __device__ void run(int count) {
    for (int i = 0; i < count; ++i) {
      const InstructionPlace place(i);
      wait_for_phase(shared_memory().fetched[place.stage], place.parity);
      const Instruction& instruction = shared_memory().instructions[place.stage];
      if (instruction.kind == Instruction::Kind::attend) {
        look(true);
        attend(instruction.attend);
        look(false);
      } else if (const ProductInstruction& p = instruction.product; TilesOfBlock(p).count > 0) {
        look(true);
        prepare(p);
        look(false);
        if (instruction.kind == Instruction::Kind::multiply_floats) {
          multiply_floats(p);
        } else if (instruction.kind == Instruction::Kind::multiply_in_order) {
          multiply_in_order(p);
        } else {
          multiply(p);
        }
      }
      synchronize();
      if (thread() == 0) arrive(shared_memory().carried_out[place.stage]);
    }
  }

 private:
  using Team = RowTeam<kConsumerThreads>;
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  static __device__ int warp() { return thread() / kWarp; }
  static __device__ int lane() { return thread() % kWarp; }
  static constexpr int kAll = 1;      // named barriers
  static constexpr int kTeam = 2;     // and the next: of an attention's warps
  static constexpr int kRowTeam = 4;  // and the next seven: of the threads of an expert's row
  static constexpr int kFewRows = 4;  // of experts, for each of which there are two warps

  static __device__ void synchronize() { synchronize_threads(kAll, kConsumerThreads); }

  // The producers may see it late.
  static __device__ void look(bool looks) {
    if (thread() == 0) store_relaxed(shared_memory().looks, looks ? 1 : 0);
  }

  // The input. ------------------------------------------------------------------------------------

  // A row of x to shared memory, by a team that has kEights eights of its elements a thread:
  // rounded to T, or to eight bits beside i8 weights. of_eight(e, values) gives a thread's e-th.
  template <int kEights, int kThreads, typename OfEight>
  static __device__ void store_row(const ProductInstruction& p, int row, RowTeam<kThreads>& team,
                                   const OfEight& of_eight) {
    const int n = p.inputs;
    const auto for_each_eight = [&](const auto& use) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const int c = 8 * (team.thread() + kThreads * e);
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
    if (team.thread() == 0) shared_memory().row_scales[row] = scale.scale();
    const float inverse = scale.inverse();
    unsigned char* to = shared_memory().x + static_cast<int64_t>(row) * n;
    for_each_eight([&](int c, const float(&values)[8]) {
      uint32_t packed[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int integers[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) integers[i] = quantized(values[4 * half + i], inverse);
        packed[half] = pack_bytes(integers);
      }
      *reinterpret_cast<uint2*>(to + c) = make_uint2(packed[0], packed[1]);
    });
  }

  // What the neighbouring lane has.
  static __device__ uint4 exchanged(const uint4& words) {
    return make_uint4(
        __shfl_xor_sync(kAllLanes, words.x, 1), __shfl_xor_sync(kAllLanes, words.y, 1),
        __shfl_xor_sync(kAllLanes, words.z, 1), __shfl_xor_sync(kAllLanes, words.w, 1));
  }

  static __device__ uint4 selected(bool first, const uint4& a, const uint4& b) {
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
  }

  // A row of the residual stream, normalized.
  template <int kEights>
  __device__ void prepare_floats(const ProductInstruction& p) const {
    const bool has_norm = p.norm.kind != NormKind::none;
    const auto element = [](int e) { return 8 * (thread() + kConsumerThreads * e); };
    float weights[kEights][8] = {};
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (has_norm && element(e) < p.inputs) load_floats(p.norm.weight + element(e), weights[e]);
    }
    const auto* x = static_cast<const float*>(rows_.at(p.x));
    uint4 pieces[2 * kEights];
    // Two lanes bring the halves of one's eight, then of the other's: memory gives 32 bytes at
    // once.
    const bool is_second = thread() % 2 != 0;
    bring(pieces, p.x.awaited, [&](int i) {
      const int c = element(i / 2) + 8 * (i % 2 - thread() % 2);
      return c < p.inputs ? x + c + thread() % 2 * 4 : nullptr;
    });
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const uint4 other = exchanged(selected(is_second, pieces[2 * e], pieces[2 * e + 1]));
      pieces[2 * e] = selected(is_second, other, pieces[2 * e]);
      pieces[2 * e + 1] = selected(is_second, pieces[2 * e + 1], other);
    }
    float values[kEights][8];
    memcpy(values, pieces, sizeof values);
    Team team{thread(), kAll, shared_memory().parts[0]};
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
  __device__ void prepare_row(const ProductInstruction& p, int row, RowTeam<kThreads>& team) const {
    const T* x = static_cast<const T*>(rows_.at(p.x)) + row * p.x_stride;
    uint4 raw[kMaxEights];
    bring(raw, p.x.awaited, [&](int e) {
      const int c = 8 * (team.thread() + kThreads * e);
      return c < p.inputs ? x + c : nullptr;
    });
    store_row<kMaxEights>(p, row, team, [&](int e, float(&eight)[8]) {
      T elements[8];
      memcpy(elements, &raw[e], sizeof elements);
#pragma unroll
      for (int i = 0; i < 8; ++i) eight[i] = to_float(elements[i]);
    });
  }

  // Experts' rows, each by so many threads.
  template <int kThreads>
  __device__ void prepare_rows(const ProductInstruction& p) const {
    const int nth = thread() / kThreads;
    RowTeam<kThreads> team{thread() % kThreads, kRowTeam + nth, shared_memory().parts[nth]};
    for (int row = nth; row < p.x_rows; row += kConsumerThreads / kThreads) {
      prepare_row(p, row, team);
    }
  }

  __device__ void prepare(const ProductInstruction& p) const {
    if (p.x_dtype == DType::f32) {
      constexpr int kMost = kMaxNormalized / 8 / kConsumerThreads;
      p.inputs <= kMaxNormalized / 2 ? prepare_floats<kMost / 2>(p) : prepare_floats<kMost>(p);
    } else if (p.x_rows == 1) {
      Team team{thread(), kAll, shared_memory().parts[0]};
      prepare_row(p, 0, team);
    } else if (p.x_rows > kFewRows && p.inputs <= kMaxWarpInputs) {
      prepare_rows<kWarp>(p);
    } else {
      prepare_rows<kConsumerThreads / kFewRows>(p);
    }
    synchronize();
  }

  // Products. -------------------------------------------------------------------------------------

  // A lane's place in a tile: what it finishes.
  struct Result {
    bool exists = false;
    bool is_up = false;
    int row = 0;     // of the output
    int output = 0;  // column
  };
  static __device__ Result result_of(const ProductInstruction& p, int t) {
    constexpr int kHalf = kTileRows / 2;
    const int in_tile = lane() / 2;  // this lane has its sum
    const int tile = in_turn(p) ? t % p.tiles : t;
    Result r;
    r.row = in_turn(p) ? t / p.tiles : 0;
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
    return static_cast<const float*>(rows_.at(p.added)) + r.output;
  }

  // Stores a lane's result, or two of bf16 with the next lane's but one: outputs are multiples of
  // four. added: what ask_added()
  // gave.
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
    if (p.result.offset < 0) return;
    if (p.to.dtype == DType::f32) {
      if (stores) publish(static_cast<float*>(rows_.at(p.result)) + index, __float_as_uint(value));
      return;
    }
    const float next = __shfl_down_sync(kAllLanes, value, 2);
    if (stores && lane() % 4 == 0) {
      publish(static_cast<T*>(rows_.at(p.result)) + index, pack_pair<T>(value, next));
    }
  }

  // This warp's next stage, once it is full. A warp may be several rounds of the ring ahead of the
  // others, where a barrier's parity would say nothing: its turn has come when copies have begun.
  __device__ const Stage& await_stage() {
    while (announced_ <= next_) {
      announced_ = acquire(shared_memory().announced);
      if (announced_ <= next_) __nanosleep(20);
    }
    const Place place(next_);
    wait_for_phase(shared_memory().full[place.stage], place.parity);
    return shared_memory().ring[place.stage];
  }
  // The warp's next stage is so much further.
  __device__ void release_stage(int step = kConsumers) {
    __syncwarp();
    if (lane() == 0) arrive(shared_memory().empty[Place(next_).stage]);
    next_ += step;
  }

  __device__ void multiply(const ProductInstruction& p) {
    const int chunks = ceil_div(p.row_bytes, kChunkBytes);
    const int parts = parts_of(p);
    end_ += TilesOfBlock(p).count * parts * chunks;
    while (next_ < end_) {
      const Stage& stage = await_stage();
      const int part = stage.part;
      const int chunk = stage.chunk;
      const Result result = result_of(p, stage.tile);
      const bool ends_part = chunk + 1 == chunks;
      const bool ends_tile = ends_part && part + 1 == parts;
      const uint32_t added = ends_tile ? ask_added(p, result) : 0;
      int sum = multiply_chunk(p, stage, part, chunk);
      const float scale = stage.scales[lane() / 2];
      const float bias = stage.biases[lane() / 2];
      const uint32_t first_of_part = next_ - chunk;
      release_stage();

      PartSums& part_sums = shared_memory().part_sums[first_of_part % kPartSums];
      if (!ends_part) {
        give(part_sums, sum);
        continue;
      }
      if (chunks > 1) sum += taken(part_sums, chunks - 1);
      const float row_scale = shared_memory().row_scales[part];
      float value = scaled(static_cast<float>(sum), row_scale, scale);
      if (p.to.bias != nullptr) value = __fadd_rn(value, bias);
      if (p.sums_experts) {
        if (lane() % 2 == 0) part_sums.values[lane() / 2] = value;
        const uint32_t first = first_of_part - part * chunks;
        PartSums& of_tile = shared_memory().part_sums[first % kPartSums];
        if (!ends_tile) {
          count(of_tile.parts);
          continue;
        }
        await_count(of_tile.parts, parts - 1);
        value = 0;
        for (int k = 0; k < parts; ++k) {
          const PartSums& of_part = shared_memory().part_sums[(first + k * chunks) % kPartSums];
          value =
              __fmaf_rn(shared_memory().choices[0].weights[k], of_part.values[lane() / 2], value);
        }
      }
      const bool stores = result.exists && lane() % 2 == 0;
      if (p.gated) {
        const float up = __shfl_down_sync(kAllLanes, value, kWarp / 2);
        publish_result(p, result, stores && !result.is_up, gate_value(p.to.activation, value, up));
      } else {
        store(p, result, stores, value, added);
      }
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
  // What the warp wrote to shared memory is there for who awaits the count.
  static __device__ void count(uint32_t& counter) {
    __syncwarp();
    if (lane() == 0) release_one_more(counter);
  }
  // Then it is zero again.
  static __device__ void await_count(uint32_t& counter, int wanted) {
    while (acquire(counter) < static_cast<uint32_t>(wanted)) {
    }
    __syncwarp();
    if (lane() == 0) counter = 0;
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
    // Each step halves the rows that a lane has, and the lanes that have parts of a row.
#pragma unroll
    for (int step = 1; step < kTileRows; step *= 2) {
      constexpr int kHalf = kTileRows / 2;
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

  // Sixteen-bit weights. An output is one chain of tensor core instructions from the first input to
  // the last (linear_in_order.cu), each of which waits for the one before it. So a tile is one
  // warp's, which multiplies a stage in 1,100 clocks; memory brings one in 1,300.
  __device__ void multiply_in_order(const ProductInstruction& p) {
    const TilesOfBlock mine(p);
    const int chunks = ceil_div(p.row_bytes, kChunkBytes);
    const int parts = parts_of(p);
    for (int n = warp(); n < mine.count; n += kConsumers) {
      next_ = end_ + n * parts * chunks;
      const Result result = result_of(p, mine[n]);
      const uint32_t added = ask_added(p, result);
      float value = 0;
      for (int part = 0; part < parts; ++part) {
        const float sum = sum_in_order(p, part);
        value =
            p.sums_experts ? __fmaf_rn(shared_memory().choices[0].weights[part], sum, value) : sum;
      }
      const bool stores = result.exists && lane() % 2 == 0;
      if (p.gated) {
        // Beside many rows, gate and up are products in memory; those of experts are not.
        if (p.n_experts == 0) value = to_float(from_float<T>(value));
        const float up = __shfl_down_sync(kAllLanes, value, kWarp / 2);
        publish_result(p, result, stores && !result.is_up, gate_value(p.to.activation, value, up));
      } else {
        store(p, result, stores, value, added);
      }
    }
    end_ += mine.count * parts * chunks;
    next_ = end_ + (warp() - end_) % kConsumers;
  }

  // Of row lane / 2 of the next stages, those of a tile's part; with its bias.
  __device__ float sum_in_order(const ProductInstruction& p, int part) {
    constexpr int kPairs = kChunkBytes / kPairBytes;
    const auto bytes = static_cast<int>(p.row_bytes);
    const uint32_t x = shared_address(shared_memory().x) + part * bytes + lane() / 8 * 16;
    float sums[4] = {};
    float bias = 0;
    for (int first = 0; first < bytes; first += kChunkBytes) {
      const Stage& stage = await_stage();
      const uint32_t weights =
          shared_address(stage.weights) + lane() % kTileRows * kPitch + lane() / kTileRows * 16;
      if (bytes - first >= kChunkBytes) {
        multiply_pairs<kPairs>(weights, x + first, sums);
      } else {
        for (int at = 0; at < bytes - first; at += kPairBytes) {
          multiply_pairs<1>(weights + at, x + first + at, sums);
        }
      }
      bias = stage.biases[lane() / 2];
      release_stage(1);
    }
    // Lane 4g has the sums of rows g and g + 8.
    const int from = lane() / 2 % 8 * 4;
    const float upper = __shfl_sync(kAllLanes, sums[0], from);
    const float lower = __shfl_sync(kAllLanes, sums[2], from);
    const float sum = lane() < kWarp / 2 ? upper : lower;
    return p.to.bias != nullptr ? __fadd_rn(sum, bias) : sum;
  }

  // Adds the products of kPairs times 32 inputs of a tile's rows and x, as all columns, to a lane's
  // sums. Straight on: a loop would wait for each turn's last instruction.
  template <int kPairs>
  static __device__ void multiply_pairs(uint32_t weights, uint32_t x, float (&sums)[4]) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int at = pair * kPairBytes;
      uint32_t columns[4];
      load_matrices<false>(columns, x + at);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t rows[4];
        load_matrices<false>(rows, weights + at + half * kPairBytes / 2);
        mma_16x8x16<T>(sums, rows, columns[2 * half], columns[2 * half + 1]);
      }
    }
  }

  // The order of any_rows_kernel's sums (linear_few_rows.cu).
  __device__ void multiply_floats(const ProductInstruction& p) {
    end_ += TilesOfBlock(p).count;
    while (next_ < end_) {
      const Stage& stage = await_stage();
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
      release_stage();
      sum = warp_sum(sum);
      if (p.to.bias != nullptr) sum = __fadd_rn(sum, bias);
      store(p, result, result.exists, sum, added);
    }
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

  __device__ void attend(const AttendInstruction& a) const {
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
      if (const int item = first + team * blocks; team < kTeams && item < items) {
        const Split split = split_of_item(item);
        const int page = split.first / kPageTokens;
        ask_for(attention.page_table + page, pages_for(split.last) - page);
      }
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
        const auto store = [&](int head, int d, float first, float second) {
          store_output(a, head * attention.kv.head_dim + d, first, second);
        };
        store_split(attention, a.splits, split, mine.results, store);
        if (a.splits.count > 1) merge(a, split, item % head_tiles, team, synchronize_team, store);
      }
      synchronize();
    }
  }

  __device__ void store_output(const AttendInstruction& a, int index, float first,
                               float second) const {
    const uint32_t pair = pack_pair<T>(first, second);
    if (a.result.offset >= 0) publish(static_cast<T*>(rows_.at(a.result)) + index, pair);
    T* out = static_cast<T*>(a.attention.out.data);
    if (out != nullptr) *reinterpret_cast<uint32_t*>(out + index) = pair;
  }

  // The last team of a head tile puts together what all have stored.
  template <typename Synchronize, typename Store>
  static __device__ void merge(const AttendInstruction& a, const Split& split, int head_tile,
                               int team, const Synchronize& synchronize_team, const Store& store) {
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
      merge_head(a.attention, a.splits, split, split.first_head + h, parts, lane(), kWarp, store);
    }
  }

  // A head of the queries, keys and values, once it is there, in shared memory: by a warp.
  __device__ T* bring_head(const AttendInstruction& a, int head) const {
    const int pairs = a.attention.kv.head_dim / 2;
    const auto* from = static_cast<const uint32_t*>(rows_.at(a.qkv)) + int64_t{head} * pairs;
    uint32_t words[kDim / 2 / kWarp];
    bring(words, a.qkv.awaited, [&](int i) {
      const int pair = i * kWarp + lane();
      return pair < pairs ? from + pair : nullptr;
    });
    T* to = shared_memory().heads[warp()];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kDim / 2 / kWarp; ++i) {
      const int pair = i * kWarp + lane();
      if (pair < pairs) reinterpret_cast<uint32_t*>(to)[pair] = words[i];
    }
    __syncwarp();
    return to;
  }

  // Asks for memory that is read after something else was awaited, so that it will be in the L1
  // cache: by a warp, in sectors of 32 bytes.
  template <typename Element>
  static __device__ void ask_for(const Element* from, int count) {
    constexpr int kSector = 32 / static_cast<int>(sizeof(Element));
    for (int i = lane() * kSector; i < count; i += kWarp * kSector) {
      uint32_t ignored;
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(ignored) : "l"(from + i));
    }
  }

  // By a warp: task h < n_heads brings the split's query h to `queries`, the next two bring the
  // token's key and value to their page.
  __device__ void transform(const AttendInstruction& a, const Split& split, int task,
                            T* queries) const {
    const AttentionArguments& attention = a.attention;
    const KvLayer& kv = attention.kv;
    const int dim = kv.head_dim;
    const int64_t page = attention.page_table[split.position / kPageTokens];
    const int64_t slot =
        ((page * kv.n_kv_heads + split.kv_head) * kPageTokens + split.position % kPageTokens) * dim;
    const int key_head = attention.n_heads + split.kv_head;
    if (task == split.n_heads + 1) {
      T* to = static_cast<T*>(kv.v) + slot;
      const T* value = bring_head(a, key_head + kv.n_kv_heads);
      for (int i = lane(); i < dim; i += kWarp) to[i] = value[i];
      return;
    }
    const bool is_key = task == split.n_heads;
    const int head = split.first_head + task;
    const float* weight = is_key ? a.transform.k_weight + int64_t{split.kv_head} * dim
                                 : a.transform.q_weight + int64_t{head} * dim;
    T* to = is_key ? static_cast<T*>(kv.k) + slot : queries + task * dim;
    const float factor = is_key ? 1 : query_factor(a.transform, split.position);
    ask_for(a.cos_sin, a.rotated_dims);
    if (a.transform.norm != NormKind::none) ask_for(weight, dim);
    transform_head(bring_head(a, is_key ? key_head : head), dim, a.transform, weight, a.cos_sin,
                   a.rotated_dims,
                   [&](int i, float value) { to[i] = from_float<T>(__fmul_rn(value, factor)); });
  }

  RowMemory rows_;
  uint32_t next_;     // this warp's next stage, of all
  uint32_t end_ = 0;  // the first stage of the next instruction
  uint32_t announced_ = 0;
};

}  // namespace faststream::program
