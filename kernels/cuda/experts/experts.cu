// Feed-forwards of which each token uses a few: choose experts, sort the tokens by expert, multiply
// each expert's rows by its two matrices, and add up what each token's experts made of it. Nothing
// waits for the host: how many rows an expert has is read by the kernels.
#include "kernels/cuda/experts/experts.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 256;
constexpr size_t kAlignment = 256;
constexpr size_t kParts = 13;  // of the scratch memory

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

// Of each place the row of x of its token, times the weight of its pair.
__global__ void weigh_kernel(Matrix x, Routing routing, Matrix weighed) {
  begin_kernel();
  const int64_t place = blockIdx.x;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= x.cols) return;
  const float element = load_element(x.data, x.dtype, routing.token_at[place] * x.stride + c);
  store_element(weighed.data, weighed.dtype, place * weighed.stride + c,
                element * routing.weights[routing.pair_at[place]]);
}

// out[token] = or += the sum of its pairs' results by their weights, in the order of its choice. Of
// experts from n_experts on x is the result. weights: null: all 1.
__global__ void combine_kernel(const float* results, const float* weights, const int32_t* experts,
                               int n_experts, Matrix x, int used, bool add, Matrix out) {
  begin_kernel();
  const int64_t token = blockIdx.x;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= out.cols) return;
  float sum = 0;
  for (int64_t pair = token * used; pair < (token + 1) * used; ++pair) {
    const float weight = weights != nullptr ? weights[pair] : 1.0F;
    const float result = experts[pair] < n_experts
                             ? results[pair * out.cols + c]
                             : load_element(x.data, x.dtype, token * x.stride + c);
    sum = __fmaf_rn(weight, result, sum);
  }
  float& element = static_cast<float*>(out.data)[token * out.stride + c];
  element = add ? __fadd_rn(element, sum) : sum;
}

// The product with `x`, quantized beside i8 weights where the tensor cores take them, else in
// `rotated` where those are rotated.
void multiply(GroupedProduct product, const Matrix& x, Parts& parts, DeviceBuffer& rotated,
              const Queue& queue) {
  Matrix taken = x;
  // Beside i8 weights tensor cores take eight-bit rows alone.
  const bool fits =
      few_rows_fit(x, product.weight) &&
      (product.weight.format != WeightFormat::int8 || product.weight.quantizes_inputs());
  if (fits && product.weight.quantizes_inputs()) {
    taken = parts.take(DType::i8, x.rows, x.cols);
    auto* scales = parts.take<float>(x.rows);
    quantize_rows({.x = x}, product.weight.rotated, taken, scales, queue);
    product.row_scales = scales;
  } else {
    taken = rows_for(x, product.weight, rotated, queue);
  }
  product.x = taken.data;
  product.x_dtype = taken.dtype;
  product.x_stride = taken.stride;
  fits ? grouped_product_mma(product, queue) : grouped_product_any(product, queue);
}

}  // namespace

ScratchPiece experts_piece(int64_t pairs, int64_t used, size_t bytes_per_pair) {
  ScratchPiece piece = piece_of(pairs, bytes_per_pair, used);
  piece.bytes += kParts * kAlignment;
  return piece;
}

void CudaBackend::experts(Input& input, const Matrix& scores, const Router& router,
                          const Experts& experts, OutputMode output, const Matrix& out) {
  if (input.x.rows == 0) return;
  const bool adds = output == OutputMode::add;
  const bool has_identities = scores.cols > experts.n_experts;
  if (!router.weighs_input && !has_identities &&
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
  const int64_t piece_tokens = piece.rows / used;
  for (int64_t first = 0; first < x.rows; first += piece_tokens) {
    const int64_t tokens = std::min(piece_tokens, x.rows - first);
    const int64_t pairs = tokens * used;
    Parts parts(memory);
    Routing routing;
    routing.experts = parts.take<int32_t>(pairs);
    routing.weights = parts.take<float>(pairs);
    routing.pair_at = parts.take<int32_t>(pairs);
    routing.token_at = parts.take<int32_t>(pairs);
    routing.tile_rows = choose_tile_rows(pairs, n_experts);
    routing.max_tiles =
        static_cast<int32_t>(std::min(pairs, pairs / routing.tile_rows + n_experts));
    routing.tiles = parts.take<RowTile>(routing.max_tiles);
    routing.n_tiles = parts.take<int32_t>(1);
    route(scores.row_range(first, tokens), router, experts.n_experts, routing, queue);

    const Matrix activated = parts.take(x.dtype, pairs, middle);
    const Matrix results = parts.take(DType::f32, pairs, hidden);
    GroupedProduct product;
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
                  .stride = activated.stride,
                  .scales = experts.up.row_scales(),
                  .bias = experts.up_bias,
                  .activation = experts.activation};
    Matrix inputs = x.row_range(first, tokens);
    if (router.weighs_input) {
      const Matrix weighed = parts.take(x.dtype, pairs, x.cols);
      const dim3 places(static_cast<unsigned>(pairs), ceil_div(x.cols, kThreads));
      queue.launch("weighing what experts read", weigh_kernel, {places, kThreads}, inputs, routing,
                   weighed);
      inputs = weighed;
      product.x_rows = nullptr;
    }
    multiply(product, inputs, parts, rotated_, queue);

    product.weight = experts.down;
    product.outputs = hidden;
    product.gated = false;
    product.x_rows = nullptr;
    product.out_rows = routing.pair_at;
    product.to = {.out = results.data,
                  .dtype = results.dtype,
                  .stride = results.stride,
                  .scales = experts.down.row_scales(),
                  .bias = experts.down_bias};
    multiply(product, activated, parts, rotated_, queue);

    const dim3 grid(static_cast<unsigned>(tokens), ceil_div(hidden, kThreads));
    queue.launch("adding up experts", combine_kernel, {grid, kThreads},
                 static_cast<const float*>(results.data),
                 router.weighs_input ? static_cast<const float*>(nullptr) : routing.weights,
                 static_cast<const int32_t*>(routing.experts), static_cast<int>(n_experts),
                 x.row_range(first, tokens), static_cast<int>(used), adds,
                 out.row_range(first, tokens));
  }
}

}  // namespace faststream
