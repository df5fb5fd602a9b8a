// The polynomial of Softmax::mass (kernels/sampling.h). It stands alone because vector kernels,
// which may not include what the standard library instantiates, compute it as well.
#pragma once

#include <cstdint>

namespace faststream {

/// Octaves below the likeliest token (each halves the probability) from which on masses are zero.
inline constexpr float kMassOctaves = 40;

/// 2^-fraction in units of 2^-31: a polynomial through Chebyshev nodes of [0, 1], in Horner's
/// scheme. Its terms alternate in sign. times(a) is a · fraction, rounded down.
template <class Word, class Times>
constexpr Word mass_polynomial(const Times& times) {
  constexpr uint32_t kCoefficients[] = {246789,    2773769,   20609476,
                                        119183688, 515881603, 1488522224};
  Word sum = {};
  for (const uint32_t coefficient : kCoefficients) sum = coefficient - times(sum);
  return 0x80000000U - times(sum);
}

}  // namespace faststream
