// A seed for who gave none.
#pragma once

#include <cstdint>
#include <random>

namespace faststream {

/// Drawn by the system's generator; below 2^53, so that JSON and its readers carry it exactly.
inline uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) >> 11;
}

}  // namespace faststream
