// Searching a row of logits and weighing it, for the vectors of the including file's instruction
// set.
#pragma once

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/mass_polynomial.h"

namespace faststream {
namespace {

static_assert(kLogitBlock % (2 * kLanes) == 0);

/// A block of logits.
struct LogitVectors {
  Vec at[kLogitBlock / kLanes];
};

/// Calls body(vector, first index) for logits [begin, end); lanes past the end are `filler`.
template <class Body>
inline void for_logits(const float* logits, int64_t begin, int64_t end, float filler,
                       const Body& body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    body(load(logits + i), i);
  }
  if (i == end) return;
  Vec last = splat(filler);
  __builtin_memcpy(&last, logits + i, static_cast<size_t>(end - i) * sizeof(float));
  body(last, i);
}

/// The same for the blocks whose largest logit is at least `low`. body returns whether to go on.
template <class Body>
inline void search_logits(const LogitSpan& span, float low, const Body& body) {
  bool goes_on = true;
  for (int64_t begin = 0, block = 0; begin < span.count && goes_on; begin += kLogitBlock, ++block) {
    if (span.largest != nullptr && !(span.largest[block] >= low)) continue;
    const int64_t end = begin + kLogitBlock < span.count ? begin + kLogitBlock : span.count;
    for_logits(span.logits, begin, end, __builtin_nanf(""), [&](Vec v, int64_t i) {
      if (goes_on) goes_on = body(v, i);
    });
  }
}

/// Calls body(block, its number, its largest logit); logits that the last block lacks are minus
/// infinities. False when a logit is NaN.
template <class Body>
inline bool for_blocks(const float* logits, int64_t count, const Body& body) {
  IntVec is_nan = {};
  const auto visit = [&](const float* from, int64_t n) {
    LogitVectors block;
    Vec top = splat(-__builtin_inff());
    for (int64_t i = 0; i < kLogitBlock / kLanes; ++i) {
      const Vec v = block.at[i] = load(from + i * kLanes);
      is_nan |= v != v;
      top = larger(v, top);
    }
    body(block, n, largest_lane(top));
  };
  const int64_t whole = count / kLogitBlock;
  for (int64_t n = 0; n < whole; ++n) {
    visit(logits + n * kLogitBlock, n);
  }
  if (const int64_t rest = count - whole * kLogitBlock; rest > 0) {
    float last[kLogitBlock];
    for (float& logit : last) logit = -__builtin_inff();
    __builtin_memcpy(last, logits + whole * kLogitBlock, static_cast<size_t>(rest) * sizeof(float));
    visit(last, whole);
  }
  return lane_bits(is_nan) == 0;
}

bool largest_logits(const float* logits, int64_t count, float* largest) {
  return for_blocks(logits, count,
                    [&](const LogitVectors&, int64_t n, float top) { largest[n] = top; });
}

bool sum_logits(const float* logits, int64_t count, float* largest, float* sums) {
  return for_blocks(logits, count, [&](const LogitVectors& block, int64_t n, float top) {
    largest[n] = top;
    // What is so far below the largest adds nothing to it, nor do minus infinities, beside each
    // other or not.
    Vec sum = {};
    for (const Vec& v : block.at) sum += exponential_within(larger(v - top, splat(kLeastExponent)));
    sums[n] = sum_of_lanes(sum);
  });
}

double add_sums(const float* largest, const float* sums, int64_t blocks, float largest_of_all) {
  double total = 0;
  for_vectors(blocks, [&](int64_t i, int64_t count) {
    const Vec share = exponential(load_up_to(largest + i, count) - largest_of_all);
    total += sum_of_lanes(share * load_up_to(sums + i, count));
  });
  return total;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
/// For each set of eight lanes, their numbers from the front.
struct LaneLists {
  uint8_t at[256][8] = {};
  constexpr LaneLists() {
    for (int set = 0; set < 256; ++set) {
      int count = 0;
      for (int lane = 0; lane < 8; ++lane) {
        if ((set >> lane & 1) != 0) at[set][count++] = static_cast<uint8_t>(lane);
      }
    }
  }
};
constexpr LaneLists kLaneLists;
#endif

/// Writes the lanes whose bits are set to the front of `to`, which has room for a vector; returns
/// how many.
inline int64_t store_chosen(float* to, Vec v, uint32_t bits) {
#if defined(__AVX512F__)
  store(to, reinterpret_cast<Vec>(_mm512_maskz_compress_ps(static_cast<__mmask16>(bits),
                                                           reinterpret_cast<__m512>(v))));
  return __builtin_popcount(bits);
#elif defined(__AVX2__)
  const __m256i lanes =
      _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load_raw<int64_t>(kLaneLists.at[bits])));
  store(to, reinterpret_cast<Vec>(_mm256_permutevar8x32_ps(reinterpret_cast<__m256>(v), lanes)));
  return __builtin_popcount(bits);
#else
  int64_t count = 0;
  for (; bits != 0; bits &= bits - 1) {
    to[count++] = v[__builtin_ctz(bits)];
  }
  return count;
#endif
}

