// Norms, sums and factors of rows.
#pragma once

#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ranks/terms.cuh"
#include "kernels/cuda/step_kernel/consumer_threads.cuh"

namespace faststream::step_kernel {

/// A short row by a warp, a long one by all consumers of a block: the same bits as by norm.cu and
/// scale.cu. The first row is of one block, the next of the next one; a row alone may be made by
/// all, so that nobody waits for whom it comes from. Rows pass through shared
/// memory, so that there are loops, one for warps and blocks: code that runs once a layer is not in
/// the instruction cache, and with rows in registers, 130 kB of it, took ten times as long.
class Normalizer {
 public:
  explicit __device__ Normalizer(const RowMemory& rows) : rows_(rows) {}

  __device__ void normalize(const NormInstruction& n) const {
    const auto blocks = static_cast<int>(gridDim.x);
    int row = n.is_everyones ? 0 : static_cast<int>(blockIdx.x) - n.first_block;
    if (row < 0) row += blocks;
    Place place{row, n.columns, thread(), kConsumerThreads,
                reinterpret_cast<float*>(shared_memory().x)};
    int step = blocks;
    if (n.columns <= kMaxWarpNormalized) {
      place.row += warp() * blocks;
      place.thread = lane();
      place.threads = kWarp;
      place.memory += warp() * kRows * kMaxWarpNormalized;
      step *= kConsumers;
    }
    Team team{{thread(), kAll, shared_memory().parts[0]}, place.threads == kWarp};
#pragma unroll 1
    for (; place.row < n.rows; place.row += step) {
      if (n.terms.exist()) {
        add_up(n, place);
      } else {
        normalize_row(n, place, team);
      }
    }
  }

 private:
  static constexpr int kRows = 2;  // in shared memory: x, and what it is added to or multiplied by
  static_assert(kMaxFactors <= kMaxWarpNormalized);
  static_assert(kRows * kMaxNormRow * sizeof(float) <= kMaxInputBytes);
  static_assert(kMaxNormalized * sizeof(float) <= kMaxInputBytes);  // of a sum
  static_assert(kRows * kMaxWarpNormalized * kConsumers * sizeof(float) <= kMaxInputBytes);

  // The threads of a row: all consumers, or a warp, which has what their first 32 threads would
  // have: zeros of the others change no sum.
  struct Team {
    RowTeam<kConsumerThreads> all;
    bool is_warp;
    static constexpr int kTurns = RowTeam<kConsumerThreads>::kTurns;

    __device__ float sum(const float (&values)[kTurns]) {
      return is_warp ? warp_sum(values[0]) : all.sum(values);
    }
  };
  static_assert(kMaxWarpNormalized <= 8 * kWarp, "a warp has one turn");

  // What a thread has of a row: eights in turn with the other threads of its team, nobody else's.
  struct Place {
    int row;
    int columns;
    int thread;
    int threads;
    float* memory;  // of the team's rows, one after the other

    [[nodiscard]] __device__ int element(int e) const { return 8 * (thread + threads * e); }
    [[nodiscard]] __device__ bool exists(int e) const { return element(e) < columns; }
    [[nodiscard]] __device__ float* eight(int nth, int e) const {
      return memory + nth * columns + element(e);
    }
  };

