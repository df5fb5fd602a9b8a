// x Wᵀ with many rows on tiles: rows are packed once, then each thread takes blocks of 32
// channels.
//
// A block reads all packed rows. The inner dimension is cut into ranges of so many tiles as
// kGatheredBytes hold, and kBlocks blocks go through a range together before the next one. The
// weights of a range are gathered to whole tiles in the first-level cache, decoded where tiles are
// of another format, the next range's while this one is multiplied; the rows' tiles come from the
// second level.
//
// Measured with AMX on a 2 GHz Sapphire Rapids, int8, one thread: 4,400 GOP/s with all tiles in the
// first-level cache, 3,200 in the second, 2,900 for the loops of multiply() alone with operands in
// the caches; 1,200 and 1,000 in phases of seconds while other tenants load the machine.
// oneDNN 2.6.3 with the same operands (weights as its plain left operand, in the caches) gave 1,300
// in int8 and 260 in bf16.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

constexpr int64_t kTileChannels = 32;  // of a block: two tiles of 16
constexpr int64_t kBlocks = 4;
// Of a range's weights: two of these take two thirds of a first-level cache.
constexpr int64_t kGatheredBytes = 8 * 2 * kTileBytes;
static_assert(kGatheredBytes / (2 * kTileBytes) * 64 == kInt4Block, "gathered a block at a time");
constexpr int64_t kMostRows = 256;  // that are packed at a time

/// The layout of a product's weights in blocks.
struct Channels {
  Channels(const Weight& of, WeightFormat gathered_format, int64_t step, int64_t n_halves)
      : weight(of),
        format(gathered_format),
        step_inputs(step),
        tiles_k((of.cols + step - 1) / step),
        bytes(row_bytes(format, of.cols)),
        padded_bytes(bytes_of_steps(tiles_k)),
        halves(n_halves),
        second(n_halves == 2 ? of.rows / 2 : 16) {}

  /// Of a channel: the first `steps`, a whole number of ranges or all.
  [[nodiscard]] int64_t bytes_of_steps(int64_t steps) const {
    return row_bytes(format, steps * step_inputs);
  }
  [[nodiscard]] bool decodes() const { return format != weight.format; }

  const Weight& weight;
  WeightFormat format;  // that tiles are gathered from
  int64_t step_inputs;
  int64_t tiles_k;       // steps of a channel, the last perhaps in part
  int64_t bytes;         // of a channel in that format,
  int64_t padded_bytes;  // and of one whose last step is whole
  int64_t halves;
  int64_t second;  // from the channel of a block's first tile to that of its second tile
};

/// Where a piece of a product is: block [c, c + step) of the blocks from `begin` on, tiles from k
/// on.
struct Place {
  int64_t begin = 0;
  int64_t k = 0;
  int64_t c = 0;
};

/// Where whole tiles would read past the channels, or these are decoded: copies a block of `count`
/// channels from `c` on, padded with zeros to [32, padded_bytes]. decode(channel, to) decodes one.
template <class Decode>
void copy_padded(const Channels& channels, int64_t c, int64_t count, const Decode& decode,
                 std::byte* padded) {
  const int64_t row = channels.padded_bytes;
  std::memset(padded, 0, static_cast<size_t>(kTileChannels * row));
  for (int64_t i = 0; i < kTileChannels; ++i) {
    if ((channels.halves == 2 ? i % 16 : i) >= count) continue;
    const int64_t channel = c + (i < 16 ? i : channels.second + i - 16);
    if (channels.decodes()) {
      decode(channel, padded + i * row);
    } else {
      std::memcpy(padded + i * row, channels.weight.row(channel),
                  static_cast<size_t>(channels.bytes));
    }
  }
}

}  // namespace

