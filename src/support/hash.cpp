#include "support/hash.h"

#include <xxhash.h>

#include <array>
#include <cstdio>

namespace faststream {

uint64_t stable_hash(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hash_digits(uint64_t hash) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash));
  return digits.data();
}

}  // namespace faststream
