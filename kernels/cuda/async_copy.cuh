// Asynchronous copies from device memory into shared memory. A thread's copies are waited for in
// groups, in the order in which it closed them.
#pragma once

#include <cstdint>

namespace faststream {

/// Sixteen bytes past the L1 cache, or as many zeros, to the shared address `to`.
__device__ inline void copy_async(uint32_t to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(wanted ? 16 : 0)
               : "memory");
}

__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kOpen groups of this thread are on their way.
template <int kOpen>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

/// For copies of what is read once: it leaves the L2 cache first.
__device__ inline uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

}  // namespace faststream
