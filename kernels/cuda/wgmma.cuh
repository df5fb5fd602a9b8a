// Hopper's matrix products of four warps ("warpgroups"), and the bulk copies that feed them. PTX
// ISA: "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", "Data Movement and
// Conversion Instructions: Bulk copy". For files that are compiled for sm_90a, named *_sm90a.cu.
#pragma once

#include <cuda_fp8.h>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/barriers.cuh"

namespace faststream {

inline constexpr int kWarpgroup = 128;  // threads

/// Copies the box of `map` at (column, row) to shared memory; the bytes count for `barrier`.
__device__ inline void copy_box(void* to, const CUtensorMap& map, int column, int row,
                                uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier))
      : "memory");
}
/// The same with an L2 cache policy.
__device__ inline void copy_box(void* to, const CUtensorMap& map, int column, int row,
                                uint64_t& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}
/// The same of the matrices of describe_by_eights(): of one, from eight rows number `eights` on.
__device__ inline void copy_box_by_eights(void* to, const CUtensorMap& map, int column, int eights,
                                          int matrix, uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, 0, 0, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(eights), "r"(matrix), "r"(shared_address(&barrier))
      : "memory");
}

/// The same with an L2 cache policy.
__device__ inline void copy_box_by_eights(void* to, const CUtensorMap& map, int column, int eights,
                                          int matrix, uint64_t& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint [%0], [%1, {%2, 0, 0, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(eights), "r"(matrix), "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}

/// Has the map itself brought to where copies look for it.
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Copies a box from shared memory to `map` at (column, row); or adds it there, of f32.
__device__ inline void store_box(const CUtensorMap& map, int column, int row, const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
          &map),
      "r"(column), "r"(row), "r"(shared_address(from))
      : "memory");
}
__device__ inline void add_box(const CUtensorMap& map, int column, int row, const void* from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], "
      "[%3];" ::"l"(&map),
      "r"(column), "r"(row), "r"(shared_address(from))
      : "memory");
}
/// The copies from shared memory by this thread since the last call are a group.
__device__ inline void end_bulk_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until they all have read shared memory.
__device__ inline void wait_for_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Clusters of blocks.
// ---------------------------------------------------------------------------

__device__ inline int rank_in_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ inline int cluster_of_block() {
  uint32_t cluster;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  return static_cast<int>(cluster);
}
__device__ inline int cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return static_cast<int>(size);
}
__device__ inline int clusters() {
  uint32_t count;
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return static_cast<int>(count);
}
/// Once in a kernel: all threads arrive, and whoever then waits, waits for all. Of what was written
/// before, barriers that were published are known.
__device__ inline void arrive_in_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
/// All threads arrive, and see what all others wrote before.
__device__ inline void synchronize_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/// What the shared memory of block `rank` of the cluster has where `here` is in this block's.
__device__ inline float load_from_block(int rank, const float* here) {
  float value;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n"
      "}"
      : "=f"(value)
      : "r"(shared_address(here)), "r"(rank)
      : "memory");
  return value;
}
/// Stores a value in the shared memory of block `rank` of the cluster, where `here` is in this
/// block's; its bytes count for that block's `barrier`.
__device__ inline void send_to_block(int rank, void* here, int4 value, uint64_t& barrier) {
  asm volatile(
      "{\n"
      ".reg .b32 there, barrier;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 barrier, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [there], "
      "{%3, %4, %5, %6}, [barrier];\n"
      "}" ::"r"(shared_address(here)),
      "r"(shared_address(&barrier)), "r"(rank), "r"(value.x), "r"(value.y), "r"(value.z),
      "r"(value.w)
      : "memory");
}

