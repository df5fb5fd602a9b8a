// x Wᵀ with many rows on oneDNN, where there are no AMX tiles for the weights' type.
//
// Our threads own the parallelism: each calls oneDNN, which is built with OpenMP, for its own
// channels with OpenMP limited to the calling thread. Weights other than f32 are widened a block at
// a time, so that f16 keeps its precision and no copy of the model is made; i8 weights are not
// where the processor has 8-bit dot products.
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

void CpuBackend::multiply_gemm(const Product& product) {
  const Matrix& x = product.x;
  const Weight& weight = product.weight;
  const int64_t in = weight.cols;
  const int64_t channels = product.channels();
  const auto* inputs = static_cast<const float*>(x.data);
  const bool is_i8 = weight.dtype == DType::i8 && kernels_.dot_quantized != nullptr;

  int8_t* quantized = nullptr;
  float* scales = nullptr;
  if (is_i8) {
    quantized = shared_scratch_.get<int8_t>(x.rows * in);
    scales = scale_scratch_.get<float>(x.rows);
    pool_.parallel_for(x.rows, 8, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        scales[r] = kernels_.quantize_i8(inputs + r * x.stride, in, quantized + r * in);
      }
    });
  }

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
      if (is_i8) {
        auto* integers = static_cast<int32_t*>(static_cast<void*>(target));
        const int32_t zero = 0;
        check(dnnl_gemm_s8s8s32('N', 'T', 'F', x.rows, count, in, 1.0F, quantized, in, 0,
                                static_cast<const int8_t*>(static_cast<const void*>(data)), in, 0,
                                0.0F, integers, stride, &zero));
        for (int64_t r = 0; r < x.rows; ++r) {
          for (int64_t c = 0; c < count; ++c) {
            target[r * stride + c] = static_cast<float>(integers[r * stride + c]) * scales[r];
          }
        }
        continue;
      }
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
