// Attention over codes (KvFormat) where no kernel reads them as they are: prompts, whose queries
// read keys and values many times, and types and widths that only float arithmetic takes. What
// sequences have in their pages is widened to pages of plain numbers, of as many heads and
// sequences at a time as fit, and the kernels of these do the rest.
//
// Bytes: 3 of each element where 2 are read, for 2,048 queries of Llama-3-8B after 32,000 tokens
// 200 MB a layer, 65 us at 3.10 TB/s predicted, where the products take 2 ms.
#include <algorithm>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/kv_codes.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kWidenThreads = 128;

struct WidenArguments {
  KvLayer from;  // of codes
  KvLayer to;    // of some of its heads, plain
  int first_head = 0;
  const int32_t* kv_len = nullptr;
  const int32_t* page_table = nullptr;
  int32_t max_pages = 0;
  int32_t* to_table = nullptr;  // [sequences, gridDim.x] the pages of `to`
};

// A block for the keys or the values of each (page, sequence, head). kEach elements at a time, of
// which rows have a multiple.
template <typename T, int kEach>
__global__ __launch_bounds__(kWidenThreads) void widen_pages_kernel(WidenArguments a) {
  begin_kernel();
  const int page = static_cast<int>(blockIdx.x);
  const int sequence = static_cast<int>(blockIdx.y);
  const int head = static_cast<int>(blockIdx.z) / 2;
  const bool is_key = blockIdx.z % 2 == 0;
  const int64_t to_page = static_cast<int64_t>(sequence) * gridDim.x + page;
  if (threadIdx.x == 0 && blockIdx.z == 0) a.to_table[to_page] = static_cast<int32_t>(to_page);
  if (page * kPageTokens >= a.kv_len[sequence]) return;
  const int64_t from_page = a.page_table[static_cast<int64_t>(sequence) * a.max_pages + page];
  const int dim = is_key ? a.from.head_dim : a.from.v_head_dim;
  const auto* codes = static_cast<const uint8_t*>(is_key ? a.from.k : a.from.v) +
                      (from_page * a.from.n_kv_heads + a.first_head + head) * kPageTokens *
                          (static_cast<int64_t>(dim) + static_cast<int64_t>(sizeof(KvScale)));
  const auto* scales = reinterpret_cast<const KvScale*>(codes + kPageTokens * dim);
  T* to = static_cast<T*>(is_key ? a.to.k : a.to.v) +
          (to_page * a.to.n_kv_heads + head) * kPageTokens * dim;
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) * kEach; at < kPageTokens * dim;
       at += kWidenThreads * kEach) {
    const float scale = scale_of(scales[at / dim]);
    using Word = std::conditional_t<kEach == 8, uint2, uint16_t>;
    const Word word = *reinterpret_cast<const Word*>(codes + at);
    uint8_t bytes[kEach];
    memcpy(bytes, &word, sizeof bytes);
    float values[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      values[j] = __fmul_rn(decode_code(a.from.format, bytes[j]), scale);
    }
    store_floats(values, to + at);
  }
}

int64_t page_bytes(int64_t head_dim, int64_t v_head_dim, DType type) {
  return kPageTokens * (head_dim + v_head_dim) * static_cast<int64_t>(dtype_size(type));
}

// Sequences and heads at a time.
struct WidenedPiece {
  int64_t sequences = 1;
  int64_t heads = 1;
  size_t bytes = 0;
};

// Of sequences of so many pages at most, each of so many bytes of a head.
WidenedPiece widened_piece(int64_t sequences, int64_t pages, int64_t heads, int64_t page_bytes) {
  const auto room = static_cast<int64_t>(kMaxScratchBytes);
  WidenedPiece piece;
  piece.heads = std::clamp<int64_t>(room / (pages * page_bytes), 1, heads);
  piece.sequences = std::clamp<int64_t>(room / (pages * piece.heads * page_bytes), 1, sequences);
  const int64_t all_pages = piece.sequences * pages;
  piece.bytes = static_cast<size_t>(all_pages * (piece.heads * page_bytes +
                                                 static_cast<int64_t>(sizeof(int32_t)))) +
                2 * 256;
  return piece;
}

std::byte* align(std::byte* at) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(at) + 255) / 256 * 256);
}

