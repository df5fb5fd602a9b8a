// Norms, sums and factors of rows.
#pragma once

#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/step_kernel/consumer_threads.cuh"

namespace faststream::step_kernel {

/// A short row by a warp, a long one by all consumers of a block: the same bits as by norm.cu and
/// scale.cu. The first row is of one block, the next of the next one; a row alone may be made by
/// all, so that nobody waits for whom it comes from. Rows pass through shared
/// memory, so that there are loops: code that runs once a layer is not in the instruction cache,
/// and with rows in registers, 130 kB of it, took ten times as long.
class Normalizer {
 public:
  explicit __device__ Normalizer(const RowMemory& rows) : rows_(rows) {}

  __device__ void normalize(const NormInstruction& n) const {
    const auto blocks = static_cast<int>(gridDim.x);
    int row = n.is_everyones ? 0 : static_cast<int>(blockIdx.x) - n.first_block;
    if (row < 0) row += blocks;
    auto* memory = reinterpret_cast<float*>(shared_memory().x);
    if (n.columns > kMaxWarpNormalized) {
      RowTeam<kConsumerThreads> team{thread(), kAll, shared_memory().parts[0]};
      for (; row < n.rows; row += blocks) {
        normalize_row<kConsumerThreads>(n, {row, n.columns, thread(), memory}, team);
      }
      return;
    }
    RowWarp<1> team;
    memory += warp() * kRows * kMaxWarpNormalized;
    for (row += warp() * blocks; row < n.rows; row += kConsumers * blocks) {
      normalize_row<kWarp>(n, {row, n.columns, lane(), memory}, team);
    }
  }

 private:
  static constexpr int kRows = 2;  // in shared memory: x, and what it is added to or multiplied by
  static_assert(kMaxFactors <= kMaxWarpNormalized);
  static_assert(kRows * kMaxNormRow * sizeof(float) <= kMaxInputBytes);
  static_assert(kRows * kMaxWarpNormalized * kConsumers * sizeof(float) <= kMaxInputBytes);

  // What a thread has of a row: eights in turn with the other threads of its team, nobody else's.
  template <int kThreads>
  struct Place {
    static constexpr int kMost = kThreads == kWarp ? kMaxWarpNormalized : kMaxNormRow;
    static constexpr int kEights = ceil_div(kMost, 8 * kThreads);  // at most
    int row;
    int columns;
    int thread;
    float* memory;  // of the team's rows, one after the other

    [[nodiscard]] __device__ int element(int e) const { return 8 * (thread + kThreads * e); }
    [[nodiscard]] __device__ bool exists(int e) const { return element(e) < columns; }
    [[nodiscard]] __device__ float* eight(int nth, int e) const {
      return memory + nth * columns + element(e);
    }
  };

  template <int kThreads, typename Team>
  __device__ void normalize_row(const NormInstruction& n, const Place<kThreads>& place,
                                Team& team) const {
    const bool has_norm = n.norm.kind != NormKind::none;
    const bool has_before = n.before.offset >= 0;
    const bool has_factors = n.factors_are == NormInstruction::Factors::of_elements;
    const bool has_one = n.factors_are == NormInstruction::Factors::one;
    uint32_t one[1];
    const auto from = [&](int) { return at(n.factors); };
    ask_for(
        one, [&](int) { return has_one; }, from);
#pragma unroll 1
    for (int e = 0; has_norm && place.exists(e); ++e) touch(n.norm.weight + place.element(e));
    const RowElements before{n.before, n.result.dtype, n.result.stride};
    bring_rows(n.x, !n.x_is_held, has_before ? before : n.factors, has_before || has_factors,
               place);
    const MeasuredNorm norm = measure(n.columns, n.norm, team, [&](const auto& add) {
#pragma unroll
      for (int e = 0; e < place.kEights; ++e) {
        if (!place.exists(e)) continue;
        float values[8];
        load_floats(place.eight(0, e), values);
#pragma unroll
        for (const float value : values) add(e % Team::kTurns, value);
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
      factor = activated(n.activation, __uint_as_float(one[0]));
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
      store_eight(n, place.row * n.result.stride + place.element(e), values);
      // The next instruction may go on with them.
#pragma unroll
      for (int i = 0; i < 8; ++i) place.eight(0, e)[i] = values[i];
    }
  }

  // Those rows that are wanted to shared memory, once they are there, the second behind the first.
  // That is there first; x is what others make now.
  template <int kThreads>
  __device__ void bring_rows(const RowElements& x, bool wants_x, const RowElements& second,
                             bool wants_second, const Place<kThreads>& place) const {
    // At once: halves of eights where they are floats.
    constexpr int kPieces = kThreads == kWarp ? 2 : 4;
    constexpr int kEach = kPieces / 2;  // eights
#pragma unroll 1
    for (int first = 0; 8 * kThreads * first < place.columns; first += kEach) {
      const auto begin = [&](const RowElements& elements, bool wanted, uint4(&pieces)[kPieces]) {
        ask_for(
            pieces,
            [&](int i) {
              return wanted && place.exists(first + i / 2) &&
                     (i % 2 == 0 || elements.dtype == DType::f32);
            },
            [&](int i) { return piece_at(elements, place, first, i); });
      };
      const auto end = [&](const RowElements& elements, int nth, uint4(&pieces)[kPieces]) {
        await(pieces, elements.row.awaited,
              [&](int i) { return piece_at(elements, place, first, i); });
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          if (!place.exists(first + e)) continue;
          auto* to = reinterpret_cast<uint4*>(place.eight(nth, first + e));
          const uint4& p = pieces[2 * e];
          const bool is_float = elements.dtype == DType::f32;
          to[0] = is_float ? p : make_uint4(p.x << 16, p.x & kUpper, p.y << 16, p.y & kUpper);
          to[1] = is_float ? pieces[2 * e + 1]
                           : make_uint4(p.z << 16, p.z & kUpper, p.w << 16, p.w & kUpper);
        }
      };
      uint4 of_second[kPieces];
      uint4 of_x[kPieces];
      begin(second, wants_second, of_second);
      begin(x, wants_x, of_x);
      if (wants_second) end(second, 1, of_second);
      if (wants_x) end(x, 0, of_x);
    }
  }
  template <int kThreads>
  [[nodiscard]] __device__ const std::byte* piece_at(const RowElements& elements,
                                                     const Place<kThreads>& place, int first,
                                                     int i) const {
    const int bytes = elements.dtype == DType::f32 ? 4 : 2;
    return static_cast<const std::byte*>(at(elements)) +
           bytes * (place.row * elements.stride + place.element(first + i / 2)) + i % 2 * 16;
  }
  static constexpr uint32_t kUpper = 0xffff0000U;

  [[nodiscard]] __device__ const void* at(const RowElements& elements) const {
    return elements.in_place != nullptr ? elements.in_place : rows_.at(elements.row);
  }

  // Once for all who need it.
  static __device__ __noinline__ float activated(Activation activation, float value) {
    return activate(activation, value);
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
