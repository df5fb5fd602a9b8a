// Norms of rows of which each rank has some columns. A block has a row: it adds up the squares of
// its rank's part, tells the other ranks' blocks, and goes on with what they tell it, in one kernel
// where GPUs reach each other's memory (ranks/terms.cuh). Else sums and norms are kernels of their
// own, with what adds up between them.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "kernels/cuda/ranks/joined_ranks.h"
#include "kernels/cuda/ranks/terms.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {
namespace {

constexpr int kEach = 8;                        // elements, or groups, of a thread
constexpr int kMostParts = 4;                   // of a rank, one of a group each
constexpr int64_t kMostGroups = kWarp * kEach;  // of all ranks

struct Part {
  Matrix x;
  const float* weight = nullptr;
  float eps = 0;
  int group = 0;
  float columns = 0;  // of all ranks
  bool counts = true;
  bool has_eights = false;
};

struct Parts {
  Part part[kMostParts];
  int count = 0;
};

// Elements of a part's row that a thread has, `kVector` at a time: f(c, values).
template <int kVector, typename T, typename F>
__device__ void for_own(const T* row, int64_t columns, const F& f) {
  for (int64_t c = kVector * int64_t{threadIdx.x}; c < columns; c += kVector * kRowLanes) {
    float values[kVector];
    load_floats(row + c, values);
    f(c, values);
  }
}

template <typename T>
__device__ T* row_of(const Part& part, int64_t r) {
  return static_cast<T*>(part.x.data) + r * part.x.stride;
}

// Of each group the sum of squares of this rank's part of row r, for those that count: as the
// groups' eights have it, of thread t those from 8 t on. By all threads.
template <typename T>
__device__ void add_up_squares(const Parts& parts, int64_t r, float (&of_groups)[kEach]) {
  __shared__ RowParts memory;
  RowTeam<kRowLanes> team{static_cast<int>(threadIdx.x), 0, memory};
#pragma unroll
  for (float& sum : of_groups) sum = 0;
  for (int p = 0; p < parts.count; ++p) {
    const Part& part = parts.part[p];
    if (!part.counts) continue;  // of all threads
    float squares[1] = {};
    const auto add = [&](int64_t /*c*/, const auto& values) {
#pragma unroll
      for (const float x : values) squares[0] = __fmaf_rn(x, x, squares[0]);
    };
    const T* row = row_of<T>(part, r);
    part.has_eights ? for_own<kEach>(row, part.x.cols, add) : for_own<1>(row, part.x.cols, add);
    const float sum = team.sum(squares);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (part.group == static_cast<int>(threadIdx.x) * kEach + i) of_groups[i] = sum;
    }
  }
}

// Row r of each part, by the sums of its group. A thread writes what only it has read.
template <typename T>
__device__ void normalize(const Parts& parts, int64_t r, const float* sums) {
  for (int p = 0; p < parts.count; ++p) {
    const Part& part = parts.part[p];
    const float factor = 1.0F / sqrtf(sums[part.group] / part.columns + part.eps);
    T* row = row_of<T>(part, r);
    const auto write = [&](int64_t c, auto& values) {
      constexpr int kCount = sizeof values / sizeof(float);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[i] = __fmul_rn(__fmul_rn(values[i], factor), part.weight[c + i]);
      }
      store_floats(values, row + c);
    };
    part.has_eights ? for_own<kEach>(row, part.x.cols, write) : for_own<1>(row, part.x.cols, write);
  }
}

// With GPUs that reach each other's memory. Terms: of each row so many groups, a multiple of eight.
template <typename T>
__global__ void __launch_bounds__(kRowLanes)
    norm_together_kernel(Parts parts, int groups, Terms terms, UsedTerms used) {
  begin_kernel();
  __shared__ float sums[kMostGroups];
  const int64_t r = blockIdx.x;
  float of_groups[1][kEach];
  add_up_squares<T>(parts, r, of_groups[0]);
  if (threadIdx.x < kWarp) {
    const int first = static_cast<int>(threadIdx.x) * kEach;
    const bool exists = first < groups;
    const int64_t element = r * groups + first;
    if (exists) send_eight(terms, element, of_groups[0]);
    bring_sums(
        terms, [&](int) { return exists; }, [&](int) { return element; }, of_groups);
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[first + i] = of_groups[0][i];
  }
  __syncthreads();
  normalize<T>(parts, r, sums);
  for (const step_kernel::Pieces& pieces : used) unset(pieces);
}

// sums: [rows, groups]
template <typename T>
__global__ void __launch_bounds__(kRowLanes) squares_kernel(Parts parts, int groups, float* sums) {
  begin_kernel();
  float of_groups[kEach];
  add_up_squares<T>(parts, blockIdx.x, of_groups);
  const int first = static_cast<int>(threadIdx.x) * kEach;
  if (first < groups) store_floats(of_groups, sums + int64_t{blockIdx.x} * groups + first);
}
template <typename T>
__global__ void __launch_bounds__(kRowLanes)
    norm_by_squares_kernel(Parts parts, int groups, const float* sums) {
  begin_kernel();
  normalize<T>(parts, blockIdx.x, sums + int64_t{blockIdx.x} * groups);
}

Parts parts_of(std::span<const SharedNorm> norms, int64_t first, int64_t rows) {
  if (norms.size() > kMostParts || norms.front().share.groups > kMostGroups) {
    throw std::logic_error("norm_over_ranks: more parts or groups than a kernel takes");
  }
  Parts parts;
  for (const auto& [x, norm, share] : norms) {
    const Matrix some = x.row_range(first, rows);
    parts.part[parts.count++] = {
        .x = some,
        .weight = norm.weight,
        .eps = norm.eps,
        .group = share.group,
        .columns = static_cast<float>(share.columns),
        .counts = share.counts,
        .has_eights = x.cols % kEach == 0 && rows_begin_at_16(some.data, x.stride, x.dtype)};
  }
  return parts;
}

}  // namespace

void CudaBackend::norm_over_ranks(std::span<const SharedNorm> norms) {
  static_assert(Ranks::kEachOfRow == kEach);
  const int64_t rows = norms.front().x.rows;
  const int64_t each = Ranks::rows_at_once(norms.front().share.groups);
  for (int64_t first = 0; first < rows; first += each) {
    norm_over_ranks(norms, first, std::min(each, rows - first));
  }
}

void CudaBackend::norm_over_ranks(std::span<const SharedNorm> norms, int64_t first, int64_t rows) {
  const Parts parts = parts_of(norms, first, rows);
  const Matrix sums = ranks_->float_rows(rows, norms.front().share.groups);
  const auto groups = static_cast<int>(sums.cols);
  const Grid grid{static_cast<unsigned>(rows), kRowLanes};
  with_float_type(norms.front().x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Queue queue = this->queue();
    if (ranks_->peers) {
      const Terms terms = ranks_->peers->reserve(rows * groups, DType::f32);
      return queue.launch("normalizing over ranks", norm_together_kernel<T>, grid, parts, groups,
                          terms, ranks_->peers->end_kernel());
    }
    auto* squares = static_cast<float*>(sums.data);
    queue.launch("normalizing over ranks", squares_kernel<T>, grid, parts, groups, squares);
    add_up_over_ranks(sums, OutputMode::store, sums, DType::f32);
    this->queue().launch("normalizing over ranks", norm_by_squares_kernel<T>, grid, parts, groups,
                         squares);
  });
}

}  // namespace faststream
