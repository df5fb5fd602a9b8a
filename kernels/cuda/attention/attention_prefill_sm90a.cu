// Attention of tiles of queries on Hopper: FlashAttention-3 (arXiv:2407.08608) over KV pages. One
// warp copies tiles of keys and values into shared memory ahead of two warpgroups of 64 queries
// each, which compute the scores of one tile while they multiply the probabilities of the one
// before by its values. Blocks stay, one a multiprocessor, and go from tile of queries to tile, so
// that the copies for the next run while one is finished.
//
// Tiles begin at multiples of their size, from the first that a query sees to the last, so
// that a query's sums have the same order whatever is in the batch beside it: tiles that it does
// not see add zeros.
#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/attention/score_rule.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace faststream {

namespace {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kGroupRows = 64;
constexpr int kTileRows = kConsumers * kGroupRows;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kStages = 2;  // tiles of queries, keys and values that are there or on their way
// Of 64 columns of a tile of queries, and of a page.
constexpr int kQueryBlockBytes = kTileRows * kBlockRowBytes;
constexpr int kPageBlockBytes = kPageTokens * kBlockRowBytes;

// Named barriers.
constexpr int kResultsThere = 1;  // and one more for each warpgroup
constexpr int kValuesCleared = kResultsThere + kConsumers;

struct Barriers {
  uint64_t queries_there[kStages];
  uint64_t queries_done[kStages];
  uint64_t keys_there[kStages];
  uint64_t keys_done[kStages];
  uint64_t values_there[kStages];
  uint64_t values_done[kStages];
};

/// Heads of so many dimensions, and the tokens of a tile of their keys and values. Wide ones leave
/// registers and shared memory for less: 128 x 256 sums are half of all registers.
template <int kKey, int kValue>
struct Heads {
  static constexpr int kKeyDim = kKey;
  static constexpr int kValueDim = kValue;
  static constexpr int kTokens = kValue > 128 ? 64 : 128;
  static constexpr int kBlockBytes = kTokens * kBlockRowBytes;  // of 64 columns
};

template <typename H>
struct Shared {
  static constexpr int kQueryStages = H::kKeyDim > 128 ? 1 : kStages;
  static constexpr int kKeyBlocks = H::kKeyDim / kBlockColumns;
  static constexpr int kValueBlocks = H::kValueDim / kBlockColumns;
  static_assert(kValueBlocks <= kKeyBlocks, "results fit where queries were");
  std::byte queries[kQueryStages][kKeyBlocks][kQueryBlockBytes];  // then results
  std::byte keys[kStages][kKeyBlocks][H::kBlockBytes];
  std::byte values[kStages][kValueBlocks][H::kBlockBytes];
  Barriers barriers;
};

using Place = PipelinePlace<kStages>;
template <typename H>
using QueryPlace = PipelinePlace<Shared<H>::kQueryStages>;

// Finite, also when it is scaled: the difference of two is no NaN.
constexpr float kLowest = -1e30F;

/// The first token of the first tile that any of the queries sees.
template <typename H, typename Rule>
__device__ int first_tile_token(const Rule& rule, const QueryTile& tile) {
  return rule.first_seen(tile.first_position + tile.first) / H::kTokens * H::kTokens;
}

/// Keys and values in a layer's pages.
struct Pages {
  CUtensorMap keys;  // all pages, one below the other
  CUtensorMap values;

  /// Where page `page` of a sequence is.
  __device__ int row(const AttentionArguments& a, const QueryTile& tile, int page) const {
    const int number = a.page_table[static_cast<int64_t>(tile.sequence) * a.max_pages + page];
    return (number * a.kv.n_kv_heads + tile.kv_head) * kPageTokens;
  }
  __device__ void copy_keys(const QueryTile& /*tile*/, int block, int row, std::byte* to,
                            uint64_t& there) const {
    copy_box(to, keys, block * kBlockColumns, row, there);
  }
  __device__ void copy_values(const QueryTile& /*tile*/, int block, int row, std::byte* to,
                              uint64_t& there) const {
    copy_box(to, values, block * kBlockColumns, row, there);
  }
};

/// Those that heads have made of latents, see LatentRows.
struct PlainRows {
  CUtensorMap kept;
  CUtensorMap heads;
  const int32_t* first_rows;
  int rope_dim;
  int nope_dim;
  int head_dim;

