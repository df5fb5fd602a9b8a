// A hash of bytes that is the same in every run and on every machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace faststream {

/// XXH3-64 (https://github.com/Cyan4973/xxHash).
uint64_t stable_hash(std::string_view bytes);

}  // namespace faststream
