// The warpgroups of product_sm90a.cuh's kernel that multiply.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/product_parts_sm90a.cuh"
#include "kernels/cuda/mma.cuh"

namespace faststream {

namespace {

constexpr int kInstructionBytes = 32;  // of rows of x
constexpr int kInstructions = kBlockRowBytes / kInstructionBytes;

/// A warp's sixteen channels of a block of packed weights, as the instructions' registers take
/// them.
class Int4Widening {
 public:
  __device__ Int4Widening(const Arguments& /*a*/, const std::byte* weights, int lane)
      // Of matrices of eight channels and a group: channels, and the same eight further; of a
      // group, and of the next.
      : matrices_(weights + lane % 16 * kInt4BlockBytes + kInt4CodeBytes +
                  lane / 16 * kInt4GroupBytes),
        codes_(weights + lane / 4 * kInt4BlockBytes) {}

  /// Of kCount instructions from number `first` of the block on, an even number.
  template <int kCount>
  __device__ void widen(Shared& shared, int first, uint32_t (&wide)[kCount][4]) const {
    const DeviceInt4Table& table = int4_table(shared);
    const std::byte* from = codes_ + first;  // a group is an instruction
    using Codes = std::conditional_t<kCount == 2, uint16_t, uint32_t>;
    static_assert(sizeof(Codes) == kCount);
    // Of channels eight apart.
    const uint32_t codes[2] = {*reinterpret_cast<const Codes*>(from),
                               *reinterpret_cast<const Codes*>(from + 8 * kInt4BlockBytes)};
#pragma unroll
    for (int group = 0; group < kCount; group += 2) {
      uint32_t q[4];
      load_matrices<false>(q, matrices_ + (first + group) * kInt4GroupBytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t code = codes[i % 2] >> (8 * (group + i / 2)) & 0xff;
        uint32_t(&to)[4] = wide[group + i / 2];
        widen_int4(q[i], table.entries[code], to[i % 2], to[i % 2 + 2]);
      }
    }
  }

 private:
  const std::byte* matrices_;
  const std::byte* codes_;
};

/// The same of codes of floats.
class CodedWidening {
 public:
  __device__ CodedWidening(const Arguments& a, const std::byte* weights, int lane)
      : step_(a.coded, lane),
        block_(reinterpret_cast<const uint8_t*>(weights) + lane / 4 * a.coded.block_bytes),
        eight_channels_(8 * a.coded.block_bytes),
        has_large_scale_(step_.has_large_scale(block_, block_ + eight_channels_)) {}

  template <int kCount>
  __device__ void widen(Shared& /*shared*/, int first, uint32_t (&wide)[kCount][4]) const {
    with_codes(step_.layout().format, [&]<WeightFormat kFormat>() {
      CodedStep::with_scales<kFormat>(has_large_scale_,
                                      [&]<bool kLarge>() { widen<kFormat, kLarge>(first, wide); });
    });
  }

 private:
  template <WeightFormat kFormat, bool kLarge, int kCount>
  __device__ void widen(int first, uint32_t (&wide)[kCount][4]) const {
    constexpr int kSteps = kCount / 2;  // of a group, or of one each
    const bool each_has_group = layout_of<kFormat>(step_.layout()).group_shift == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint8_t* block = block_ + half * eight_channels_;
      CodedStep::Group group;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int step = first / 2 + i;
        if (i == 0 || each_has_group) group = step_.group<kFormat, kLarge>(block, step);
        CodedStep::Registers registers;
        step_.widen<kFormat, kLarge>(group, block, step, registers);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          wide[2 * i + j][half] = registers[j][0];
          wide[2 * i + j][half + 2] = registers[j][1];
        }
      }
    }
  }

  CodedStep step_;
  const uint8_t* block_;
  int eight_channels_;
  bool has_large_scale_;
};

/// The scales of a thread's two channels of E4M3, of a block of columns' groups. Those of the next
/// kAhead blocks are on their way meanwhile: beside full copies ahead they take 1 us and more.
template <int kAhead>
class GroupScales {
 public:
  static constexpr int kGroups = packed_groups(WeightFormat::fp8);

