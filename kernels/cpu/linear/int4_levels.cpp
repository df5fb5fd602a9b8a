#include "kernels/cpu/linear/int4_levels.h"

namespace faststream {
namespace {

constexpr Int4Table make_table() {
  Int4Table table{};
  for (int32_t code = 0; code < 256; ++code) {
    const Int4Levels levels(static_cast<std::byte>(code));
    for (int32_t q = 0; q < 16; ++q) table.levels[code][q] = static_cast<int8_t>(levels[q]);
  }
  return table;
}

}  // namespace

constexpr Int4Table kInt4Table = make_table();

}  // namespace faststream
