// Weights that are codes of floats (WeightFormat, is_coded()) as vectors of floats, which have the
// bits that decode_row() gives. Everything is local to the including file, but for the tables.
//
// What the sixteen codes of a group mean is made once a group, scaled; vectors choose among them by
// permutations of registers. E4M3 becomes halves, whose exponents have eight more, by shifts, and
// the processor widens those: subnormal codes need no care.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/simd.h"
#include "support/weight_format.h"

namespace faststream {

/// Values of codes, those of int4_g32 and its like less a zero point, and scales of mxfp4.
struct alignas(64) CodedTables {
  float e2m1[16];
  float nf4[16];
  float integers[16][16];
  float e8m0[256];
};
extern const CodedTables kCodedTables;  // coded_tables.cpp

namespace {

/// What the kernels need to know of a format, as constants.
template <WeightFormat kFormat>
struct CodedLayout {
  static constexpr bool kBytes = packed_layout(kFormat).element_bits == 8;
  static constexpr bool kHasZero =
      !kBytes && kFormat != WeightFormat::mxfp4 && kFormat != WeightFormat::nf4;
  static constexpr int64_t kGroup = packed_layout(kFormat).group;
  static constexpr int64_t kGroupBytes = packed_layout(kFormat).group_bytes;
  static constexpr int64_t kDescribed = described_bytes(kFormat);
  static constexpr int64_t kBlockBytes = packed_block_bytes(kFormat);
  static constexpr int64_t kStepBytes = kPackedStep * packed_layout(kFormat).element_bits / 8;
  static constexpr int64_t kGroupSteps = kGroup / kPackedStep;
  static constexpr int64_t kBlockSteps = kPackedBlock / kPackedStep;

  /// Bytes of the first `columns` of a row.
  static constexpr int64_t bytes(int64_t columns) {
    return (columns + kPackedBlock - 1) / kPackedBlock * kDescribed +
           (columns + kPackedStep - 1) / kPackedStep * kStepBytes;
  }
};

constexpr int kStepVectors = kPackedStep / kLanes;

#if defined(__AVX512F__)
/// Sixteen codes, or twice so many, in the order of their columns (coded_place()).
inline __m128i places_in_order() {
  return _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
}
inline __m128i in_order(__m128i codes) { return _mm_shuffle_epi8(codes, places_in_order()); }
inline __m256i in_order(__m256i codes) {
  return _mm256_shuffle_epi8(codes, _mm256_broadcastsi128_si256(places_in_order()));
}
#endif

/// The scale of a group, from its description.
template <WeightFormat kFormat>
inline Vec scale_of(const char* description) {
  if constexpr (kFormat == WeightFormat::mxfp4) {
    return splat(kCodedTables.e8m0[static_cast<uint8_t>(*description)]);
  } else if constexpr (CodedLayout<kFormat>::kHasZero) {
    const WordVec words = load_raw<uint32_t>(description) | WordVec{};
    return reinterpret_cast<Vec>(words & ~15U);
  } else {
    return splat(load_raw<float>(description));
  }
}

/// The values of a group's sixteen codes without its scale.
template <WeightFormat kFormat>
inline const float* values_of(const char* description) {
  if constexpr (kFormat == WeightFormat::mxfp4) {
    return kCodedTables.e2m1;
  } else if constexpr (kFormat == WeightFormat::nf4) {
    return kCodedTables.nf4;
  } else {
    return kCodedTables.integers[load_raw<uint32_t>(description) & 15U];
  }
}

/// What the codes of a group mean.
template <WeightFormat kFormat, bool kBytes = CodedLayout<kFormat>::kBytes>
struct CodedGroupVectors {
  static constexpr int kParts = 16 / kLanes;
  Vec values[kParts];

  CodedGroupVectors() = default;
  explicit CodedGroupVectors(const char* description) {
    const Vec scale = scale_of<kFormat>(description);
    const float* unscaled = values_of<kFormat>(description);
    for (int i = 0; i < kParts; ++i) values[i] = load(unscaled + i * kLanes) * scale;
  }

