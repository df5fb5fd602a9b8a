// Feed-forwards of which each token uses a few: choose experts, sort the tokens by expert, multiply
// each expert's rows by its two matrices, and add up what each token's experts made of it. Nothing
// waits for the host: how many rows an expert has is read by the kernels.
//
// Of few rows an expert, kernels of warps fetch rows where they are; of many on Hopper, rows are
// brought to their places first, and warpgroups multiply what lies together, as they do with any
// number of rows beside int4 and fp8. All sum in one order.
#include "kernels/cuda/experts/experts.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ranks/joined_ranks.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 256;
constexpr size_t kAlignment = 256;
constexpr size_t kParts = 15;  // of the scratch memory
constexpr int kPiece = 16;     // bytes that a thread moves at a time
constexpr int kCombined = kPiece / static_cast<int>(sizeof(float));
constexpr int kPairsTogether = 8;  // results of a token that are on their way together

// Rows an expert from which on kernels of warpgroups take less time than those of warps.
constexpr int64_t kRowsOfWarpgroups = 20;

// Pairs from which on several blocks sort them. Of each block there are kMostExperts counts at
// most, for which expert_row_bytes() has room.
constexpr int64_t kManyPairs = int64_t{4} * kBlockPairs;

// Hands out aligned parts of a memory.
class Parts {
 public:
  explicit Parts(std::byte* memory) : next_(memory) {}

  template <typename T>
  T* take(int64_t count) {
    auto* part = reinterpret_cast<T*>(next_);
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }
  Matrix take(DType type, int64_t rows, int64_t cols) {
    return {take<std::byte>(rows * cols * static_cast<int64_t>(dtype_size(type))), type, rows,
            cols};
  }

 private:
  std::byte* next_;
};

// Of each pair the row of x of its token, times the pair's weight, in its place.
__global__ void weigh_kernel(Matrix x, Routing routing, int used, Matrix weighed) {
  begin_kernel();
  const int64_t pair = blockIdx.x;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= x.cols || routing.place_of[pair] < 0) return;
  const float element = load_element(x.data, x.dtype, pair / used * x.stride + c);
  store_element(weighed.data, weighed.dtype, routing.place_of[pair] * weighed.stride + c,
                element * routing.weights[pair]);
}

// The row of each token, and its scale if rows have some, in the places of the token's pairs. Rows
// are of whole pieces; of the result there are no gaps between them.
__global__ void place_rows_kernel(const std::byte* x, int64_t stride_bytes, int row_pieces,
                                  const float* scales, const int32_t* place_of, int used,
                                  uint4* placed, float* placed_scales) {
  begin_kernel();
  const int64_t token = blockIdx.x;
  const auto* row = reinterpret_cast<const uint4*>(x + token * stride_bytes);
  place_of += token * used;
  for (int i = static_cast<int>(threadIdx.x); i < row_pieces; i += kThreads) {
    const uint4 piece = row[i];
    for (int k = 0; k < used; ++k) {
      if (place_of[k] >= 0) placed[static_cast<int64_t>(place_of[k]) * row_pieces + i] = piece;
    }
  }
  if (scales == nullptr) return;
  for (int k = static_cast<int>(threadIdx.x); k < used; k += kThreads) {
    if (place_of[k] >= 0) placed_scales[place_of[k]] = scales[token];
  }
}

// To rows of f32; or, a piece, of bf16, word by word: so others look for terms of a sum.
template <int kVector>
__device__ void store(const float (&values)[kVector], void* to, DType dtype, int64_t at) {
  if constexpr (kVector == kCombined) {
    if (dtype == DType::bf16) {
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(to) + at) =
          make_uint2(pack_pair<__nv_bfloat16>(values[0], values[1]),
                     pack_pair<__nv_bfloat16>(values[2], values[3]));
      return;
    }
  }
  store_floats(values, static_cast<float*>(to) + at);
}

