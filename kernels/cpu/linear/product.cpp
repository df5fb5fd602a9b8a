// x Wᵀ: which way is taken, and the way of few rows.
//
// Products of several experts are multiplied together: those of few rows as if their channels were
// one matrix's, so that all threads read weights all the time.
//
// Few rows (decode) are bound by memory: each thread streams its channels once. Many rows (prefill)
// are bound by arithmetic, and by blocks that fit into the caches. Both run on tiles where the
// machine multiplies eight-bit or bf16 numbers and the weights are such (many: product_tiles.cpp).
// AVX2 takes any number of rows as few ones beside i8 weights, in integers (integer_dot.h). i8
// weights whose inputs keep 16 bits are widened to bf16 as tiles gather them. Else few rows run on
// vectors of floats, and many on panels of them (product_panels.cpp) or, with AMX and f32 weights,
// on tiles of their parts (amx_floats.h).
//
// int4 weights give the bits that i8 weights of the same values give. The fewest rows are
// multiplied with what is stored (int4_dot.h), tiles decode as they gather, and elsewhere blocks of
// channels are decoded before.
//
// Weights that are codes of floats are multiplied as floats: few rows with what is stored
// (coded_dot.h) where vectors have eight lanes, else blocks of channels are decoded before, as for
// panels.
//
// With i8 and bf16 weights a row of x has the same bits whatever the number of rows, so that what a
// sequence is given does not depend on how many others share its step: integers are added, or bf16
// products in one order. Elsewhere floats are: the order of their sums changes less than a text
// shows, but for what decides or goes on beside rounded numbers (Epilogue::in_order), which is
// multiplied as few rows whatever their number.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

WeightFormat CpuBackend::multiplied_format(WeightFormat format, const TileKernels* tiles) const {
  switch (format) {
    case WeightFormat::int4:
      return tiles == &kernels_.tiles_i4 ? format : WeightFormat::int8;
    default:
      return is_coded(format) && coded_kernels(format).dot == nullptr ? WeightFormat::f32 : format;
  }
}

void CpuBackend::decode_channel(const Weight& weight, int64_t channel, std::byte* to) const {
  void* elements = to;
  switch (weight.format) {
    case WeightFormat::int4:
      return kernels_.decode_int4(weight.row(channel), weight.cols, static_cast<int8_t*>(elements));
    default:
      return coded_kernels(weight.format)
          .decode(weight.row(channel), weight.cols, static_cast<float*>(elements));
  }
}

void CpuBackend::multiply(std::vector<Product> products) {
  std::erase_if(products, [](const Product& product) { return product.x.rows == 0; });
  for (std::span<Product> left(products); !left.empty();) {
    const TileKernels* tiles = tiles_of(left[0]);
    const auto others = std::partition(left.begin(), left.end(),
                                       [&](const Product& one) { return tiles_of(one) == tiles; });
    const auto alike = static_cast<size_t>(others - left.begin());
    multiply_alike(left.first(alike), tiles);
    left = left.subspan(alike);
  }
}

void CpuBackend::multiply_alike(std::span<Product> products, const TileKernels* tiles) {
  if (tiles == nullptr && products[0].weight.quantizes_inputs()) round_rows(products);
  const WeightFormat format = products[0].weight.format;
  const int64_t most_rows_in_floats =
      is_coded(format)
          ? std::max(coded_kernels(format).most_dot_rows, kernels_.least_panel_rows - 1)
          : kernels_.least_panel_rows - 1;
  const bool has_own_order = tiles != nullptr && tiles->dot != nullptr;
  const int64_t most_few = products[0].in_order && !has_own_order ? kAnyRows
                           : tiles != nullptr                     ? tiles->most_dot_rows
                                                                  : most_rows_in_floats;
  const auto many =
      std::partition(products.begin(), products.end(),
                     [most_few](const Product& product) { return product.x.rows <= most_few; });
  for (auto product = many; product != products.end(); ++product) {
    if (tiles != nullptr) {
      multiply_tiles(*product);
    } else {
      multiply_panels(*product);
    }
  }
  if (many != products.begin()) multiply_few_rows({products.begin(), many});
}

