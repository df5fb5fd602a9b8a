// Tensor core instructions, and int8 weights for them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace faststream {

/// c += a · b: a [16, 16] and b [16, 8] of 16-bit elements, c [16, 8] f32. Fragments as in the PTX
/// ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": with lane = 4g + t, c holds
/// (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1); a holds columns 2t, 2t+1 of rows g and g+8, then
/// columns 2t+8, 2t+9; b holds rows 2t, 2t+1 and 2t+8, 2t+9 of column g.
template <typename T>
__device__ void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ inline void mma_16x8x16<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma_16x8x16<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same with 8-bit integers: a [16, 32] and b [32, 8], c [16, 8] int32. Lanes hold the same
/// bytes of rows of a and columns of b.
__device__ inline void mma_16x8x32(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// A float rounded to TF32, of 10 bits behind the point.
__device__ inline float round_to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}

/// c += a · b in TF32: a [16, 8] and b [8, 8], c [16, 8] f32. With lane = 4g + t, a holds (g, t),
/// (g+8, t), (g, t+4), (g+8, t+4); b holds (t, g), (t+4, g); c as above.
__device__ inline void mma_16x8x8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Loads four 8 x 8 matrices of 16-bit elements; lane l gives the shared address of row l % 8 of
/// matrix l / 8. Lane 4g + t receives elements 2t, 2t + 1 of row g, or, transposed, rows 2t, 2t + 1
/// of column g.
template <bool kTransposed>
__device__ inline void load_matrices(uint32_t (&out)[4], uint32_t row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  }
}
template <bool kTransposed>
__device__ inline void load_matrices(uint32_t (&out)[4], const void* row) {
  load_matrices<kTransposed>(out, static_cast<uint32_t>(__cvta_generic_to_shared(row)));
}

/// Two 16-bit values packed as tensor core registers hold them, `first` in the low half.
template <typename T>
__device__ uint32_t pack_pair(float first, float second);
template <>
__device__ inline uint32_t pack_pair<__nv_bfloat16>(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
template <>
__device__ inline uint32_t pack_pair<__half>(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

/// Transposes an 8 x 8 matrix of 16-bit elements: lane 4g + t holds elements 2t, 2t + 1 of row g,
/// and receives those of column g.
__device__ inline uint32_t transpose_8x8(uint32_t pair) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

/// Two int8, each in the low byte of a half of `spread` with 0x43 above it, to two bfloat16. With
/// the byte's low seven bits as mantissa, 0x43.. is 128 + bits; with its sign bit, which is the
/// lowest exponent bit, it is 128 or 256. Their difference is the byte's value, exactly.
__device__ inline uint32_t spread_int8_to_bf16(uint32_t spread) {
  const uint32_t magnitude_bits = spread & 0xff7fff7fU;
  const uint32_t offset_bits = spread & 0xff80ff80U;
  __nv_bfloat162 magnitude;
  __nv_bfloat162 offset;
  memcpy(&magnitude, &magnitude_bits, sizeof magnitude);
  memcpy(&offset, &offset_bits, sizeof offset);
  const __nv_bfloat162 value = __hsub2(magnitude, offset);
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// Four int8 to four bfloat16, in order.
__device__ inline void int8_to_bf16(uint32_t bytes, uint32_t& low, uint32_t& high) {
  low = spread_int8_to_bf16(__byte_perm(bytes, 0x43434343U, 0x4140));
  high = spread_int8_to_bf16(__byte_perm(bytes, 0x43434343U, 0x4342));
}

}  // namespace faststream
