// Products of few rows with 16-bit weights: decode. Memory-bound: the weights are read once, at the
// speed of memory.
//
// An output is one chain of tensor core instructions of 16 inputs each, from the first input to the
// last. That is how cuBLASLt's kernels sum, bit for bit, unless they split the inputs, which
// matmul.cu does not let them: a row's result is the same here, beside few others, and there,
// beside many, so a text does not depend on the batch it is in.
//
// The price is that warps cannot share the inputs. A warp makes eight outputs alone, and a product
// of 4,096 outputs has only 512 warps, four on each multiprocessor of an H100. So each keeps 8 kB
// and more on the way from memory, in a ring in shared memory that asynchronous copies fill: 32 kB
// on a multiprocessor, where 3.1 TB/s at 0.7 us of latency need 17 and a loaded memory is slower.
// And as a warp may be alone on its scheduler, it takes two chunks a turn: the operands of one are
// read from the ring while those of the other are multiplied.
//
// The weights are the right operand of the instruction, eight outputs wide, and the activations the
// left one of sixteen rows. A lane holds four consecutive inputs where the instruction has two
// pairs eight apart, the same for both operands: within an instruction, order does not matter.
#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kOrderWarps = 4;
constexpr int kOrderThreads = kOrderWarps * kWarp;
constexpr int kOutputs = 8;  // of a warp

/// A warp's ring in shared memory. A stage is a chunk of the inputs: of the weights' rows, then of
/// kRows rows of x. Four rings are at most 96 kB, which all GPUs from sm_80 on have.
template <int kRows, bool kGated>
struct Ring {
  static constexpr int kMatrices = kGated ? 2 : 1;
  static constexpr int kChunk = kRows > 8 ? 64 : 128;  // inputs
  static constexpr int kRowBytes = 2 * kChunk;
  static constexpr int kMatrixBytes = kOutputs * kRowBytes;
  static constexpr int kWeightBytes = kMatrices * kMatrixBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows * kRowBytes;
  static constexpr int kStages = std::min(16384 / kWeightBytes, 24576 / kStageBytes) / 2 * 2;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kBlockBytes = kOrderWarps * kBytes;
  static_assert(kStages >= 4, "one is filled, one is read, and others are on the way");

  /// Where 16-byte piece `piece` of a row is in a chunk: lanes that read four rows at a time find
  /// them in different banks.
  static __device__ int place(int row, int piece) {
    return row * kRowBytes + (piece ^ (2 * (row % 4))) * 16;
  }
};

/// Sixteen bytes to shared memory, or as many zeros. Weights are read once: they pass by the L1
/// cache and leave the L2 cache first, or the next operation would find its input in neither (1 us
/// each, 3% of a token). Activations are read by all warps.
__device__ void copy_weights(uint32_t to, const void* from, bool wanted, uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
      "l"(from), "r"(wanted ? 16 : 0), "l"(policy));
}
__device__ void copy_activations(uint32_t to, const void* from, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(wanted ? 16 : 0));
}

__device__ uint2 read_shared(uint32_t from) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(from));
  return value;
}

template <typename T>
__device__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

/// kRows: of x, 1, 8 or 16, those of blockIdx.y. Outputs past the end repeat the last one and rows
/// of x past the end are what the ring holds; neither is stored. Chunks past the end are zeros.
template <typename T, int kRows, bool kGated>
__global__ __launch_bounds__(kOrderThreads) void in_order_kernel(Product p) {
  using Ring = Ring<kRows, kGated>;
  constexpr int kMatrices = Ring::kMatrices;
  constexpr int kStages = Ring::kStages;
  constexpr int kChunk = Ring::kChunk;
  constexpr int kSteps = kChunk / 16;         // tensor core instructions
  constexpr int kHalves = kRows > 8 ? 2 : 1;  // of the instruction's sixteen rows
  constexpr int kPieces = kChunk / 8;         // 16-byte pieces of a row
  constexpr int kCopied = kWarp / kPieces;    // rows that a warp copies at a time
  constexpr int kWeightCopies = kOutputs / kCopied;
  constexpr int kXCopies = (kRows + kCopied - 1) / kCopied;
  extern __shared__ __align__(128) unsigned char rings[];

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first_output = (static_cast<int64_t>(blockIdx.x) * kOrderWarps + warp) * kOutputs;
  if (first_output >= p.outputs) return;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const int rows = min(kRows, p.rows - first_row);

  // What a lane copies: a piece of rows copied_row, copied_row + kCopied, ...
  const int copied_row = lane / kPieces;
  const int piece = lane % kPieces;
  const T* weight[kMatrices][kWeightCopies];
#pragma unroll
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const int64_t output = min(first_output + copied_row + kCopied * i, p.outputs - 1);
      weight[matrix][i] =
          static_cast<const T*>(p.weight) + (matrix * p.outputs + output) * p.inputs + piece * 8;
    }
  }
  const T* x_row[kXCopies];