  __device__ int row(const AttentionArguments& /*a*/, const QueryTile& tile, int page) const {
    return first_rows[tile.sequence] + page * kPageTokens;
  }
  __device__ void copy_keys(const QueryTile& tile, int block, int row, std::byte* to,
                            uint64_t& there) const {
    const int column = block * kBlockColumns;
    if (column < rope_dim) return copy_box(to, kept, column, row, there);
    copy_box(to, heads, tile.head * head_dim + column - rope_dim, row, there);
  }
  __device__ void copy_values(const QueryTile& tile, int block, int row, std::byte* to,
                              uint64_t& there) const {
    copy_box(to, heads, tile.head * head_dim + nope_dim + block * kBlockColumns, row, there);
  }
};

template <typename Source>
struct Maps {
  CUtensorMap queries;
  Source source;
};

/// The lanes of one warp: each copies one page of each tile. `nth`: tile of queries; `filled`:
/// tiles of keys before it.
template <typename Rule, typename H, typename Source>
__device__ void copy_tiles(const AttentionArguments& a, const Maps<Source>& maps,
                           const QueryTile& tile, uint32_t nth, uint32_t& filled,
                           Shared<H>& shared) {
  constexpr int kTilePages = H::kTokens / kPageTokens;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = first_tile_token<H>(Rule(a, tile.head, tile.n_tokens), tile);
  const int n_pages = (tile.last_token - first) / kPageTokens + 1;
  Barriers& barriers = shared.barriers;

  const QueryPlace<H> place(nth);
  uint64_t& queries_there = barriers.queries_there[place.stage];
  wait_for_phase(barriers.queries_done[place.stage], place.parity ^ 1U);
  if (lane == 0) arrive_and_expect(queries_there, sizeof shared.queries[0]);
  __syncwarp();
  if (lane < Shared<H>::kKeyBlocks) {
    copy_box(shared.queries[place.stage][lane], maps.queries,
             tile.head * H::kKeyDim + lane * kBlockColumns,
             static_cast<int>(tile.first_query) + tile.first, queries_there);
  }
  for (int n = 0; n * kTilePages < n_pages; ++n, ++filled) {
    const Place at(filled);
    const int in_tile = min(n_pages - n * kTilePages, kTilePages);
    int row = 0;
    if (lane < in_tile) {
      row = maps.source.row(a, tile, first / kPageTokens + n * kTilePages + lane);
    }
    const auto copy = [&]<int kBlocks>(std::byte(&to)[kBlocks][H::kBlockBytes], uint64_t& done,
                                       uint64_t& there, const auto& copy_block) {
      wait_for_phase(done, at.parity ^ 1U);
      if (lane == 0) arrive_and_expect(there, in_tile * kPageBlockBytes * kBlocks);
      __syncwarp();
      if (lane >= in_tile) return;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        copy_block(block, &to[block][lane * kPageBlockBytes], there);
      }
    };
    copy(shared.keys[at.stage], barriers.keys_done[at.stage], barriers.keys_there[at.stage],
         [&](int block, std::byte* to, uint64_t& there) {
           maps.source.copy_keys(tile, block, row, to, there);
         });
    copy(shared.values[at.stage], barriers.values_done[at.stage], barriers.values_there[at.stage],
         [&](int block, std::byte* to, uint64_t& there) {
           maps.source.copy_values(tile, block, row, to, there);
         });
  }
}

