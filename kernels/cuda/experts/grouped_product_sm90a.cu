// Products of experts with many rows each, on Hopper: the kernel of linear/product_sm90a.cuh, whose
// blocks go from tile to tile of each expert's rows and channels.
#include <stdexcept>

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/linear/product_sm90a.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace faststream {

namespace {

template <typename Element, typename Out, Finish kLast, int kTileRows>
void launch(const GroupedProduct& p, const Queue& queue) {
  using K = Kind<Element, Out, kLast, kTileRows, true>;
  const Product product{.x = p.x,
                        .x_stride = p.x_stride,
                        .row_scales = p.row_scales,
                        .rows = p.places,
                        .weight = p.weight.data,
                        .outputs = p.outputs,
                        .inputs = p.weight.cols,
                        .to = p.to};
  const int32_t across = ceil_div(p.outputs, K::kOutputs);
  const Tiling tiling{.rows = p.tile_rows, .across = across, .pieces = p.max_tiles * across};
  Arguments arguments{
      .product = product,
      .tiling = tiling,
      .experts = static_cast<int32_t>(p.weight.rows / ((p.gated ? 2 : 1) * p.outputs)),
      .row_tiles = p.tiles,
      .n_row_tiles = p.n_tiles};
  if constexpr (K::kCoded) arguments.coded = CodedLayout(p.weight.format);
  launch<K>(arguments, p.x_dtype, queue);
}

// Gates give what activations are stored as, the others f32.
template <typename Element, typename Half, int kTileRows = kMaxTileRows>
void launch(const GroupedProduct& p, const Queue& queue) {
  if (p.gated) {
    launch<Element, Half, Finish::gate, kTileRows>(p, queue);
  } else {
    launch<Element, float, Finish::none, kTileRows>(p, queue);
  }
}

// No other kernels take packed weights, so that there is one of few rows.
template <typename Packed, int kMostRows>
void launch_packed(const GroupedProduct& p, const Queue& queue) {
  if (p.tile_rows <= kMinTileRows) {
    launch<Packed, __nv_bfloat16, kMinTileRows>(p, queue);
  } else {
    launch<Packed, __nv_bfloat16, kMostRows>(p, queue);
  }
}

}  // namespace

bool warpgroups_fit(const Matrix& x, const Experts& experts, int64_t hidden) {
  const auto fits = [&](const Weight& weight) {
    if (is_coded(weight.format)) {
      return x.dtype == DType::bf16 && rows_begin_at_16(weight.data, 0, DType::i8) &&
             (weight.format != WeightFormat::fp8 || rounds_to_e4m3(weight));
    }
    if (weight.format == WeightFormat::int4) {
      constexpr int64_t kGrain = 16;  // bytes at which rows in eight bits begin
      return x.dtype == DType::bf16 && weight.quantizes_inputs() && weight.cols % kGrain == 0 &&
             rows_begin_at_16(weight.data, 0, DType::i8);
    }
    return few_rows_fit(x, weight) &&
           (weight.format != WeightFormat::int8 || weight.quantizes_inputs());
  };
  constexpr int64_t kEights = 8;  // that gates and copies of results come in
  return experts.gated && has_gate(experts.activation) && fits(experts.up) && fits(experts.down) &&
         experts.down.cols % kEights == 0 && hidden % kEights == 0;
}

void grouped_product_sm90a(const GroupedProduct& product, const Queue& queue) {
  switch (product.x_dtype) {
    case DType::bf16:
      if (is_coded(product.weight.format))
        return launch_packed<Coded, kMostRowsBesideCodes>(product, queue);
      return launch<__nv_bfloat16, __nv_bfloat16>(product, queue);
    case DType::f16:
      return launch<__half, __half>(product, queue);
    case DType::i8:
      if (product.weight.format == WeightFormat::int4)
        return launch_packed<Int4, kMaxTileRows>(product, queue);
      return launch<int8_t, __nv_bfloat16>(product, queue);
    case DType::u8:
      return launch_packed<__nv_fp8_e4m3, kMostRowsBesideCodes>(product, queue);
    case DType::f32:
    case DType::packed:
      break;
  }
  throw std::logic_error("grouped_product_sm90a: neither a 16-bit type nor eight bits");
}

}  // namespace faststream