#pragma unroll
  for (int i = 0; i < kXCopies; ++i) {
    const int64_t row = first_row + min(copied_row + kCopied * i, rows - 1);
    x_row[i] = static_cast<const T*>(p.x) + row * p.x_stride + piece * 8;
  }
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(rings)) + warp * Ring::kBytes;
  const auto after = [&](uint32_t stage) {
    stage += Ring::kStageBytes;
    return stage == ring + Ring::kBytes ? ring : stage;
  };
  int left = static_cast<int>(p.inputs);  // that are not multiplied

  const uint64_t policy = evict_first_policy();
  // Both parts of a stage. `chunk` is counted from the first that is not multiplied.
  const auto copy_weight_part = [&](uint32_t stage, int chunk) {
    const bool wanted = chunk * kChunk + piece * 8 < left;
#pragma unroll
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i) {
        copy_weights(
            stage + matrix * Ring::kMatrixBytes + Ring::place(copied_row + kCopied * i, piece),
            weight[matrix][i] + chunk * kChunk, wanted, policy);
      }
    }
  };
  const auto copy_x_part = [&](uint32_t stage, int chunk) {
    const bool wanted = chunk * kChunk + piece * 8 < left;
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      const int row = copied_row + kCopied * i;
      if (row >= rows) continue;
      copy_activations(stage + Ring::kWeightBytes + Ring::place(row, piece),
                       x_row[i] + chunk * kChunk, wanted);
    }
    close_copies();
  };
  const auto advance = [&](int chunks) {
    left -= chunks * kChunk;
#pragma unroll
    for (auto& rows : weight) {
#pragma unroll
      for (const T*& row : rows) row += chunks * kChunk;
    }
#pragma unroll
    for (const T*& row : x_row) row += chunks * kChunk;
  };

  const int group = lane / 4;
  const int in_group = lane % 4;
  uint2 w[2][kMatrices][kSteps];
  uint2 x[2][kHalves][kSteps];
  uint32_t read_from = ring;
  const auto read_chunk = [&](int set) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int in_row = 2 * step + in_group / 2;
      const int in_piece = in_group % 2 * 8;
#pragma unroll
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        w[set][matrix][step] = read_shared(read_from + matrix * Ring::kMatrixBytes +
                                           Ring::place(group, in_row) + in_piece);
      }
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int row = kRows == 1 ? 0 : group + 8 * half;
        x[set][half][step] =
            read_shared(read_from + Ring::kWeightBytes + Ring::place(row, in_row) + in_piece);
      }
    }
    read_from = after(read_from);
  };

#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) {
    copy_weight_part(ring + stage * Ring::kStageBytes, stage);
  }
  wait_for_inputs();
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) {
    copy_x_part(ring + stage * Ring::kStageBytes, stage);
  }
  uint32_t copy_to = ring + (kStages - 1) * Ring::kStageBytes;
  wait_for_copies<kStages - 2>();
  __syncwarp();
  read_chunk(0);

  float sums[kMatrices][4] = {};
  while (left > 0) {
#pragma unroll
    for (int set = 0; set < 2; ++set) {
      if (set * kChunk >= left) break;
      wait_for_copies<kStages - 3>();
      __syncwarp();  // all lanes' copies are there, and all have read the stage that is filled next
      copy_weight_part(copy_to, set + kStages - 1);
      copy_x_part(copy_to, set + kStages - 1);
      copy_to = after(copy_to);
      read_chunk(1 - set);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint2 upper = x[set][0][step];
        const uint2 lower = kHalves == 2 ? x[set][kHalves - 1][step] : make_uint2(0, 0);
#pragma unroll
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
          const uint2 right = w[set][matrix][step];
          mma_16x8x16<T>(sums[matrix], {upper.x, lower.x, upper.y, lower.y}, right.x, right.y);
        }
      }
    }
    advance(2);
  }
  allow_next_kernel();

#pragma unroll
  for (int i = 0; i < 2 * kHalves; ++i) {
    const int in_block = group + 8 * (i / 2);
    const int64_t output = first_output + 2 * in_group + i % 2;
    if (in_block >= rows || output >= p.outputs) continue;
    const int64_t row = first_row + in_block;
    if constexpr (kGated) {
      // Beside many rows, gate and up are products in memory.
      finish_gate(p.to, row, output, rounded<T>(add_bias(p.to, output, sums[0][i])),
                  rounded<T>(add_bias(p.to, p.outputs + output, sums[1][i])));
    } else {
      finish_product(p.to, row, output, sums[0][i]);
    }
  }
}

template <typename T, int kRows, bool kGated>
void allow_memory() {
  allow_shared_memory(in_order_kernel<T, kRows, kGated>, Ring<kRows, kGated>::kBlockBytes);
}

template <typename T>
void allow_memory() {
  allow_memory<T, 1, false>();
  allow_memory<T, 1, true>();
  allow_memory<T, 8, false>();
  allow_memory<T, 8, true>();
  allow_memory<T, 16, false>();
  allow_memory<T, 16, true>();
}

template <typename T, int kRows, bool kGated>
void launch(const Product& p, const Queue& queue) {
  constexpr int kBytes = Ring<kRows, kGated>::kBlockBytes;
  queue.launch("multiplying matrices", in_order_kernel<T, kRows, kGated>,
               {dim3(ceil_div(p.outputs, kOrderWarps * kOutputs), ceil_div(p.rows, kRows)),
                kOrderThreads, kBytes},
               p);
}

template <typename T, int kRows>
void launch(const Product& p, bool gated, const Queue& queue) {
  if (gated) {
    launch<T, kRows, true>(p, queue);
  } else {
    launch<T, kRows, false>(p, queue);
  }
}

template <typename T>
void launch(const Product& p, bool gated, const Queue& queue) {
  if (p.rows == 1) {
    launch<T, 1>(p, gated, queue);
  } else if (p.rows <= 8) {
    launch<T, 8>(p, gated, queue);
  } else {
    launch<T, 16>(p, gated, queue);
  }
}

}  // namespace

void prepare_in_order_products() {
  allow_memory<__nv_bfloat16>();
  allow_memory<__half>();
}

void in_order_product(const Product& product, DType type, bool gated, const Queue& queue) {
  switch (type) {
    case DType::bf16:
      return launch<__nv_bfloat16>(product, gated, queue);
    case DType::f16:
      return launch<__half>(product, gated, queue);
    case DType::f32:
    case DType::i8:
    case DType::u8:
    case DType::packed:
      break;
  }
  throw std::logic_error("in_order_product: not a 16-bit type");
}

}  // namespace faststream
