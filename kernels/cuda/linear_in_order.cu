// Products of few rows with 16-bit weights: decode. Memory-bound: the weights are read once, at the
// speed of memory.
//
// An output is one chain of tensor core instructions of 16 inputs each, from the first input to the
// last. That is how cuBLASLt's kernels sum, bit for bit, unless they split the inputs, which
// matmul.cu does not let them: a row's result is the same here, beside few others, and there,
// beside many, so a text does not depend on its company.
//
// The price is that warps cannot share the inputs. A warp makes eight outputs alone, and a product
// of 4,096 outputs has only 512 warps, four on each multiprocessor of an H100. So each keeps 7 kB
// on the way from memory, in a ring in shared memory that asynchronous copies fill: 28 kB on a
// multiprocessor, where 3.1 TB/s at 0.7 us of latency need 17.
//
// The weights are the right operand of the instruction, eight outputs wide, and the activations the
// left one of sixteen rows. A lane holds four consecutive inputs where the instruction has two
// pairs eight apart, the same for both operands: within an instruction, order does not matter.
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kOutputs = 8;  // of a warp
constexpr int kChunk = 64;   // inputs that a warp takes at a time: 128 bytes of each weight row
constexpr int kChunkBytes = kOutputs * kChunk * 2;
constexpr int kRingBytes = 8 * kChunkBytes;  // of a warp

struct Product {
  const void* x;
  int64_t x_stride;
  int rows;
  const void* weight;
  int64_t outputs;  // of the epilogue: half the weight's rows when gated
  int64_t inputs;
  Epilogue epilogue;
};

/// Sixteen bytes to shared memory, or as many zeros.
__device__ void copy_async(uint32_t to, const void* from, bool wanted) {
  const int bytes = wanted ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes));
}
__device__ void close_copies() { asm volatile("cp.async.commit_group;"); }
template <int kOpen>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

/// Eight bytes, or zeros. As one instruction: the compiler would wait for a conditional load at
/// once.
__device__ uint2 load_or_zero(const void* from, bool wanted) {
  uint2 value;
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.b32 wanted, %3, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "@wanted ld.global.nc.v2.b32 {%0, %1}, [%2];\n"
      "}"
      : "=&r"(value.x), "=&r"(value.y)
      : "l"(from), "r"(static_cast<int>(wanted)));
  return value;
}

__device__ uint2 read_shared(uint32_t from) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(from));
  return value;
}

/// Where 16-byte piece `piece` of a weight row is in a chunk: eight lanes of four rows read
/// different banks.
__device__ int place(int row, int piece) {
  return row * kChunk * 2 + (piece ^ (2 * (row % 4))) * 16;
}

template <typename T>
__device__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

/// kHalves: eight rows each.
///
/// A product of 4,096 outputs leaves a warp alone on its scheduler, so the loop must be short: it
/// is unrolled over the stages of the ring, which makes offsets constants, and what may be wrong
/// without harm is not checked. Outputs and rows past the end repeat the last one and are not
/// stored; chunks past the end are zeros.
template <typename T, int kHalves, bool kGated>
__global__ __launch_bounds__(kThreads) void in_order_kernel(Product p) {
  constexpr int kMatrices = kGated ? 2 : 1;
  constexpr int kStages = kRingBytes / kChunkBytes / kMatrices;
  constexpr int kAhead = 2;  // chunks of activations that are loaded before they are needed
  constexpr int kSteps = kChunk / 16;
  __shared__ alignas(128) unsigned char rings[kWarps][kStages][kMatrices][kChunkBytes];

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = lane / 4;
  const int in_group = lane % 4;
  const int64_t first_output = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kOutputs;
  if (first_output >= p.outputs) return;

  // A lane copies a piece of row lane / 8 and of the row four below.
  const int piece = lane % 8;
  const T* weight[kMatrices][2];
#pragma unroll
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t output = min(first_output + lane / 8 + 4 * half, p.outputs - 1);
      weight[matrix][half] =
          static_cast<const T*>(p.weight) + (matrix * p.outputs + output) * p.inputs + piece * 8;
    }
  }
  const T* x_rows[kHalves];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    x_rows[half] =
        static_cast<const T*>(p.x) + min(group + 8 * half, p.rows - 1) * p.x_stride + in_group * 4;
  }
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(rings[warp]));
  const uint32_t copy_to = ring + place(lane / 8, piece);
  int left = static_cast<int>(p.inputs);  // from the first chunk of the ring on

  const auto copy_chunk = [&](int ahead) {
#pragma unroll
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      const uint32_t to = copy_to + (ahead % kStages * kMatrices + matrix) * kChunkBytes;
      const bool wanted = ahead * kChunk + piece * 8 < left;
      copy_async(to, weight[matrix][0] + ahead * kChunk, wanted);
      copy_async(to + 4 * kChunk * 2, weight[matrix][1] + ahead * kChunk, wanted);
    }
    close_copies();
  };
  uint2 x[kAhead][kSteps][kHalves];
  const auto load_x = [&](int ahead) {
    const bool is_whole = (ahead + 1) * kChunk <= left;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int input = ahead * kChunk + step * 16;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        x[ahead % kAhead][step][half] =
            load_or_zero(x_rows[half] + input, is_whole || input + in_group * 4 < left);
      }
    }
  };

