// Which operations become instructions, and the launch of what they have become.
#include "kernels/cuda/step_kernel/step_kernel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/hadamard.cuh"
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream {

namespace {

constexpr size_t kRowAlignment = 128;
constexpr int64_t kMaxOutputs = int64_t{1} << 30;

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether those of any eight channels can be copied, in pieces of 16 bytes: of `outputs` channels,
// or twice as many where there are gates.
bool copies_in_pieces(const float* scales, const float* bias, int64_t outputs) {
  return outputs % 4 == 0 && aligned(scales) && aligned(bias);
}

// Of each GPU: whether a backend has its turn.
std::array<std::atomic<bool>, 64> taken;

// Where the service's clients find it.
bool gpu_is_shared() {
  std::error_code ignored;
  return std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr ||
         std::filesystem::exists("/tmp/nvidia-mps", ignored);
}

using Kernel = void (*)(const Instruction*, int, step_kernel::RowMemory, uint4*, int64_t);

template <int kDim>
Kernel kernel_for(bool varied) {
  return varied ? step_kernel::run_kernel<kDim, VariedRule>
                : step_kernel::run_kernel<kDim, PlainRule<false>>;
}
Kernel kernel_for(int head_dim, bool varied) {
  if (head_dim <= 64) return kernel_for<64>(varied);
  if (head_dim <= 128) return kernel_for<128>(varied);
  return kernel_for<256>(varied);
}

// Desktops' GPUs after Hopper have less than half of its shared memory.
bool has_shared_memory() {
  return gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >=
         static_cast<int>(sizeof(step_kernel::Shared));
}

}  // namespace

StepKernelTurn::StepKernelTurn(int device) {
  const auto number = static_cast<size_t>(device);
  if (device >= 0 && number < taken.size() && !gpu_is_shared() && !taken[number].exchange(true)) {
    device_ = device;
  }
}

StepKernelTurn::~StepKernelTurn() {
  if (device_ >= 0) taken[static_cast<size_t>(device_)] = false;
}

StepKernel::StepKernel(bool able, int device, cudaStream_t stream)
    : turn_(able && has_shared_memory() ? device : -1),
      enabled_(static_cast<bool>(turn_)),
      stream_(stream) {
  if (!enabled_) return;
  multiprocessors_ = gpu_attribute(cudaDevAttrMultiProcessorCount);
}

StepKernel::Span StepKernel::span_of(const void* data, int64_t elements, DType type) {
  return {static_cast<const std::byte*>(data), static_cast<size_t>(elements) * dtype_size(type)};
}

void StepKernel::make_way(std::initializer_list<Span> read, const Span& written) {
  const bool is_clear = std::all_of(known_.begin(), known_.end(), [&](const Known& known) {
    return (!known.span.overlaps(written) || written.covers(known.span)) &&
           std::all_of(read.begin(), read.end(), [&](const Span& span) {
             return !known.span.overlaps(span) || (known.offset >= 0 && known.span.covers(span));
           });
  });
  if (!is_clear) launch();
}

int64_t StepKernel::reserve(size_t bytes) {
  const size_t offset = reserved_;
  reserved_ += (bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  return static_cast<int64_t>(offset);
}

Row StepKernel::row_of(const Span& span) {
  for (const Known& known : known_) {
    if (!known.span.covers(span)) continue;
    return {.offset = known.offset + (span.data - known.span.data),
            .awaited = known.instruction >= 0};
  }
  const Known known{.span = span, .offset = reserve(span.bytes)};
  known_.push_back(known);
  from_outside_.push_back(known);
  return {.offset = known.offset};
}

Row StepKernel::result_at(const Span& span) {
  std::erase_if(known_, [&](const Known& known) {
    if (!span.covers(known.span)) return false;
    if (known.instruction >= 0) {
      // It will not be there after the step.
      Instruction& maker = instructions_[static_cast<size_t>(known.instruction)];
      if (maker.kind == Instruction::Kind::attend) {
        maker.attend.attention.out.data = nullptr;
      } else {
        maker.product.to.out = nullptr;
      }
    }
    return true;
  });
  const int64_t offset = span.bytes <= kMaxRowBytes ? reserve(span.bytes) : -1;
  known_.push_back({span, offset, static_cast<int64_t>(instructions_.size())});
  return {.offset = offset, .awaited = true};
}

bool StepKernel::describe(const Input& input, const Weight& weight,
                          ProductInstruction& product) const {
  const Matrix& x = input.x;
  const bool is_float = x.dtype == DType::f32;
  const DType act = input.is_ready() ? x.dtype : input.normed.dtype;
  const int64_t row_bytes = weight.row_bytes();
  const bool types = act == DType::bf16 && (is_float || x.dtype == act) &&
                     (weight.quantizes_inputs() || weight.format == WeightFormat::f32 ||
                      (weight.stored_as() == act && row_bytes % step_kernel::kPairBytes == 0));
  const size_t kept = dtype_size(weight.format == WeightFormat::int8 ? DType::i8 : act);
  const bool fits = row_bytes % 16 == 0 && weight.cols % 8 == 0 && weight.rows < kMaxOutputs &&
                    static_cast<size_t>(x.rows * weight.cols) * kept <= kMaxInputBytes;
  // A row with a norm is of the residual stream, and alone.
  const bool has_norm = !input.is_ready() && input.norm.kind != NormKind::none;
  const bool held = is_float
                        ? x.rows == 1 && weight.cols <= kMaxNormalized
                        : !has_norm && weight.cols <= (x.rows == 1 ? kMaxInputs : kMaxExpertInputs);
  const bool rotates = !weight.rotated || can_rotate(weight.cols);
  if (!enabled_ || !types || !fits || !held || !rotates || !aligned(weight.data) ||
      !rows_begin_at_16(x.data, x.stride, x.dtype) || !aligned(input.norm.weight)) {
    return false;
  }
  product.x_dtype = x.dtype;
  product.x_rows = static_cast<int32_t>(x.rows);
  product.x_stride = x.stride;
  product.norm = has_norm ? input.norm : Norm{};
  product.weight = weight.data;
  product.weight_format = weight.format;
  product.rotated = weight.rotated;
  product.inputs = static_cast<int32_t>(weight.cols);
  product.row_bytes = row_bytes;
  return true;
}

bool StepKernel::multiply(const Input& input, const Weight& weight, const Destination& to,
                          bool gated) {
  ProductInstruction p;
  if (input.x.rows != 1 || !describe(input, weight, p)) return false;
  const bool floats = weight.format == WeightFormat::f32;
  const bool is_float = to.dtype == DType::f32;
  if (floats && (gated || !is_float || instructions_.empty())) return false;
  if (!is_float && (to.add || to.dtype != DType::bf16)) return false;
  if (floats ? weight.cols > kMaxFloatInputs
             : !copies_in_pieces(to.scales, to.bias, gated ? weight.rows / 2 : weight.rows)) {
    return false;
  }
  p.outputs = static_cast<int32_t>(gated ? weight.rows / 2 : weight.rows);
  p.gated = gated;
  p.tiles = floats ? p.outputs : ceil_div(p.outputs, gated ? 8 : 16);
  p.to = to;

  const Span x = span_of(input.x.data, p.inputs, p.x_dtype);
  const Span out = span_of(to.out, p.outputs, to.dtype);
  make_way(to.add ? std::initializer_list<Span>{x, out} : std::initializer_list<Span>{x}, out);
  p.x = row_of(x);
  if (to.add) p.added = row_of(out);
  p.result = result_at(out);
  add(p);
  return true;
}

bool StepKernel::linear(const Input& input, const Weight& weight, const Destination& to) {
  return multiply(input, weight, to, false);
}

bool StepKernel::gated_linear(const Input& input, const Weight& gate_up, const Destination& to) {
  return multiply(input, gate_up, to, true);
}

bool StepKernel::experts(const Input& input, const Matrix& scores, const Router& router,
                         const Experts& experts, bool add_to, const Matrix& out) {
  ProductInstruction up;
  ProductInstruction down;
  const Matrix middle(nullptr, DType::bf16, router.used, experts.down.cols);
  if (input.x.rows != 1 || router.used > kMaxExpertsUsed ||
      experts.n_experts > kMaxExpertsChosenFrom ||
      choice_bytes(experts.n_experts, router) > kChoiceBytes ||
      experts.up.format == WeightFormat::f32 || experts.down.format == WeightFormat::f32 ||
      out.dtype != DType::f32 || !describe(input, experts.up, up) ||
      !describe({.x = middle}, experts.down, down) ||
      router.used * ceil_div(down.row_bytes, step_kernel::kChunkBytes) > kMaxTileStages ||
      !copies_in_pieces(experts.up.row_scales(), experts.up_bias, middle.cols) ||
      !copies_in_pieces(experts.down.row_scales(), experts.down_bias, out.cols)) {
    return false;
  }
  const Span x = span_of(input.x.data, up.inputs, up.x_dtype);
  const Span logits = span_of(scores.data, scores.cols, DType::f32);
  const Span result = span_of(out.data, out.cols, out.dtype);
  make_way(add_to ? std::initializer_list<Span>{x, logits, result}
                  : std::initializer_list<Span>{x, logits},
           result);

  up.x = row_of(x);
  up.outputs = static_cast<int32_t>(middle.cols);
  up.gated = experts.gated;
  up.tiles = ceil_div(middle.cols, experts.gated ? 8 : 16);
  up.result = {
      .offset = reserve(static_cast<size_t>(middle.rows * middle.cols) * dtype_size(middle.dtype)),
      .awaited = true};
  up.logits = row_of(logits);
  up.n_experts = experts.n_experts;
  up.router = router;
  up.to = {.dtype = middle.dtype,
           .stride = middle.stride,
           .scales = experts.up.row_scales(),
           .bias = experts.up_bias,
           .activation = experts.activation};
  add(up);

  down.x = up.result;
  down.outputs = static_cast<int32_t>(out.cols);
  down.tiles = ceil_div(out.cols, 16);
  down.n_experts = experts.n_experts;
  down.router = router;
  down.sums_experts = true;
  down.to = {.out = out.data,
             .dtype = out.dtype,
             .stride = out.stride,
             .scales = experts.down.row_scales(),
             .bias = experts.down_bias,
             .add = add_to};
  if (add_to) down.added = row_of(result);
  down.result = result_at(result);
  add(down);
  return true;
}

bool StepKernel::attention(const BatchView& batch, const AttentionArguments& arguments,
                           const HeadTransform& transform, const Matrix& cos_sin) {
  const KvLayer& kv = arguments.kv;
  if (kv.v_head_dim != kv.head_dim) return false;
  if (instructions_.empty() || batch.n_tokens != 1 || kv.dtype != DType::bf16) return false;
  if (head_dim_ != 0 && head_dim_ != kv.head_dim) return false;
  const Span qkv = span_of(arguments.q.data,
                           int64_t{arguments.n_heads + 2 * kv.n_kv_heads} * kv.head_dim, kv.dtype);
  const Span out = span_of(arguments.out.data, int64_t{arguments.n_heads} * kv.head_dim, kv.dtype);
  make_way({qkv}, out);
  AttendInstruction a;
  a.attention = arguments;
  a.splits.count = max_splits(arguments.rule, batch);
  // As few heads as blocks allow: a head does not depend on its tile's others.
  const int group = arguments.n_heads / kv.n_kv_heads;
  a.tile_heads = 1;
  const auto items = [&] { return a.splits.count * kv.n_kv_heads * ceil_div(group, a.tile_heads); };
  while (a.tile_heads < std::min(group, kDecodeHeads) && items() > multiprocessors_) {
    a.tile_heads *= 2;
  }
  a.splits.head_tiles = ceil_div(group, a.tile_heads);
  if (a.splits.count > 1) {
    const auto floats = int64_t{arguments.n_heads} * a.splits.count * (2 + kv.head_dim);
    a.partials = {.offset = reserve(static_cast<size_t>(floats) * sizeof(float)), .awaited = true};
  }
  a.transform = transform;
  a.cos_sin = static_cast<const float*>(cos_sin.data);
  a.rotated_dims = static_cast<int32_t>(cos_sin.cols);
  a.kv_len = batch.max_kv_len;
  a.qkv = row_of(qkv);
  a.result = result_at(out);
  instructions_.emplace_back(a);
  head_dim_ = kv.head_dim;
  varied_ = varied_ || !is_plain(arguments.rule);
  return true;
}

void StepKernel::add(ProductInstruction product) {
  const bool in_turn = product.n_experts > 0 && !product.sums_experts;
  const int32_t tiles = in_turn ? product.tiles * product.router.used : product.tiles;
  product.dealt = dealt_;
  product.tiles_of_each = tiles / multiprocessors_;
  product.tiles_more = tiles % multiprocessors_;
  dealt_ = (dealt_ + tiles) % multiprocessors_;
  const auto kind = product.weight_format == WeightFormat::int8 ? Instruction::Kind::multiply
                    : product.weight_format == WeightFormat::f32
                        ? Instruction::Kind::multiply_floats
                        : Instruction::Kind::multiply_in_order;
  instructions_.emplace_back(kind, product);
}

void StepKernel::launch() {
  if (instructions_.empty()) return;
  const std::vector<Instruction> instructions = std::exchange(instructions_, {});
  const std::vector<Known> from_outside = std::exchange(from_outside_, {});
  const size_t row_bytes = std::exchange(reserved_, 0);
  const Kernel kernel = kernel_for(head_dim_, varied_);
  known_.clear();
  dealt_ = 0;
  head_dim_ = 0;
  varied_ = false;

  Rows& rows = rows_[turn_of_rows_];
  turn_of_rows_ = 1 - turn_of_rows_;
  Rows& other = rows_[turn_of_rows_];
  std::byte* memory = rows.memory.at_least(row_bytes);
  if (row_bytes > rows.size) {
    cuda_check(cudaMemsetAsync(memory, 0xff, row_bytes, stream_), "clearing memory");
    rows.size = row_bytes;
  }
  rows.used = row_bytes;
  for (const Known& known : from_outside) {
    cuda_check(cudaMemcpyAsync(memory + known.offset, known.span.data, known.span.bytes,
                               cudaMemcpyDeviceToDevice, stream_),
               "copying a row");
  }

  const size_t bytes = instructions.size() * sizeof(Instruction);
  std::memcpy(uploads_.fill(bytes), instructions.data(), bytes);
  const std::byte* device = uploads_.copy(stream_);

  allow_shared_memory(kernel, sizeof(step_kernel::Shared));
  Queue{stream_, true}.launch(
      "running a step", kernel,
      {static_cast<unsigned>(multiprocessors_), step_kernel::kThreads, sizeof(step_kernel::Shared)},
      reinterpret_cast<const Instruction*>(device), static_cast<int>(instructions.size()),
      step_kernel::RowMemory{memory}, reinterpret_cast<uint4*>(other.memory.at_least(1)),
      static_cast<int64_t>(std::exchange(other.used, 0) / sizeof(uint4)));
}

void StepKernel::collect(bool on) {
  launch();
  enabled_ = on && turn_;
}

}  // namespace faststream
