// Which operations become instructions, and the launch of what they have become.
#include "kernels/cuda/program/program.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/program/run_program.cuh"

namespace faststream {

namespace {

constexpr size_t kCounterBytes = 256;  // before the instructions; the rest is zeros, too
constexpr int kMaxArrivals = 1024;
constexpr int64_t kMaxOutputs = int64_t{1} << 30;

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Of each GPU: whether a backend has its turn.
std::array<std::atomic<bool>, 64> taken;

// Where the service's clients find it.
bool gpu_is_shared() {
  std::error_code ignored;
  return std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr ||
         std::filesystem::exists("/tmp/nvidia-mps", ignored);
}

using Kernel = void (*)(const Instruction*, int, uint32_t*);

template <int kDim>
Kernel kernel_for(bool varied) {
  return varied ? program::run_kernel<kDim, VariedRule>
                : program::run_kernel<kDim, PlainRule<false>>;
}
Kernel kernel_for(int head_dim, bool varied) {
  if (head_dim <= 64) return kernel_for<64>(varied);
  if (head_dim <= 128) return kernel_for<128>(varied);
  return kernel_for<256>(varied);
}

}  // namespace

ProgramTurn::ProgramTurn(int device) {
  const auto number = static_cast<size_t>(device);
  if (device >= 0 && number < taken.size() && !gpu_is_shared() && !taken[number].exchange(true)) {
    device_ = device;
  }
}

ProgramTurn::~ProgramTurn() {
  if (device_ >= 0) taken[static_cast<size_t>(device_)] = false;
}

Program::Program(bool able, int device, cudaStream_t stream)
    : turn_(able ? device : -1), enabled_(static_cast<bool>(turn_)), stream_(stream) {
  if (!enabled_) return;
  multiprocessors_ = gpu_attribute(cudaDevAttrMultiProcessorCount);
  for (Staging& staging : staging_) staging.copied = make_event();
  constexpr size_t kBytes = kMaxArrivals * sizeof(int32_t);
  cuda_check(cudaMemsetAsync(arrivals_.at_least(kBytes), 0, kBytes, stream_), "clearing memory");
}

bool Program::describe(const Input& input, const Weight& weight,
                       ProductInstruction& product) const {
  const Matrix& x = input.x;
  const bool is_float = x.dtype == DType::f32;
  const DType act = input.is_ready() ? x.dtype : input.normed.dtype;
  const bool types = act == DType::bf16 && (is_float || x.dtype == act) &&
                     (weight.dtype == DType::i8 || weight.dtype == DType::f32);
  const auto row_bytes = static_cast<int64_t>(dtype_size(weight.dtype)) * weight.cols;
  const size_t kept = dtype_size(weight.dtype == DType::i8 ? DType::i8 : act);
  const bool fits = row_bytes % program::kPieceBytes == 0 && weight.cols % 8 == 0 &&
                    weight.rows < kMaxOutputs &&
                    static_cast<size_t>(x.rows * weight.cols) * kept <= kMaxInputBytes;
  // A row with a norm is of the residual stream, and alone.
  const bool has_norm = !input.is_ready() && input.norm.kind != NormKind::none;
  const bool held = is_float
                        ? x.rows == 1 && weight.cols <= kMaxNormalized
                        : !has_norm && weight.cols <= (x.rows == 1 ? kMaxInputs : kMaxExpertInputs);
  if (!enabled_ || !types || !fits || !held || !aligned(weight.data) ||
      !rows_begin_at_16(x.data, x.stride, x.dtype) || !aligned(input.norm.weight)) {
    return false;
  }
  product.x = x.data;
  product.x_dtype = x.dtype;
  product.x_rows = static_cast<int32_t>(x.rows);
  product.x_stride = x.stride;
  product.norm = has_norm ? input.norm : Norm{};
  product.weight = weight.data;
  product.weight_dtype = weight.dtype;
  product.inputs = static_cast<int32_t>(weight.cols);
  product.row_bytes = row_bytes;
  return true;
}

bool Program::multiply(const Input& input, const Weight& weight, const Destination& to,
                       bool gated) {
  ProductInstruction p;
  if (input.x.rows != 1 || !describe(input, weight, p)) return false;
  const bool floats = weight.dtype == DType::f32;
  if (floats && (gated || instructions_.empty())) return false;
  p.outputs = static_cast<int32_t>(gated ? weight.rows / 2 : weight.rows);
  p.gated = gated;
  p.tiles = floats ? p.outputs : ceil_div(p.outputs, gated ? 8 : 16);
  p.to = to;
  add(floats ? Instruction::Kind::multiply_floats : Instruction::Kind::multiply, p);
  return true;
}

bool Program::linear(const Input& input, const Weight& weight, const Destination& to) {
  return multiply(input, weight, to, false);
}

bool Program::gated_linear(const Input& input, const Weight& gate_up, const Destination& to) {
  return multiply(input, gate_up, to, true);
}

bool Program::experts(const Input& input, const Matrix& scores, const Router& router,
                      const Experts& experts, bool add_to, const Matrix& out) {
  ProductInstruction up;
  ProductInstruction down;
  if (input.x.rows != 1 || router.used > kMaxExpertsUsed ||
      experts.n_experts > kMaxExpertsChosenFrom || router.groups > kMaxExpertGroups ||
      experts.up.dtype == DType::f32 || experts.down.dtype == DType::f32 ||
      !describe(input, experts.up, up)) {
    return false;
  }
  Matrix middle(nullptr, DType::bf16, router.used, experts.down.cols);
  if (!describe({.x = middle}, experts.down, down)) return false;
  middle.data =
      memory_for(middles_, middles_size_,
                 static_cast<size_t>(middle.rows * middle.cols) * dtype_size(middle.dtype));

  up.outputs = static_cast<int32_t>(middle.cols);
  up.gated = experts.gated;
  up.tiles = ceil_div(middle.cols, experts.gated ? 8 : 16);
  up.logits = static_cast<const float*>(scores.data);
  up.n_experts = experts.n_experts;
  up.router = router;
  up.to = {.out = middle.data,
           .dtype = middle.dtype,
           .stride = middle.stride,
           .scales = experts.up.scales,
           .bias = experts.up_bias,
           .activation = experts.activation};
  add(Instruction::Kind::multiply, up);

  down.x = middle.data;
  down.outputs = static_cast<int32_t>(out.cols);
  down.tiles = ceil_div(out.cols, 16);
  down.logits = up.logits;
  down.n_experts = experts.n_experts;
  down.router = router;
  down.sums_experts = true;
  down.to = {.out = out.data,
             .dtype = out.dtype,
             .stride = out.stride,
             .scales = experts.down.scales,
             .bias = experts.down_bias,
             .add = add_to};
  add(Instruction::Kind::multiply, down);
  return true;
}

bool Program::attention(const BatchView& batch, const AttentionArguments& arguments,
                        const HeadTransform& transform, const Matrix& cos_sin) {
  const KvLayer& kv = arguments.kv;
  const int head_tiles = ceil_div(arguments.n_heads / kv.n_kv_heads, kDecodeHeads);
  if (instructions_.empty() || batch.n_tokens != 1 || kv.dtype != DType::bf16 ||
      kv.n_kv_heads * head_tiles > kMaxArrivals) {
    return false;
  }
  if (head_dim_ != 0 && head_dim_ != kv.head_dim) return false;
  AttendInstruction a;
  a.attention = arguments;
  a.splits.count = max_splits(arguments.rule, batch);
  a.splits.head_tiles = head_tiles;
  if (a.splits.count > 1) {
    const auto floats = int64_t{arguments.n_heads} * a.splits.count * (2 + kv.head_dim);
    a.splits.partials = reinterpret_cast<float*>(
        memory_for(partials_, partials_size_, static_cast<size_t>(floats) * sizeof(float)));
  }
  a.transform = transform;
  a.cos_sin = static_cast<const float*>(cos_sin.data);
  a.rotated_dims = static_cast<int32_t>(cos_sin.cols);
  a.kv_len = batch.max_kv_len;
  a.arrivals = reinterpret_cast<int32_t*>(arrivals_.at_least(1));
  instructions_.emplace_back(a);
  head_dim_ = kv.head_dim;
  varied_ = varied_ || !is_plain(arguments.rule);
  return true;
}

std::byte* Program::memory_for(DeviceBuffer& buffer, size_t& size, size_t bytes) {
  if (bytes > size) launch();  // instructions may use what is freed now
  size = std::max(size, bytes);
  return buffer.at_least(size);
}

void Program::add(Instruction::Kind kind, ProductInstruction product) {
  const bool in_turn = product.logits != nullptr && !product.sums_experts;
  const int32_t tiles = in_turn ? product.tiles * product.router.used : product.tiles;
  product.dealt = dealt_;
  product.tiles_of_each = tiles / multiprocessors_;
  product.tiles_more = tiles % multiprocessors_;
  dealt_ = (dealt_ + tiles) % multiprocessors_;
  instructions_.emplace_back(kind, product);
}

void Program::launch() {
  if (instructions_.empty()) return;
  const std::vector<Instruction> instructions = std::exchange(instructions_, {});
  const Kernel kernel = kernel_for(head_dim_, varied_);
  dealt_ = 0;
  head_dim_ = 0;
  varied_ = false;

  const size_t bytes = kCounterBytes + instructions.size() * sizeof(Instruction);
  Staging& staging = staging_[next_staging_];
  next_staging_ = 1 - next_staging_;
  cuda_check(cudaEventSynchronize(staging.copied.get()), "waiting for an earlier program");
  std::byte* host = staging.memory.at_least(bytes);
  std::memset(host, 0, kCounterBytes);
  std::memcpy(host + kCounterBytes, instructions.data(), bytes - kCounterBytes);
  std::byte* device = uploaded_.at_least(bytes);
  cuda_check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_),
             "copying a program to the GPU");
  cuda_check(cudaEventRecord(staging.copied.get(), stream_), "copying a program to the GPU");

  allow_shared_memory(kernel, sizeof(program::Shared));
  Queue{stream_, true}.launch(
      "running a step", kernel,
      {static_cast<unsigned>(multiprocessors_), program::kThreads, sizeof(program::Shared)},
      reinterpret_cast<const Instruction*>(device + kCounterBytes),
      static_cast<int>(instructions.size()), reinterpret_cast<uint32_t*>(device));
}

}  // namespace faststream
