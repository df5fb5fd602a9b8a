// Products of int8 rows and int8 weights on Hopper: which tiles they have.
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/product_sm90a.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace faststream {

namespace {

using Half = __nv_bfloat16;

constexpr int64_t kGrain = 256;  // rows of a piece: the largest tile's

/// How the tiles of a product lie.
struct Tiling {
  int rows = 0;   // of x, of a tile: 64, 128 or 256
  int split = 1;  // blocks that divide the inputs of a tile: 1 or 2
};

/// By the time of the tiles that a multiprocessor takes, one after the other, in units of 10 ns, as
/// measured on an H100: of a step of kBlockRowBytes inputs, of a tile's end, and of adding parts.
Tiling choose_tiling(const Product& product, bool gated) {
  struct Cost {
    int rows;
    int step;
    int end;
    int adding;
  };
  constexpr Cost kCosts[] = {{64, 26, 100, 500}, {128, 34, 100, 600}, {256, 60, 300, 0}};
  const int blocks = gpu_attribute(cudaDevAttrMultiProcessorCount);
  const int across = ceil_div(product.outputs, gated ? kTileChannels / 2 : kTileChannels);
  const int steps = ceil_div(product.inputs, kBlockRowBytes);
  Tiling best;
  int64_t least = 0;
  for (const Cost& cost : kCosts) {
    const int64_t tiles = int64_t{ceil_div(product.rows, cost.rows)} * across;
    const auto take = [&](int split, int64_t time) {
      if (best.rows > 0 && time >= least) return;
      best = {cost.rows, split};
      least = time;
    };
    take(1, ceil_div(tiles, blocks) * (int64_t{steps} * cost.step + cost.end));
    if (cost.adding > 0 && 2 * tiles <= blocks && steps > 1) {
      take(2, int64_t{ceil_div(steps, 2)} * cost.step + cost.end + cost.adding);
    }
  }
  return best;
}

template <int kRows>
void launch_rows(const Product& product, bool gated, int split, const Queue& queue) {
  if (gated) {
    launch<Kind<int8_t, Half, true, kRows>>(product, DType::i8, split, queue);
  } else if (product.to.dtype == DType::f32) {
    launch<Kind<int8_t, float, false, kRows>>(product, DType::i8, split, queue);
  } else {
    launch<Kind<int8_t, Half, false, kRows>>(product, DType::i8, split, queue);
  }
}

}  // namespace

Piece int8_rows_piece(int64_t rows, int64_t inputs) {
  return piece_of(rows, static_cast<size_t>(inputs) + sizeof(float), kGrain);
}

bool int8_product_sm90a(DeviceBuffer& scratch, const Matrix& x, const Weight& weight,
                        const Destination& to, bool gated, const Queue& queue) {
  const bool has_kernel = to.dtype == DType::bf16 ? !to.add : to.dtype == DType::f32 && !gated;
  const Piece piece = int8_rows_piece(x.rows, x.cols);
  std::byte* memory = scratch.at_least(piece.bytes);
  if (!has_kernel || !can_multiply({memory, DType::i8, piece.rows, x.cols}, weight, to, gated)) {
    return false;
  }
  for (int64_t first = 0; first < x.rows; first += piece.rows) {
    const int64_t rows = std::min(piece.rows, x.rows - first);
    const Matrix quantized(memory, DType::i8, rows, x.cols);
    auto* row_scales = reinterpret_cast<float*>(memory + (rows * x.cols + 255) / 256 * 256);
    quantize_rows(x.row_range(first, rows), quantized, row_scales, queue);
    Product product = product_of(quantized, 0, rows, weight, to.from_row(first), gated);
    product.row_scales = row_scales;
    const Tiling tiling = choose_tiling(product, gated);
    switch (tiling.rows) {
      case 64:
        launch_rows<64>(product, gated, tiling.split, queue);
        break;
      case 128:
        launch_rows<128>(product, gated, tiling.split, queue);
        break;
      default:
        launch_rows<256>(product, gated, tiling.split, queue);
    }
  }
  return true;
}

}  // namespace faststream
