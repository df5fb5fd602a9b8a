// What a line of a batch costs in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/request.h"

namespace faststream::cli {

/// Samples that the engine draws for a request.
size_t samples_of(const Request& request);

/// Bytes that a request takes at most, about, while the engine works on it, its result included.
/// context: tokens of prompt and answer.
size_t bytes_in_work(const Request& request, int64_t context);

/// Bytes of a result, about.
size_t bytes_of(const Result& result);

}  // namespace faststream::cli