/// wait_for_phase() for what other blocks of the cluster sent.
__device__ inline void wait_for_sent(uint64_t& barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// Registers of a warpgroup.
// ---------------------------------------------------------------------------

template <int kCount>
__device__ void give_back_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Products. ---------------------------------------------------------------------------------------

/// Matrices in shared memory are made of blocks of 64 columns: rows of 128 bytes, one after the
/// other, in which 16-byte piece p of row r is at place p ^ (r % 8) ("128-byte swizzle"). A block
/// begins at a multiple of 1,024 bytes.
inline constexpr size_t kBlockAlignment = 1024;
inline constexpr int kBlockColumns = 64;
inline constexpr int kBlockRowBytes = 128;

/// A block's dynamic shared memory as a T, kBlockAlignment bytes of it being there for alignment.
template <typename T>
__device__ T& aligned(std::byte* memory) {
  const auto past = shared_address(memory) % static_cast<uint32_t>(kBlockAlignment);
  return *reinterpret_cast<T*>(memory + (kBlockAlignment - past) % kBlockAlignment);
}

/// Bytes from a block's start to 16-bit element (row, column) of it.
__device__ inline int swizzled(int row, int column) {
  return row * kBlockRowBytes + ((column / 8) ^ (row % 8)) * 16 + column % 8 * 2;
}

/// Stores four 8 x 8 matrices of 16-bit elements, as load_matrices() loads them: lane l gives the
/// address of row l % 8 of matrix l / 8.
template <bool kTransposed>
__device__ void store_matrices(void* row, const uint32_t (&pairs)[4]) {
  if constexpr (kTransposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
  }
}

/// Describes a matrix for a product that reads it from `start`. `to_next_block`: bytes between
/// blocks of 64 columns where the product goes along rows through several of them.
__device__ inline uint64_t matrix_descriptor(const void* start, int to_next_block) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = 8 * kBlockRowBytes;
  const uint64_t address = (shared_address(start) & 0x3FFFFU) >> 4;
  return kSwizzle128 | (kEightRows >> 4) << 32 | static_cast<uint64_t>(to_next_block >> 4) << 16 |
         address;
}

/// The same of a matrix without swizzle, made of pieces of eight rows of 16 bytes one behind the
/// other. Bytes between pieces of the same rows, and of the same columns.
__device__ inline uint64_t matrix_descriptor(const void* start, int to_next_columns,
                                             int to_next_rows) {
  const uint64_t address = (shared_address(start) & 0x3FFFFU) >> 4;
  return static_cast<uint64_t>(to_next_rows >> 4) << 32 |
         static_cast<uint64_t>(to_next_columns >> 4) << 16 | address;
}

