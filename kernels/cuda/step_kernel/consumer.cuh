// The warps of a block that do a step's work.
#pragma once

#include "kernels/cuda/step_kernel/attend.cuh"
#include "kernels/cuda/step_kernel/convolve.cuh"
#include "kernels/cuda/step_kernel/multiply.cuh"
#include "kernels/cuda/step_kernel/multiply_tokens.cuh"
#include "kernels/cuda/step_kernel/norm.cuh"
#include "kernels/cuda/step_kernel/prepare.cuh"
#include "kernels/cuda/step_kernel/recur.cuh"

namespace faststream::step_kernel {

// Functions of their own, so that they take no registers from products and attention.
inline __device__ __noinline__ void carry_out(const ConvolveInstruction& c, RowMemory rows) {
  look(true);
  Convolver(rows).convolve(c);
  look(false);
}
inline __device__ __noinline__ void carry_out(const RecurInstruction& r, RowMemory rows) {
  look(true);
  Recurrer(rows).recur(r);
  look(false);
}
inline __device__ __noinline__ void carry_out(const NormInstruction& n, RowMemory rows) {
  look(true);
  Normalizer(rows).normalize(n);
  look(false);
}

template <int kDim, typename Rule>
__device__ __noinline__ StageReader carry_out(const AttendInstruction& a, RowMemory rows,
                                              StageReader stages) {
  Attender<kDim, Rule, true>(rows).attend(a, stages);
  return stages;
}

/// Carries out instructions, one after the other. kMixed: whether there may be others than products
/// and attention; kPacked: which packed weights; kTokens: whether tokens are several. What is not
/// mixed calls no function, beside which E4M3's products would wait for each other.
template <int kDim, typename Rule, bool kMixed, Packed kPacked, bool kTokens>
class Consumer {
 public:
  explicit __device__ Consumer(const RowMemory& rows)
      : rows_(rows), preparer_(rows), multiplier_(rows) {}

  __device__ __forceinline__ void run(int count) {
    StageReader stages;
    for (int i = 0; i < count; ++i) {
      const InstructionPlace place(i);
      wait_for_phase(shared_memory().fetched[place.stage], place.parity);
      const Instruction& instruction = shared_memory().instructions[place.stage];
      if (instruction.kind == Instruction::Kind::attend) {
        attend(instruction.attend, stages);
      } else if (kTokens && instruction.kind == Instruction::Kind::prepare) {
        prepare(instruction.product);
      } else if (!kMixed || !carry_out(instruction)) {
        multiply(instruction.kind, instruction.product, stages);
      }
      synchronize();
      if (thread() == 0) arrive(shared_memory().carried_out[place.stage]);
    }
  }

 private:
  __device__ void attend(const AttendInstruction& a, StageReader& stages) const {
    if constexpr (kMixed) {
      stages = step_kernel::carry_out<kDim, Rule>(a, rows_, stages);
    } else {
      Attender<kDim, Rule, false>(rows_).attend(a, stages);
    }
  }

  // False: it is a product.
  __device__ bool carry_out(const Instruction& instruction) const {
    switch (instruction.kind) {
      case Instruction::Kind::convolve:
        step_kernel::carry_out(instruction.convolve, rows_);
        return true;
      case Instruction::Kind::recur:
        step_kernel::carry_out(instruction.recur, rows_);
        return true;
      case Instruction::Kind::norm:
        step_kernel::carry_out(instruction.norm, rows_);
        return true;
      default:
        return false;
    }
  }

  // For all blocks: rows of which this one has one, or none.
  __device__ void prepare(const ProductInstruction& p) const {
    if (blocks_behind(p.dealt) >= p.x_rows) return;
    look(true);
    preparer_.prepare_for_all(p);
    look(false);
  }

  __device__ __forceinline__ void multiply(Instruction::Kind kind, const ProductInstruction& p,
                                           StageReader& stages) const {
    if (TilesOfBlock(p).count == 0 && (!kTokens || p.input_parts == 1)) return;
    if (!kTokens) look(true);
    preparer_.prepare(p);
    look(false);
    multiplier_.run(kind, p, stages);
  }

  RowMemory rows_;
  Preparer<kMixed, kPacked == Packed::e4m3, kTokens> preparer_;
  std::conditional_t<kTokens, TokenMultiplier, Multiplier<kMixed, kPacked>> multiplier_;
};

}  // namespace faststream::step_kernel
