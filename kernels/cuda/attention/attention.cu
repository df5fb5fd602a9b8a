// Attention over KV pages: which kernel computes it. A packed batch may hold sequences in decode
// (one query, split over the cache) and in prefill (tiles of queries): each kernel skips the
// other's sequences. Tokens that are one by one (Batch) are as many sequences in decode
// (view_of_queries()).
//
//   16-bit queries and cache of one type, rows at multiples of 16 bytes,
//   heads of up to 512 dimensions                                         tensor cores
//     one token alone, values as wide as keys, on Hopper                    in the step's kernel
//     of prompts, these of 64, 128 or 256 dimensions, or keys of 192 and
//     values of 128, on Hopper, without relative scores                     by warpgroups
//     of one query of many sequences, up to 256, on Hopper                  by blocks that stay
//   else                                                                  float arithmetic
//
// Codes (KvFormat) are read by those of one query on tensor cores, of up to 256 dimensions; for
// others they are widened first (attention_widened.cu).
//
// Keys that have their values in them (latent attention) have kernels of their own, which read them
// once for all heads of a token: likewise on tensor cores or in float arithmetic.
//
// Each is made for several functors (score_rule.cuh): scores as they are, of tokens up to the
// query's or of all, and with a window, soft cap, slopes or bias; of texts' tiles, with relative
// scores, which are nothing to a text of one token.
#include "kernels/cuda/attention/attention.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/attention/attention_split.cuh"
#include "kernels/cuda/attention/score_rule.cuh"
#include "kernels/cuda/cuda_backend.h"

