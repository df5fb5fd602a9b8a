// x Wᵀ with many rows on AMX tiles: rows are packed once, then each thread takes 32 channels at a
// time.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

constexpr int64_t kTileBytes = 1024;
constexpr int64_t kTileChannels = 32;  // of a task: two tiles of 16

}  // namespace

void CpuBackend::multiply_tiles(const Product& product) {
  const Weight& weight = product.weight;
  const bool is_i8 = weight.dtype == DType::i8;
  const int64_t in = weight.cols;
  const int64_t channel_bytes = in * static_cast<int64_t>(dtype_size(weight.dtype));
  const int64_t tiles_k = (channel_bytes + 63) / 64;
  const int64_t channels = product.channels();
  const int64_t step = kTileChannels / product.halves;

  // Packed rows should stay in the second-level cache while channels pass over them.
  constexpr int64_t kMostRows = 256;
  for (int64_t start = 0; start < product.x.rows; start += kMostRows) {
    const int64_t rows = std::min(kMostRows, product.x.rows - start);
    const int64_t groups = (rows + 15) / 16;
    const int64_t stride = product.x.stride;
    const float* x = static_cast<const float*>(product.x.data) + start * stride;
    auto* packed = shared_scratch_.get<std::byte>(groups * tiles_k * kTileBytes);
    auto* scales = scale_scratch_.get<float>((groups + 1) * 16);
    pool_.parallel_for(groups, 1, [&](int64_t first, int64_t last) {
      for (int64_t g = first; g < last; ++g) {
        const float* from = x + g * 16 * stride;
        std::byte* to = packed + g * tiles_k * kTileBytes;
        const int64_t count = std::min<int64_t>(16, rows - g * 16);
        if (is_i8) {
          kernels_.pack_tiles_i8(from, stride, count, in, to, scales + g * 16);
        } else {
          kernels_.pack_tiles_bf16(from, stride, count, in, to);
        }
      }
    });

    for_pieces(channels, step, 16 * step, [&](int thread, int64_t first, int64_t last) {
      Scratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
      const int64_t n_sums = groups * 16 * kTileChannels;
      const int64_t padded_bytes = tiles_k * 64;
      auto* sums = scratch.get<float>(n_sums + kTileChannels * padded_bytes / 4);
      auto* padded = static_cast<std::byte*>(static_cast<void*>(sums + n_sums));
      TileTask task;
      task.tiles_k = tiles_k;
      task.packed = packed;
      task.groups = groups;
      task.row_scales = scales;
      task.sums = sums;
      FinishTask result = product.result;
      result.sums = sums;
      result.sums_stride = kTileChannels;
      result.rows = rows;
      result.up_column = 16;
      result.out += start * result.out_stride;
      for (int64_t c = first; c < last; c += step) {
        const int64_t count = std::min(step, last - c);
        const auto* data = static_cast<const std::byte*>(weight.data) + c * channel_bytes;
        const std::byte* second = data + (product.halves == 2 ? channels : 16) * channel_bytes;
        task.first = data;
        task.second = second;
        task.channel_bytes = channel_bytes;
        task.ahead = c + 2 * step <= last ? step * channel_bytes : 0;
        if (count < step || channel_bytes != padded_bytes) {
          // Whole tiles would read past the channels: copy them and pad with zeros.
          std::memset(padded, 0, static_cast<size_t>(kTileChannels * padded_bytes));
          for (int64_t i = 0; i < kTileChannels; ++i) {
            if ((product.halves == 2 ? i % 16 : i) >= count) continue;
            std::memcpy(padded + i * padded_bytes,
                        (i < 16 ? data + i * channel_bytes : second + (i - 16) * channel_bytes),
                        static_cast<size_t>(channel_bytes));
          }
          task.first = padded;
          task.second = padded + 16 * padded_bytes;
          task.channel_bytes = padded_bytes;
          task.ahead = 0;
        }
        (is_i8 ? kernels_.tiles_i8 : kernels_.tiles_bf16)(task);
        result.first = c;
        result.channels = count;
        product.finish(result);
      }
    });
  }
}

}  // namespace faststream