/// The 64 queries of a warpgroup, of the nth tile. Its tiles of keys and values are counted from
/// the first one seen, before which the block filled as many as `filled`.
template <typename T, typename H, typename Rule>
class Consumer {
 public:
  __device__ Consumer(const AttentionArguments& a, const QueryTile& tile, uint32_t nth,
                      uint32_t filled, Shared<H>& shared)
      : a_(a),
        tile_(tile),
        queries_(nth),
        filled_(filled),
        shared_(shared),
        group_(static_cast<int>(threadIdx.x) / kWarpgroup - 1),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        row_(group_ * kGroupRows + thread_ / kWarp * 16 + thread_ % kWarp / 4),
        rule_(a, tile.head, tile.n_tokens),
        first_seen_(rule_.first_seen(tile.first_position + tile.first)),
        first_token_(first_tile_token<H>(rule_, tile)) {}

  /// Returns how many tiles of keys there were.
  __device__ uint32_t run() {
    const int n_tiles = (tile_.last_token - first_token_) / kTokens + 1;
    wait_for_phase(shared_.barriers.queries_there[queries_.stage], queries_.parity);
    score(0);
    end_group();
    wait_for_groups<0>();
    release(shared_.barriers.keys_done[place(0).stage]);
    weigh(0);
    pack();
    if (n_tiles > 1 && first_seen_ > first_token_) clear_values(0);
    for (int n = 1; n < n_tiles; ++n) {
      score(n);
      end_group();
      add_values(n - 1);
      end_group();
      wait_for_groups<1>();
      release(shared_.barriers.keys_done[place(n).stage]);
      weigh(n);
      wait_for_groups<0>();
      pin(sums_);
      release(shared_.barriers.values_done[place(n - 1).stage]);
      correct();
      pack();
    }
    clear_values(n_tiles - 1);
    add_values(n_tiles - 1);
    end_group();
    wait_for_groups<0>();
    pin(sums_);
    release(shared_.barriers.values_done[place(n_tiles - 1).stage]);
    store();
    release(shared_.barriers.queries_done[queries_.stage]);
    return n_tiles;
  }

 private:
  static constexpr int kValueBlocks = Shared<H>::kValueBlocks;
  static constexpr int kTokens = H::kTokens;

  [[nodiscard]] __device__ Place place(int n) const { return Place(filled_ + n); }

  __device__ void release(uint64_t& barrier) const {
    if (thread_ % kWarp == 0) arrive(barrier);
  }

  // scores_ = queries · keysᵀ of tile n.
  __device__ void score(int n) {
    const Place at = place(n);
    wait_for_phase(shared_.barriers.keys_there[at.stage], at.parity);
    begin_products();
#pragma unroll
    for (int column = 0; column < H::kKeyDim; column += 16) {
      const int block = column / kBlockColumns;
      const int offset = column % kBlockColumns * 2;
      multiply_rows<T, kTokens>(
          scores_,
          matrix_descriptor(&shared_.queries[queries_.stage][block]
                                            [group_ * kGroupRows * kBlockRowBytes + offset],
                            16),
          matrix_descriptor(&shared_.keys[at.stage][block][offset], 16), column > 0);
    }
  }

