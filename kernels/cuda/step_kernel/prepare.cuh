// A product's input, in shared memory as its multiplication wants it.
#pragma once

#include "kernels/cuda/experts/choose_experts.cuh"
#include "kernels/cuda/hadamard.cuh"
#include "kernels/cuda/step_kernel/consumer_threads.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream::step_kernel {

/// By all consumers, every block for itself: brings rows once they are there, normalizes them, and
/// rounds them to T or, beside integers, to eight bits. kMixed: whether rows may have factors.
/// kE4m3: whether they may be rounded to that. kTokens: whether they are those of several tokens,
/// and not of experts: a block makes one for all, which bring them, token_pitch() apart.
template <bool kMixed, bool kE4m3, bool kTokens>
class Preparer {
 public:
  explicit __device__ Preparer(const RowMemory& rows) : rows_(rows) {}

  __device__ void prepare(const ProductInstruction& p) const {
    // Weighed here, where all wait, and not by the producers, for whom copies would wait.
    if (p.sums_experts && warp() == 0) {
      Choice& choice = shared_memory().one.choices[0];
      weigh_experts(p.router, choice.experts, choice.weights);
    }
    if constexpr (kTokens) {
      bring_tokens(p);
    } else if (p.x_dtype == DType::f32) {
      with_eights<1, kMaxNormalized / 8 / kConsumerThreads>(
          p.inputs, kConsumerThreads, [&]<int kEights>() { prepare_floats<kEights>(p, 0); });
    } else if (kMixed && p.factors.exist()) {
      prepare_product(p, rows_);
    } else if (p.x_rows == 1) {
      with_eights<1, kMaxEights>(p.inputs, kConsumerThreads, [&]<int kEights>() {
        Team team{thread(), kAll, shared_memory().parts[0]};
        prepare_row<kEights>(p, 0, team);
      });
    } else if (p.x_rows > kFewRows && p.inputs <= kMaxWarpInputs) {
      prepare_rows<kWarp>(p);
    } else {
      prepare_rows<kConsumerThreads / kFewRows>(p);
    }
    if (kE4m3 && p.weight_format == WeightFormat::fp8) publish_shared_writes();
    synchronize();
  }

  /// Of several tokens, the row that is this block's to make for all.
  __device__ void prepare_for_all(const ProductInstruction& p) const {
    const int row = blocks_behind(p.dealt);
    if (p.x_dtype == DType::f32) {
      with_eights<1, kMaxNormalized / 8 / kConsumerThreads>(
          p.inputs, kConsumerThreads, [&]<int kEights>() { prepare_floats<kEights>(p, row); });
    } else {
      with_eights<1, kMaxEights>(p.inputs, kConsumerThreads, [&]<int kEights>() {
        Team team{thread(), kAll, shared_memory().parts[0]};
        prepare_row<kEights>(p, row, team);
      });
    }
  }

 private:
  using Team = RowTeam<kConsumerThreads>;
  static constexpr int kFewRows = 4;  // of experts, for each of which there are two warps

  // Calls use<kEights>() with a power of two of eights, so many that so many threads together have
  // a row of n elements. What registers do not hold takes no instructions.
  template <int kEights, int kMost, typename Use>
  static __device__ void with_eights(int n, int threads, const Use& use) {
    if constexpr (kEights < kMost) {
      if (n > 8 * kEights * threads) return with_eights<2 * kEights, kMost>(n, threads, use);
    }
    use.template operator()<kEights>();
  }