namespace faststream {

bool rows_fit_tensor_cores(const AttentionArguments& a) {
  const bool is_16_bit = a.kv.dtype == DType::f16 || a.kv.dtype == DType::bf16;
  return is_16_bit && a.q.dtype == a.kv.dtype && a.kv.head_dim % 8 == 0 &&
         a.kv.v_head_dim % 8 == 0 && a.q.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(a.q.data) % 16 == 0;
}

namespace {

bool tensor_cores_fit(const AttentionArguments& a) {
  return rows_fit_tensor_cores(a) && a.widest_head() <= kLargestMmaHeadDim;
}

// Of latents: shorter ones, which take as long, and fewer, as a head's sums are long.
constexpr int kMinLatentSplitTokens = 128;
constexpr int kMaxLatentSplits = 16;

int splits_of(int64_t kv_len, int split_tokens = kMinSplitTokens, int most = kMaxSplits) {
  return std::min(ceil_div(kv_len, split_tokens), most);
}

// How many sequences with one query an attention takes at a time, and the memory for the partial
// results of their splits.
ScratchPiece splits_piece(int64_t n_sequences, int64_t n_heads, int64_t v_head_dim, int splits) {
  if (splits == 1) return {n_sequences, 0};
  return piece_of(n_sequences,
                  static_cast<size_t>(n_heads * splits * (2 + v_head_dim)) * sizeof(float), 1);
}

bool may_decode(const BatchView& batch) {
  return batch.max_query_len == 1 || batch.n_sequences > 1;
}

// Tokens from the first page that the last query sees, as split_of_block() counts them.
int64_t most_seen(const AttentionRule& rule, int64_t kv_len) {
  return rule.window == 0 ? kv_len : std::min(kv_len, int64_t{rule.window} + kPageTokens - 1);
}

// Of the sequences that have exactly one query.
// dealt: null where the GPU has no blocks that stay.
void attention_decode(AttentionArguments a, const BatchView& batch, unsigned* dealt,
                      DeviceBuffer& scratch, const Queue& queue) {
  const int64_t seen = most_seen(a.rule, batch.max_kv_len);
  Splits splits;
  splits.count = splits_of(seen);
  const ScratchPiece piece =
      splits_piece(batch.n_sequences, a.n_heads, a.kv.v_head_dim, splits.count);
  if (splits.count > 1) splits.partials = reinterpret_cast<float*>(scratch.at_least(piece.bytes));
  for (int64_t first = 0; first < batch.n_sequences; first += piece.rows) {
    const auto n = static_cast<int32_t>(std::min(piece.rows, batch.n_sequences - first));
    if (!tensor_cores_fit(a)) {
      attention_decode_float(a, n, splits, queue);
    } else if (dealt == nullptr || !attention_decode_sm90a(a, n, seen, splits, dealt, queue)) {
      attention_decode_mma(a, n, seen, splits, queue);
    }
    if (splits.count > 1) merge_splits(a, n, splits, queue);
    a.query_start += n;
    a.kv_len += n;
    a.page_table += int64_t{n} * a.max_pages;
  }
}

// On tensor cores.
void attention_latent_mma(AttentionArguments a, const BatchView& batch, bool is_hopper,
                          DeviceBuffer& scratch, const Queue& queue) {
  if (batch.max_query_len > 1) attention_latent_prefill_mma(a, batch, queue);
  if (batch.max_query_len > 1 && batch.n_sequences == 1) return;
  Splits splits;
  a.split_tokens = kMinLatentSplitTokens;
  a.most_splits = kMaxLatentSplits;
  splits.count = splits_of(batch.max_kv_len, a.split_tokens, a.most_splits);
  const ScratchPiece piece =
      splits_piece(batch.n_sequences, a.n_heads, a.kv.v_head_dim, splits.count);
  if (splits.count > 1) splits.partials = reinterpret_cast<float*>(scratch.at_least(piece.bytes));
  AttentionArguments some = a;
  for (int64_t first = 0; first < batch.n_sequences; first += piece.rows) {
    const auto n = static_cast<int32_t>(std::min(piece.rows, batch.n_sequences - first));
    if (!is_hopper || !attention_latent_decode_sm90a(some, n, splits, queue)) {
      attention_latent_decode_mma(some, n, splits, queue);
    }
    if (splits.count > 1) merge_splits(some, n, splits, queue);
    some.query_start += n;
    some.kv_len += n;
    some.page_table += int64_t{n} * a.max_pages;
  }
}

}  // namespace

int max_splits(const AttentionRule& rule, const BatchView& batch) {
  return splits_of(most_seen(rule, batch.max_kv_len));
}

int64_t most_divided(const StepBounds& bounds) {
  return std::clamp(bounds.tokens, bounds.sequences, bounds.sequences * kMostOneByOne);
}

size_t decode_bytes(const StepBounds& bounds) {
  const int64_t sequences = most_divided(bounds);
  const auto bytes = [&](int64_t n_heads, int64_t v_head_dim, int splits) {
    return n_heads > 0 ? splits_piece(sequences, n_heads, v_head_dim, splits).bytes : 0;
  };
  const LatentBound& latent = bounds.latent;
  return std::max(bytes(bounds.n_heads, bounds.head_dim, splits_of(bounds.context)),
                  bytes(latent.n_heads, latent.kept_dim,
                        splits_of(bounds.context, kMinLatentSplitTokens, kMaxLatentSplits)));
}

void check_heads(const KvLayer& kv) {
  if (kv.values_in_keys) return;
  for (const int32_t dim : {kv.head_dim, kv.v_head_dim}) {
    if (dim <= kLargestHeadDim && dim % 2 == 0) continue;
    throw Error("The GPU backend supports heads of an even number of dimensions up to " +
                std::to_string(kLargestHeadDim) + ", but the model has " + std::to_string(dim) +
                "; use --device cpu.");
  }
}

AttentionArguments attention_arguments(const BatchView& batch, const Matrix& q, int64_t n_heads,
                                       const KvLayer& kv, const AttentionRule& rule,
                                       const Matrix& out) {
  return {.q = q,
          .out = out,
          .kv = kv,
          .n_heads = static_cast<int>(n_heads),
          .scale_log2 = rule.scale * kLog2E,
          .rule = rule,
          .query_start = batch.query_start,
          .kv_len = batch.kv_len,
          .page_table = batch.page_table,
          .max_pages = batch.max_pages};
}

void CudaBackend::attend_to_latents(const BatchView& batch, const Matrix& qkv,
                                    const Matrix& cos_sin, const KvLayer& kv,
                                    const AttentionRule& rule, int32_t most_queries,
                                    const Matrix& out) {
  const int64_t n_heads = out.cols / kv.v_head_dim;
  const int64_t q_dim = n_heads * kv.head_dim;
  const Matrix q = qkv.columns(0, q_dim);
  const auto arguments_of = [&](const BatchView& view) {
    AttentionArguments arguments = attention_arguments(view, q, n_heads, kv, rule, out);
    arguments.most_queries = most_queries;
    return arguments;
  };
  const Queue queue = this->queue();
  place_latents(batch, q, n_heads, qkv.columns(q_dim, kv.head_dim), cos_sin, kv, queue);
  const AttentionArguments arguments = arguments_of(batch);
  if (!rows_fit_tensor_cores(arguments) || !latent_widths_fit(arguments)) {
    return attention_latent_float(arguments, batch, queue);  // query by query
  }
  const BatchView queries = view_of_queries(batch);
  attention_latent_mma(arguments_of(queries), queries, is_hopper_, scratch_, queue);
}

void CudaBackend::attention(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                            const HeadTransform& transform, const KvLayer& kv,
                            const AttentionRule& rule, const Matrix& out) {
  if (batch.n_tokens == 0) return;
  check_heads(kv);
  if (kv.values_in_keys) {
    return attend_to_latents(batch, qkv, cos_sin, kv, rule, batch.max_query_len, out);
  }
  const int64_t n_heads = out.cols / kv.v_head_dim;
  AttentionArguments arguments =
      attention_arguments(batch, qkv.columns(0, n_heads * kv.head_dim), n_heads, kv, rule, out);
  const bool appends = qkv.cols != arguments.q.cols;
  // The step's kernel sees no tokens after the query's own, as of a source.
  if (!rule.bidirectional && !kv.is_coded() && tensor_cores_fit(arguments) &&
      step_kernel_.attention(batch, arguments, transform, cos_sin, appends)) {
    return;
  }
  rope_append(batch, qkv, arguments.n_heads, cos_sin, transform, kv);
  // Decode's kernels see no tokens after the query's own.
  const bool one_way = !rule.bidirectional && rule.relative == nullptr;
  const BatchView queries = one_way ? view_of_queries(batch) : batch;
  arguments = attention_arguments(queries, arguments.q, n_heads, kv, rule, out);
  if (!kv.is_coded()) return attend_plainly(arguments, queries);

  const bool reads_codes =
      tensor_cores_fit(arguments) && arguments.widest_head() <= kLargestCodedDim;
  if (reads_codes && may_decode(queries)) {
    attention_decode(arguments, queries, dealt(), scratch_, queue());
  }
  // Others in a row, together.
  const Batch& host = *queries.host;
  const auto is_left = [&](int32_t s) {
    const auto at = static_cast<size_t>(s);
    const int32_t n_queries = host.query_start[at + 1] - host.query_start[at];
    return n_queries > 1 || (n_queries == 1 && !reads_codes);
  };
  for (int32_t first = 0, last = 0; first < queries.n_sequences; first = last) {
    last = first + 1;
    if (!is_left(first)) continue;
    while (last < queries.n_sequences && is_left(last)) ++last;
    attend_widened(arguments, queries, first, last);
  }
}

void CudaBackend::attend_plainly(const AttentionArguments& arguments, const BatchView& batch) {
  const Queue queue = this->queue();
  if (may_decode(batch)) attention_decode(arguments, batch, dealt(), scratch_, queue);
  if (batch.max_query_len == 1) return;
  const bool by_warpgroups = is_hopper_ && arguments.rule.relative == nullptr;
  if (!tensor_cores_fit(arguments)) {
    attention_prefill(arguments, batch, queue);
  } else if (!by_warpgroups || !attention_prefill_sm90a(arguments, batch, queue)) {
    attention_prefill_mma(arguments, batch, queue);
  }
}

}  // namespace faststream
