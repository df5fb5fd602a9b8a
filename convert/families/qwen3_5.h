// What Qwen 3.5 and Qwen3-Next share with other kinds of files that describe them.
#pragma once

#include <string>

#include "convert/families/modules.h"
#include "models/config.h"

namespace faststream::convert {

/// Names the first products of delta nets where each key head has all of its own together: `in` has
/// its queries, its keys, then values and gates of their sums of the heads of values beside it.
void name_products_by_head(const DeltaNetConfig& mixer, const std::string& in, Modules& modules);

/// The same of strengths and steps.
void name_gates_by_head(const DeltaNetConfig& mixer, const std::string& gates, Modules& modules);

}  // namespace faststream::convert