const TileKernels* CpuBackend::tiles_of(const Product& product) const {
  const auto made = [](const TileKernels& tiles) { return tiles ? &tiles : nullptr; };
  const Weight& weight = product.weight;
  if (weight.format == WeightFormat::f32) return made(kernels_.tiles_f32);
  if (product.in_floats) return nullptr;
  if (weight.quantizes_inputs()) {
    if (weight.format != WeightFormat::int4) return made(kernels_.tiles_i8);
    // Between the fewest rows and many, int4 weights are decoded for what multiplies i8 ones.
    const bool is_few = product.x.rows <= kernels_.tiles_i4.most_dot_rows;
    const bool is_many = product.x.rows > kernels_.tiles_i8.most_dot_rows;
    return made(is_few || is_many ? kernels_.tiles_i4 : kernels_.tiles_i8);
  }
  switch (weight.format) {
    case WeightFormat::bf16:
      return made(kernels_.tiles_bf16);
    case WeightFormat::int8:
    case WeightFormat::int4:
      return made(kernels_.tiles_i8_wide);
    default:
      return nullptr;
  }
}

std::vector<CpuBackend::RowGroup> CpuBackend::row_groups(std::span<const Product> products) {
  constexpr int64_t kGroup = 16;
  std::vector<RowGroup> groups;
  int64_t at = 0;
  for (const Product& product : products) {
    const auto* x = static_cast<const float*>(product.x.data);
    for (int64_t r = 0; r < product.x.rows; r += kGroup) {
      const int64_t rows = std::min(kGroup, product.x.rows - r);
      groups.push_back({x + r * product.x.stride, product.x.stride, rows, at});
      at += rows;
    }
  }
  return groups;
}

CpuBackend::RowGroup CpuBackend::rows_for(const Weight& weight, const RowGroup& group, int thread) {
  if (!weight.rotated) return group;
  const int64_t in = weight.cols;
  RowGroup rotated = group;
  rotated.x_stride = in;
  auto* to = thread_rows_[static_cast<size_t>(thread)].get<float>(group.rows * in);
  rotated.x = to;
  for (int64_t r = 0; r < group.rows; ++r) {
    kernels_.hadamard(group.x + r * group.x_stride, in, to + r * in);
  }
  return rotated;
}

void CpuBackend::round_rows(std::span<Product> products) {
  const std::vector<RowGroup> groups = row_groups(products);
  const int64_t in = products[0].x.cols;
  auto* rounded = row_scratch_.get<float>((groups.back().at + groups.back().rows) * in);
  pool_.parallel_for(
      static_cast<int64_t>(groups.size()), 1, 1, [&](int thread, int64_t index, int64_t) {
        const RowGroup group =
            rows_for(products[0].weight, groups[static_cast<size_t>(index)], thread);
        auto* quantized = thread_scratch_[static_cast<size_t>(thread)].get<int8_t>(in);
        for (int64_t r = 0; r < group.rows; ++r) {
          float* to = rounded + (group.at + r) * in;
          const float scale = kernels_.quantize_i8(group.x + r * group.x_stride, in, quantized);
          kernels_.widen_i8(quantized, in, to);
          for (int64_t i = 0; i < in; ++i) to[i] *= scale;
        }
      });
  for (Product& product : products) {
    product.x = Matrix(rounded, DType::f32, product.x.rows, in);
    rounded += product.x.rows * in;
  }
}

CpuBackend::FewRows CpuBackend::prepare_few_rows(std::span<const Product> products) {
  const TileKernels* tiles = tiles_of(products[0]);
  FewRows few{.multiplied = multiplied_format(products[0].weight.format, tiles)};
  for (const Product& product : products) {
    DotTask task;
    task.in = product.weight.cols;
    task.rows = static_cast<int>(product.x.rows);
    task.x = static_cast<const float*>(product.x.data);
    task.x_stride = product.x.stride;
    few.rows.push_back(task);
  }
  if (tiles != nullptr && tiles->dot != nullptr) {
    few.kernel = tiles->dot;
    few.grain = 32;
    pack_few_rows(products, *tiles, few.rows);
    return few;
  }
  switch (few.multiplied) {
    case WeightFormat::f16:
      few.kernel = kernels_.dot_f16;
      break;
    case WeightFormat::bf16:
      few.kernel = kernels_.dot_bf16;
      break;
    case WeightFormat::int8:
      few.kernel = kernels_.dot_i8;
      break;
    default:
      few.kernel = is_coded(few.multiplied) ? coded_kernels(few.multiplied).dot : kernels_.dot_f32;
  }
  return few;
}

