// What the attention kernels share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backend/backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/scratch.h"

namespace faststream {

/// The largest head_dim, and that of the tensor cores' kernels: accumulators are in registers.
inline constexpr int kLargestHeadDim = 512;
inline constexpr int kLargestMmaHeadDim = 512;
/// And that of kernels that read codes (KvFormat).
inline constexpr int kLargestCodedDim = 256;

/// Throws Error where heads are of widths that no kernel takes: keys, and values beside them, that
/// are wider than kLargestHeadDim or of an odd width.
void check_heads(const KvLayer& kv);

inline constexpr int kMinSplitTokens = 256;
inline constexpr int kMaxSplits = 32;  ///< of one cache

/// Arguments of every attention kernel. Scores are scaled by softmax scale · log2(e), so that
/// probabilities are powers of two.
struct AttentionArguments {
  Matrix q;
  Matrix out;
  KvLayer kv;
  int n_heads = 0;
  float scale_log2 = 0;  // here it takes no room: the step's kernel has none left
  AttentionRule rule;
  const int32_t* query_start = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* page_table = nullptr;
  int32_t max_pages = 0;
  int32_t split_tokens = kMinSplitTokens;  ///< the fewest of a split, but for a sequence's last
  int32_t most_splits = kMaxSplits;        ///< of a sequence
  /// Of a sequence, for kernels of several queries each: those with fewer or more are left alone.
  int32_t least_queries = 2;
  int32_t most_queries = std::numeric_limits<int32_t>::max();

  [[nodiscard]] int widest_head() const { return std::max(kv.head_dim, kv.v_head_dim); }
};

AttentionArguments attention_arguments(const BatchView& batch, const Matrix& q, int64_t n_heads,
                                       const KvLayer& kv, const AttentionRule& rule,
                                       const Matrix& out);

/// Whether queries and cache have one type of 16 bits, in rows of whole pieces of 16 bytes.
bool rows_fit_tensor_cores(const AttentionArguments& arguments);

/// How the caches of sequences with one query are split among blocks.
struct Splits {
  int count = 1;       ///< a bound of the splits of every sequence
  int head_tiles = 1;  ///< blocks that share a KV head's query heads
  float* partials =
      nullptr;  ///< [sequence, head, split, 2 + v_head_dim]: maximum, sum, accumulator
};

/// A bound of the splits of a batch's sequences that have one query.
int max_splits(const AttentionRule& rule, const BatchView& batch);

/// The most sequences that view_of_queries() has.
int64_t most_divided(const StepBounds& bounds);

/// The most memory that the partial results of splits take.
size_t decode_bytes(const StepBounds& bounds);
/// And that keys and values of `type` take that are made of codes.
size_t widened_kv_bytes(const StepBounds& bounds, DType type);

/// Attention of the sequences that have more than one query; others are left alone. Any types and
/// any even widths of heads:
void attention_prefill(const AttentionArguments& arguments, const BatchView& batch,
                       const Queue& queue);

/// The same on the tensor cores, where they fit (attention.cu).
void attention_prefill_mma(const AttentionArguments& arguments, const BatchView& batch,
                           const Queue& queue);

/// Likewise, on Hopper, for keys and values of 64, 128 or 256 dimensions, or of 192 and 128. False,
/// with nothing done, for others.
bool attention_prefill_sm90a(const AttentionArguments& arguments, const BatchView& batch,
                             const Queue& queue);

/// Rotates the first cos_sin.cols elements of each head of queries, in place, and those of kept
/// [tokens, kv.head_dim], if it has data, whose rows are written to their pages.
void place_latents(const BatchView& batch, const Matrix& queries, int64_t n_heads,
                   const Matrix& kept, const Matrix& cos_sin, const KvLayer& kv,
                   const Queue& queue);
/// Attention of all sequences over keys that have their values in them; of one KV head. In float
/// arithmetic, any types and any even head_dim:
void attention_latent_float(const AttentionArguments& arguments, const BatchView& batch,
                            const Queue& queue);
/// Whether the tensor cores take them, if they take the types (attention.cu).
bool latent_widths_fit(const AttentionArguments& arguments);
/// Of those of the first n_sequences that have exactly one query, on Hopper, for latents of 512
/// elements beside 64 that are rotated. False, with nothing done, for others.
bool attention_latent_decode_sm90a(const AttentionArguments& arguments, int32_t n_sequences,
                                   Splits splits, const Queue& queue);
/// Then, of those of the first n_sequences that have exactly one query, and of those that have
/// more. merge_splits() makes the output of several splits.
void attention_latent_decode_mma(const AttentionArguments& arguments, int32_t n_sequences,
                                 const Splits& splits, const Queue& queue);
void attention_latent_prefill_mma(const AttentionArguments& arguments, const BatchView& batch,
                                  const Queue& queue);

/// Of latent attention's heads: the rotated and the other elements of keys, those of values, and of
/// latents.
struct LatentShape {
  int64_t rope_dim = 0;
  int64_t nope_dim = 0;
  int64_t value_dim = 0;
  int64_t rank = 0;

  [[nodiscard]] int64_t kept_dim() const { return rope_dim + rank; }
  [[nodiscard]] int64_t head_dim() const { return nope_dim + value_dim; }
};

/// What sequences keep, and what heads have made of it, one token a row.
struct LatentRows {
  Matrix kept;   ///< [rows, kept_dim]
  Matrix heads;  ///< [rows, n_heads · head_dim]: each head's nope_dim, then its value
  const int32_t* first_rows = nullptr;  ///< [n_sequences]
};

/// On Hopper: whether attention_plain_sm90a() can run.
bool plain_fits(const AttentionArguments& arguments, const LatentShape& shape);
/// Attention of those of the first n_sequences that have least_queries or more, over keys and
/// values that heads have made of latents.
void attention_plain_sm90a(const AttentionArguments& arguments, int32_t n_sequences,
                           const LatentShape& shape, const LatentRows& rows, const Queue& queue);
/// The most memory that latent attention takes for keys and values.
size_t plain_bytes(const LatentBound& latent, int64_t tokens, int64_t sequences, int64_t context);

}  // namespace faststream
