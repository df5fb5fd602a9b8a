// Latent attention: of sequences with few queries over the latents themselves, and, on Hopper, of
// those with many over the keys and values that heads make of the latents, which have a third of
// the elements. These are made for as many sequences, or heads, at a time as fit in memory.
//
// Operations: DeepSeek-V2-Lite's 16 heads have 2 · 16 · 1,088 for each query and latent, or 2 · 16
// · 320, and 2 · 16 · 256 · 512 for each latent that is made keys and values of: even at 170
// queries.
#include <algorithm>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/item_finder.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/weight_rows.cuh"

namespace faststream {

namespace {

// Queries of a sequence, from which on heads make its keys and values.
constexpr int32_t kPlainQueries = 128;

constexpr int kJoinedTile = 32;  // rows and columns of weights, of a block
constexpr int kJoinedRows = 8;
constexpr int kCopyThreads = 256;

/// The rows of heads' weights that make `part` of the head_dim elements, from `first` on.
struct Part {
  int head_dim;
  int first;
  int part;
  int rank;
  const float* scales;  // of the weight's rows; null: none

  [[nodiscard]] __device__ int64_t joined(int head, int i, int column) const {
    return (static_cast<int64_t>(head) * head_dim + first + i) * rank + column;
  }
};

// joined [n_heads · head_dim, rank]: keys' parts [n_heads · rank, part], transposed.
template <typename T, typename Rows>
__global__ __launch_bounds__(kJoinedTile* kJoinedRows) void join_keys_kernel(Part p, Rows rows,
                                                                             T* joined) {
  __shared__ float tile[kJoinedTile][kJoinedTile + 1];
  begin_kernel();
  const auto x = static_cast<int>(threadIdx.x);
  const auto y = static_cast<int>(threadIdx.y);
  const int first_of_rank = static_cast<int>(blockIdx.x) * kJoinedTile;
  const int first_of_part = static_cast<int>(blockIdx.y) * kJoinedTile;
  const auto head = static_cast<int>(blockIdx.z);
  for (int i = y; i < kJoinedTile; i += kJoinedRows) {
    const int64_t row = static_cast<int64_t>(head) * p.rank + first_of_rank + i;
    const float scale = p.scales != nullptr ? p.scales[row] : 1;
    tile[i][x] = element(rows, row, first_of_part + x) * scale;
  }
  __syncthreads();
  for (int i = y; i < kJoinedTile; i += kJoinedRows) {
    joined[p.joined(head, first_of_part + i, first_of_rank + x)] = from_float<T>(tile[x][i]);
  }
}

// The same of values' parts [n_heads · part, rank], as they are.
template <typename T, typename Rows>
__global__ __launch_bounds__(kJoinedTile* kJoinedRows) void join_values_kernel(Part p, Rows rows,
                                                                               T* joined) {
  begin_kernel();
  const int column = static_cast<int>(blockIdx.x) * kJoinedTile + static_cast<int>(threadIdx.x);
  const auto head = static_cast<int>(blockIdx.z);
  for (int n = static_cast<int>(threadIdx.y); n < kJoinedTile; n += kJoinedRows) {
    const int i = static_cast<int>(blockIdx.y) * kJoinedTile + n;
    const int64_t row = static_cast<int64_t>(head) * p.part + i;
    const float scale = p.scales != nullptr ? p.scales[row] : 1;
    joined[p.joined(head, i, column)] = from_float<T>(element(rows, row, column) * scale);
  }
}

/// Pages of the sequences that have many queries, one sequence after the other.
struct LongPages {
  const AttentionArguments& a;

