// Philox4x32-10, the counter-based random numbers that sampling draws from.
#pragma once

#include <array>
#include <cstdint>

namespace faststream {

/// Ten rounds of Philox4x32: four random words as a pure function of `counter` and `key`. Formula
/// and constants: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
/// doi:10.1145/2063384.2063405.
constexpr std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                                std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53U;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U;  // the golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85U;  // sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

/// The u in [0, 1) of Backend::sample: 24 bits of the first word for key `seed` and counter
/// (position, sequence), each 64 bits, low word first as cuRAND lays them out.
constexpr float sampling_uniform(uint64_t seed, uint64_t sequence, uint64_t position) {
  const auto words =
      philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                     static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<float>(words[0] >> 8) * 0x1p-24F;
}

}  // namespace faststream