  /// Vector v of a step of columns.
  [[nodiscard]] Vec step(const char* codes, int v) const {
#if defined(__AVX512F__)
    __m512i index = _mm512_cvtepu8_epi32(in_order(load_raw<__m128i>(codes)));
    if (v == 1) index = _mm512_srli_epi32(index, 4);
    return reinterpret_cast<Vec>(_mm512_permutexvar_ps(index, reinterpret_cast<__m512>(values[0])));
#elif defined(__AVX2__)
    // Four columns a pair of bytes, eight from one to the next.
    const __m256i pairs = _mm256_cvtepu16_epi32(load_raw<__m128i>(codes));
    const int shift = v % 2 * 8 + v / 2 * 4;
    const __m256i index = _mm256_srli_epi32(pairs, shift);
    const __m256i choice = _mm256_slli_epi32(pairs, 28 - shift);
    return reinterpret_cast<Vec>(
        _mm256_blendv_ps(_mm256_permutevar8x32_ps(reinterpret_cast<__m256>(values[0]), index),
                         _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(values[1]), index),
                         _mm256_castsi256_ps(choice)));
#else
    float chosen[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      constexpr int kHalf = kPackedStep / 2;  // the first are low halves of bytes
      const int column = v * kLanes + i;
      const int code =
          static_cast<uint8_t>(codes[coded_place(column % kHalf)]) >> (column / kHalf * 4) & 15;
      chosen[i] = values[code / kLanes][code % kLanes];
    }
    return load(chosen);
#endif
  }
};

/// Of E4M3, but that the codes of NaN become numbers: see SeenCodes. Scales are below 2^120.
template <WeightFormat kFormat>
struct CodedGroupVectors<kFormat, true> {
  Vec scale;

  CodedGroupVectors() = default;
#if defined(__AVX2__)
  explicit CodedGroupVectors(const char* description)
      : scale(scale_of<kFormat>(description) * 0x1p8F) {}
#else
  explicit CodedGroupVectors(const char* description) : scale(scale_of<kFormat>(description)) {}
#endif

  [[nodiscard]] Vec step(const char* codes, int v) const { return unscaled(codes, v) * scale; }

  /// The same without the scale.
  static Vec unscaled(const char* codes, int v) {
#if defined(__AVX512F__)
    // Bits 8 to 15 are all the sign: the mask leaves one. Both vectors' words are made together.
    const __m512i words =
        _mm512_slli_epi16(_mm512_cvtepi8_epi16(in_order(load_raw<__m256i>(codes))), 7);
    const __m512i halves = _mm512_and_si512(words, _mm512_set1_epi16(static_cast<short>(0xbf80)));
    return reinterpret_cast<Vec>(_mm512_cvtph_ps(v == 0 ? _mm512_castsi512_si256(halves)
                                                        : _mm512_extracti64x4_epi64(halves, 1)));
#elif defined(__AVX2__)
    const auto pairs = load_raw<__m128i>(codes + v / 2 * 16);
    const __m128i words = _mm_srai_epi16(v % 2 == 0 ? _mm_slli_epi16(pairs, 8) : pairs, 1);
    const __m128i halves = _mm_and_si128(words, _mm_set1_epi16(static_cast<short>(0xbf80)));
    return reinterpret_cast<Vec>(_mm256_cvtph_ps(halves));
#else
    StoredE4m3 elements[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      __builtin_memcpy(&elements[i], codes + coded_place(v * kLanes + i), sizeof elements[i]);
    }
    return widen(elements);
#endif
  }
};

/// Codes of E4M3 that were seen, to know whether a NaN is among them.
class SeenCodes {
 public:
#if defined(__AVX512F__)
  void add(const char* codes, int64_t steps) {
    int64_t i = 0;
    for (; i + 2 <= steps; i += 2) add(load_raw<__m512i>(codes + i * kPackedStep));
    if (i < steps) add(_mm512_zextsi256_si512(load_raw<__m256i>(codes + i * kPackedStep)));
  }
  [[nodiscard]] bool have_nan() const {
    return _mm512_cmpeq_epi8_mask(largest_, _mm512_set1_epi8(static_cast<char>(0xfe))) != 0;
  }