  // A row of x to shared memory, or to where all blocks find it, by a team that has kEights eights
  // of its elements a thread, zeros where there are none: as they are, or in eight bits beside
  // integers, rotated where those are.
  template <int kEights, int kThreads>
  __device__ void store_row(const ProductInstruction& p, int row, RowTeam<kThreads>& team,
                            uint4 (&eights)[kEights]) const {
    const int n = p.inputs;
    const auto element = [&](int e) { return 8 * (team.thread() + kThreads * e); };
    if (kE4m3 && p.weight_format == WeightFormat::fp8) return store_codes(p, row, team, eights);
    unsigned char* of_row =
        row * p.x_bytes +
        (kTokens ? static_cast<unsigned char*>(rows_.at(p.result)) : shared_memory().x);
    if (!is_integer(p.weight_format)) {
      T* to = reinterpret_cast<T*>(of_row);
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        if (element(e) < n) put(to + element(e), eights[e]);
      }
      if (kTokens && team.thread() == 0) publish(scale_of_token(p, p.result, row), 0U);
      return;
    }
    const float inverse = scale_row(p, row, team, eights, RowScale());
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      float values[8];
      unpack(eights[e], values);
      uint32_t packed[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&v)[8] = values;
        const float four[4] = {v[4 * half], v[4 * half + 1], v[4 * half + 2], v[4 * half + 3]};
        packed[half] = quantized(four, inverse);
      }
      if (element(e) < p.x_bytes) {  // to a group's end
        const auto words = make_uint2(packed[0], packed[1]);
        put(of_row + element(e), kTokens ? flipped(words) : words);
      }
    }
  }
  template <typename Words>
  static __device__ void put(void* to, const Words& words) {
    if constexpr (kTokens) {
      publish(to, words);
    } else {
      *static_cast<Words*>(to) = words;
    }
  }

  // The same as E4M3, where E4m3Chunk reads it.
  template <int kEights, int kThreads>
  __device__ void store_codes(const ProductInstruction& p, int row, RowTeam<kThreads>& team,
                              uint4 (&eights)[kEights]) const {
    const int columns = e4m3_columns(e4m3_chunks(p.x_rows, p.inputs));
    const int first_column = e4m3_chunks(row, p.inputs);
    const float inverse = scale_row(p, row, team, eights, RowScale(kLargestE4m3));
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const int element = 8 * (team.thread() + kThreads * e);
      float values[8];
      unpack(eights[e], values);
      const uint2 codes = e4m3_codes(values, inverse);
      if (element >= p.x_bytes) continue;  // to a chunk's end
      const int column = first_column + element / kChunkBytes;
      const int piece = element % kChunkBytes / 16 * columns + column;
      *reinterpret_cast<uint2*>(shared_memory().x + piece * 16 + element % 16) = codes;
    }
  }

  // Rotates a row, if it is to be, and stores its scale. Returns the inverse.
  template <int kEights, int kThreads>
  __device__ float scale_row(const ProductInstruction& p, int row, RowTeam<kThreads>& team,
                             uint4 (&eights)[kEights], RowScale scale) const {
    if (p.rotated) {
      const Hadamard hadamard;
      const int of_warp = team.thread() / kWarp * kWarp;
      hadamard.rotate(eights, [&](int e) { return p.inputs - 8 * (of_warp + kThreads * e); });
    }
    scale.see(eights);
    scale.join(team);
    if (team.thread() == 0) {
      if constexpr (kTokens) {
        publish(scale_of_token(p, p.result, row), __float_as_uint(scale.scale()));
      } else {
        shared_memory().row_scales[row] = scale.scale();
      }
    }
    return scale.inverse();
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

  // What a norm has left, which may be written over.
  template <int kPieces, typename Exists, typename Element>
  static __device__ void take_held(int held_at, uint4 (&pieces)[kPieces], const Exists& exists,
                                   const Element& element) {
    const auto* held = reinterpret_cast<const float*>(shared_memory().x + held_at);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      pieces[i] = {};
      if (exists(i)) pieces[i] = *reinterpret_cast<const uint4*>(held + element(i));
    }
  }

  // Where the scale of a token's row is, behind all rows.
  [[nodiscard]] __device__ std::byte* scale_of_token(const ProductInstruction& p, const Row& rows,
                                                     int row) const {
    return static_cast<std::byte*>(rows_.at(rows)) + p.x_rows * int64_t{p.x_bytes} +
           row * static_cast<int>(sizeof(float));
  }

  // What prepare_for_all() made of rows, or the block's part of each, by warps in pieces.
  __device__ void bring_tokens(const ProductInstruction& p) const {
    constexpr int kEach = 8;  // words of sixteen bytes that a lane brings at once
    constexpr int kPieceBytes = kEach * kWarp * static_cast<int>(sizeof(uint4));
    const bool are_integers = is_integer(p.weight_format);
    const int bytes = token_bytes(p);
    const int pieces = ceil_div(bytes, kPieceBytes);
    const auto* x = static_cast<const std::byte*>(rows_.at(p.x)) + TilesOfBlock(p).part * bytes;
    for (int task = warp(); task < p.x_rows * pieces; task += kConsumers) {
      const int row = task / pieces;
      const int first = (task - row * pieces) * kPieceBytes;
      const std::byte* from = x + row * p.x_bytes;
      const auto at = [&](int i) {
        return first + (i * kWarp + lane()) * static_cast<int>(sizeof(uint4));
      };
      const auto exists = [&](int i) { return at(i) < bytes; };
      // Until its scale says that the row comes, little is looked for, and weights go on coming.
      uint32_t scale[1];
      bring(
          scale, p.x.awaited, [](int) { return true; },
          [&](int) { return scale_of_token(p, p.x, row); });
      look(true);
      if (lane() == 0) shared_memory().row_scales[row] = __uint_as_float(scale[0]);
      uint4 words[kEach];
      bring(words, p.x.awaited, exists, [&](int i) { return from + at(i); });
      unsigned char* to = shared_memory().x + row * token_pitch(p);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (!exists(i)) continue;
        *reinterpret_cast<uint4*>(to + at(i)) = are_integers ? flipped(words[i]) : words[i];
      }
    }
  }

  // Which pieces of a row of n floats a thread brings. Two lanes bring the halves of one's eight,
  // then of the other's: memory gives 32 bytes at once.
  struct FloatPieces {
    explicit __device__ FloatPieces(int n) : inputs(n) {}
    static __device__ int eight(int i) {
      return 8 * (thread() + kConsumerThreads * (i / 2)) + 8 * (i % 2 - thread() % 2);
    }
    [[nodiscard]] __device__ bool exists(int i) const { return eight(i) < inputs; }
    [[nodiscard]] __device__ int element(int i) const { return eight(i) + thread() % 2 * 4; }
    int inputs;
  };

  template <int kEights>
  static __device__ void load_norm(const ProductInstruction& p, float (&weights)[kEights][8]) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const int element = 8 * (thread() + kConsumerThreads * e);