int64_t copy_logits(const LogitSpan& span, float low, float high, float* to) {
  int64_t count = 0;
  search_logits(span, low, [&](Vec v, int64_t) {
    count += store_chosen(to + count, v, lane_bits((v >= low) & (v <= high)));
    return true;
  });
  return count;
}

int64_t find_logit(const LogitSpan& span, float logit, int64_t n) {
  int64_t found = -1;
  search_logits(span, logit, [&](Vec v, int64_t i) {
    uint32_t bits = lane_bits(v == logit);
    if (bits == 0) return true;
    const int matches = __builtin_popcount(bits);
    if (n >= matches) {
      n -= matches;
      return true;
    }
    for (; n > 0; --n) {
      bits &= bits - 1;
    }
    found = i + __builtin_ctz(bits);
    return false;
  });
  return found;
}

// --- Histograms
// -----------------------------------------------------------------------------------------

/// The bins of logits: logit_order() of kernels/sampling.h, shifted.
inline WordVec bins_of(Vec logits, const HistogramTask& task) {
  const auto bits = reinterpret_cast<IntVec>(logits + 0.0F);  // -0 becomes 0
  const auto order = reinterpret_cast<WordVec>(bits ^ ((bits >> 31) | INT32_MIN));
  return (order - task.first_order) >> task.shift;
}

// Bins and weights go through memory a block at a time, so that the processor computes the next
// ones while it adds these: half the time of doing it vector by vector.

void count_logits(const HistogramTask& task) {
  for (int64_t begin = 0; begin < task.count; begin += kLogitBlock) {
    const int64_t end = begin + kLogitBlock < task.count ? begin + kLogitBlock : task.count;
    uint32_t bins[kLogitBlock];
    for_logits(task.logits, begin, end, 0, [&](Vec v, int64_t i) {
      const WordVec b = bins_of(v, task);
      __builtin_memcpy(bins + (i - begin), &b, sizeof b);
    });
    for (int64_t i = 0; i < end - begin; ++i) {
      ++task.bins[bins[i]];
    }
  }
}

/// Two vectors of logits, and the even and odd lanes of both. Four polynomials beside each other
/// keep the processor busy; the steps of one wait for each other.
constexpr int kPair = 2 * kLanes;
struct Pair {
  Vec at[2];
};
struct Quarters {
  WordVec at[4];
  friend Quarters operator-(uint32_t a, Quarters b) {
    for (WordVec& v : b.at) {
      v = a - v;
    }
    return b;
  }
};
struct TimesFraction {
  Quarters fraction;  // even elements, in units of 2^-32
  Quarters operator()(Quarters a) const {
    for (int i = 0; i < 4; ++i) {
      a.at[i] = multiply_even(a.at[i], fraction.at[i]);
    }
    return a;
  }
};