/// Before the first product, and after registers of operands were written.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// The products since the last call are a group.
__device__ inline void end_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending groups are not done.
template <int kPending>
__device__ void wait_for_groups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of accumulators, and what makes operands, across this place:
/// it would have products wait for each other.
template <int kCount>
__device__ void pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
__device__ void pin(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}
template <int kCount>
__device__ void pin(int32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Operands of the instructions below: registers by 16, and their names.
#define FASTSTREAM_EIGHT_REGISTERS(kind, c, i)                                                    \
  kind((c)[(i)]), kind((c)[(i) + 1]), kind((c)[(i) + 2]), kind((c)[(i) + 3]), kind((c)[(i) + 4]), \
      kind((c)[(i) + 5]), kind((c)[(i) + 6]), kind((c)[(i) + 7])
#define FASTSTREAM_REGISTERS_8(kind, c) FASTSTREAM_EIGHT_REGISTERS(kind, c, 0)
#define FASTSTREAM_REGISTERS_16(kind, c) \
  FASTSTREAM_EIGHT_REGISTERS(kind, c, 0), FASTSTREAM_EIGHT_REGISTERS(kind, c, 8)
#define FASTSTREAM_REGISTERS_32(kind, c)                                     \
  FASTSTREAM_REGISTERS_16(kind, c), FASTSTREAM_EIGHT_REGISTERS(kind, c, 16), \
      FASTSTREAM_EIGHT_REGISTERS(kind, c, 24)
#define FASTSTREAM_REGISTERS_48(kind, c)                                     \
  FASTSTREAM_REGISTERS_32(kind, c), FASTSTREAM_EIGHT_REGISTERS(kind, c, 32), \
      FASTSTREAM_EIGHT_REGISTERS(kind, c, 40)
#define FASTSTREAM_REGISTERS_64(kind, c)                                     \
  FASTSTREAM_REGISTERS_48(kind, c), FASTSTREAM_EIGHT_REGISTERS(kind, c, 48), \
      FASTSTREAM_EIGHT_REGISTERS(kind, c, 56)
#define FASTSTREAM_REGISTERS_80(kind, c)                                     \
  FASTSTREAM_REGISTERS_64(kind, c), FASTSTREAM_EIGHT_REGISTERS(kind, c, 64), \
      FASTSTREAM_EIGHT_REGISTERS(kind, c, 72)
#define FASTSTREAM_REGISTERS_96(kind, c)                                     \
  FASTSTREAM_REGISTERS_80(kind, c), FASTSTREAM_EIGHT_REGISTERS(kind, c, 80), \
      FASTSTREAM_EIGHT_REGISTERS(kind, c, 88)
#define FASTSTREAM_REGISTERS_112(kind, c)                                    \
  FASTSTREAM_REGISTERS_96(kind, c), FASTSTREAM_EIGHT_REGISTERS(kind, c, 96), \
      FASTSTREAM_EIGHT_REGISTERS(kind, c, 104)
#define FASTSTREAM_REGISTERS_128(kind, c)                                      \
  FASTSTREAM_REGISTERS_112(kind, c), FASTSTREAM_EIGHT_REGISTERS(kind, c, 112), \
      FASTSTREAM_EIGHT_REGISTERS(kind, c, 120)
#define FASTSTREAM_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FASTSTREAM_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FASTSTREAM_NAMES_32 \
  FASTSTREAM_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FASTSTREAM_NAMES_48 \
  FASTSTREAM_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FASTSTREAM_NAMES_64 \
  FASTSTREAM_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FASTSTREAM_NAMES_80 \
  FASTSTREAM_NAMES_64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define FASTSTREAM_NAMES_96 \
  FASTSTREAM_NAMES_80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FASTSTREAM_NAMES_112 \
  FASTSTREAM_NAMES_96        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define FASTSTREAM_NAMES_128                                                                     \
  FASTSTREAM_NAMES_112                                                                           \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"

/// c [64, N] f32 += a [64, 16] · b [16, N], N = 64, 128 or 256: a in registers as mma_16x8x16() has
/// it, rows 16w to 16w + 15 in warp w; b from shared memory.
#define FASTSTREAM_MULTIPLY(n, count, type, a_at, b_at)                             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type       \
               " {" FASTSTREAM_NAMES_##count "}, {" a_at "}, " b_at ", 1, 1, 1, 1;" \
               : FASTSTREAM_REGISTERS_##count("+f", c)                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define FASTSTREAM_MULTIPLY_ANY(type)                                                            \
  if constexpr (kCount == 32) FASTSTREAM_MULTIPLY("64", 32, type, "%32, %33, %34, %35", "%36");  \
  if constexpr (kCount == 64) FASTSTREAM_MULTIPLY("128", 64, type, "%64, %65, %66, %67", "%68"); \
  if constexpr (kCount == 128)                                                                   \
    FASTSTREAM_MULTIPLY("256", 128, type, "%128, %129, %130, %131", "%132");
template <typename T, int kCount>
__device__ void multiply_add_rows(float (&c)[kCount], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (std::is_same_v<T, __half>) {
    FASTSTREAM_MULTIPLY_ANY("f16")
  } else {
    FASTSTREAM_MULTIPLY_ANY("bf16")
  }
}
#undef FASTSTREAM_MULTIPLY_ANY
#undef FASTSTREAM_MULTIPLY

/// c [64, kColumns] = or += a [64, k] · b [kColumns, k]ᵀ, kColumns 16 or a multiple of 32 up to
/// 256, a and b from shared memory, 32 bytes of each row: 16 of T's elements to f32, 32 of E4M3 (in
/// sums of about 14 bits, so chains should be short), or 32 int8 to int32. Thread 32w + 4g + t of
/// the warpgroup holds in c[4j + 2h + i] element (16w + 8h + g, 8j + 2t + i); c may have more
/// columns.
#define FASTSTREAM_MULTIPLY(kind, type, n, signs, count, a_at, b_at, accumulate_at)           \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %" accumulate_at           \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" n type " {" FASTSTREAM_NAMES_##count \
               "}, %" a_at ", %" b_at ", accumulate" signs ";\n}"                             \
               : FASTSTREAM_REGISTERS_##count(kind, c)                                        \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
#define FASTSTREAM_MULTIPLY_ANY(kind, type, signs)                                               \
  if constexpr (kColumns == 16) FASTSTREAM_MULTIPLY(kind, type, "16", signs, 8, "8", "9", "10"); \
  if constexpr (kColumns == 32)                                                                  \
    FASTSTREAM_MULTIPLY(kind, type, "32", signs, 16, "16", "17", "18");                          \
  if constexpr (kColumns == 64)                                                                  \
    FASTSTREAM_MULTIPLY(kind, type, "64", signs, 32, "32", "33", "34");                          \
  if constexpr (kColumns == 96)                                                                  \
    FASTSTREAM_MULTIPLY(kind, type, "96", signs, 48, "48", "49", "50");                          \
  if constexpr (kColumns == 128)                                                                 \
    FASTSTREAM_MULTIPLY(kind, type, "128", signs, 64, "64", "65", "66");                         \
  if constexpr (kColumns == 160)                                                                 \
    FASTSTREAM_MULTIPLY(kind, type, "160", signs, 80, "80", "81", "82");                         \
  if constexpr (kColumns == 192)                                                                 \
    FASTSTREAM_MULTIPLY(kind, type, "192", signs, 96, "96", "97", "98");                         \
  if constexpr (kColumns == 224)                                                                 \
    FASTSTREAM_MULTIPLY(kind, type, "224", signs, 112, "112", "113", "114");                     \
  if constexpr (kColumns == 256)                                                                 \
    FASTSTREAM_MULTIPLY(kind, type, "256", signs, 128, "128", "129", "130");
template <typename T, int kColumns, int kCount>
__device__ void multiply_rows(float (&c)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    FASTSTREAM_MULTIPLY_ANY("+f", "k32.f32.e4m3.e4m3", ", 1, 1")
  } else if constexpr (std::is_same_v<T, __half>) {
    FASTSTREAM_MULTIPLY_ANY("+f", "k16.f32.f16.f16", ", 1, 1, 0, 0")
  } else {
    FASTSTREAM_MULTIPLY_ANY("+f", "k16.f32.bf16.bf16", ", 1, 1, 0, 0")
  }
}
template <typename T, int kColumns, int kCount>
__device__ void multiply_rows(int32_t (&c)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  FASTSTREAM_MULTIPLY_ANY("+r", "k32.s32.s8.s8", "")
}
/// The same of aᵀ, a [16, 64] of 16-bit elements: c [64, kColumns] += aᵀ · bᵀ.
template <typename T, int kColumns, int kCount>
__device__ void multiply_columns(float (&c)[kCount], uint64_t a, uint64_t b) {
  constexpr bool accumulate = true;
  if constexpr (std::is_same_v<T, __half>) {
    FASTSTREAM_MULTIPLY_ANY("+f", "k16.f32.f16.f16", ", 1, 1, 1, 0")
  } else {
    FASTSTREAM_MULTIPLY_ANY("+f", "k16.f32.bf16.bf16", ", 1, 1, 1, 0")
  }
}
#undef FASTSTREAM_MULTIPLY_ANY
#undef FASTSTREAM_MULTIPLY

