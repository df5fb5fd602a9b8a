// The operations of a step of one token, run by one kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/program/instruction.h"
#include "kernels/cuda/queue.h"

namespace faststream {

/// Bytes of what an instruction multiplies, in shared memory; the most that it may have.
inline constexpr int kMaxInputBytes = 58 << 10;
/// Elements of a row that is normalized, and eights of any other for each thread; what registers
/// hold.
inline constexpr int kMaxNormalized = 8192;
inline constexpr int kMaxEights = 8;  ///< a thread
inline constexpr int kMaxInputs = 8 * kMaxEights * 256;
inline constexpr int kMaxExpertInputs = 8 * kMaxEights * 64;
/// Limits of an instruction's experts.
inline constexpr int kMaxExpertsUsed = 32;
inline constexpr int kMaxExpertsChosenFrom = 512;
inline constexpr int kMaxExpertGroups = 64;
inline constexpr int kChoiceBytes = (2 * kMaxExpertsChosenFrom + kMaxExpertGroups) * 4;

/// The right to run programs on a GPU. Their blocks wait for each other, so all must run at once,
/// and they would not beside those of another program: one backend of a process has it, and none
/// where processes share a GPU at the same time (CUDA's Multi-Process Service).
class ProgramTurn {
 public:
  /// A negative device has no turn.
  explicit ProgramTurn(int device);
  ~ProgramTurn();
  ProgramTurn(const ProgramTurn&) = delete;
  ProgramTurn& operator=(const ProgramTurn&) = delete;

  explicit operator bool() const { return device_ >= 0; }

 private:
  int device_ = -1;  ///< negative: no turn
};

/// Collects operations on one row and launches them together: from Hopper on, products of i8
/// weights, and what is between them. Each method adds an operation and returns true, or returns
/// false where a program cannot have it, or where it begins with what is no product of i8 weights.
/// An operation's results are there once launch() was called and the kernel has run.
class Program {
 public:
  /// Of the current GPU, which is number `device`. able: whether it can run programs.
  Program(bool able, int device, cudaStream_t stream);

  bool linear(const Input& input, const Weight& weight, const Destination& to);
  bool gated_linear(const Input& input, const Weight& gate_up, const Destination& to);
  bool experts(const Input& input, const Matrix& scores, const Router& router,
               const Experts& experts, bool add, const Matrix& out);
  /// arguments, but for rotation; see Backend::attention().
  bool attention(const BatchView& batch, const AttentionArguments& arguments,
                 const HeadTransform& transform, const Matrix& cos_sin);

  /// Launches what was added, if anything.
  void launch();

 private:
  struct Staging {
    PinnedBuffer memory;
    Event copied;
  };

  /// Whether a program can multiply what `input` says by rows of `weight`: fills in what follows
  /// from both.
  bool describe(const Input& input, const Weight& weight, ProductInstruction& product) const;
  bool multiply(const Input& input, const Weight& weight, const Destination& to, bool gated);
  void add(Instruction::Kind kind, ProductInstruction product);
  /// Memory for an instruction's own use. What it held may be lost with the next call.
  std::byte* memory_for(DeviceBuffer& buffer, size_t& size, size_t bytes);

  ProgramTurn turn_;
  bool enabled_;
  cudaStream_t stream_;
  int multiprocessors_ = 0;
  std::vector<Instruction> instructions_;
  int32_t dealt_ = 0;     ///< the block that gets the next tile
  int32_t head_dim_ = 0;  ///< 0: nothing attends
  bool varied_ = false;   ///< some rule is no PlainRule
  DeviceBuffer uploaded_;
  Staging staging_[2];
  int next_staging_ = 0;
  DeviceBuffer partials_;  ///< of attention
  size_t partials_size_ = 0;
  DeviceBuffer middles_;  ///< of experts
  size_t middles_size_ = 0;
  DeviceBuffer arrivals_;
};

}  // namespace faststream