struct Masses {
  LongVec at[4];      ///< the first vector's even lanes, its odd lanes, and the second's
  IntVec present[2];  ///< lanes that have one
};

/// Softmax::mass of kernels/sampling.h.
inline Masses masses_of(const Pair& logits, const MassScale& scale) {
  Masses masses;
  Quarters fixed;
  TimesFraction times;
  for (int i = 0; i < 2; ++i) {
    const Vec octaves = (scale.largest - logits.at[i]) * scale.scale;
    masses.present[i] = octaves < kMassOctaves;
    // 63 octaves shift any mass to zero.
    fixed.at[2 * i] = to_words(select(masses.present[i], octaves, splat(63)) * 0x1p26F);
    fixed.at[2 * i + 1] =
        reinterpret_cast<WordVec>(reinterpret_cast<LongVec>(fixed.at[2 * i]) >> 32);
  }
  for (int i = 0; i < 4; ++i) {
    times.fraction.at[i] = fixed.at[i] << 6;
  }
  const Quarters powers = mass_polynomial<Quarters>(times);
  constexpr uint64_t kLower = 0xffffffffU;
  for (int i = 0; i < 4; ++i) {
    masses.at[i] = ((reinterpret_cast<LongVec>(powers.at[i]) & kLower) << 9) >>
                   ((reinterpret_cast<LongVec>(fixed.at[i]) & kLower) >> 26);
  }
  return masses;
}

/// Calls body(pair) for logits [0, count), minus infinity beyond them.
template <class Body>
inline void for_pairs(const float* logits, int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kPair <= count; i += kPair) {
    body(Pair{{load(logits + i), load(logits + i + kLanes)}});
  }
  if (i == count) return;
  Pair last = {{splat(-__builtin_inff()), splat(-__builtin_inff())}};
  __builtin_memcpy(&last, logits + i, static_cast<size_t>(count - i) * sizeof(float));
  body(last);
}

void weigh_logits(const HistogramTask& task, const MassScale& scale) {
  for (int64_t begin = 0; begin < task.count; begin += kLogitBlock) {
    uint32_t bins[kLogitBlock];
    uint64_t weights[kLogitBlock];  // of pairs, as Masses has them
    int n = 0;
    const int64_t left = task.count - begin;
    const int64_t count = left < kLogitBlock ? left : kLogitBlock;
    for_pairs(task.logits + begin, count, [&](const Pair& pair) {
      const Masses masses = masses_of(pair, scale);
      if (lane_bits(masses.present[0] | masses.present[1]) == 0) return;
      for (int i = 0; i < 2; ++i) {
        // Those without a mass may have no bin either.
        const WordVec b = bins_of(pair.at[i], task) & reinterpret_cast<WordVec>(masses.present[i]);
        __builtin_memcpy(bins + n + i * kLanes, &b, sizeof b);
      }
      __builtin_memcpy(weights + n, masses.at, sizeof masses.at);
      n += kPair;
    });
    for (int i = 0; i < n; i += kLanes) {
      for (int lane = 0; lane < kLanes / 2; ++lane) {
        task.bins[bins[i + 2 * lane]] += weights[i + lane];
        task.bins[bins[i + 2 * lane + 1]] += weights[i + kLanes / 2 + lane];
      }
    }
  }
}

uint64_t total_mass(const float* logits, int64_t count, const MassScale& scale) {
  LongVec sums = {};
  for_pairs(logits, count, [&](const Pair& pair) {
    const Masses masses = masses_of(pair, scale);
    sums += masses.at[0] + masses.at[1] + masses.at[2] + masses.at[3];
  });
  uint64_t total = 0;
  for (int i = 0; i < kLanes / 2; ++i) {
    total += sums[i];
  }
  return total;
}

}  // namespace
}  // namespace faststream