#pragma unroll
  for (int ahead = 0; ahead < kStages - 1; ++ahead) copy_chunk(ahead);
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) load_x(ahead);

  uint32_t read_from[2];  // of even and odd steps
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    read_from[step] = ring + place(group, 2 * step + in_group / 2) + in_group % 2 * 8;
  }
  float sums[kMatrices][4] = {};
  while (left > 0) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (stage * kChunk >= left) break;
      wait_copies<kStages - 2>();
      __syncwarp();  // all lanes' copies are there, and all have read the stage that is filled next
      copy_chunk(stage + kStages - 1);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint2(&a)[kHalves] = x[stage % kAhead][step];
        const uint2 high = kHalves == 2 ? a[kHalves - 1] : make_uint2(0, 0);
#pragma unroll
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
          // Steps two apart differ in bit 2 of the piece, which place() may have turned.
          const uint2 b = read_shared((read_from[step % 2] ^ (step / 2 * 64)) +
                                      (stage * kMatrices + matrix) * kChunkBytes);
          mma_16x8x16<T>(sums[matrix], {a[0].x, high.x, a[0].y, high.y}, b.x, b.y);
        }
      }
      load_x(stage + kAhead);
    }
    left -= kStages * kChunk;
#pragma unroll
    for (auto& rows : weight) {
#pragma unroll
      for (const T*& row : rows) row += kStages * kChunk;
    }
#pragma unroll
    for (const T*& row : x_rows) row += kStages * kChunk;
  }
  // (the last copies, of zeros, may still be on their way)

#pragma unroll
  for (int i = 0; i < 2 * kHalves; ++i) {
    const int row = group + 8 * (i / 2);
    const int64_t output = first_output + 2 * in_group + i % 2;
    if (row >= p.rows || output >= p.outputs) continue;
    float value = sums[0][i];
    // Beside many rows, gate and up are products in memory.
    if constexpr (kGated) value = silu(rounded<T>(value)) * rounded<T>(sums[1][i]);
    finish_product(p.epilogue, row, output, value);
  }
}

template <typename T>
void launch(const Product& p, bool gated, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    kernel<<<ceil_div(p.outputs, kWarps * kOutputs), kThreads, 0, stream>>>(p);
    check_launch("multiplying matrices");
  };
  if (p.rows <= 8) {
    start(gated ? in_order_kernel<T, 1, true> : in_order_kernel<T, 1, false>);
  } else {
    start(gated ? in_order_kernel<T, 2, true> : in_order_kernel<T, 2, false>);
  }
}

}  // namespace

void in_order_product(const Matrix& x, const Weight& weight, const Epilogue& epilogue, bool gated,
                      cudaStream_t stream) {
  const Product product{x.data,
                        x.stride,
                        static_cast<int>(x.rows),
                        weight.data,
                        gated ? weight.rows / 2 : weight.rows,
                        weight.cols,
                        epilogue};
  if (weight.dtype == DType::bf16) {
    launch<__nv_bfloat16>(product, gated, stream);
  } else {
    launch<__half>(product, gated, stream);
  }
}

}  // namespace faststream