void CpuBackend::multiply_tiles(const Product& product) {
  const TileKernels& tiles = *tiles_of(product);
  const Channels channels(product.weight, multiplied_format(product.weight.format, &tiles),
                          tiles.step_inputs, product.halves);
  const int64_t in = product.weight.cols;
  const int64_t tiles_k = channels.tiles_k;
  const int64_t step = kTileChannels / product.halves;
  const int64_t stride = product.x.stride;
  const int64_t packed_step = tiles.step_tiles * kTileBytes;

  for (int64_t start = 0; start < product.x.rows; start += kMostRows) {
    const int64_t rows = std::min(kMostRows, product.x.rows - start);
    const int64_t groups = (rows + 15) / 16;
    const int64_t group_bytes = tiles_k * packed_step;
    const float* x = static_cast<const float*>(product.x.data) + start * stride;
    auto* packed = shared_scratch_.get<std::byte>(groups * group_bytes);
    auto* scales = scale_scratch_.get<float>(2 * (groups + 1) * 16);
    auto* totals = static_cast<int32_t*>(static_cast<void*>(scales + (groups + 1) * 16));
    pool_.parallel_for(groups, 1, 1, [&](int thread, int64_t g, int64_t) {
      const RowGroup group =
          rows_for(product.weight,
                   {x + g * 16 * stride, stride, std::min<int64_t>(16, rows - g * 16)}, thread);
      tiles.pack(group.x, group.x_stride, group.rows, in,
                 {packed + g * group_bytes, scales + g * 16, totals + g * 16});
    });

    const int64_t range = std::min(kGatheredBytes / (2 * packed_step), tiles_k);
    const int64_t longest = 16 * step;
    pool_.parallel_for(
        product.channels(), step, longest, [&](int thread, int64_t first, int64_t last) {
          const int64_t n_sums = groups * 16 * kBlocks * kTileChannels;
          const int64_t n_partial = tile_partials(groups);
          const int64_t padded_row = channels.padded_bytes;
          const int64_t padded_bytes = kTileChannels * padded_row;
          Scratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
          auto* sums = scratch.get<float>(n_sums + kBlocks * (n_partial + padded_bytes / 4) +
                                          2 * kGatheredBytes / 4);
          auto* partial = static_cast<int32_t*>(static_cast<void*>(sums + n_sums));
          auto* padded = static_cast<std::byte*>(static_cast<void*>(partial + kBlocks * n_partial));
          std::byte* gathered[2] = {padded + kBlocks * padded_bytes,
                                    padded + kBlocks * padded_bytes + kGatheredBytes};

          FinishTask result = product.result;
          result.sums = sums;
          result.sums_stride = kBlocks * kTileChannels;
          result.rows = rows;
          result.up_column = kBlocks * 16;
          result.out += start * result.out_stride;
          const auto end_of = [&](const Place& at) {
            return std::min(last, at.begin + kBlocks * step);
          };
          const auto after = [&](const Place& at) -> Place {
            if (at.c + step < end_of(at)) return {at.begin, at.k, at.c + step};
            if (at.k + range < tiles_k) return {at.begin, at.k + range, at.begin};
            return {end_of(at), 0, end_of(at)};
          };
          const auto weights_at = [&](const Place& at) {
            return channels.weight.row(at.c) + channels.bytes_of_steps(at.k);
          };
          const auto source_at = [&](const Place& at) -> TileSource {
            if (at.begin >= last) return {};
            const int64_t count_k = std::min(range, tiles_k - at.k);
            const int64_t count = std::min(step, last - at.c);
            if (!channels.decodes() && count == step && channels.bytes == channels.padded_bytes) {
              const std::byte* from = weights_at(at);
              return {from, from + channels.second * channels.bytes, channels.bytes, count_k};
            }
            std::byte* copy = padded + (at.c - at.begin) / step * padded_bytes;
            if (at.k == 0) {
              copy_padded(
                  channels, at.c, count,
                  [&](int64_t c, std::byte* to) { decode_channel(product.weight, c, to); }, copy);
            }
            copy += channels.bytes_of_steps(at.k);
            return {copy, copy + padded_bytes / 2, padded_row, count_k};
          };

          Place at{first, 0, first};
          tiles.gather(source_at(at), gathered[0]);
          while (at.begin < last) {
            const Place next = after(at);
            const Place then = after(next);
            const int64_t block = (at.c - at.begin) / step;
            TileTask task;
            task.weights = gathered[0];
            task.tiles_k = std::min(range, tiles_k - at.k);
            task.next = source_at(next);
            task.next_weights = gathered[1];
            if (!channels.decodes() && then.c + step <= last)
              task.ahead = weights_at(then) - weights_at(next);
            task.packed = packed + at.k * packed_step;
            task.group_bytes = group_bytes;
            task.groups = groups;
            task.partial = partial + block * n_partial;
            task.is_first = at.k == 0;
            task.is_last = at.k + range >= tiles_k;
            task.row_scales = scales;
            task.row_totals = totals;
            task.sums = sums + block * step;
            task.sums_stride = result.sums_stride;
            task.second_column = product.halves == 2 ? result.up_column : 16;
            tiles.multiply(task);
            if (next.begin != at.begin) {
              result.first = at.begin;
              result.channels = next.begin - at.begin;
              product.finish(result);
            }
            std::swap(gathered[0], gathered[1]);
            at = next;
          }
        });
  }
}

}  // namespace faststream