// to[token] = or += the sum of its pairs' results [pairs, cols] by their weights, in the order of
// its choice. Of pairs without a place x is the result. weights: null: all 1. Of kVector columns
// that begin at multiples of as many.
template <int kVector>
__global__ void combine_kernel(const float* results, int64_t cols, const int32_t* place_of,
                               const float* weights, Matrix x, int used, ProductDestination to) {
  begin_kernel();
  const int64_t token = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kVector;
  if (c >= cols) return;
  float sums[kVector] = {};
  place_of += token * used;
  if (weights != nullptr) weights += token * used;
  for (int first = 0; first < used; first += kPairsTogether) {
    int32_t places[kPairsTogether];
    float factors[kPairsTogether];
#pragma unroll
    for (int i = 0; i < kPairsTogether; ++i) {
      const bool exists = first + i < used;
      places[i] = exists ? place_of[first + i] : -1;
      factors[i] = exists && weights != nullptr ? weights[first + i] : 1.0F;
    }
    float of_pairs[kPairsTogether][kVector] = {};
#pragma unroll
    for (int i = 0; i < kPairsTogether; ++i) {
      if (places[i] >= 0) load_floats(results + places[i] * cols + c, of_pairs[i]);
    }
#pragma unroll
    for (int i = 0; i < kPairsTogether; ++i) {
      if (first + i >= used) continue;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float result = places[i] >= 0
                                 ? of_pairs[i][j]
                                 : load_element(x.data, x.dtype, token * x.stride + c + j);
        sums[j] = __fmaf_rn(factors[i], result, sums[j]);
      }
    }
  }
  const int64_t at = token * to.stride + c;
  if (to.add) {
    float before[kVector];
    load_floats(static_cast<const float*>(to.out) + at, before);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] = __fadd_rn(before[i], sums[i]);
  }
  store(sums, to.out, to.dtype, at);
  if (to.far != nullptr) store(sums, to.far, to.dtype, at);
}

// How a piece of tokens is multiplied.
struct Work {
  const Routing& routing;
  int used = 0;
  bool by_warpgroups = false;
  bool few_codes = false;       // among weights, and their kernel takes the tiles
  std::byte* placed = nullptr;  // memory for rows of the first product by place
};

// The rows of x by place, and their scales.
void place_rows(GroupedProduct& product, const Matrix& x, const Work& work, Parts& parts,
                const Queue& queue) {
  const auto row_bytes = x.cols * static_cast<int64_t>(dtype_size(x.dtype));
  auto* scales = product.row_scales != nullptr ? parts.take<float>(product.places) : nullptr;
  queue.launch("sorting rows by expert", place_rows_kernel,
               {static_cast<unsigned>(x.rows), kThreads}, static_cast<const std::byte*>(x.data),
               x.stride * static_cast<int64_t>(dtype_size(x.dtype)),
               static_cast<int>(row_bytes / kPiece), product.row_scales, work.routing.place_of,
               work.used, reinterpret_cast<uint4*>(work.placed), scales);
  product.x = work.placed;
  product.x_stride = x.cols;
  product.x_rows = nullptr;
  product.row_scales = scales;
}

// The product with `x`, quantized beside i8 weights where the tensor cores take them, else in
// `rotated` where those are rotated.
void multiply(GroupedProduct product, const Matrix& x, const Work& work, Parts& parts,
              DeviceBuffer& rotated, const Queue& queue) {
  Matrix taken = x;
  // Beside i8 weights tensor cores take eight-bit rows alone.
  const bool fits =
      work.by_warpgroups ||
      (few_rows_fit(x, product.weight) &&
       (product.weight.format != WeightFormat::int8 || product.weight.quantizes_inputs()));
  const bool eights = work.by_warpgroups && rounds_to_e4m3(product.weight);
  if (eights || (fits && product.weight.quantizes_inputs())) {
    taken = parts.take(eights ? DType::u8 : DType::i8, x.rows, x.cols);
    auto* scales = parts.take<float>(x.rows);
    quantize_rows({.x = x}, product.weight.rotated, taken, scales, queue);
    product.row_scales = scales;
  } else {
    taken = rows_for(x, product.weight, rotated, queue);
  }
  product.x = taken.data;
  product.x_dtype = taken.dtype;
  product.x_stride = taken.stride;
  if (work.by_warpgroups) {
    if (product.x_rows != nullptr) place_rows(product, taken, work, parts, queue);
    return grouped_product_sm90a(product, queue);
  }
  if (work.few_codes && few_codes_fit(product.weight)) {
    return few_coded_product({.x = product.x,
                              .x_stride = product.x_stride,
                              .rows = product.places,
                              .weight = product.weight.data,
                              .outputs = product.outputs,
                              .inputs = product.weight.cols,
                              .to = product.to},
                             product.weight, product.gated,
                             {product.x_rows, product.tiles, product.n_tiles, product.max_tiles},
                             queue);
  }
  fits ? grouped_product_mma(product, queue) : grouped_product_any(product, queue);
}