/// multiply_rows() with a in registers, as mma_16x8x32() of int8 and mma_16x8x16() of bf16 have it,
/// rows 16w to 16w + 15 in warp w.
#define FASTSTREAM_MULTIPLY(kind, type, n, signs, count, a_at, b_at)                    \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n type " {" FASTSTREAM_NAMES_##count \
               "}, {" a_at "}, " b_at ", 1" signs ";"                                   \
               : FASTSTREAM_REGISTERS_##count(kind, c)                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define FASTSTREAM_MULTIPLY_ANY(kind, type, signs)                                        \
  if constexpr (kColumns == 32)                                                           \
    FASTSTREAM_MULTIPLY(kind, type, "32", signs, 16, "%16, %17, %18, %19", "%20");        \
  if constexpr (kColumns == 64)                                                           \
    FASTSTREAM_MULTIPLY(kind, type, "64", signs, 32, "%32, %33, %34, %35", "%36");        \
  if constexpr (kColumns == 96)                                                           \
    FASTSTREAM_MULTIPLY(kind, type, "96", signs, 48, "%48, %49, %50, %51", "%52");        \
  if constexpr (kColumns == 128)                                                          \
    FASTSTREAM_MULTIPLY(kind, type, "128", signs, 64, "%64, %65, %66, %67", "%68");       \
  if constexpr (kColumns == 160)                                                          \
    FASTSTREAM_MULTIPLY(kind, type, "160", signs, 80, "%80, %81, %82, %83", "%84");       \
  if constexpr (kColumns == 192)                                                          \
    FASTSTREAM_MULTIPLY(kind, type, "192", signs, 96, "%96, %97, %98, %99", "%100");      \
  if constexpr (kColumns == 224)                                                          \
    FASTSTREAM_MULTIPLY(kind, type, "224", signs, 112, "%112, %113, %114, %115", "%116"); \
  if constexpr (kColumns == 256)                                                          \
    FASTSTREAM_MULTIPLY(kind, type, "256", signs, 128, "%128, %129, %130, %131", "%132");
