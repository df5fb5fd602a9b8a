// Barriers in shared memory, for asynchronous copies and for some of a block's warps. What copies
// in bulk or speaks of clusters is there from sm_90 on. PTX ISA: "mbarrier", "bar".
#pragma once

#include <cstdint>

namespace faststream {

__device__ inline uint32_t shared_address(const void* memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

/// Whether this lane is the one of its warp, all of whose lanes are here, that acts for it.
__device__ inline bool is_elected() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

/// A phase ends when `arrivals` threads have arrived and all bytes that they announced are there.
__device__ inline void init_barrier(uint64_t& barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
}
/// Makes initialized barriers known to bulk copies; then the block synchronizes.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}
__device__ inline void arrive_and_expect(uint64_t& barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}
/// Arrives when all asynchronous copies that this thread has begun are there.
__device__ inline void arrive_when_copied(uint64_t& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
      : "memory");
}
/// Waits for the end of the phase of that parity; the first phase has parity 0.
__device__ inline void wait_for_phase(uint64_t& barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
#define FASTSTREAM_WAIT "try_wait"  // which sleeps a while
#else
#define FASTSTREAM_WAIT "test_wait"
#endif
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier." FASTSTREAM_WAIT
      ".parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
#undef FASTSTREAM_WAIT
}
/// Whether it has ended, now or after a while; from sm_90 on.
__device__ inline bool try_wait_for_phase(uint64_t& barrier, uint32_t parity) {
  uint32_t has_ended;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(has_ended)
      : "r"(shared_address(&barrier)), "r"(parity)
      : "memory");
  return has_ended != 0;
}
/// Writes of this thread to shared memory become visible to products and bulk copies.
__device__ inline void publish_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Waits for `threads` threads, whole warps, that give the same `id`, 0 to 15.
__device__ inline void synchronize_threads(int id, int threads) {
  __syncwarp();  // the instruction counts warps
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Where a pipeline of kStages buffers, each filled and emptied in turn, is at its n-th filling.
template <int kStages>
struct PipelinePlace {
  explicit __device__ PipelinePlace(uint32_t n) : stage(n % kStages), parity(n / kStages % 2) {}
  uint32_t stage;
  uint32_t parity;  ///< of the phase in which the buffer becomes full
};

/// Copies `bytes`, a multiple of 16, at addresses that are too, to shared memory; they count for
/// `barrier`.
__device__ inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}
/// The same with an L2 cache policy.
__device__ inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint64_t& barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}

}  // namespace faststream