#pragma unroll
      for (float& weight : weights[e]) weight = 0;
      if (p.norm.kind != NormKind::none && element < p.inputs) {
        load_floats(p.norm.weight + element, weights[e]);
      }
    }
  }

  // A row of the residual stream, normalized.
  template <int kEights>
  __device__ void prepare_floats(const ProductInstruction& p, int row) const {
    float weights[kEights][8];
    load_norm(p, weights);
    const auto* x = static_cast<const float*>(rows_.at(p.x)) + row * p.x_stride;
    const FloatPieces of_row(p.inputs);
    const auto exists = [&](int i) { return of_row.exists(i); };
    const auto element = [&](int i) { return of_row.element(i); };
    uint4 pieces[2 * kEights];
    if (kMixed && p.held_at >= 0) {
      take_held(p.held_at, pieces, exists, element);
      synchronize();
    } else {
      bring(pieces, p.x.awaited, exists, [&](int i) { return x + element(i); });
    }
    Team team{thread(), kAll, shared_memory().parts[0]};
    normalize<kEights>(p, row, team, weights, pieces);
  }
  template <int kEights>
  __device__ void normalize(const ProductInstruction& p, int row, Team& team,
                            const float (&weights)[kEights][8],
                            uint4 (&pieces)[2 * kEights]) const {
    const auto element = [](int e) { return 8 * (thread() + kConsumerThreads * e); };
    const bool is_second = thread() % 2 != 0;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const uint4 other = exchanged(selected(is_second, pieces[2 * e], pieces[2 * e + 1]));
      pieces[2 * e] = selected(is_second, other, pieces[2 * e]);
      pieces[2 * e + 1] = selected(is_second, pieces[2 * e + 1], other);
    }
    float values[kEights][8];
    memcpy(values, pieces, sizeof values);
    const MeasuredNorm norm = measure(p.inputs, p.norm, team, [&](const auto& add) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        if (element(e) < p.inputs) {
#pragma unroll
          for (const float value : values[e]) add(e % Team::kTurns, value);
        }
      }
    });
    uint4 eights[kEights] = {};
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (element(e) >= p.inputs) break;
      if (p.norm.kind != NormKind::none) {
        float biases[8] = {};
        if (p.norm.bias != nullptr) load_floats(p.norm.bias + element(e), biases);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          values[e][i] = norm.apply(values[e][i], weights[e][i], biases[i]);
        }
      }
      const float(&v)[8] = values[e];
      eights[e] = make_uint4(pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]),
                             pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7]));
    }
    store_row(p, row, team, eights);
  }

  // A row of T.
  template <int kEights, int kThreads>
  __device__ void prepare_row(const ProductInstruction& p, int row, RowTeam<kThreads>& team) const {
    const T* x = static_cast<const T*>(rows_.at(p.x)) + row * p.x_stride;
    const auto element = [&](int e) { return 8 * (team.thread() + kThreads * e); };
    const int n = p.inputs;
    uint4 eights[kEights];
    bring(
        eights, p.x.awaited, [&](int e) { return element(e) < n; },
        [&](int e) { return x + element(e); });
    store_row(p, row, team, eights);
  }

  // A row of T times factors, as norm.cuh has it. A function of its own, as those of consumer.cuh
  // are.
  static __device__ __noinline__ void prepare_product(const ProductInstruction& p, RowMemory rows) {
    constexpr int kEights = kMaxProducts / 8 / kConsumerThreads;
    const int n = p.inputs;
    const auto element = [](int e) { return 8 * (thread() + kConsumerThreads * e); };
    const auto exists = [&](int e) { return element(e) < n; };
    const bool are_floats = p.factors.dtype == DType::f32;
    const auto* factors = static_cast<const std::byte*>(
        p.factors.in_place != nullptr ? p.factors.in_place : rows.at(p.factors.row));
    const T* x = static_cast<const T*>(rows.at(p.x));
    const auto has_factor = [&](int i) { return exists(i / 2) && (are_floats || i % 2 == 0); };
    const auto factor = [&](int i) {
      return factors + element(i / 2) * (are_floats ? 4 : 2) + i % 2 * 16;
    };
    const auto from = [&](int e) { return x + element(e); };
    uint4 words[2 * kEights];
    uint4 eights[kEights];
    ask_for(words, has_factor, factor);
    ask_for(eights, exists, from);
    await(words, p.factors.row.awaited, factor);
    await(eights, p.x.awaited, from);
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      float v[8];
      float by[8];
      unpack(eights[e], v);
      if (are_floats) {
        memcpy(by, &words[2 * e], sizeof by);
      } else {
        unpack(words[2 * e], by);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(v[i], by[i]);
      eights[e] = make_uint4(pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]),
                             pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7]));
    }
    Team team{thread(), kAll, shared_memory().parts[0]};
    Preparer(rows).store_row(p, 0, team, eights);
  }
  static __device__ void unpack(const uint4& eight, float (&values)[8]) {
    T elements[8];
    memcpy(elements, &eight, sizeof elements);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = to_float(elements[i]);
  }

  // Experts' rows, each by so many threads.
  template <int kThreads>
  __device__ void prepare_rows(const ProductInstruction& p) const {
    const int nth = thread() / kThreads;
    RowTeam<kThreads> team{thread() % kThreads, kRowTeam + nth, shared_memory().parts[nth]};
    for (int row = nth; row < p.x_rows; row += kConsumerThreads / kThreads) {
      with_eights<kMaxEights / 2, kMaxEights>(
          p.inputs, kThreads, [&]<int kEights>() { prepare_row<kEights>(p, row, team); });
    }
  }

  RowMemory rows_;
};

}  // namespace faststream::step_kernel
