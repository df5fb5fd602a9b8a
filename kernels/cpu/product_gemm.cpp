// x Wᵀ with many rows on oneDNN, where there are no tiles for the weights' type.
//
// Our threads own the parallelism: each calls oneDNN, which is built with OpenMP, for its own
// channels with OpenMP limited to the calling thread. Weights other than f32 are widened a block at
// a time, so that f16 keeps its precision and no copy of the model is made.
#include <dnnl.h>

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "support/error.h"

// Of GCC's OpenMP run-time, as its omp.h declares them; Clang has no such header.
extern "C" {
int omp_get_max_threads(void);
void omp_set_num_threads(int threads);
}

namespace faststream {
namespace {

/// OpenMP regions of the calling thread have one thread during the lifetime.
class SerialOpenMp {
 public:
  SerialOpenMp() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  SerialOpenMp(const SerialOpenMp&) = delete;
  SerialOpenMp& operator=(const SerialOpenMp&) = delete;
  ~SerialOpenMp() { omp_set_num_threads(threads_); }

 private:
  int threads_;
};

void check(dnnl_status_t status) {
  if (status != dnnl_success) {
    throw Error("oneDNN failed to multiply matrices (status " +
                std::to_string(static_cast<int>(status)) +
                "); there may be too little memory: use a shorter prompt.");
  }
}

}  // namespace

int64_t gemm_channels(int64_t in) {
  constexpr int64_t kBlockBytes = int64_t{1} << 20;  // of widened weights: half a common L2
  return std::clamp<int64_t>(kBlockBytes / (in * 4) / 16 * 16, 32, 512);
}

void limit_gemm(CpuIsa isa) {
  // oneDNN takes one limit a process, before its first product; it is a wish, not a need.
  switch (isa) {
    case CpuIsa::portable:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
      break;
    case CpuIsa::avx2:
    case CpuIsa::avx_vnni:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
      break;
    case CpuIsa::avx512:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core);
      break;
    case CpuIsa::avx512_vnni:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_vnni);
      break;
    case CpuIsa::avx512_bf16:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
      break;
    case CpuIsa::amx:
      break;
  }
}

void CpuBackend::multiply_gemm(const Product& product) {
  const Matrix& x = product.x;
  const Weight& weight = product.weight;
  const int64_t in = weight.cols;
  const int64_t channels = product.channels();
  const auto* inputs = static_cast<const float*>(x.data);

  const int64_t block = gemm_channels(in);
  pool_.parallel_for(channels, block, block, [&](int thread, int64_t first, int64_t last) {
    const SerialOpenMp serial;
    const int64_t count = last - first;
    const int64_t stride = product.halves * block;
    Scratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
    auto* sums = scratch.get<float>(x.rows * stride + block * in);
    float* widened = sums + x.rows * stride;
    for (int64_t half = 0; half < product.halves; ++half) {
      const int64_t channel = half * channels + first;
      const auto* data = static_cast<const std::byte*>(weight.data) +
                         channel * in * static_cast<int64_t>(dtype_size(weight.dtype));
      float* target = sums + half * block;
      const auto* floats = static_cast<const float*>(static_cast<const void*>(data));
      if (weight.dtype != DType::f32) {
        floats = widened;
        if (weight.dtype == DType::i8) {
          kernels_.widen_i8(reinterpret_cast<const int8_t*>(data), count * in, widened);
        } else {
          kernels_.widen(data, float_type(weight.dtype), count * in, widened);
        }
      }
      check(dnnl_sgemm('N', 'T', x.rows, count, in, 1.0F, inputs, x.stride, floats, in, 0.0F,
                       target, stride));
    }
    FinishTask result = product.result;
    result.sums = sums;
    result.sums_stride = stride;
    result.rows = x.rows;
    result.first = first;
    result.channels = count;
    result.up_column = block;
    product.finish(result);
  });
}

}  // namespace faststream
