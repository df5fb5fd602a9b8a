// A parser that is given any bytes by libFuzzer. One program has all of them (fuzzers.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace faststream {

/// Reads bytes; what it makes of them must be an Error or a result.
using FuzzTarget = void (*)(const uint8_t* data, size_t size);

/// Before main().
struct AddFuzzTarget {
  AddFuzzTarget(const char* name, FuzzTarget target);
};

}  // namespace faststream

/// Followed by a function's body, in which the bytes are `data` and `size`. The file has the
/// target's name, with _fuzz behind it.
#define FUZZ_TARGET(name)                                                     \
  static void fuzz_##name(const uint8_t* data, size_t size);                  \
  static const faststream::AddFuzzTarget add_fuzz_##name(#name, fuzz_##name); \
  static void fuzz_##name(const uint8_t* data, size_t size)
