// Construction, memory and batches. The operations are in the files named after them.
#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/recurrent/recur.h"
#include "support/printable.h"
#include "support/progress.h"

namespace faststream {

namespace {

constexpr size_t kBatchAlignment = 256;

// All kernels are compiled for the same GPUs.
__global__ void any_kernel() { begin_kernel(); }

int current_device(int device) {
  cuda_check(cudaSetDevice(device), "selecting GPU " + std::to_string(device));
  return device;
}

size_t aligned(size_t bytes) {
  return (bytes + kBatchAlignment - 1) / kBatchAlignment * kBatchAlignment;
}

// Whether several sequences are attended to sooner by the step's kernel than by one that does
// nothing else and reads caches faster: so many tokens of them in all (measured: RESULTS.md).
bool has_short_contexts(const Batch& batch) {
  constexpr int64_t kMost = 16384;
  return std::accumulate(batch.kv_len.begin(), batch.kv_len.end(), int64_t{0}) <= kMost;
}

// Kernels for newer GPUs than this are not used: for tests of the others.
int largest_architecture() {
  constexpr const char* kVariable = "FASTSTREAM_MAX_CUDA_ARCH";
  const char* asked = std::getenv(kVariable);
  if (asked == nullptr || *asked == '\0') return INT_MAX;
  int architecture = 0;
  const char* end = asked + std::strlen(asked);
  const auto [stop, status] = std::from_chars(asked, end, architecture);
  if (status == std::errc() && stop == end && architecture >= 80) return architecture;
  throw Error(std::string("The environment variable ") + kVariable + " is \"" + printable(asked) +
              "\", which is no architecture; unset it, or set it to 80 or more, such as 90.");
}

}  // namespace

bool kernels_overlap() {
  cudaFuncAttributes attributes{};
  cuda_check(cudaFuncGetAttributes(&attributes, any_kernel), "reading a kernel's properties");
  return attributes.ptxVersion >= 90;
}

DeviceMemory allocate_device(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0;
    size_t total = 0;
    int device = 0;
    cuda_check(cudaGetDevice(&device), "reading the current GPU");
    cuda_check(cudaMemGetInfo(&free, &total), "reading the free memory");
    throw Error("GPU " + std::to_string(device) + " has no room for " + format_bytes(bytes) +
                " more: " + format_bytes(free) + " of " + format_bytes(total) +
                " are free; use a smaller --context or --device cpu.");
  }
  cuda_check(status, "allocating memory");
  return DeviceMemory(static_cast<std::byte*>(memory));
}

CudaBackend::CudaBackend(int device)
    : device_(current_device(device)),
      stream_(make_stream()),
      overlaps_(kernels_overlap()),
      matmul_(std::make_unique<Matmul>()),
      step_kernel_(overlaps_ && largest_architecture() >= 90, device, stream_.get()) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "reading the GPU's properties");
  if (properties.major < 8) {
    throw Error("GPU " + std::to_string(device) + " (" + properties.name +
                ") is too old: compute capability 8.0 or later is needed; use --device cpu.");
  }
  name_ = properties.name;
  is_hopper_ = properties.major == 9 && largest_architecture() >= 90;
  if (is_hopper_) {
    constexpr size_t kDealtBytes = 2 * sizeof(unsigned);
    dealt_ = allocate_device(kDealtBytes);
    cuda_check(cudaMemsetAsync(dealt_.get(), 0, kDealtBytes, stream_.get()), "clearing memory");
  }
  prepare_in_order_products();
}

CudaBackend::~CudaBackend() {
  // Memory is freed by this thread, on this GPU, after the last kernel that uses it.
  cudaSetDevice(device_);
  cudaStreamSynchronize(stream_.get());
}

cudaStream_t CudaBackend::launched_stream() {
  current_device(device_);
  step_kernel_.launch();
  return stream_.get();
}

size_t CudaBackend::free_memory() const {
  current_device(device_);
  size_t free = 0;
  size_t total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "reading the free memory");
  return free;
}

size_t CudaBackend::scratch_bytes(const StepBounds& bounds) const {
  const DType act = activation_dtype(bounds.weight_format);
  size_t scratch = decode_bytes(bounds);
  scratch =
      std::max(scratch, chunks_piece(bounds.tokens / kPageTokens, bounds.recurrent_heads).bytes);
  scratch = std::max(scratch,
                     plain_bytes(bounds.latent, bounds.tokens, bounds.sequences, bounds.context));
  size_t products = 0;
  size_t bytes_per_pair = 0;
  int64_t pairs = 0;
  size_t widened = 0;
  size_t rotated = 0;
  for (ProductBound p : bounds.products) {
    if (p.experts == 0 && widened_format(p.format, p.input_bits, act) != p.format) {
      p.format = widened_format(p.format, p.input_bits, act);
      widened = std::max(widened, widened_bytes(p.format, p.out, p.in));
    }
    // Rows of other lengths are quantized where they are; those of experts of formats without
    // kernels are not.
    constexpr int64_t kEven = 16;
    if (is_integer(p.format) && p.input_bits == 8 &&
        (p.in % kEven != 0 || p.format != WeightFormat::int8)) {
      rotated = std::max(rotated, rows_for_bytes(p.rows, p.in));
    }
    if (p.experts > 0) {
      bytes_per_pair += expert_row_bytes(p.in, p.gated ? p.out / 2 : p.out);
      if (p.weighs_input) bytes_per_pair += weighed_row_bytes(p.in);
      pairs = std::max(pairs, p.rows);
      continue;
    }
    if (p.format == WeightFormat::int8) {
      const ScratchPiece many = int8_piece(p.rows, p.in, p.out);
      const ScratchPiece few = few_rows_piece(p.rows, p.in);
      const ScratchPiece fused = eight_bits_piece(p.rows, p.in);
      scratch = std::max({scratch, many.bytes, few.bytes, fused.bytes});
    } else if (p.bias || p.activation) {
      scratch = std::max(scratch, finished_piece(p.rows, p.out).bytes);
    }
    if (p.gated && p.format != WeightFormat::int8) {
      products = std::max(products, gated_piece(p.rows, p.out, act).bytes);
    }
  }
  if (pairs > 0) {
    const int64_t used = std::max<int64_t>(1, pairs / std::max<int64_t>(1, bounds.tokens));
    scratch = std::max(scratch, experts_piece(pairs, used, bytes_per_pair).bytes);
  }
  // A batch and its sampling rules are small. Penalties and biases, a few bytes for each token that
  // has one, are not counted.
  constexpr size_t kUploads = size_t{8} << 20;
  return scratch + widened + widened_kv_bytes(bounds, act) + rotated + products +
         kMatmulWorkspaceBytes + kUploads;
}

