// The kernel that runs a step: one block on each multiprocessor, which stays for all
// instructions.
//
// A step of one token reads every weight once: memory is to be busy all the time, and what a kernel
// for each operation loses is the time between them, in which nothing is on its way. Here four
// warps of each block do nothing but copy the weights that the block will need, instruction after
// instruction, into a ring in shared memory, as far ahead as there is room: 166 kB a block and 22
// MB in all, as much as memory gives in 7 us. Weights depend on nothing, nor do the keys and values
// of the tokens before, so this goes on while the other warps wait for the blocks' results of the
// instruction before, prepare their input, or attend.
//
// Eight warps multiply, eight bits or four by eight into 32, or floats on the tensor cores. Tiles
// of 16 outputs are dealt to blocks in turn over all instructions, so that all blocks read equally
// much; a tile's stages of eight bits to all warps of its block, of sixteen to one.
// Integers are exact in any order, and 16-bit products are summed in the order of those of many
// rows, so a row has the same bits as beside others; norms, attention and routing share their code
// with the kernels of one operation.
//
// A layer is five instructions: queries, keys and values; attention; its output; gate and up; down.
// One of a delta net has gates, a projection, a convolution, a recurrence and a norm with its gate
// in the place of the first two; norms around branches are more. Each needs all of a row that all
// blocks make, looks for it in the L2 cache (rows.cuh), normalizes and quantizes it, every block
// for itself. That is latency, not bytes (measured: RESULTS.md). So a norm of one row that a
// product waits for, which one block could do for all, each does for itself, and holds the row for
// the products and norms behind that read it again; and experts' products are carried out before
// what waits for the product before them, whose result is on its way meanwhile.
//
// Of several tokens, each of a sequence of its own, a tile is multiplied by all rows on the tensor
// cores, and one instruction has all tokens attend, each item by a block. A row is normalized and
// rounded by one block for all, which bring what it has become: two trips through the L2 cache
// where one token's row takes one, and no block does the same as another. Where shared memory has
// no room for all rows, blocks have tiles of parts of the inputs, whose sums are added by all.
//
// Every result has a place of its own in the step's memory, so no block waits for another to have
// read. What would not fit into registers would be in local memory, for which the L1 cache has no
// room beside the ring: as slow as the L2 cache. So functions are inlined and hold little. What
// only some steps have is functions of its own in a kernel of its own (mixed_kernel.cu), with short
// code, and packed weights' products are in others (widened_kernel.cu): an instruction cache of 128
// kB has what a layer needs of a plain step's, and not much more.
//
// Bytes and time, Llama-3-8B in INT8: 8.03 GB, 2.59 ms at 3.10 TB/s, 386 tokens/s; bf16: 15.01 GB,
// 4.84 ms, 207 tokens/s.
#pragma once

#include "kernels/cuda/step_kernel/consumer.cuh"
#include "kernels/cuda/step_kernel/kernels.h"
#include "kernels/cuda/step_kernel/producer.cuh"

namespace faststream::step_kernel {

/// One block a multiprocessor. kDim: what heads have at most; kMixed, kPacked, kTokens: see
/// Consumer. rows: unset but for what comes from outside. used: what is to be unset for a later
/// step.
template <int kDim, typename Rule, bool kMixed, Packed kPacked, bool kTokens = false>
__global__ __launch_bounds__(kThreads, 1) void run_kernel(const Instruction* instructions,
                                                          int count, RowMemory rows, Used used) {
#if __CUDA_ARCH__ >= 900
  Shared& shared = shared_memory();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(shared.full[stage], kTeamProducers);
      init_barrier(shared.empty[stage], 1);
    }
    for (int i = 0; i < kInstructions; ++i) {
      init_barrier(shared.fetched[i], kWarp);
      // By a thread for the consumers, and all but the first of the producers.
      init_barrier(shared.carried_out[i], 1 + (kProducers - 1) * kWarp);
    }
    for (uint32_t& announced : shared.announced) announced = 0;
    shared.looks = 0;
    publish_barriers();
  }
  if constexpr (kTokens) {
    for (uint32_t i = threadIdx.x; i < std::size(shared.of_tokens); i += kThreads) {
      shared.of_tokens[i] = {};
    }
  } else {
    for (uint32_t i = threadIdx.x; i < kPartSums; i += kThreads) shared.one.part_sums[i] = {};
  }
  __syncthreads();
  begin_kernel();
  if (threadIdx.x < kConsumerThreads) {
    Consumer<kDim, Rule, kMixed, kPacked, kTokens>(rows).run(count);
  } else {
    Producer(shared, rows).run(instructions, count);
  }
  unset(used.rows);
  unset(used.terms[0]);
  unset(used.terms[1]);
#endif
}

/// run_kernel() of steps that have packed weights: see kernels.h.
template <Packed kPacked>
Kernel packed_kernel(int head_dim, bool varied, bool mixed) {
  if (mixed) {
    return head_dim <= 128 ? run_kernel<128, VariedRule, true, kPacked>
                           : run_kernel<256, VariedRule, true, kPacked>;
  }
  if (head_dim > 128) return run_kernel<256, VariedRule, false, kPacked>;
  return varied ? run_kernel<128, VariedRule, false, kPacked>
                : run_kernel<128, LastRule, false, kPacked>;
}

}  // namespace faststream::step_kernel