  /// rows: of the channels', scales of all blocks; null where there is none.
  __device__ void begin(const float4* const (&rows)[2], int first_block, int blocks) {
    blocks_ = blocks;
    next_block_ = first_block;
    rows_[0] = rows[0];
    rows_[1] = rows[1];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ask(i);
  }

  /// Of the first block, then of the next one.
  __device__ void take(float (&scales)[kGroups][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales[0][i] = next_[0][i].x;
      scales[1][i] = next_[0][i].y;
      scales[2][i] = next_[0][i].z;
      scales[3][i] = next_[0][i].w;
#pragma unroll
      for (int j = 1; j < kAhead; ++j) next_[j - 1][i] = next_[j][i];
    }
    ask(kAhead - 1);
  }

 private:
  static_assert(kGroups * sizeof(float) == sizeof(float4));

  __device__ void ask(int place) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next_[place][i] = {};
      if (rows_[i] != nullptr && next_block_ < blocks_) {
        next_[place][i] = __ldg(rows_[i] + next_block_);
      }
    }
    ++next_block_;
  }

  const float4* rows_[2];
  int blocks_;
  int next_block_;
  float4 next_[kAhead][2];
};

/// A thread's sums that it wants again much later: in memory, as there are no registers for them.
template <int kCount>
class ParkedSums {
 public:
  __device__ void put(const float* sums) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      asm volatile("st.local.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at(i)), "f"(sums[i]),
                   "f"(sums[i + 1]), "f"(sums[i + 2]), "f"(sums[i + 3])
                   : "memory");
    }
  }
  /// Adds `sums` to those parked, which become `sums`.
  __device__ void add_to(float* sums) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      float parked[4];
      asm volatile("ld.local.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(parked[0]), "=f"(parked[1]), "=f"(parked[2]), "=f"(parked[3])
                   : "r"(at(i))
                   : "memory");
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i + j] = __fadd_rn(parked[j], sums[i + j]);
    }
  }

 private:
  [[nodiscard]] __device__ uint32_t at(int i) const {
    return static_cast<uint32_t>(__cvta_generic_to_local(sums_ + i));
  }
  alignas(16) float sums_[kCount];
};

template <typename K>
using WideningOf = std::conditional_t<K::kCoded, CodedWidening, Int4Widening>;

/// One warpgroup's part of the tiles.
template <typename K>
class Consumer {
 public:
  __device__ Consumer(const Arguments& a, const Maps& maps, Shared& shared)
      : a_(a),
        maps_(maps),
        shared_(shared),
        group_(static_cast<int>(threadIdx.x) / kWarpgroup - 1),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        lane_(thread_ % kWarp) {}

  __device__ void run() {
    const Steps steps = steps_of_block(a_);
    const bool is_divided = K::kDivides && a_.tiling.split > 1;
    bool waits = !K::kGrouped;  // what weights have is there before
    if (!waits) wait_for_inputs();
    for_tiles<K>(a_, [&](Tile tile) {
      const int rows = ceil_div(tile.rows, kPartRows) * kPartRows;
      if (is_divided) {  // of the tile's rows, those that this block finishes
        const int before = rank_in_cluster() * (K::kRows / 2);
        tile.first_row += before;
        tile.rows = min(K::kRows / 2, tile.rows - before);
      }
      load_channels(tile, steps);
      if (waits) wait_for_inputs();
      waits = false;
      load_row_scales(tile);
      // Zeros to add to: of what the tile before left in these registers the compiler would not
      // know that no product is on its way, and have each wait for the one before.
      Sums sums = {};
      if constexpr (K::kE4m3) {
        multiply_groups<K::kRows>(steps, rows, sums);
      } else if constexpr (K::kPacked) {
        multiply_packed<K::kRows>(steps, rows, sums);
      } else {
        multiply<K::kRows>(steps, rows, sums);
      }
      if constexpr (K::kDivides) {
        if (is_divided) add_parts(sums);
      }
      if constexpr (K::kActivated) activate_sums(sums);
      finish(tile, sums);
    });
    if (thread_ == 0) wait_for_bulk_reads();
  }