  // sums_ += probabilities · values of tile n.
  __device__ void add_values(int n) {
    const Place at = place(n);
    wait_for_phase(shared_.barriers.values_there[at.stage], at.parity);
    pin(sums_);
    begin_products();
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      multiply_add_rows<T>(
          sums_, probabilities_[step],
          matrix_descriptor(&shared_.values[at.stage][0][step * 16 * kBlockRowBytes],
                            H::kBlockBytes));
    }
  }

  // Scores of tile n to powers of two, relative to the row's new maximum.
  __device__ void weigh(int n) {
    pin(scores_);
    const int base = first_token_ + n * kTokens;
    if constexpr (Rule::kPlain) {
      const int first_position = tile_.first_position + tile_.first + group_ * kGroupRows;
      const bool all_seen = rule_.sees(first_position, base + kTokens - 1) &&
                            rule_.sees(first_position + kGroupRows - 1, base);
      if (!all_seen) vary(base, 1);
    } else {
      vary(base, a_.scale_log2);
    }
    const float scale = Rule::kPlain ? a_.scale_log2 : 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = maxima_[half];
#pragma unroll
      for (int i = 0; i < kTokens / 2; i += 4) {
        maximum = fmaxf(maximum, fmaxf(scores_[i + 2 * half], scores_[i + 2 * half + 1]));
      }
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
      corrections_[half] = power_of_two((maxima_[half] - maximum) * scale);
      maxima_[half] = maximum;
      const float shift = maximum * scale;
      float total = 0;
#pragma unroll
      for (int i = 0; i < kTokens / 2; i += 4) {
#pragma unroll
        for (int j = i + 2 * half; j < i + 2 * half + 2; ++j) {
          scores_[j] = power_of_two(scores_[j] * scale - shift);
          total += scores_[j];
        }
      }
      weights_[half] = weights_[half] * corrections_[half] + total;
    }
  }

  // Scores times `scale` by the rule. Tokens after a row's own may not be there yet: what is in
  // their place may be NaN.
  __device__ void vary(int base, float scale) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = base + i / 4 * 8 + thread_ % 4 * 2 + i % 2;
      const int position = tile_.first_position + tile_.first + row_ + i / 2 % 2 * 8;
      scores_[i] =
          rule_.sees(position, token) ? rule_.vary(scores_[i] * scale, position, token) : -INFINITY;
    }
  }

  // Most tiles have no new maximum.
  __device__ void correct() {
    if (__all_sync(kAllLanes, corrections_[0] == 1 && corrections_[1] == 1)) return;
#pragma unroll
    for (int i = 0; i < H::kValueDim / 2; ++i) sums_[i] *= corrections_[i / 2 % 2];
  }

  __device__ void pack() {
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = step * 8 + i / 2 * 4 + i % 2 * 2;
        probabilities_[step][i] = pack_pair<T>(scores_[at], scores_[at + 1]);
      }
    }
  }

  // Values of tokens of tile n that no query sees, which may be anything: zero times NaN would be
  // NaN. They are before the window, or not there yet.
  __device__ void clear_values(int n) {
    const int base = first_token_ + n * kTokens;
    const int before = max(first_seen_ - base, 0);
    const int seen = min(tile_.last_token + 1 - base, kTokens) - before;
    const int unseen = kTokens - seen;
    if (unseen == 0) return;
    const Place at = place(n);
    wait_for_phase(shared_.barriers.values_there[at.stage], at.parity);
    constexpr int kPieces = kBlockRowBytes / 16;
    const int thread = group_ * kWarpgroup + thread_;
    for (int i = thread; i < kValueBlocks * unseen * kPieces; i += kConsumers * kWarpgroup) {
      const int nth = i / kPieces % unseen;
      const int row = nth < before ? nth : nth + seen;
      const int block = i / kPieces / unseen;
      std::byte* piece = &shared_.values[at.stage][block][row * kBlockRowBytes + i % kPieces * 16];
      *reinterpret_cast<uint4*>(piece) = make_uint4(0, 0, 0, 0);
    }
    publish_shared_writes();
    synchronize_threads(kValuesCleared, kConsumers * kWarpgroup);
  }

  // Through the memory of the queries, to threads that write 16 bytes each.
  __device__ void store() {
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float weight = weights_[half];
      weight += __shfl_xor_sync(kAllLanes, weight, 1);
      weight += __shfl_xor_sync(kAllLanes, weight, 2);
      const float scale = Rule::kPlain ? a_.scale_log2 : 1;
      factors[half] = 1.0F / with_sink(a_, tile_.head, maxima_[half] * scale, weight);
    }
    auto& results = shared_.queries[queries_.stage];
    const int lane = thread_ % kWarp;
    const int written_row = row_ - lane / 4 + lane % 16;