  __device__ int operator()(int sequence) const {
    const int n_queries = a.query_start[sequence + 1] - a.query_start[sequence];
    return n_queries >= a.least_queries ? pages_for(a.kv_len[sequence]) : 0;
  }
};

// A block copies a page; zeros in the place of tokens that are not there.
__global__ __launch_bounds__(kCopyThreads) void gather_latents_kernel(
    const __grid_constant__ AttentionArguments a, int n_sequences, uint4* kept,
    int32_t* first_rows) {
  begin_kernel();
  const LongPages count{a};
  ItemFinder items(n_sequences, count);
  ItemFinder::Item item;
  const auto page = static_cast<int>(blockIdx.x);
  if (!items.find(page, count, item)) return;
  if (item.nth == 0 && threadIdx.x == 0) first_rows[item.sequence] = page * kPageTokens;
  constexpr int kPieceElements = sizeof(uint4) / sizeof(uint16_t);
  const int row_pieces = a.kv.head_dim / kPieceElements;
  const int page_pieces = kPageTokens * row_pieces;
  const int64_t number = a.page_table[static_cast<int64_t>(item.sequence) * a.max_pages + item.nth];
  const uint4* from = static_cast<const uint4*>(a.kv.k) + number * page_pieces;
  uint4* to = kept + static_cast<int64_t>(page) * page_pieces;
  const int there = (a.kv_len[item.sequence] - item.nth * kPageTokens) * row_pieces;
  for (int i = static_cast<int>(threadIdx.x); i < page_pieces; i += kCopyThreads) {
    to[i] = i < there ? from[i] : make_uint4(0, 0, 0, 0);
  }
}

int32_t queries_of(const Batch& batch, int32_t sequence) {
  const auto s = static_cast<size_t>(sequence);
  return batch.query_start[s + 1] - batch.query_start[s];
}

/// Rows of 16-bit elements that keys and values are made of and in, of some sequences and heads at
/// a time.
struct PlainPiece {
  int32_t first = 0;  // sequence
  int32_t count = 0;
  int64_t rows = 0;
  int64_t heads = 0;
};

size_t kept_bytes(int64_t rows, int64_t kept_dim) {
  return static_cast<size_t>(rows * kept_dim) * sizeof(uint16_t);
}

int64_t heads_that_fit(int64_t rows, const LatentBound& latent) {
  const size_t kept = kept_bytes(rows, latent.kept_dim);
  const size_t room = kMaxScratchBytes - std::min(kMaxScratchBytes, kept);
  return std::clamp<int64_t>(static_cast<int64_t>(room / kept_bytes(rows, latent.head_dim)), 1,
                             latent.n_heads);
}

std::vector<PlainPiece> plain_pieces(const Batch& batch, const LatentBound& latent) {
  const int64_t most_rows = static_cast<int64_t>(
      kMaxScratchBytes / kept_bytes(1, latent.kept_dim + latent.n_heads * latent.head_dim));
  std::vector<PlainPiece> pieces;
  for (int32_t s = 0; s < batch.n_sequences(); ++s) {
    if (queries_of(batch, s) < kPlainQueries) continue;
    const int64_t rows = int64_t{pages_for(batch.kv_len[static_cast<size_t>(s)])} * kPageTokens;
    if (pieces.empty() || pieces.back().rows + rows > most_rows) pieces.push_back({.first = s});
    pieces.back().count = s + 1 - pieces.back().first;
    pieces.back().rows += rows;
  }
  for (PlainPiece& piece : pieces) piece.heads = heads_that_fit(piece.rows, latent);
  return pieces;
}

constexpr size_t kAlignment = 256;
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t joined_bytes(const LatentBound& latent) {
  return kept_bytes(latent.n_heads * latent.head_dim, latent.kept_dim);
}

}  // namespace

size_t plain_bytes(const LatentBound& latent, int64_t tokens, int64_t sequences, int64_t context) {
  if (latent.n_heads == 0 || tokens < kPlainQueries) return 0;
  const int64_t longest = int64_t{pages_for(static_cast<int32_t>(context))} * kPageTokens;
  const size_t of_one_head = kept_bytes(longest, latent.kept_dim + latent.head_dim);
  return std::max(kMaxScratchBytes, of_one_head) + joined_bytes(latent) +
         static_cast<size_t>(sequences) * sizeof(int32_t) + 4 * kAlignment;
}

void CudaBackend::latent_attention(const BatchView& batch, const Matrix& queries,
                                   const Matrix& cos_sin, const LatentHeads& heads,
                                   const KvLayer& kv, const AttentionRule& rule,
                                   const Matrix& latent_qkv, const Matrix& latent_sums,
                                   const Matrix& out) {
  const LatentShape shape{.rope_dim = heads.rope_dim,
                          .nope_dim = heads.keys.cols,
                          .value_dim = heads.values.rows / heads.n_heads,
                          .rank = heads.values.cols};
  AttentionArguments a = attention_arguments(batch, queries, heads.n_heads, kv, rule, out);
  a.least_queries = kPlainQueries;
  if (batch.max_query_len < kPlainQueries || !is_hopper_ || !plain_fits(a, shape)) {
    return Backend::latent_attention(batch, queries, cos_sin, heads, kv, rule, latent_qkv,
                                     latent_sums, out);
  }
  const Batch& host = *batch.host;
  const int64_t q_dim = heads.n_heads * kv.head_dim;

  // The rows of the others, with any between them.
  int64_t first = batch.n_tokens;
  int64_t last = 0;
  for (int32_t s = 0; s < batch.n_sequences; ++s) {
    if (queries_of(host, s) >= kPlainQueries) continue;
    first = std::min<int64_t>(first, host.query_start[static_cast<size_t>(s)]);
    last = host.query_start[static_cast<size_t>(s) + 1];
  }
  if (first < last) {
    const auto some = [&](const Matrix& m) { return m.row_range(first, last - first); };
    head_linear(some(queries), heads.keys, heads.n_heads, some(latent_qkv).columns(0, q_dim));
    attend_to_latents(batch, latent_qkv, cos_sin, kv, rule, kPlainQueries - 1, latent_sums);
    head_linear(some(latent_sums), heads.values, heads.n_heads, some(out));
    place_latents(batch, queries, heads.n_heads, {}, cos_sin, kv, queue());
  } else {
    place_latents(batch, queries, heads.n_heads, latent_qkv.columns(q_dim, kv.head_dim), cos_sin,
                  kv, queue());
  }
  attend_plain(host, a, heads, shape);
}

void CudaBackend::attend_plain(const Batch& batch, const AttentionArguments& a,
                               const LatentHeads& heads, const LatentShape& shape) {
  const LatentBound latent{heads.n_heads, shape.head_dim(), shape.kept_dim()};
  const DType type = a.kv.dtype;
  const auto rank = static_cast<int>(shape.rank);
  const std::vector<PlainPiece> pieces = plain_pieces(batch, latent);
  size_t rows_bytes = 0;
  for (const PlainPiece& piece : pieces) {
    rows_bytes = std::max(rows_bytes, aligned(kept_bytes(piece.rows, latent.kept_dim)) +
                                          kept_bytes(piece.rows, piece.heads * latent.head_dim));
  }
  const size_t first_bytes = aligned(batch.kv_len.size() * sizeof(int32_t));
  const size_t weight_bytes = aligned(kept_bytes(heads.n_heads * latent.head_dim, rank));
  std::byte* memory = scratch_.at_least(first_bytes + weight_bytes + rows_bytes);
  auto* first_rows = reinterpret_cast<int32_t*>(memory);
  std::byte* joined = memory + first_bytes;
  std::byte* rows = joined + weight_bytes;

  const Queue queue = this->queue();
  const auto join = [&]<typename T>(T* to) {
    const auto grid = [&](int64_t part) {
      return Grid{dim3(ceil_div(rank, kJoinedTile), ceil_div(part, kJoinedTile),
                       static_cast<unsigned>(heads.n_heads)),
                  dim3(kJoinedTile, kJoinedRows)};
    };
    const auto part = [&](int64_t first, int64_t size, const Weight& weight) {
      return Part{.head_dim = static_cast<int>(latent.head_dim),
                  .first = static_cast<int>(first),
                  .part = static_cast<int>(size),
                  .rank = rank,
                  .scales = weight.row_scales()};
    };
    with_weight_rows(heads.keys, [&](const auto& of) {
      queue.launch("joining the weights of heads", join_keys_kernel<T, std::decay_t<decltype(of)>>,
                   grid(shape.nope_dim), part(0, shape.nope_dim, heads.keys), of, to);
    });
    with_weight_rows(heads.values, [&](const auto& of) {
      queue.launch("joining the weights of heads",
                   join_values_kernel<T, std::decay_t<decltype(of)>>, grid(shape.value_dim),
                   part(shape.nope_dim, shape.value_dim, heads.values), of, to);
    });
  };
  type == DType::f16 ? join(reinterpret_cast<__half*>(joined))
                     : join(reinterpret_cast<__nv_bfloat16*>(joined));
  finish_weights(queue);

  const Weight weight{.data = joined,
                      .format = type == DType::f16 ? WeightFormat::f16 : WeightFormat::bf16,
                      .rows = heads.n_heads * latent.head_dim,
                      .cols = shape.rank};
  for (const PlainPiece& piece : pieces) {
    AttentionArguments some = a;
    some.query_start += piece.first;
    some.kv_len += piece.first;
    some.page_table += int64_t{piece.first} * a.max_pages;
    LatentRows of_piece;
    of_piece.first_rows = first_rows;
    of_piece.kept = {rows, type, piece.rows, latent.kept_dim};
    queue.launch("gathering latents", gather_latents_kernel,
                 {static_cast<unsigned>(piece.rows / kPageTokens), kCopyThreads}, some,
                 static_cast<int>(piece.count), reinterpret_cast<uint4*>(rows), first_rows);
    std::byte* of_heads = rows + aligned(kept_bytes(piece.rows, latent.kept_dim));
    for (int64_t first = 0; first < heads.n_heads; first += piece.heads) {
      const int64_t count = std::min(piece.heads, heads.n_heads - first);
      of_piece.heads = {of_heads, type, piece.rows, count * latent.head_dim};
      const Destination to{.out = of_heads, .dtype = type, .stride = of_piece.heads.stride};
      if (!finished_product_sm90a(
              of_piece.kept.columns(shape.rope_dim, shape.rank),
              weight.row_range(first * latent.head_dim, count * latent.head_dim), to, queue)) {
        throw Error("The GPU has no product for the heads of latent attention.");
      }
      const int64_t key_dim = shape.rope_dim + shape.nope_dim;
      some.n_heads = static_cast<int>(count);
      some.q = a.q.columns(first * key_dim, count * key_dim);
      some.out = a.out.columns(first * shape.value_dim, count * shape.value_dim);
      attention_plain_sm90a(some, piece.count, shape, of_piece, queue);
    }
  }
}

}  // namespace faststream
