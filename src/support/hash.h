// A hash of bytes that is the same in every run and on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace faststream {

/// XXH3-64 (https://github.com/Cyan4973/xxHash).
uint64_t stable_hash(std::string_view bytes);

/// Any hash in 16 hexadecimal digits: a number of JSON may be rounded on its way.
std::string hash_digits(uint64_t hash);

}  // namespace faststream