void CpuBackend::pack_few_rows(std::span<const Product> products, const TileKernels& tiles,
                               std::span<DotTask> tasks) {
  const std::vector<RowGroup> groups = row_groups(products);
  const int64_t rows = groups.back().at + groups.back().rows;
  const Weight& weight = products[0].weight;
  const int64_t in = weight.cols;
  const WeightFormat multiplied = multiplied_format(weight.format, &tiles);
  const int64_t bytes = multiplied == WeightFormat::int4
                            ? packed_int4_bytes(in)
                            : (row_bytes(multiplied, in) + 63) / 64 * 64;
  auto* packed = shared_scratch_.get<std::byte>(rows * bytes);
  auto* scales = scale_scratch_.get<float>(2 * rows);
  auto* totals = static_cast<int32_t*>(static_cast<void*>(scales + rows));
  pool_.parallel_for(
      static_cast<int64_t>(groups.size()), 1, 1, [&](int thread, int64_t i, int64_t) {
        const RowGroup group = rows_for(weight, groups[static_cast<size_t>(i)], thread);
        tiles.pack_dot(group.x, group.x_stride, group.rows, in,
                       {packed + group.at * bytes, scales + group.at, totals + group.at});
      });
  for (DotTask& task : tasks) {
    task.packed = packed;
    task.row_scales = scales;
    task.row_totals = totals;
    packed += task.rows * bytes;
    scales += task.rows;
    totals += task.rows;
  }
}

void CpuBackend::multiply_few_rows(std::span<const Product> products) {
  const FewRows few = prepare_few_rows(products);
  int64_t most_rows = 0;
  for (const Product& product : products) most_rows = std::max(most_rows, product.x.rows);

  // A block of channels stays in the second-level cache while the rows pass over it.
  const Weight& weight = products[0].weight;
  const int64_t in = weight.cols;
  const int64_t halves = products[0].halves;
  const bool decodes = few.multiplied != weight.format;
  const int64_t channel_bytes = row_bytes(few.multiplied, in);
  const int64_t block = std::clamp<int64_t>(
      kFewRowsBlockBytes / channel_bytes / few.grain * few.grain, few.grain, 256);
  const int64_t channels = products[0].channels();
  // The channels of all products in a row, those of each rounded up so that no grain has two's.
  const int64_t rounded = (channels + few.grain - 1) / few.grain * few.grain;
  const int64_t all = static_cast<int64_t>(products.size()) * rounded;
  pool_.parallel_for(all, few.grain, all, [&](int thread, int64_t first, int64_t last) {
    const int64_t sums_stride = halves * block;
    const int64_t n_sums = most_rows * sums_stride;
    auto* sums = thread_scratch_[static_cast<size_t>(thread)].get<float>(
        n_sums + (decodes ? block * channel_bytes / 4 + 1 : 0));
    auto* decoded = static_cast<std::byte*>(static_cast<void*>(sums + n_sums));
    for (int64_t begin = first; begin < last;) {
      const int64_t index = begin / rounded;
      const int64_t c = begin % rounded;
      const int64_t end = std::min({c + block, channels, last - index * rounded});
      const Product& product = products[static_cast<size_t>(index)];
      const DotTask& rows = few.rows[static_cast<size_t>(index)];
      FinishTask result = product.result;
      result.sums = sums;
      result.sums_stride = sums_stride;
      result.rows = rows.rows;
      result.up_column = block;
      result.first = c;
      result.channels = end - c;
      for (int64_t half = 0; half < halves; ++half) {
        DotTask part = rows;
        part.weights = product.weight.row(half * channels + c);
        part.channels = result.channels;
        if (decodes) {
          for (int64_t i = 0; i < part.channels; ++i) {
            decode_channel(product.weight, half * channels + c + i, decoded + i * channel_bytes);
          }
          part.weights = decoded;
        }
        part.sums = sums + half * block;
        part.sums_stride = sums_stride;
        few.kernel(part);
      }
      product.finish(result);
      begin = index * rounded + (end == channels ? rounded : end);
    }
  });
}

}  // namespace faststream