 private:
  void add(__m512i some) {
    largest_ = _mm512_max_epu8(largest_, _mm512_add_epi8(some, some));  // without signs
  }
  __m512i largest_ = _mm512_setzero_si512();
#elif defined(__AVX2__)
  void add(const char* codes, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      const auto some = load_raw<__m256i>(codes + i * kPackedStep);
      largest_ = _mm256_max_epu8(largest_, _mm256_add_epi8(some, some));  // without signs
    }
  }
  [[nodiscard]] bool have_nan() const {
    const __m256i is_nan = _mm256_cmpeq_epi8(largest_, _mm256_set1_epi8(static_cast<char>(0xfe)));
    return _mm256_movemask_epi8(is_nan) != 0;
  }

 private:
  __m256i largest_ = _mm256_setzero_si256();
#else
  void add(const char* codes, int64_t steps) {
    for (int64_t i = 0; i < steps * kPackedStep; ++i) have_nan_ |= (codes[i] & 0x7f) == 0x7f;
  }
  [[nodiscard]] bool have_nan() const { return have_nan_; }

 private:
  bool have_nan_ = false;
#endif
};

/// A step of columns of a group, all of it.
template <WeightFormat kFormat>
inline void decode_step(const CodedGroupVectors<kFormat>& group, const char* codes, float* to) {
#pragma GCC unroll 8
  for (int v = 0; v < kStepVectors; ++v) store(to + v * kLanes, group.step(codes, v));
  if constexpr (CodedLayout<kFormat>::kBytes) {
    SeenCodes seen;
    seen.add(codes, 1);
    if (!seen.have_nan()) return;
    for (int64_t i = 0; i < kPackedStep; ++i) {
      if ((codes[coded_place(i)] & 0x7f) == 0x7f) to[i] = __builtin_nanf("");
    }
  }
}

/// Step `step` of a row, all of it.
template <WeightFormat kFormat>
inline void decode_step_at(const char* row, int64_t step, float* to) {
  using Layout = CodedLayout<kFormat>;
  const char* block = row + step / Layout::kBlockSteps * Layout::kBlockBytes;
  const int64_t in_block = step % Layout::kBlockSteps;
  decode_step(
      CodedGroupVectors<kFormat>(block + in_block / Layout::kGroupSteps * Layout::kGroupBytes),
      block + Layout::kDescribed + in_block * Layout::kStepBytes, to);
}

/// `count` columns of a row, from the beginning of a block on.
template <WeightFormat kFormat>
void decode_coded_row(const void* from, int64_t count, float* to) {
  using Layout = CodedLayout<kFormat>;
  const auto* block = static_cast<const char*>(from);
  int64_t c = 0;
  for (; c + kPackedBlock <= count; c += kPackedBlock, block += Layout::kBlockBytes) {
    const char* codes = block + Layout::kDescribed;
    for (int64_t g = 0; g < kPackedBlock / Layout::kGroup; ++g) {
      const CodedGroupVectors<kFormat> group(block + g * Layout::kGroupBytes);
      for (int64_t i = 0; i < Layout::kGroupSteps; ++i) {
        decode_step(group, codes, to);
        codes += Layout::kStepBytes;
        to += kPackedStep;
      }
    }
  }
  for (int64_t step = 0; c < count; ++step, c += kPackedStep, to += kPackedStep) {
    if (count - c >= kPackedStep) {
      decode_step_at<kFormat>(block, step, to);
      continue;
    }
    float values[kPackedStep];
    decode_step_at<kFormat>(block, step, values);
    __builtin_memcpy(to, values, static_cast<size_t>(count - c) * sizeof(float));
  }
}

}  // namespace
}  // namespace faststream