 private:
  using Out = typename K::Out;
  using Sums = typename K::Sum[K::kRows / 2];
  using Scales = GroupScales<K::kRows <= 64 ? 2 : 1>;  // as registers have room

  // Of this thread's two channels. The products' time hides the loads', but for the first groups'.
  __device__ void load_channels(const Tile& tile, const Steps& steps) {
    const Destination& to = a_.product.to;
    const int warp = thread_ / kWarp;
    const int64_t before =  // channels of other experts
        K::kGrouped ? tile.expert * (K::kGated ? 2 : 1) * a_.product.outputs : 0;
    const float4* scales[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t column = tile.first_output + group_ * K::kGroupOutputs +
                             (K::kGated ? 8 * warp + lane_ / 4 : 16 * warp + 8 * half + lane_ / 4);
      const int64_t channel = K::kGated && half == 1 ? column + a_.product.outputs : column;
      const bool exists = column < a_.product.outputs;
      channel_scales_[half] = K::kIntegers && exists ? to.scales[before + channel] : 1;
      const auto* row = static_cast<const std::byte*>(a_.product.weight) +
                        (before + channel) * a_.weight_row_bytes +
                        e4m3_code_bytes(a_.product.inputs);
      scales[half] = exists ? reinterpret_cast<const float4*>(row) : nullptr;
      biases_[half] = to.bias != nullptr && exists ? to.bias[before + channel] : 0;
    }
    if constexpr (K::kE4m3) group_scales_.begin(scales, steps.first, a_.steps);
  }

  // Of the tile's rows: lane l has row 32 i + l in [i].
  __device__ void load_row_scales(const Tile& tile) {
    if constexpr (K::kScaledRows) {
#pragma unroll
      for (int i = 0; i < K::kRows / kWarp; ++i) {
        const int row = i * kWarp + lane_;
        row_scales_[i] = row < tile.rows ? a_.product.row_scales[tile.first_row + row] : 0;
      }
    }
  }

  // sums of a tile whose rows are a multiple of kPartRows, at most kRows.
  template <int kRows>
  __device__ void multiply(const Steps& steps, int rows, Sums& sums) {
    if constexpr (kRows > kPartRows) {
      if (rows < kRows) return multiply<kRows - kPartRows>(steps, rows, sums);
    }
    const auto release = [&](int stage) {
      if (lane_ == 0) arrive(shared_.done[stage]);
    };
    int before = 0;  // the stage of the step before
#pragma unroll 1
    for (int step = 0; step < steps.count; ++step) {
      const std::byte* weights = shared_.stages + at_.stage * a_.stage_bytes;
      const std::byte* x = weights + kWeightsBytes;
      wait_for_phase(shared_.there[at_.stage], at_.parity);
      pin(sums);
      begin_products();
#pragma unroll
      for (int offset = 0; offset < kBlockRowBytes; offset += 32) {
        multiply_rows<typename K::Element, kRows>(
            sums,
            matrix_descriptor(weights + group_ * kGroupChannels * kBlockRowBytes + offset, 16),
            matrix_descriptor(x + offset, 16), true);
      }
      end_group();
      if (step > 0) {
        wait_for_groups<1>();
        release(before);
      }
      before = at_.stage;
      at_.advance(a_.n_stages);
    }
    wait_for_groups<0>();
    pin(sums);
    release(before);
  }

