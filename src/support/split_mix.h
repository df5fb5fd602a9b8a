// SplitMix64, doi:10.1145/2714064.2660195.
#pragma once

#include <cstdint>

namespace faststream {

/// Output number `n` (from 1) of the generator that starts from `seed`.
constexpr uint64_t split_mix(uint64_t seed, uint64_t n) {
  uint64_t z = seed + n * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

}  // namespace faststream