DType CudaBackend::activation_dtype(WeightFormat weight_format) const {
  return is_float(weight_format) ? stored_type(weight_format) : DType::bf16;
}

DType CudaBackend::kv_dtype(WeightFormat weight_format) const {
  return activation_dtype(weight_format);
}

// Those of integers are ours on Hopper. Of fewer weights all are loaded before a product that may
// never come is prepared, and would have to wait for it.
void CudaBackend::expect_products(WeightFormat weight_format, size_t weight_bytes) {
  constexpr size_t kSlow = size_t{4} << 30;
  const bool is_int8 = is_integer(weight_format);
  const bool is_ours = is_int8 && is_hopper_;
  if (!is_ours && weight_bytes >= kSlow)
    matmul_->prepare(is_int8 ? DType::i8 : activation_dtype(weight_format), device_);
}

Buffer CudaBackend::allocate(size_t bytes) {
  current_device(device_);
  DeviceMemory memory = allocate_device(bytes > 0 ? bytes : 1);
  return {memory.release(), [this](std::byte* data) {
            try {
              current_device(device_);
              step_kernel_.launch();  // it may use the memory
            } catch (const Error&) {
              // The device failed: nobody will read the results.
            }
            cudaFree(data);
          }};
}

void CudaBackend::copy_to_device(void* device, const void* host, size_t bytes) {
  cuda_check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, launched_stream()),
             "copying to the GPU");
  synchronize();  // the caller may change `host` at once
}

void CudaBackend::copy_to_host(void* host, const void* device, size_t bytes) {
  cuda_check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, launched_stream()),
             "copying from the GPU");
  synchronize();
}

void CudaBackend::synchronize() {
  cuda_check(cudaStreamSynchronize(launched_stream()), "waiting for the GPU");
}

BatchView CudaBackend::upload(const Batch& batch) {
  const Batch& divided = divided_ = divide_one_by_one(batch);
  const std::array parts = {&batch.tokens,       &batch.positions,    &batch.sequence_of,
                            &batch.query_start,  &batch.kv_len,       &batch.page_table,
                            &batch.logit_rows,   &batch.segments,     &batch.source_len,
                            &batch.source_pages, &batch.rope_lengths, &batch.state_from,
                            &batch.state_to,     &batch.state_border, &divided.query_start,
                            &divided.kv_len,     &divided.page_table};
  std::array<size_t, parts.size()> offsets{};
  size_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    offsets[i] = bytes;
    bytes += aligned(parts[i]->size() * sizeof(int32_t));
  }

  BatchView view = measure(batch);
  const cudaStream_t stream = launched_stream();  // of the GPU that events are then made on
  step_kernel_.collect(batch.adapter_tokens.empty() && n_noted_ == 0,
                       view.max_query_len == 1 && has_short_contexts(batch));
  std::byte* host = batches_.fill(bytes);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->empty()) continue;
    std::memcpy(host + offsets[i], parts[i]->data(), parts[i]->size() * sizeof(int32_t));
  }
  const std::byte* device = batches_.copy(stream);

  const auto at = [&](size_t i) { return reinterpret_cast<const int32_t*>(device + offsets[i]); };
  view.tokens = at(0);
  view.chosen = reinterpret_cast<const int32_t*>(chosen_.at_least(1));
  view.positions = at(1);
  view.sequence_of = at(2);
  view.query_start = at(3);
  view.kv_len = at(4);
  view.page_table = at(5);
  view.logit_rows = at(6);
  if (!batch.segments.empty()) view.segments = at(7);
  view.source_len = at(8);
  view.source_pages = at(9);
  if (!batch.rope_lengths.empty()) view.rope_lengths = at(10);
  if (!batch.state_from.empty()) {
    view.state_from = at(11);
    view.state_to = at(12);
    view.state_border = at(13);
  }
  if (divided.n_sequences() > 0) {
    view.divided = {.query_start = at(14),
                    .kv_len = at(15),
                    .page_table = at(16),
                    .max_query_len = measure(divided).max_query_len,
                    .host = &divided};
  }
  return view;
}

}  // namespace faststream