  __device__ void normalize_row(const NormInstruction& n, const Place& place, Team& team) const {
    const bool has_norm = n.norm.kind != NormKind::none;
    const bool has_before = n.before.offset >= 0;
    const bool has_factors = n.factors_are == NormInstruction::Factors::of_elements;
    const bool has_one = n.factors_are == NormInstruction::Factors::one ||
                         n.factors_are == NormInstruction::Factors::of_rows;
    // The word that the row's factor is in, which has two of sixteen bits.
    uint32_t one[1];
    const int its = n.factors_are == NormInstruction::Factors::of_rows ? place.row : 0;
    const bool is_word = n.factors.dtype == DType::f32;
    const auto from = [&](int) {
      return static_cast<const uint32_t*>(at(n.factors)) + (is_word ? its : its / 2);
    };
    ask_for(
        one, [&](int) { return has_one; }, from);
#pragma unroll 1
    for (int e = 0; has_norm && place.exists(e); ++e) touch(n.norm.weight + place.element(e));
    if (n.before_at >= 0) take_held(n.before_at, place);
    const bool wants_second = (has_before && n.before_at < 0) || has_factors;
    // That is there first; x is what others make now.
#pragma unroll 1
    for (int nth = 1; nth >= 0; --nth) {
      const bool is_second = nth > 0;
      if (is_second ? !wants_second : n.x_is_held) continue;
      const bool is_before = is_second && has_before;
      const RowElements& elements = is_before ? n.result : is_second ? n.factors : n.x;
      bring_row(is_before ? rows_.at(n.before) : at(elements),
                is_before ? n.before.awaited : elements.row.awaited, elements.dtype == DType::f32,
                elements.stride, nth, place);
    }
    const MeasuredNorm norm = measure(n.columns, n.norm, team, [&](const auto& add) {
#pragma unroll 1
      for (int first = 0; place.exists(first); first += Team::kTurns) {
#pragma unroll
        for (int turn = 0; turn < Team::kTurns; ++turn) {
          if (!place.exists(first + turn)) break;
          float values[8];
          load_floats(place.eight(0, first + turn), values);
#pragma unroll
          for (const float value : values) add(turn, value);
        }
      }
    });
    if (has_factors && n.activation != Activation::none && place.exists(0)) {
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        float& value = place.eight(1, 0)[i];
        value = activated(n.activation, value);
      }
    }
    float factor = 1;
    if (has_one) {
      await(one, n.factors.row.awaited, from);
      const uint32_t bits = is_word ? one[0] : its % 2 == 0 ? one[0] << 16 : one[0] & kUpper;
      factor = activated(n.activation, __uint_as_float(bits));
    }
    const bool rounds = (has_one || has_factors) && n.result.dtype != DType::f32;
#pragma unroll 1
    for (int e = 0; place.exists(e); ++e) {
      float values[8];
      float others[8] = {};
      load_floats(place.eight(0, e), values);
      if (has_before || has_factors) load_floats(place.eight(1, e), others);
      if (has_norm) {
        float weights[8];
        float biases[8] = {};
        load_floats(n.norm.weight + place.element(e), weights);
        if (n.norm.bias != nullptr) load_floats(n.norm.bias + place.element(e), biases);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = norm.apply(values[i], weights[i], biases[i]);
      }
      if (has_before) {
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = __fadd_rn(values[i], others[i]);
      }
      if (rounds) {
#pragma unroll
        for (float& value : values) value = to_float(from_float<T>(value));
      }
      if (has_one || has_factors) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          values[i] = __fmul_rn(values[i], has_factors ? others[i] : factor);
        }
      }
      hand_over(n, place, e, values);
    }
  }

  // before + a sum over ranks.
  __device__ void add_up(const NormInstruction& n, const Place& place) const {
    constexpr int kEach = 2;
    const auto* before = static_cast<const float*>(rows_.at(n.before));
    const bool has_before = n.before.offset >= 0;
    const bool brings_before = has_before && n.before_at < 0;
#pragma unroll 1
    for (int first = 0; 8 * place.threads * first < place.columns; first += kEach) {  // all lanes
      const auto exists = [&](int e) { return place.exists(first + e); };
      const auto element = [&](int e) { return place.element(first + e); };
      uint4 words[2 * kEach];
      const auto from = [&](int i) { return before + element(i / 2) + i % 2 * 4; };
      ask_for(
          words, [&](int i) { return brings_before && exists(i / 2); }, from);
      float sums[kEach][8];
      bring_sums(n.terms, exists, element, sums);
      await(words, brings_before && n.before.awaited, from);
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (!exists(e)) break;
        float values[8];
        memcpy(values, &words[2 * e], sizeof values);
        if (n.before_at >= 0) load_floats(held_row(n.before_at) + element(e), values);
        if (has_before) {
#pragma unroll
          for (int i = 0; i < 8; ++i) sums[e][i] = __fadd_rn(values[i], sums[e][i]);
        }
        hand_over(n, place, first + e, sums[e]);
      }
    }
  }

  // The next instruction may go on with a result, and products.
  __device__ void hand_over(const NormInstruction& n, const Place& place, int e,
                            const float (&values)[8]) const {
    store_eight(n, place.row * n.result.stride + place.element(e), values);
    put_eight(place.eight(0, e), values);
    if (n.held_at > 0) put_eight(held_row(n.held_at) + place.element(e), values);
  }

  // The only row that all have: of the instruction before, or of a norm that held it for products.
  static __device__ float* held_row(int at) {
    return reinterpret_cast<float*>(shared_memory().x + at);
  }
  // As the second row, by who has the same of it.
  static __device__ void take_held(int at, const Place& place) {
#pragma unroll 1
    for (int e = 0; place.exists(e); ++e) {
      float values[8];
      load_floats(held_row(at) + place.element(e), values);
      put_eight(place.eight(1, e), values);
    }
  }
  static __device__ void put_eight(float* to, const float (&v)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
  }

  // A row of floats or of T to shared memory, once it is there, as the nth one.
  static __device__ void bring_row(const void* rows, bool awaited, bool is_float, int64_t stride,
                                   int nth, const Place& place) {
    constexpr int kEach = 2;  // eights at once, in halves where they are floats
    const int bytes = is_float ? 4 : 2;
    const auto* row = static_cast<const std::byte*>(rows) + bytes * place.row * stride;
#pragma unroll 1
    for (int first = 0; 8 * place.threads * first < place.columns; first += kEach) {  // all lanes
      uint4 pieces[2 * kEach];
      const auto from = [&](int i) {
        return row + bytes * place.element(first + i / 2) + i % 2 * 16;
      };
      bring(
          pieces, awaited,
          [&](int i) { return place.exists(first + i / 2) && (i % 2 == 0 || is_float); }, from);
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (!place.exists(first + e)) break;
        auto* to = reinterpret_cast<uint4*>(place.eight(nth, first + e));
        const uint4& p = pieces[2 * e];
        to[0] = is_float ? p : make_uint4(p.x << 16, p.x & kUpper, p.y << 16, p.y & kUpper);
        to[1] = is_float ? pieces[2 * e + 1]
                         : make_uint4(p.z << 16, p.z & kUpper, p.w << 16, p.w & kUpper);
      }
    }
  }
  static constexpr uint32_t kUpper = 0xffff0000U;

  [[nodiscard]] __device__ const void* at(const RowElements& elements) const {
    return elements.in_place != nullptr ? elements.in_place : rows_.at(elements.row);
  }

  // Once for all who need it.
  static __device__ __noinline__ float activated(Activation activation, float value) {
    return activate_any(activation, value);
  }

  __device__ void store_eight(const NormInstruction& n, int64_t index, const float (&v)[8]) const {
    if (n.result.dtype == DType::f32) {
      store_four(n, index * sizeof(float), __float_as_uint(v[0]), __float_as_uint(v[1]),
                 __float_as_uint(v[2]), __float_as_uint(v[3]));
      store_four(n, (index + 4) * sizeof(float), __float_as_uint(v[4]), __float_as_uint(v[5]),
                 __float_as_uint(v[6]), __float_as_uint(v[7]));
    } else {
      store_four(n, index * sizeof(T), pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]),
                 pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7]));
    }
  }
  __device__ void store_four(const NormInstruction& n, int64_t byte, uint32_t a, uint32_t b,
                             uint32_t c, uint32_t d) const {
    const uint4 words = make_uint4(a, b, c, d);
    if (n.is_everyones && static_cast<int>(blockIdx.x) != n.first_block) return;
    if (n.result.row.offset >= 0) {
      publish(static_cast<std::byte*>(rows_.at(n.result.row)) + byte, words);
    }
    if (n.out != nullptr) *reinterpret_cast<uint4*>(static_cast<std::byte*>(n.out) + byte) = words;
  }

  RowMemory rows_;
};

}  // namespace faststream::step_kernel