#pragma unroll
    for (int j = 0; j < H::kValueDim / 8; j += 2) {
      const uint32_t pairs[4] = {
          pack_pair<T>(sums_[4 * j] * factors[0], sums_[4 * j + 1] * factors[0]),
          pack_pair<T>(sums_[4 * j + 2] * factors[1], sums_[4 * j + 3] * factors[1]),
          pack_pair<T>(sums_[4 * j + 4] * factors[0], sums_[4 * j + 5] * factors[0]),
          pack_pair<T>(sums_[4 * j + 6] * factors[1], sums_[4 * j + 7] * factors[1])};
      const int column = 8 * j + lane / 16 * 8;
      store_matrices<false>(
          results[column / kBlockColumns] + swizzled(written_row, column % kBlockColumns), pairs);
    }
    synchronize_threads(kResultsThere + group_, kWarpgroup);

    constexpr int kPieces = H::kValueDim / 8;  // of a row
    const int column = thread_ % kPieces * 8;
    int row = group_ * kGroupRows + thread_ / kPieces;
    const int end = min((group_ + 1) * kGroupRows, tile_.n_queries - tile_.first);
    T* out = static_cast<T*>(a_.out.data) +
             (tile_.first_query + tile_.first + row) * a_.out.stride + tile_.head * H::kValueDim +
             column;
    for (; row < end; row += kWarpgroup / kPieces, out += kWarpgroup / kPieces * a_.out.stride) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(
          results[column / kBlockColumns] + swizzled(row, column % kBlockColumns));
    }
    publish_shared_writes();
    __syncwarp();
  }

  const AttentionArguments& a_;
  const QueryTile& tile_;
  QueryPlace<H> queries_;
  uint32_t filled_;
  Shared<H>& shared_;
  int group_;
  int thread_;
  int row_;  // of the tile: the first of this thread's two, the other is 8 below
  Rule rule_;
  int first_seen_;  // token, of any query
  int first_token_;
  float scores_[kTokens / 2];
  float sums_[H::kValueDim / 2] = {};
  uint32_t probabilities_[kTokens / 16][4];
  float maxima_[2] = {kLowest, kLowest};
  float weights_[2] = {};  // of this lane's columns; the four lanes of a row are added at the end
  float corrections_[2];
};

template <typename T, typename H, typename Rule, typename Source>
__global__ __launch_bounds__(kThreads, 1) void attention_wgmma_kernel(
    const __grid_constant__ Maps<Source> maps, const __grid_constant__ AttentionArguments a,
    int n_sequences) {
  extern __shared__ std::byte memory[];
  begin_kernel();
  auto& shared = aligned<Shared<H>>(memory);
  if (threadIdx.x == 0) {
    Barriers& barriers = shared.barriers;
    constexpr int kWarps = kConsumers * kWarpgroup / kWarp;
    for (int stage = 0; stage < kStages; ++stage) {
      for (auto* there : {barriers.queries_there, barriers.keys_there, barriers.values_there}) {
        init_barrier(there[stage], 1);
      }
      for (auto* done : {barriers.queries_done, barriers.keys_done, barriers.values_done}) {
        init_barrier(done[stage], kWarps);
      }
    }
    publish_barriers();
  }
  __syncthreads();
  QueryTile tile;
  uint32_t nth = 0;
  uint32_t filled = 0;  // tiles of keys
  if (threadIdx.x < kWarpgroup) {
    give_back_registers<40>();
    if (threadIdx.x >= kWarp) return;
    for (TileDealer tiles(a, n_sequences, kTileRows); tiles.next(tile); ++nth) {
      copy_tiles<Rule>(a, maps, tile, nth, filled, shared);
    }
  } else {
    take_registers<232>();
    for (TileDealer tiles(a, n_sequences, kTileRows); tiles.next(tile); ++nth) {
      filled += Consumer<T, H, Rule>(a, tile, nth, filled, shared).run();
    }
  }
}

/// All pages of a layer, one below the other, in boxes of a page's rows.
CUtensorMap describe_pages(const KvLayer& kv, const void* data, int dim) {
  return describe(
      {data, kv.dtype, int64_t{kv.n_pages} * kv.n_kv_heads * kPageTokens, dim, dim, kPageTokens});
}

