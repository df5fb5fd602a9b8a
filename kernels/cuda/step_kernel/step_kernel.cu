// What a step has of memory, and its launch.
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
#include "kernels/cuda/ranks/peer_sums.h"
#include "kernels/cuda/step_kernel/kernels.h"
#include "kernels/cuda/step_kernel/shared_memory.cuh"

namespace faststream {

namespace {

constexpr size_t kRowAlignment = 128;
constexpr size_t kUploadBytes = 1024 * sizeof(Instruction);  // more than most steps have

constexpr int kMostLaunches = 2;  // of a step of several tokens

// Of each GPU: whether a backend has its turn.
std::array<std::atomic<bool>, 64> taken;

// Where the service's clients find it.
bool gpu_is_shared() {
  std::error_code ignored;
  return std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr ||
         std::filesystem::exists("/tmp/nvidia-mps", ignored);
}

// Desktops' GPUs after Hopper have less than half of its shared memory.
bool has_shared_memory() {
  return gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >=
         static_cast<int>(sizeof(step_kernel::Shared));
}

// Of steps of one token. mixed: see kernels.h.
step_kernel::Kernel kernel_of(step_kernel::Packed packed, int head_dim, bool varied, bool mixed) {
  switch (packed) {
    case step_kernel::Packed::int4:
      return step_kernel::int4_kernel(head_dim, varied, mixed);
    case step_kernel::Packed::widened:
      return step_kernel::widened_kernel(head_dim, varied, mixed);
    case step_kernel::Packed::e4m3:
      return step_kernel::e4m3_kernel(head_dim, varied, mixed);
    case step_kernel::Packed::none:
      break;
  }
  return mixed ? step_kernel::mixed_kernel(head_dim, varied)
               : step_kernel::plain_kernel(head_dim, varied);
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

// All buffers of instructions are made: within a step other ranks would wait until memory is
// allocated, and it for them.
void StepKernel::join(PeerSums* sums) {
  sums_ = sums;
  if (!enabled_) return;
  for (int i = 0; i < Uploads::kBuffers; ++i) {
    std::memset(uploads_.fill(kUploadBytes), 0, kUploadBytes);
    uploads_.copy(stream_);
  }
}

StepKernel::Span StepKernel::span_of(const void* data, int64_t elements, DType type) {
  return {static_cast<const std::byte*>(data), static_cast<size_t>(elements) * dtype_size(type)};
}

StepKernel::Span StepKernel::span_of(const Matrix& m) {
  return span_of(m.data, (m.rows - 1) * m.stride + m.cols, m.dtype);
}

bool StepKernel::take_tokens(int64_t count) {
  if (count > most_tokens_) return false;
  if (count != tokens_) launch();
  tokens_ = count;
  return true;
}

// What is left of it is copied to memory at last, in eights of floats. Of several rows nothing is
// cut: what is between a view's rows would be neither left nor written.
bool StepKernel::can_cut(const Known& known, const Span& written) const {
  constexpr size_t kEight = 8 * sizeof(float);
  return tokens_ == 1 && known.span.covers(written) && known.offset >= 0 &&
         begins_at(known.span.data, 16) &&
         static_cast<size_t>(written.data - known.span.data) % kEight == 0 &&
         written.bytes % kEight == 0 && known.span.bytes % kEight == 0;
}

void StepKernel::make_way(std::initializer_list<Span> read, const Span& written) {
  const bool is_clear = std::all_of(known_.begin(), known_.end(), [&](const Known& known) {
    return (!known.span.overlaps(written) || written.covers(known.span) ||
            can_cut(known, written)) &&
           std::all_of(read.begin(), read.end(), [&](const Span& span) {
             return !known.span.overlaps(span) || (known.offset >= 0 && known.span.covers(span));
           });
  });
  const bool is_read = std::any_of(in_place_.begin(), in_place_.end(),
                                   [&](const Span& span) { return span.overlaps(written); });
  if (!is_clear || is_read) launch();
}

int64_t StepKernel::reserve(size_t bytes) {
  const size_t offset = reserved_;
  reserved_ += (bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  return static_cast<int64_t>(offset);
}

// Wide words of it begin at multiples of their size if they do in memory.
int64_t StepKernel::reserve(const Span& span) {
  const size_t in_word = reinterpret_cast<uintptr_t>(span.data) % sizeof(uint4);
  return reserve(in_word + span.bytes) + static_cast<int64_t>(in_word);
}

Row StepKernel::row_of(const Span& span) {
  for (const Known& known : known_) {
    if (!known.span.covers(span)) continue;
    note_reader_of(known);
    return {.offset = known.offset + (span.data - known.span.data),
            .awaited = known.instruction >= 0};
  }
  const Known known{.span = span, .offset = reserve(span)};
  known_.push_back(known);
  from_outside_.push_back(known);
  return {.offset = known.offset};
}

void StepKernel::note_reader_of(const Known& known) {
  if (known.instruction >= 0) {
    instructions_[static_cast<size_t>(known.instruction)].is_read = true;
  }
}

Row StepKernel::result_at(const Span& span) {
  std::vector<Known> left;
  std::erase_if(known_, [&](const Known& known) {
    if (!span.overlaps(known.span)) return false;
    if (known.instruction >= 0) {
      // It will not be there after the step.
      instructions_[static_cast<size_t>(known.instruction)].out() = nullptr;
    }
    const auto keep = [&](const std::byte* begin, const std::byte* end) {
      if (begin >= end) return;
      Known part = known;
      part.span = {begin, static_cast<size_t>(end - begin)};
      part.offset += begin - known.span.data;
      left.push_back(part);
    };
    keep(known.span.data, span.data);
    keep(span.data + span.bytes, known.span.data + known.span.bytes);
    return true;
  });
  known_.insert(known_.end(), left.begin(), left.end());
  const int64_t offset =
      span.bytes <= kMaxRowBytes * static_cast<size_t>(tokens_) ? reserve(span) : -1;
  known_.push_back({span, offset, static_cast<int64_t>(instructions_.size())});
  return {.offset = offset, .awaited = true};
}

// All but norms whose result nobody reads: products took their work over.
std::vector<Instruction> StepKernel::take_instructions() {
  std::vector<Instruction> wanted = std::exchange(instructions_, {});
  std::erase_if(wanted, [](Instruction& instruction) {
    return instruction.kind == Instruction::Kind::norm && !instruction.is_read &&
           instruction.out() == nullptr;
  });
  return wanted;
}

void StepKernel::launch() {
  if (instructions_.empty()) return;
  if (tokens_ > 1) ++launches_of_several_;
  store_what_is_left();
  std::vector<Instruction> instructions = take_instructions();
  const std::vector<Known> from_outside = std::exchange(from_outside_, {});
  const size_t row_bytes = std::exchange(reserved_, 0);
  const bool mixed = std::any_of(instructions.begin(), instructions.end(), [](const auto& i) {
    return i.kind == Instruction::Kind::convolve || i.kind == Instruction::Kind::recur ||
           i.kind == Instruction::Kind::norm ||
           (i.kind == Instruction::Kind::attend &&
            (!i.attend.appends || i.attend.transform.v_weight != nullptr ||
             step_kernel::are_wide(i.attend.attention.kv.head_dim)));
  });
  const step_kernel::Kernel kernel = tokens_ > 1 ? step_kernel::tokens_kernel(varied_)
                                                 : kernel_of(packed_, head_dim_, varied_, mixed);
  known_.clear();
  in_place_.clear();
  dealt_ = 0;
  head_dim_ = 0;
  varied_ = false;
  packed_ = step_kernel::Packed::none;
  held_ = -1;

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

  step_kernel::Used used{
      .rows = {reinterpret_cast<uint4*>(other.memory.at_least(1)),
               static_cast<int64_t>(std::exchange(other.used, 0) / sizeof(uint4))},
      .terms = {}};
  if (sums_ != nullptr) used.terms = sums_->end_kernel();
  allow_shared_memory(kernel, sizeof(step_kernel::Shared));
  Queue{stream_, true}.launch(
      "running a step", kernel,
      {static_cast<unsigned>(multiprocessors_), step_kernel::kThreads, sizeof(step_kernel::Shared)},
      reinterpret_cast<const Instruction*>(device), static_cast<int>(instructions.size()),
      step_kernel::RowMemory{memory}, used);
  instructions.clear();
  instructions_.swap(instructions);  // keeps its memory for the next step
}

void StepKernel::collect(bool on, bool several) {
  launch();
  enabled_ = on && turn_;
  // Pieces of a step cost more than kernels of one operation.
  if (launches_of_several_ > kMostLaunches) most_undivided_ = tokens_ - 1;
  launches_of_several_ = 0;
  most_tokens_ = several ? most_undivided_ : 1;
}

}  // namespace faststream
