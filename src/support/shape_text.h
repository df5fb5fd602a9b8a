// Shapes in messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace faststream {

/// "[4096, 11008]".
std::string shape_text(std::span<const int64_t> shape);

}  // namespace faststream
