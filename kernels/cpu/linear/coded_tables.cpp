#include "kernels/cpu/linear/coded_vectors.h"
#include "support/small_floats.h"

namespace faststream {
namespace {

constexpr CodedTables make_tables() {
  CodedTables tables{};
  for (int i = 0; i < 16; ++i) {
    tables.e2m1[i] = kE2m1Values[i];
    tables.nf4[i] = kNf4Values[i];
    for (int zero = 0; zero < 16; ++zero) {
      tables.integers[zero][i] = static_cast<float>(i - zero);
    }
  }
  for (int code = 0; code < 256; ++code) tables.e8m0[code] = e8m0_value(static_cast<uint8_t>(code));
  return tables;
}

}  // namespace

constexpr CodedTables kCodedTables = make_tables();

}  // namespace faststream
