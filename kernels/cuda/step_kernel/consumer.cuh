// The warps of a block that do a step's work.
#pragma once

#include "kernels/cuda/step_kernel/attend.cuh"
#include "kernels/cuda/step_kernel/multiply.cuh"
#include "kernels/cuda/step_kernel/prepare.cuh"

namespace faststream::step_kernel {

/// Carries out instructions, one after the other.
template <int kDim, typename Rule>
class Consumer {
 public:
  explicit __device__ Consumer(const RowMemory& rows)
      : preparer_(rows), multiplier_(rows), attender_(rows) {}

  __device__ void run(int count) {
    StageReader stages;
    for (int i = 0; i < count; ++i) {
      const InstructionPlace place(i);
      wait_for_phase(shared_memory().fetched[place.stage], place.parity);
      const Instruction& instruction = shared_memory().instructions[place.stage];
      if (instruction.kind == Instruction::Kind::attend) {
        attender_.attend(instruction.attend, stages);
      } else if (const ProductInstruction& p = instruction.product; TilesOfBlock(p).count > 0) {
        look(true);
        preparer_.prepare(p);
        look(false);
        multiplier_.run(instruction.kind, p, stages);
      }
      synchronize();
      if (thread() == 0) arrive(shared_memory().carried_out[place.stage]);
    }
  }

 private:
  Preparer preparer_;
  Multiplier multiplier_;
  Attender<kDim, Rule> attender_;
};

}  // namespace faststream::step_kernel
