#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>

#include "support/error.h"

namespace faststream {
namespace {

Kernels kernels_of(CpuIsa isa) {
  if (!cpu_supports(isa)) {
    throw Error("This processor does not support " + std::string(cpu_isa_name(isa)) +
                "; choose another instruction set.");
  }
#if defined(__x86_64__)
  Kernels kernels = isa >= CpuIsa::avx512 ? avx512_kernels()
                    : isa >= CpuIsa::avx2 ? avx2_kernels()
                                          : portable_kernels();
  if (isa == CpuIsa::avx_vnni) add_avx_vnni_kernels(kernels);
  if (isa >= CpuIsa::avx512_vnni) add_avx512_vnni_kernels(kernels);
  if (isa >= CpuIsa::avx512_bf16) add_avx512_bf16_kernels(kernels);
  if (isa >= CpuIsa::amx) add_amx_kernels(kernels);
  return kernels;
#else
  return portable_kernels();
#endif
}

// Few rows are multiplied with floats in another order than many (linear/product.cpp).
std::vector<int32_t> borders_of_few_rows(const Kernels& kernels) {
  std::vector<int32_t> borders{static_cast<int32_t>(kernels.least_panel_rows) - 1};
  if (kernels.tiles_f32) borders.push_back(kernels.tiles_f32.most_dot_rows);
  for (const CodedKernels& coded : kernels.coded) {
    if (coded.dot != nullptr) borders.push_back(static_cast<int32_t>(coded.most_dot_rows));
  }
  std::ranges::sort(borders);
  return borders;
}

}  // namespace

std::byte* Scratch::reserve(size_t bytes) {
  constexpr size_t kAlignment = 64;
  if (bytes > size_) {
    const size_t size = (bytes + bytes / 2 + kAlignment - 1) / kAlignment * kAlignment;
    memory_.reset();
    size_ = 0;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size)));
    if (memory_ == nullptr) {
      throw Error("working buffers of " + std::to_string(size >> 20) +
                  " MiB do not fit into memory; give a shorter prompt, or convert the model to a "
                  "smaller type (--dtype)");
    }
    size_ = size;
  }
  return memory_.get();
}

CpuBackend::CpuBackend(int threads, CpuIsa isa)
    : isa_(isa),
      kernels_(kernels_of(isa)),
      row_borders_(borders_of_few_rows(kernels_)),
      pool_(threads),
      thread_scratch_(static_cast<size_t>(pool_.size())),
      thread_rows_(static_cast<size_t>(pool_.size())),
      rankings_(static_cast<size_t>(pool_.size()), RowRanking(kernels_)) {}

std::string CpuBackend::description() const {
  return "CPU (" + std::to_string(pool_.size()) + (pool_.size() == 1 ? " thread, " : " threads, ") +
         std::string(cpu_isa_name(isa_)) + ")";
}

DType CpuBackend::kv_dtype(WeightFormat weight_format) const {
  return is_float(weight_format) ? stored_type(weight_format) : DType::bf16;
}

size_t CpuBackend::scratch_bytes(const StepBounds& bounds) const {
  // All threads share x, rounded to eight bits and packed. Each has the sums of a block of
  // channels, and the block's weights: the padded copy and the gathered ranges of tiles; and 16
  // rows that it rotated.
  constexpr int64_t kTileChannels = 128;
  constexpr int64_t kTileRanges = int64_t{64} << 10;
  // Experts have rows of inputs, activations and results of their own.
  int64_t shared = 0;
  int64_t expert_rows = 0;
  size_t screen = 0;  // of the output matrix
  int64_t of_thread = attention_scratch(bounds.head_dim, bounds.head_dim) * int64_t{sizeof(float)};
  for (const ProductBound& product : bounds.products) {
    // A token uses an expert once.
    const int64_t rows_of_one =
        product.experts > 0 ? std::min(product.rows, bounds.tokens) : product.rows;
    const int64_t rows = (product.rows + 15) / 16 * 16;
    const int64_t in = (product.in + kInt4Block - 1) / kInt4Block * kInt4Block;
    const int64_t sums = (rows_of_one + 15) / 16 * 16 * kTileChannels * (product.gated ? 2 : 1);
    shared = std::max(shared, rows * in * int64_t{sizeof(float) + sizeof(int16_t)});
    if (product.experts > 0) {
      expert_rows += product.rows * (product.in + product.out) * int64_t{sizeof(float)};
    }
    if (product.out == bounds.vocab && has_screens_of(product.format, product.in)) {
      screen = std::max(screen, OutputScreen::bytes(product.out, product.in));
    }
    of_thread = std::max({of_thread,
                          (sums + (kTileChannels + 16) * in) * int64_t{sizeof(float)} +
                              kTileRanges + kFewRowsBlockBytes,
                          panel_scratch() * int64_t{sizeof(float)}});
  }
  const int64_t sampling = bounds.vocab * 12 + (int64_t{64} << 10);  // parts of a row, histograms
  const int64_t threads = pool_.size();
  // Scratch grows by half more than was asked for.
  const int64_t latents = plain_bytes(bounds.latent, bounds.context);
  return screen + static_cast<size_t>(
                      (shared + expert_rows + latents + threads * (of_thread + sampling)) * 3 / 2);
}

FloatType float_type(DType type) {
  switch (type) {
    case DType::f32:
      return FloatType::f32;
    case DType::f16:
      return FloatType::f16;
    case DType::bf16:
      return FloatType::bf16;
    case DType::i8:
    case DType::u8:
    case DType::packed:
      break;
  }
  throw std::logic_error(std::string(dtype_name(type)) + " is not a floating type");
}

void require_f32(const Matrix& m, int64_t rows, int64_t cols, const char* what) {
  require(m.dtype == DType::f32 && m.rows == rows && m.cols == cols && m.stride >= cols, what);
}

std::unique_ptr<Backend> make_cpu_backend(int threads, CpuIsa isa) {
  return std::make_unique<CpuBackend>(threads, isa);
}

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  return make_cpu_backend(threads, best_cpu_isa());
}

}  // namespace faststream