template <int kColumns, int kCount>
__device__ void multiply_rows(int32_t (&c)[kCount], const uint32_t (&a)[4], uint64_t b) {
  FASTSTREAM_MULTIPLY_ANY("+r", "k32.s32.s8.s8", "")
}
template <int kColumns, int kCount>
__device__ void multiply_rows(float (&c)[kCount], const uint32_t (&a)[4], uint64_t b) {
  FASTSTREAM_MULTIPLY_ANY("+f", "k16.f32.bf16.bf16", ", 1, 1, 0")
}
#undef FASTSTREAM_MULTIPLY_ANY
#undef FASTSTREAM_MULTIPLY

/// The same of E4M3, kColumns 16 or 32: c = or += a · bᵀ.
#define FASTSTREAM_MULTIPLY(n, count, a_at, b_at, accumulate_at)                              \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %" accumulate_at           \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" n                                    \
               "k32.f32.e4m3.e4m3"                                                            \
               " {" FASTSTREAM_NAMES_##count "}, {" a_at "}, %" b_at ", accumulate, 1, 1;\n}" \
               : FASTSTREAM_REGISTERS_##count("+f", c)                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                          \
                 "r"(static_cast<int>(accumulate)))
template <int kColumns, int kCount>
__device__ void multiply_e4m3_rows(float (&c)[kCount], const uint32_t (&a)[4], uint64_t b,
                                   bool accumulate) {
  static_assert(kColumns == 16 || kColumns == 32);
  if constexpr (kColumns == 16) FASTSTREAM_MULTIPLY("16", 8, "%8, %9, %10, %11", "12", "13");
  if constexpr (kColumns == 32) FASTSTREAM_MULTIPLY("32", 16, "%16, %17, %18, %19", "20", "21");
}
#undef FASTSTREAM_MULTIPLY

#undef FASTSTREAM_NAMES_8
#undef FASTSTREAM_NAMES_16
#undef FASTSTREAM_NAMES_32
#undef FASTSTREAM_NAMES_48
#undef FASTSTREAM_NAMES_64
#undef FASTSTREAM_NAMES_80
#undef FASTSTREAM_NAMES_96
#undef FASTSTREAM_NAMES_112
#undef FASTSTREAM_NAMES_128
#undef FASTSTREAM_EIGHT_REGISTERS
#undef FASTSTREAM_REGISTERS_8
#undef FASTSTREAM_REGISTERS_16
#undef FASTSTREAM_REGISTERS_32
#undef FASTSTREAM_REGISTERS_48
#undef FASTSTREAM_REGISTERS_64
#undef FASTSTREAM_REGISTERS_80
#undef FASTSTREAM_REGISTERS_96
#undef FASTSTREAM_REGISTERS_112
#undef FASTSTREAM_REGISTERS_128

}  // namespace faststream