template <int kVector>
void add_up(const Matrix& results, const Routing& routing, const float* weights, const Matrix& x,
            int used, const ProductDestination& to, const Queue& queue) {
  const dim3 grid(static_cast<unsigned>(x.rows), ceil_div(results.cols, kThreads * kVector));
  queue.launch("adding up experts", combine_kernel<kVector>, {grid, kThreads},
               static_cast<const float*>(results.data), results.cols, routing.place_of, weights, x,
               used, to);
}

}  // namespace

ScratchPiece experts_piece(int64_t pairs, int64_t used, size_t bytes_per_pair) {
  ScratchPiece piece =
      piece_of(pairs, bytes_per_pair, used, std::numeric_limits<int64_t>::max(), kMaxExpertsBytes);
  piece.bytes += kParts * kAlignment;
  return piece;
}

// Rows of the first product by place lie where results of the second will.
bool CudaBackend::grouped_tiles_fit(const Matrix& x, const Experts& experts, int64_t hidden) const {
  return is_hopper_ && warpgroups_fit(x, experts, hidden) &&
         x.cols * dtype_size(x.dtype) <= static_cast<size_t>(hidden) * sizeof(float);
}

void CudaBackend::experts(Input& input, const Matrix& scores, const Router& router,
                          const Experts& experts, OutputMode output, const Matrix& out) {
  if (input.x.rows == 0) return;
  const bool adds = output == OutputMode::add;
  const bool has_identities = scores.cols > experts.n_experts;
  const Matrix& multiplied = input.is_ready() ? input.x : input.normed;
  const bool has_codes = is_coded(experts.up.format) || is_coded(experts.down.format);
  // A row alone has the bits that it has beside others.
  const bool has_way = !has_codes || grouped_tiles_fit(multiplied, experts, out.cols);
  if (!router.weighs_input && !has_identities && has_way &&
      step_kernel_.experts(input, scores, router, experts, adds, out)) {
    return;
  }
  const Matrix x = normalize(*this, input);
  const int64_t n_experts = experts.n_experts;
  if (scores.cols > kMostExperts) {
    throw Error("The GPU backend supports up to " + std::to_string(kMostExperts) +
                " experts, but the model has " + std::to_string(scores.cols) +
                "; use --device cpu.");
  }
  const Queue queue = this->queue();
  const int64_t used = router.used;
  const int64_t hidden = out.cols;
  const int64_t middle = experts.down.cols;
  size_t bytes_per_pair = expert_row_bytes(x.cols, middle) + expert_row_bytes(middle, hidden);
  if (router.weighs_input) bytes_per_pair += weighed_row_bytes(x.cols);
  const ScratchPiece piece = experts_piece(x.rows * used, used, bytes_per_pair);
  std::byte* memory = scratch_.at_least(piece.bytes);
  const bool fits = grouped_tiles_fit(x, experts, hidden);
  const auto has_few_rows_kernel = [](const Weight& weight) {
    return weight.stored_as() != DType::packed || few_codes_fit(weight);
  };
  const bool takes_few = has_few_rows_kernel(experts.up) && has_few_rows_kernel(experts.down);
  const int32_t most_rows = has_codes ? kMostRowsBesideCodes : kMaxTileRows;
  ProductDestination to =
      Destination{.out = out.data, .dtype = out.dtype, .stride = out.stride, .add = adds};
  to.is_share = output == OutputMode::share;
  if (const auto places = place_of_share(to, x.rows, hidden)) {
    to = *places;
    ranks_->peers->are_sent();
  }
  const int64_t pieces = ceil_div(x.rows * used, piece.rows);
  const int64_t piece_tokens = ceil_div(x.rows, pieces);
  for (int64_t first = 0; first < x.rows; first += piece_tokens) {
    const int64_t tokens = std::min(piece_tokens, x.rows - first);
    const int64_t pairs = tokens * used;
    Parts parts(memory);
    Routing routing;
    routing.experts = parts.take<int32_t>(pairs);
    routing.weights = parts.take<float>(pairs);
    routing.place_of = parts.take<int32_t>(pairs);
    routing.token_at = parts.take<int32_t>(pairs);
    const bool many = pairs >= kRowsOfWarpgroups * n_experts;
    const bool few =
        takes_few && (!has_codes || choose_tile_rows(pairs, n_experts) == kFewTileRows);
    const bool by_warpgroups = fits && (many || !few);
    if (by_warpgroups) {
      routing.tile_rows = many ? most_rows : kMinTileRows;
      routing.tile_grain = kPartRows;
    } else {
      routing.tile_rows = choose_tile_rows(pairs, n_experts);
      routing.tile_grain = routing.tile_rows;
    }
    routing.max_tiles =
        static_cast<int32_t>(std::min(pairs, pairs / routing.tile_rows + n_experts));
    routing.tiles = parts.take<RowTile>(routing.max_tiles);
    routing.n_tiles = parts.take<int32_t>(1);
    if (pairs >= kManyPairs) {
      routing.block_counts = parts.take<int32_t>(ceil_div(pairs, kBlockPairs) * n_experts);
    }
    route(scores.row_range(first, tokens), router, experts.n_experts, routing, queue);

    const Matrix activated = parts.take(x.dtype, pairs, middle);
    const Matrix results = parts.take(DType::f32, pairs, hidden);
    const Work work{.routing = routing,
                    .used = static_cast<int>(used),
                    .by_warpgroups = by_warpgroups,
                    .few_codes = fits && few && has_codes,
                    .placed = static_cast<std::byte*>(results.data)};
    GroupedProduct product;
    product.places = static_cast<int32_t>(pairs);
    product.tiles = routing.tiles;
    product.n_tiles = routing.n_tiles;
    product.tile_rows = routing.tile_rows;
    product.max_tiles = routing.max_tiles;

    product.weight = experts.up;
    product.outputs = middle;
    product.gated = experts.gated;
    product.x_rows = routing.token_at;
    product.to = {.out = activated.data,
                  .dtype = activated.dtype,
                  .gate_limit = experts.gate_limit,
                  .stride = activated.stride,
                  .scales = experts.up.row_scales(),
                  .bias = experts.up_bias,
                  .activation = experts.activation};
    Matrix inputs = x.row_range(first, tokens);
    if (router.weighs_input) {
      const Matrix weighed = parts.take(x.dtype, pairs, x.cols);
      const dim3 grid(static_cast<unsigned>(pairs), ceil_div(x.cols, kThreads));
      queue.launch("weighing what experts read", weigh_kernel, {grid, kThreads}, inputs, routing,
                   static_cast<int>(used), weighed);
      inputs = weighed;
      product.x_rows = nullptr;
    }
    multiply(product, inputs, work, parts, rotated_, queue);

    product.weight = experts.down;
    product.outputs = hidden;
    product.gated = false;
    product.x_rows = nullptr;
    product.to = {.out = results.data,
                  .dtype = results.dtype,
                  .stride = results.stride,
                  .scales = experts.down.row_scales(),
                  .bias = experts.down_bias};
    multiply(product, activated, work, parts, rotated_, queue);

    const float* weights = router.weighs_input ? nullptr : routing.weights;
    const bool in_pieces = hidden % kCombined == 0 && rows_begin_at_16(to.out, to.stride, to.dtype);
    (in_pieces ? add_up<kCombined> : add_up<1>)(results, routing, weights,
                                                x.row_range(first, tokens), work.used,
                                                to.from_row(first), queue);
  }
}

}  // namespace faststream