  // The same of packed weights, which this widens in registers while the tensor cores have those of
  // the stage of x before.
  template <int kRows>
  __device__ void multiply_packed(const Steps& steps, int rows, Sums& sums) {
    if constexpr (kRows > kPartRows) {
      if (rows < kRows) return multiply_packed<kRows - kPartRows>(steps, rows, sums);
    }
    // Instructions whose operands are widened at a time: beside the sums of many rows registers
    // have room for few.
    constexpr int kAtOnce = K::kRows > 128 ? 2 : kInstructions;
    constexpr int kTurns = kInstructions / kAtOnce;  // of a stage of x
    const std::byte* x_stages = shared_.stages + a_.n_weight_stages * packed_stage_bytes<K>(a_);
    const int first_channel = group_ * kGroupChannels + thread_ / kWarp * 16;
    int before = 0;  // the stage of x before
    bool is_first = true;
    // Of codes: the sum of the blocks before in this half of the inputs, each summed by itself, and
    // that of the first half. Blocks that have only one half have no other to add; products of
    // experts, which are not divided, have no halves.
    Sums totals = {};
    ParkedSums<kRows / 2> first_half;
    const int half = K::kGrouped || a_.tiling.split > 1 ? 0 : steps.count / 2;
#pragma unroll 1
    for (int step = 0; step < steps.count; ++step) {
      wait_for_phase(shared_.weights_there[weights_at_.stage], weights_at_.parity);
      const std::byte* weights = shared_.stages + weights_at_.stage * packed_stage_bytes<K>(a_) +
                                 first_channel * packed_pitch<K>(a_);
      const WideningOf<K> widening(a_, weights, lane_);
      // Two, so that the registers of one are widened while products read those of the other.
#pragma unroll 2
      for (int n = 0; n < K::kStepParts * kTurns; ++n) {
        const int turn = n % kTurns;
        uint32_t wide[kAtOnce][4];
        widening.widen(shared_, n * kAtOnce, wide);
        if (n + 1 == K::kStepParts * kTurns) {
          __syncwarp();
          if (lane_ == 0) arrive(shared_.weights_done[weights_at_.stage]);
        }
        if (turn == 0) wait_for_phase(shared_.there[at_.stage], at_.parity);
        const std::byte* x =
            x_stages + at_.stage * a_.stage_bytes + turn * kAtOnce * kInstructionBytes;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) pin(wide[i]);
        pin(sums);
        begin_products();
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          multiply_rows<kRows>(sums, wide[i], matrix_descriptor(x + i * kInstructionBytes, 16));
        }
        end_group();
        if (!is_first) {
          wait_for_groups<1>();
          if (turn == 0 && lane_ == 0) arrive(shared_.done[before]);
        }
        is_first = false;
        if (turn + 1 < kTurns) continue;
        before = at_.stage;
        at_.advance(a_.n_stages);
      }
      weights_at_.advance(a_.n_weight_stages);
      if constexpr (K::kCoded) {
        wait_for_groups<0>();
        pin(sums);
        if (lane_ == 0) arrive(shared_.done[before]);
        is_first = true;
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
          totals[i] = step == 0 || step == half ? sums[i] : __fadd_rn(totals[i], sums[i]);
          sums[i] = 0;
        }
        if (step + 1 == half) first_half.put(totals);
      }
    }
    if constexpr (K::kCoded) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) sums[i] = totals[i];
      if (half > 0) first_half.add_to(sums);
    } else {
      wait_for_groups<0>();
      pin(sums);
      if (lane_ == 0) arrive(shared_.done[before]);
    }
  }

  // The same of E4M3: of each group of columns a chain, whose sums times the group's scale are
  // added in order, in each half of the inputs. Meanwhile the tensor cores have the next group, or
  // of many rows, whose sums registers have no room for twice, the other warpgroup's: nobody needs
  // to tell them to take turns.
  template <int kRows>
  __device__ void multiply_groups(const Steps& steps, int rows, Sums& totals) {
    if constexpr (kRows > kPartRows) {
      if (rows < kRows) return multiply_groups<kRows - kPartRows>(steps, rows, totals);
    }
    constexpr bool kTwice = K::kRows <= 64;
    const int half = K::kGrouped || a_.tiling.split > 1 ? 0 : steps.count / 2;
    ParkedSums<kRows / 2> first_half;
    Sums sums[kTwice ? 2 : 1] = {};
#pragma unroll 1
    for (int step = 0; step < steps.count; ++step) {
      float of_groups[Scales::kGroups][2];
      group_scales_.take(of_groups);
      // A loop ends with no product on its way: the compiler would have each wait for the one
      // before.
      int next = kTwice ? begin_group<kRows>(sums[0]) : 0;
#pragma unroll
      for (int i = 0; i < Scales::kGroups; ++i) {
        Sums& now = sums[kTwice ? i % 2 : 0];
        const int stage = kTwice ? next : begin_group<kRows>(now);
        if (kTwice && i + 1 < Scales::kGroups) {
          next = begin_group<kRows>(sums[(i + 1) % 2]);
          wait_for_groups<1>();
        } else {
          wait_for_groups<0>();
        }
        pin(now);
        if (lane_ == 0) arrive(shared_.done[stage]);
#pragma unroll
        for (int j = 0; j < kRows / 2; ++j) {
          totals[j] = __fmaf_rn(now[j], of_groups[i][j / 2 % 2], totals[j]);
        }
      }
      if (step + 1 == half) {
        first_half.put(totals);
#pragma unroll
        for (int j = 0; j < kRows / 2; ++j) totals[j] = 0;
      }
    }
    if (half > 0) first_half.add_to(totals);
  }

  // Has the tensor cores begin a chain, of the next stage. Returns that.
  template <int kRows>
  __device__ int begin_group(Sums& sums) {
    const int stage = at_.stage;
    const std::byte* weights = shared_.stages + stage * a_.stage_bytes;
    wait_for_phase(shared_.there[stage], at_.parity);
    pin(sums);
    begin_products();
#pragma unroll
    for (int offset = 0; offset < kBlockRowBytes; offset += kInstructionBytes) {
      multiply_rows<typename K::Element, kRows>(
          sums, matrix_descriptor(weights + group_ * kGroupChannels * kBlockRowBytes + offset, 16),
          matrix_descriptor(weights + kWeightsBytes + offset, 16), offset > 0);
    }
    end_group();
    at_.advance(a_.n_stages);
    return stage;
  }

  // Makes the first half of the sums those of both blocks of the cluster, of this block's half of
  // the rows, and sends the other block its half. Parts come where results will leave from: a block
  // has one tile.
  __device__ void add_parts(Sums& sums) {
    constexpr int kHalf = K::kRows / 4;  // sums of half of the rows
    static_assert(K::kPartsBytes <= sizeof(shared_.results));
    auto* parts = reinterpret_cast<int4*>(shared_.results[group_]) + thread_;
    const bool is_first = rank_in_cluster() == 0;
    wait_for_cluster();  // the other block's barrier is there
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      int32_t others[4];
#pragma unroll
      for (int j = i; j < i + 4; ++j) {
        others[j - i] = bits_of(is_first ? sums[kHalf + j] : sums[j]);
        sums[j] = is_first ? sums[j] : sums[kHalf + j];
      }
      send_to_block(is_first ? 1 : 0, parts + i / 4 * kWarpgroup,
                    make_int4(others[0], others[1], others[2], others[3]), shared_.parts);
    }
    wait_for_sent(shared_.parts, 0);
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      const int4 other = parts[i / 4 * kWarpgroup];
      add_bits(sums[i], other.x);
      add_bits(sums[i + 1], other.y);
      add_bits(sums[i + 2], other.z);
      add_bits(sums[i + 3], other.w);
    }
  }
  static __device__ int32_t bits_of(int32_t sum) { return sum; }
  static __device__ int32_t bits_of(float sum) { return __float_as_int(sum); }
  static __device__ void add_bits(int32_t& sum, int32_t other) { sum += other; }
  static __device__ void add_bits(float& sum, int32_t other) {
    sum = __fadd_rn(sum, __int_as_float(other));
  }

  // Makes sums results, in one loop for each activation: they are in registers, so that loops are
  // unrolled.
  __device__ void activate_sums(Sums& sums) {
    const auto apply = [&](const auto& function) {
#pragma unroll
      for (int i = 0; i < K::kRows / 2; ++i) {
        sums[i] = function(__fadd_rn(sums[i], biases_[i / 2 % 2]));
      }
    };
    switch (a_.product.to.activation) {
      case Activation::silu:
        return apply([](float x) { return activate(Activation::silu, x); });
      case Activation::gelu:
        return apply([](float x) { return activate(Activation::gelu, x); });
      case Activation::gelu_tanh:
        return apply([](float x) { return activate(Activation::gelu_tanh, x); });
      default:
        return apply([](float x) { return activate(Activation::relu, x); });
    }
  }

  // Writes the tile's rows, whose sums are the first of sums. Gates have a loop each, as
  // activations do.
  __device__ void finish(const Tile& tile, const Sums& sums) {
    if constexpr (K::kGated && (K::kGrouped || K::kPacked || K::kE4m3)) {
      switch (a_.product.to.activation) {
        case Activation::gelu:
          return finish<Activation::gelu>(tile, sums);
        case Activation::gelu_tanh:
          return finish<Activation::gelu_tanh>(tile, sums);
        case Activation::swiglu_clamped:
          return finish<Activation::swiglu_clamped>(tile, sums);
        case Activation::silu_clamped:
          return finish<Activation::silu_clamped>(tile, sums);
        default:
          break;
      }
    }
    finish<Activation::silu>(tile, sums);
  }

  template <Activation kGate>
  __device__ void finish(const Tile& tile, const Sums& sums) {
    std::byte* results = shared_.results[group_];
#pragma unroll
    for (int piece = 0; piece < K::kPieces; ++piece) {
      const int row = piece * K::kPieceRows;  // of the tile
      if (row >= tile.rows) break;
      if (thread_ == 0) wait_for_bulk_reads();
      synchronize_threads(kResultsFree + group_, kWarpgroup);
#pragma unroll
      for (int j = 0; j < K::kPieceRows / 8; j += kTogether) {
        if (row + 8 * j < tile.rows) put<kGate>(results, j, sums, row / 8 + j);
      }
      publish_shared_writes();
      synchronize_threads(kResultsFree + group_, kWarpgroup);
      int end = min(row + K::kPieceRows, tile.rows);
      if constexpr (K::kGrouped) {  // the next rows are another expert's
        const int rest = (end - row) % kPartRows;
        end -= rest;
        store_rows(tile, results, row, end - row, rest);
      }
      if (thread_ != 0) continue;
      const bool is_whole = end - row == K::kPieceRows;
      const int box_rows = is_whole ? K::kPieceRows : kPartRows;
#pragma unroll 1
      for (int first = row; first < end; first += box_rows) {
        const std::byte* from = results + (first - row) * K::kBoxBytes;
        store(is_whole ? maps_.out : maps_.out_part, tile, from, first);
        if (a_.product.to.far == nullptr) continue;
        store(is_whole ? maps_.far : maps_.far_part, tile, from, first);
      }
      end_bulk_group();
    }
  }

  // Has the map's box of results from row `row` of the tile on leave.
  __device__ void store(const CUtensorMap& out, const Tile& tile, const std::byte* results,
                        int row) {
#pragma unroll 1
    for (int box = 0; box < K::kBoxes; ++box) {
      const std::byte* from = results + box * K::kPieceRows * K::kBoxBytes;
      const int column = tile.first_output + group_ * K::kGroupOutputs + box * K::kBoxColumns;
      if (column >= a_.product.outputs) continue;
      if (a_.product.to.add) {
        add_box(out, column, tile.first_row + row, from);
      } else {
        store_box(out, column, tile.first_row + row, from);
      }
    }
  }

  // Writes `count` rows of a piece, from `first` of it on, which begins at row `row` of the tile.
  __device__ void store_rows(const Tile& tile, const std::byte* results, int row, int first,
                             int count) {
    constexpr int kPieces16 = K::kBoxBytes / 16;
    constexpr int kRowPieces = K::kBoxes * kPieces16;
    const Destination& to = a_.product.to;
    for (int i = thread_; i < count * kRowPieces; i += kWarpgroup) {
      const int in_piece = first + i / kRowPieces;
      const int box = i % kRowPieces / kPieces16;
      const int part = i % kPieces16;
      const int column = tile.first_output + group_ * K::kGroupOutputs + box * K::kBoxColumns +
                         part * (16 / static_cast<int>(sizeof(Out)));
      if (column >= a_.product.outputs) continue;
      const int place = part ^ (K::kBoxBytes == 64 ? in_piece / 2 % 4 : in_piece % 8);
      const int64_t out_row = tile.first_row + row + in_piece;
      *reinterpret_cast<uint4*>(static_cast<Out*>(to.out) + out_row * to.stride + column) =
          *reinterpret_cast<const uint4*>(
              results + (box * K::kPieceRows + in_piece) * K::kBoxBytes + place * 16);
    }
  }

  // Eights of rows that put() takes.
  static constexpr int kTogether = K::kGated ? 4 : std::is_same_v<Out, float> ? 1 : 2;

  // The results of sums `from` to from + kTogether - 1, each of eight rows, as the eights `to` and
  // following of a piece, as boxes of the output's map lie.
  template <Activation kGate>
  __device__ void put(std::byte* results, int to, const Sums& sums, int from) {
    const int warp = thread_ / kWarp;
    const int matrix = lane_ / 8;
    const int row = lane_ % 8;
    if constexpr (K::kGated) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float values[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float row_scale = row_scale_of(from + j, i);
          values[i] =
              gate_value(kGate, a_.product.to.gate_limit, value(sums, from + j, 0, i, row_scale),
                         value(sums, from + j, 1, i, row_scale));
        }
        pairs[j] = pack_pair<Out>(values[0], values[1]);
      }
      store_matrices<true>(
          results + (8 * (to + matrix) + row) * K::kBoxBytes + (warp ^ row / 2) * 16, pairs);
    } else if constexpr (std::is_same_v<Out, float>) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float row_scale = row_scale_of(from, i);
        const int in_eight = lane_ % 4 * 2 + i;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = 16 * (warp % 2) + 8 * half + lane_ / 4;
          std::byte* place = results + warp / 2 * K::kPieceRows * K::kBoxBytes +
                             (8 * to + in_eight) * K::kBoxBytes + (column / 4 ^ in_eight) * 16 +
                             column % 4 * 4;
          *reinterpret_cast<float*>(place) = value(sums, from, half, i, row_scale);
        }
      }
    } else {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float first_scale = row_scale_of(from + j, 0);
        const float second_scale = row_scale_of(from + j, 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          pairs[2 * j + half] = pack_pair<Out>(value(sums, from + j, half, 0, first_scale),
                                               value(sums, from + j, half, 1, second_scale));
        }
      }
      store_matrices<true>(results + (8 * (to + matrix / 2) + row) * K::kBoxBytes +
                               ((2 * warp + matrix % 2) ^ row) * 16,
                           pairs);
    }
  }

  // Of row 8 eight + 2t + i. `eight` is known to the compiler.
  __device__ float row_scale_of(int eight, int i) const {
    if constexpr (!K::kScaledRows) return 1;
    return __shfl_sync(kAllLanes, row_scales_[eight / 4], eight % 4 * 8 + lane_ % 4 * 2 + i);
  }

  // A scaled sum with its bias.
  __device__ float value(const Sums& sums, int eight, int half, int i, float row_scale) const {
    const auto sum = sums[4 * eight + 2 * half + i];
    if constexpr (K::kIntegers) {
      return __fadd_rn(static_cast<float>(sum) * row_scale * channel_scales_[half], biases_[half]);
    } else if constexpr (K::kActivated) {
      return sum;
    } else if constexpr (K::kE4m3) {
      return __fadd_rn(__fmul_rn(sum, row_scale), biases_[half]);
    } else {
      const float value = sum + biases_[half];
      // As beside few rows.
      return K::kGated && !K::kGrouped ? to_float(from_float<Out>(value)) : value;
    }
  }

  // Named barriers.
  static constexpr int kResultsFree = 1;  // and one more for the second warpgroup

  const Arguments& a_;
  const Maps& maps_;
  Shared& shared_;
  int group_;
  int thread_;
  int lane_;
  Place at_;
  Place weights_at_;  // of packed weights
  float channel_scales_[2];
  Scales group_scales_;  // of E4M3
  float biases_[2];
  float row_scales_[K::kRows / kWarp];
};

}  // namespace

}  // namespace faststream
