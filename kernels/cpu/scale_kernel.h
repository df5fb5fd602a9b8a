// Functions of rows, and rows times functions of others. Everything is local to the including file.
#pragma once

#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/isa/simd.h"

namespace faststream {
namespace {

void scale(const float* factors, Activation activation, int64_t n, float* m) {
  with_activation(activation, [&]<Activation kActivation>() {
    for_vectors(n, [&](int64_t c, int64_t count) {
      const Vec factor = activate<kActivation>(load_up_to(factors + c, count));
      store_up_to(m + c, load_up_to(m + c, count) * factor, count);
    });
  });
}

void activate_row(Activation activation, int64_t n, float* x) {
  with_activation(activation, [&]<Activation kActivation>() {
    for_vectors(n, [&](int64_t c, int64_t count) {
      store_up_to(x + c, activate<kActivation>(load_up_to(x + c, count)), count);
    });
  });
}

}  // namespace
}  // namespace faststream