// Those of some KV heads.
AttentionArguments heads_of(const AttentionArguments& a, int64_t first_kv_head, int64_t n) {
  AttentionArguments some = a;
  const int64_t group = a.n_heads / a.kv.n_kv_heads;
  const int64_t first = first_kv_head * group;
  some.n_heads = static_cast<int>(n * group);
  some.q = a.q.columns(first * a.kv.head_dim, n * group * a.kv.head_dim);
  some.out = a.out.columns(first * a.kv.v_head_dim, n * group * a.kv.v_head_dim);
  if (a.rule.sinks != nullptr) some.rule.sinks += first;
  if (a.rule.slopes != nullptr) some.rule.slopes += first;
  if (a.rule.bias != nullptr) some.rule.bias += first * (2 * int64_t{a.rule.bias_reach} + 1);
  return some;
}

}  // namespace

size_t widened_kv_bytes(const StepBounds& bounds, DType type) {
  if (bounds.kv_format == KvFormat::plain) return 0;
  return widened_piece(most_divided(bounds), pages_for(bounds.context), bounds.n_kv_heads,
                       page_bytes(bounds.head_dim, bounds.head_dim, type))
      .bytes;
}

void CudaBackend::attend_widened(const AttentionArguments& a, const BatchView& batch, int32_t first,
                                 int32_t last) {
  const Batch& host = *batch.host;
  const auto begin = host.kv_len.begin();
  const int64_t pages = pages_for(*std::max_element(begin + first, begin + last));
  const WidenedPiece piece = widened_piece(last - first, pages, a.kv.n_kv_heads,
                                           page_bytes(a.kv.head_dim, a.kv.v_head_dim, a.kv.dtype));
  std::byte* memory = align(coded_.at_least(piece.bytes));
  for (int32_t s = first; s < last; s += static_cast<int32_t>(piece.sequences)) {
    const auto n = static_cast<int32_t>(std::min<int64_t>(piece.sequences, last - s));
    BatchView some = batch;
    some.n_sequences = n;
    some.max_pages = static_cast<int32_t>(pages);
    some.max_query_len = 0;
    some.max_kv_len = 0;
    for (int32_t i = s; i < s + n; ++i) {
      const auto at = static_cast<size_t>(i);
      some.max_query_len =
          std::max(some.max_query_len, host.query_start[at + 1] - host.query_start[at]);
      some.max_kv_len = std::max(some.max_kv_len, host.kv_len[at]);
    }
    some.query_start += s;
    some.kv_len += s;
    for (int64_t head = 0; head < a.kv.n_kv_heads; head += piece.heads) {
      const int64_t heads = std::min(piece.heads, a.kv.n_kv_heads - head);
      const int64_t n_pages = n * pages;
      WidenArguments widen{.from = a.kv, .to = a.kv, .first_head = static_cast<int>(head)};
      widen.kv_len = a.kv_len + s;
      widen.page_table = a.page_table + int64_t{s} * a.max_pages;
      widen.max_pages = a.max_pages;
      widen.to.format = KvFormat::plain;
      widen.to.n_pages = static_cast<int32_t>(n_pages);
      widen.to.n_kv_heads = static_cast<int32_t>(heads);
      widen.to.k = memory;
      widen.to.v = memory + n_pages * heads * widen.to.k_head_bytes();
      widen.to_table = reinterpret_cast<int32_t*>(static_cast<std::byte*>(widen.to.v) +
                                                  n_pages * heads * widen.to.v_head_bytes());
      const bool of_eights = a.kv.head_dim % 8 == 0 && a.kv.v_head_dim % 8 == 0;
      with_float_type(a.kv.dtype, [&](auto zero) {
        using T = decltype(zero);
        const Queue queue = this->queue();
        const Grid grid{dim3(static_cast<unsigned>(pages), static_cast<unsigned>(n),
                             static_cast<unsigned>(2 * heads)),
                        kWidenThreads};
        of_eights ? queue.launch("widening keys and values", widen_pages_kernel<T, 8>, grid, widen)
                  : queue.launch("widening keys and values", widen_pages_kernel<T, 2>, grid, widen);
      });
      AttentionArguments arguments = heads_of(a, head, heads);
      arguments.kv = widen.to;
      arguments.kv_len = some.kv_len;
      arguments.query_start = some.query_start;
      arguments.page_table = widen.to_table;
      arguments.max_pages = some.max_pages;
      attend_plainly(arguments, some);
    }
  }
}

}  // namespace faststream