template <typename T, typename H, typename Rule, typename Source>
void launch(const AttentionArguments& a, int n_sequences, const Source& source,
            const Queue& queue) {
  constexpr size_t kSharedBytes = sizeof(Shared<H>) + kBlockAlignment;
  const int64_t most_tiles = a.q.rows / a.least_queries * int64_t{a.n_heads};
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(most_tiles, gpu_attribute(cudaDevAttrMultiProcessorCount)));
  const Maps<Source> maps{
      describe({a.q.data, a.q.dtype, a.q.rows, a.q.cols, a.q.stride, kTileRows}), source};
  const auto kernel = attention_wgmma_kernel<T, H, Rule, Source>;
  allow_shared_memory(kernel, kSharedBytes);
  queue.launch("computing attention", kernel, {blocks, kThreads, kSharedBytes}, maps, a,
               n_sequences);
}

bool writes_16_bytes(const AttentionArguments& a) {
  return a.out.dtype == a.q.dtype && a.out.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(a.out.data) % 16 == 0;
}

}  // namespace

bool attention_prefill_sm90a(const AttentionArguments& a, const BatchView& batch,
                             const Queue& queue) {
  if (a.scale_log2 <= 0 || !writes_16_bytes(a)) return false;
  const int dim = a.kv.head_dim;
  const int v_dim = a.kv.v_head_dim;
  const bool differ = dim == 192 && v_dim == 128;
  if (!differ && (v_dim != dim || (dim != 64 && dim != 128 && dim != 256))) return false;
  const auto n = static_cast<int>(batch.n_sequences);
  const Pages pages{describe_pages(a.kv, a.kv.k, dim), describe_pages(a.kv, a.kv.v, v_dim)};
  const auto with_type = [&]<typename T>() {
    with_rule(a, [&]<typename Rule>() {
      if (differ) {
        launch<T, Heads<192, 128>, Rule>(a, n, pages, queue);
      } else if (dim == 64) {
        launch<T, Heads<64, 64>, Rule>(a, n, pages, queue);
      } else if (dim == 128) {
        launch<T, Heads<128, 128>, Rule>(a, n, pages, queue);
      } else {
        launch<T, Heads<256, 256>, Rule>(a, n, pages, queue);
      }
    });
  };
  a.kv.dtype == DType::f16 ? with_type.template operator()<__half>()
                           : with_type.template operator()<__nv_bfloat16>();
  return true;
}

bool plain_fits(const AttentionArguments& a, const LatentShape& shape) {
  return rows_fit_tensor_cores(a) && writes_16_bytes(a) && is_plain(a.rule) &&
         !a.rule.bidirectional && a.scale_log2 > 0 && shape.rope_dim == 64 &&
         shape.nope_dim == 128 && shape.value_dim == 128 && shape.rank % 64 == 0;
}

void attention_plain_sm90a(const AttentionArguments& a, int32_t n_sequences,
                           const LatentShape& shape, const LatentRows& rows, const Queue& queue) {
  const auto boxes_of = [](const Matrix& m) {
    return describe({m.data, m.dtype, m.rows, m.cols, m.stride, kPageTokens});
  };
  const PlainRows source{.kept = boxes_of(rows.kept),
                         .heads = boxes_of(rows.heads),
                         .first_rows = rows.first_rows,
                         .rope_dim = static_cast<int>(shape.rope_dim),
                         .nope_dim = static_cast<int>(shape.nope_dim),
                         .head_dim = static_cast<int>(shape.nope_dim + shape.value_dim)};
  a.q.dtype == DType::f16
      ? launch<__half, Heads<192, 128>, PlainRule<false>>(a, n_sequences, source, queue)
      : launch<__nv_bfloat16, Heads<192, 128>, PlainRule<false>>(a, n_sequences, source, queue);
}

}  // namespace faststream
