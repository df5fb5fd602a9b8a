// What the files that are compiled for one instruction set each offer to the rest of the backend.
//
// Plain pointers and numbers only: a file compiled with AVX-512 must not instantiate inline
// functions of the standard library, because the linker may keep its copy for everybody. One thread
// runs a kernel; matrices are row-major with the stride in elements.
#pragma once

#include <cstdint>

#include "backend/activation.h"
#include "support/kv_format.h"
#include "support/weight_format.h"

namespace faststream {

/// Floating element types as kernels name them.
enum class FloatType { f32, f16, bf16 };

/// Products of few rows of x [rows, in] with `channels` rows of a weight matrix [channels, in]:
/// sums[r * sums_stride + c] = x[r] · weights[c], without the scales of i8 weights.
struct DotTask {
  const void* weights = nullptr;
  int64_t in = 0;
  int64_t channels = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  // Of TileKernels::dot, as TileKernels::pack_dot writes them: x, the scales and the totals.
  const void* packed = nullptr;
  const float* row_scales = nullptr;
  const int32_t* row_totals = nullptr;
  int rows = 0;
  float* sums = nullptr;
  int64_t sums_stride = 0;
};

/// Turns sums of channels into results. Channel c of the sums is channel first + c of the scales,
/// the bias and `out`. A gated product's sums have `channels` gates in each row and, from column
/// `up_column` on, as many ups; the scale and bias of an up are `up_distance` after its gate's.
struct FinishTask {
  const float* sums = nullptr;
  int64_t sums_stride = 0;
  int64_t rows = 0;
  int64_t first = 0;
  int64_t channels = 0;
  const float* scales = nullptr;  ///< null but for i8
  const float* bias = nullptr;    ///< may be null
  int64_t up_column = 0;
  int64_t up_distance = 0;
  Activation activation = Activation::none;
  float gate_limit = kUsualGateLimit;
  bool add = false;  ///< to what `out` holds; not of gated products
  float* out = nullptr;
  int64_t out_stride = 0;
};

/// Normalizes a row.
struct NormTask {
  const float* x = nullptr;
  const float* weight = nullptr;  ///< [n]; null: ones
  const float* bias = nullptr;    ///< [n]; null: zeros
  float eps = 0;
  int64_t n = 0;
  bool add = false;       ///< to what `out` holds
  float* out = nullptr;   ///< may be x
  float mean_square = 0;  ///< of norm_by_square
};

/// Attention of the query heads that share one KV head, for consecutive tokens of one sequence.
struct AttentionTask {
  const float* q = nullptr;  ///< token 0's first head of the group; heads are head_dim apart
  int64_t q_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t tokens = 0;
  int32_t group = 0;        ///< query heads
  int32_t head_dim = 0;     ///< of queries and keys
  int32_t v_head_dim = 0;   ///< of values, and so of heads of `out`
  int32_t position = 0;     ///< of token 0; each later token one more
  int32_t cached = 0;       ///< positions of the sequence
  const void* k = nullptr;  ///< this KV head in page 0
  const void* v = nullptr;
  int64_t v_stride = 0;  ///< elements from a token's value to the next one's
  FloatType type = FloatType::f32;
  KvFormat format = KvFormat::plain;  ///< another: codes in place of elements of `type`
  const int32_t* pages = nullptr;
  int64_t k_page_stride = 0;  ///< elements, or codes, from a page of keys to the next
  int64_t v_page_stride = 0;
  int32_t page_tokens = 0;  ///< at most kMaxPageTokens
  float scale = 1;
  int64_t window = 0;             ///< see AttentionRule
  bool window_in_blocks = false;  ///< likewise
  bool bidirectional = false;     ///< likewise
  float soft_cap = 0;             ///< 0: none
  const float* sinks = nullptr;   ///< [group] or null
  const float* slopes = nullptr;  ///< [group] or null
  const float* bias = nullptr;    ///< [group, 2 bias_reach + 1] or null
  int64_t bias_reach = 0;
  // Of RelativeScores: of token 0's query, and of the key at position 0, the scores of the task's
  // first head; null: none. Those of other heads are `relative_count` after each other.
  const float* relative_of_queries = nullptr;
  int64_t relative_of_queries_stride = 0;  ///< to the next token's
  const float* relative_of_keys = nullptr;
  int64_t relative_of_keys_stride = 0;
  int64_t relative_count = 0;
  const int32_t* relative_vectors = nullptr;  ///< [2 relative_reach + 1]
  int64_t relative_reach = 0;
  float* scratch = nullptr;             ///< attention_scratch() floats, 64-byte aligned
  const AttentionTask* next = nullptr;  ///< that the thread runs after this one, if it is known
};

/// A convolution over consecutive tokens of one sequence, of some channels.
struct ConvolveTask {
  const float* x = nullptr;  ///< token 0
  int64_t x_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t tokens = 0;
  int64_t channels = 0;
  const float* before = nullptr;  ///< [taps - 1] elements before token 0, each `stride` apart
  const float* weight = nullptr;  ///< [taps], likewise
  int64_t stride = 0;
  const float* bias = nullptr;  ///< [channels] or null
  int32_t taps = 0;
  Activation activation = Activation::none;
};

/// A recurrence (see Backend::recur()) over consecutive tokens of one sequence, of some columns of
/// a head's matrix.
struct RecurTask {
  const float* q = nullptr;  ///< token 0
  int64_t q_stride = 0;
  const float* k = nullptr;
  int64_t k_stride = 0;
  const float* v = nullptr;  ///< the columns'
  int64_t v_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t tokens = 0;
  int64_t key_dim = 0;
  int64_t columns = 0;
  const float* gates = nullptr;  ///< token 0's of the head: one or, if by_channel, key_dim
  int64_t gates_stride = 0;
  const float* strength_gates = nullptr;  ///< likewise, if `delta`
  const float* steps = nullptr;           ///< as many as gates, the head's; null: no gates
  bool delta = false;                     ///< this and what follows: see Recurrence
  bool by_channel = false;
  float strength = 1;
  float unit_eps = 0;
  float query_scale = 1;
  float rate = 0;
  float skip = 0;
  float least_log_decay = 0;
  float least_step = 0;
  float most_step = 0;
  const float* from = nullptr;  ///< the matrix before token 0
  float* to = nullptr;          ///< after the last one; not `from`
  float* border = nullptr;      ///< after the first border_tokens; null: not wanted
  int64_t border_tokens = 0;
  int64_t stride = 0;        ///< floats from a row of these matrices to the next
  float* scratch = nullptr;  ///< recur_scratch() floats, 64-byte aligned
};

/// Tokens whose factors are made at once.
inline constexpr int64_t kRecurPiece = 32;
/// Columns that several tokens go through at once, 32 KB of 128 rows (half as many are slower by a
/// third: a sum waits for its last store); and that one does.
inline constexpr int64_t kRecurColumns = 64;
inline constexpr int64_t kMostRecurColumns = 256;

/// Whole lines of memory.
constexpr int64_t padded_recur_dim(int64_t n) { return (n + 15) / 16 * 16; }

/// Floats of RecurTask::scratch.
constexpr int64_t recur_scratch(int64_t key_dim, int64_t columns) {
  const int64_t blocks = (columns + kRecurColumns - 1) / kRecurColumns;
  return padded_recur_dim(key_dim) * (1 + kRecurPiece) + key_dim * blocks * kRecurColumns;
}

/// A selective scan (see Backend::scan()) over consecutive tokens of one sequence, of some
/// channels.
struct ScanTask {
  const float* x = nullptr;  ///< token 0
  int64_t x_stride = 0;
  const float* gates = nullptr;  ///< of steps
  int64_t gates_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  const float* c = nullptr;
  int64_t c_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t tokens = 0;
  int64_t channels = 0;
  int64_t state_size = 0;
  const float* rates = nullptr;  ///< [state_size], each `stride` apart
  const float* steps = nullptr;  ///< [channels]
  const float* skips = nullptr;  ///< [channels]
  const float* from = nullptr;   ///< [state_size] before token 0, each `stride` apart
  float* to = nullptr;           ///< after the last one; not `from`
  float* border = nullptr;       ///< after the first border_tokens; null: not wanted
  int64_t border_tokens = 0;
  int64_t stride = 0;
  float* scratch = nullptr;  ///< scan_scratch() floats, 64-byte aligned
};

/// ScanTask::channels may be at most this.
inline constexpr int64_t kScanChannels = 64;

/// Floats of ScanTask::scratch.
constexpr int64_t scan_scratch(int64_t state_size) { return 2 * state_size * kScanChannels; }

/// tokens · group may be at most this.
inline constexpr int kMaxAttentionRows = 64;
inline constexpr int kMaxPageTokens = 32;

/// Floats of AttentionTask::scratch.
constexpr int64_t attention_scratch(int64_t head_dim, int64_t v_head_dim) {
  const int64_t padded = (head_dim + 15) / 16 * 16 + (v_head_dim + 15) / 16 * 16;
  return kMaxAttentionRows * padded + kMaxPageTokens * (padded + 48) +
         kMaxAttentionRows * (kMaxPageTokens + 2) + 2 * kMaxPageTokens;
}

/// Logits are searched in blocks of so many: a search skips a block by its largest logit.
inline constexpr int64_t kLogitBlock = 64;
/// Blocks of a row of so many logits; the last may be shorter.
constexpr int64_t logit_blocks(int64_t count) { return (count + kLogitBlock - 1) / kLogitBlock; }

/// Logits, none of them NaN, and the largest of each block; `largest` may be null.
struct LogitSpan {
  const float* logits = nullptr;
  int64_t count = 0;
  const float* largest = nullptr;  ///< [count / kLogitBlock, rounded up]
};

/// Adds the weights of logits to bins by their orders (kernels/sampling.h): a logit's bin is its
/// order less `first_order`, shifted right by `shift`.
struct HistogramTask {
  const float* logits = nullptr;
  int64_t count = 0;
  uint32_t first_order = 0;
  int shift = 0;
  uint64_t* bins = nullptr;
};

/// The largest logit and the scale of Softmax (kernels/sampling.h), which gives logits masses.
struct MassScale {
  float largest = 0;
  float scale = 0;
};

/// A tile of weights, 16 channels x 64 bytes, or of activations.
inline constexpr int64_t kTileBytes = 1024;

/// Weights of 32 channels and a range of the inner dimension, as they lie in the model file; of
/// int4 weights a block of columns, or the beginning of one.
struct TileSource {
  const void* first = nullptr;   ///< 16 channels at the range's start, `channel_bytes` apart
  const void* second = nullptr;  ///< 16 more
  int64_t channel_bytes = 0;
  int64_t tiles_k = 0;  ///< steps of the range, of TileKernels::step_inputs each
};

/// A part of a product with many rows on tiles: 32 channels and a range of the inner dimension.
struct TileTask {
  const void* weights = nullptr;  ///< as TileKernels::gather writes them, 64-byte aligned
  int64_t tiles_k = 0;
  TileSource next;               ///< gathered to next_weights meanwhile; tiles_k 0: nothing
  void* next_weights = nullptr;  ///< not `weights`
  int64_t ahead = 0;             ///< bytes from `next` to what follows it, to prefetch; 0: nothing
  const void* packed = nullptr;  ///< x as TileKernels::pack writes it, at the range's start
  int64_t group_bytes = 0;       ///< from a group of `packed` to the next
  int64_t groups = 0;            ///< of 16 rows
  int32_t* partial =
      nullptr;           ///< tile_partials() elements that live from the first range to the last
  bool is_first = true;  ///< range: starts from zero, else from `partial`
  bool is_last = true;   ///< range: writes `sums`, else `partial`
  const float* row_scales = nullptr;    ///< [groups * 16], i8 only
  const int32_t* row_totals = nullptr;  ///< likewise
  float* sums = nullptr;                ///< [groups * 16, sums_stride]: 16 columns of `first` here
  int64_t sums_stride = 0;
  int64_t second_column = 0;  ///< where the 16 columns of `second` are
};

/// Elements of TileTask::partial.
constexpr int64_t tile_partials(int64_t groups) { return (groups + 1) / 2 * 1024; }

/// Rows of x, rounded to the weights' type.
struct PackedRows {
  void* packed = nullptr;
  float* scales = nullptr;    ///< [rows] of eight-bit rows
  int32_t* totals = nullptr;  ///< [rows], sums of eight-bit rows
};

/// Bytes of such a row of eight bits alone, for products with few rows.
constexpr int64_t packed_int8_bytes(int64_t in) { return (in + 63) / 64 * 64; }

/// Bytes of such a row for products of int4 weights with few rows: its elements, whole blocks of
/// 512, and 16-bit sums of 32 of them each.
constexpr int64_t packed_int4_bytes(int64_t in) {
  return ((in + 511) / 512 * (512 + 32) + 63) / 64 * 64;
}

/// Rows of x that int4 weights are multiplied with as they are, by TileKernels::dot.
inline constexpr int kMostInt4DotRows = 8;
/// Rows that TileKernels::dot of AMX takes at most.
inline constexpr int kMostPackedRows = 32;
/// TileKernels::most_dot_rows where `dot` takes any number.
inline constexpr int kAnyRows = INT32_MAX;
/// Rows of floats that dot_f32 multiplies as fast as tiles do.
inline constexpr int kMostFloatDotRows = 16;

/// Products with weights of one format, whose rows of x are packed for them. Those of many rows are
/// on 64-byte tiles: a step of the inner dimension is a tile, or several that are parts of it.
struct TileKernels {
  using Pack = void (*)(const float* x, int64_t stride, int64_t rows, int64_t in,
                        const PackedRows& to);
  /// That are not multiplied on tiles but by `dot`, or, where that is null, by Kernels::dot_f32.
  int most_dot_rows;
  /// Up to 16 rows, for `dot`: as many bytes for each as 64-byte tiles have, or, of int4 weights,
  /// packed_int4_bytes().
  Pack pack_dot;
  /// A row has the same bits whatever the number of rows, those on tiles included.
  void (*dot)(const DotTask&);
  // Of more rows; null where `dot` takes any number, or, of int4 weights, where more rows are
  // multiplied as i8 weights.
  int64_t step_inputs = 64;
  int64_t step_tiles = 1;  ///< of 16 channels, and of 16 rows of x
  Pack pack;  ///< 16 rows (fewer: the rest is zero), to [steps][step_tiles][16][16][4 bytes]
  /// Copies weights to [steps][step_tiles][2][16 channels][64 bytes], as `multiply` wants them.
  void (*gather)(const TileSource&, void* to);
  void (*multiply)(const TileTask&);

  [[nodiscard]] explicit operator bool() const { return dot != nullptr || multiply != nullptr; }
};

/// Panels of rows of x, for products of floats with many rows, have a multiple of so many.
inline constexpr int64_t kPanelRows = 16;
/// Channels of whose sums such a product has a block.
inline constexpr int64_t kPanelBlock = 48;

/// A panel of rows, a block of channels and a range of the inner dimension.
struct PanelTask {
  const float* packed = nullptr;          ///< x at the range's start, [in][rows]
  int64_t rows = 0;                       ///< a multiple of kPanelRows
  int64_t in = 0;                         ///< of the range
  const float* const* weights = nullptr;  ///< [kPanelBlock] channels at the range's start
  int64_t channels = 0;                   ///< of those; the rest may be read, too
  float* partial = nullptr;  ///< sums [channel][row], which live from the first range to the last
  int64_t partial_stride = 0;
  bool is_first = true;  ///< range: starts from zero, else from `partial`
};

/// Of weights of a format that is_coded().
struct CodedKernels {
  /// With the decoded weights; a row has the same bits whatever the number of rows. Null: they are
  /// decoded for Kernels::dot_f32.
  void (*dot)(const DotTask&);
  int64_t most_dot_rows;  ///< more are faster on panels
  /// Writes what `count` columns mean, from the beginning of a block on.
  void (*decode)(const void* from, int64_t count, float* to);
};

/// The kernels of one instruction set. Null members are what it does not have.
struct Kernels {
  using Dot = void (*)(const DotTask&);
  using Normalize = void (*)(const NormTask&);
  Dot dot_f32;
  Dot dot_f16;
  Dot dot_bf16;
  Dot dot_i8;
  CodedKernels coded[kWeightFormats.size()];  ///< by WeightFormat
  TileKernels tiles_i8;
  TileKernels tiles_i4;       ///< of int4 weights as they are
  TileKernels tiles_i8_wide;  ///< of i8 weights whose x keeps 16 bits
  TileKernels tiles_bf16;
  TileKernels tiles_f32;
  // Products of floats with many rows: a row has the same bits whatever their number.
  int64_t panel_groups;      ///< of kPanelRows rows, in a panel
  int64_t least_panel_rows;  ///< fewer are faster as few rows
  /// Packs up to kPanelRows rows of x as columns of a panel, those that lack as zeros.
  void (*pack_panel)(const float* x, int64_t stride, int64_t rows, int64_t in, float* to,
                     int64_t to_stride);
  void (*multiply_panel)(const PanelTask&);
  /// Sums [columns, rows], both multiples of 16, to [rows, columns].
  void (*transpose_sums)(const float* from, int64_t from_stride, int64_t columns, int64_t rows,
                         float* to, int64_t to_stride);
  /// Quantizes x [in] to eight bits, max|x| to 127; returns the scale. All ways give the same.
  float (*quantize_i8)(const float* x, int64_t in, int8_t* quantized);
  /// Rotates a row of n elements (support/hadamard.h), to itself or another. All ways give the
  /// same.
  void (*hadamard)(const float* x, int64_t n, float* to);
  /// Converts `count` elements to float.
  void (*widen)(const void* from, FloatType type, int64_t count, float* to);
  void (*widen_i8)(const int8_t* from, int64_t count, float* to);
  /// Writes what `count` columns of int4 mean, from the beginning of a block on, without the row's
  /// scale.
  void (*decode_int4)(const void* from, int64_t count, int8_t* to);
  /// Converts `count` floats.
  void (*narrow)(const float* from, FloatType type, int64_t count, void* to);
  void (*finish_linear)(const FinishTask&);
  void (*finish_gated)(const FinishTask&);
  Normalize no_norm;  ///< x itself
  Normalize rms_norm;
  float (*sum_squares)(const float* x, int64_t n);  ///< as rms_norm adds them up
  Normalize norm_by_square;                         ///< rms_norm of a mean square that is given
  Normalize layer_norm;
  /// Rotates the first `rotated` elements of `heads` heads in place, by angles with these cosines
  /// and sines [rotated / 2].
  void (*rotate)(float* x, const float* cosines, const float* sines, int64_t heads,
                 int64_t head_dim, int64_t rotated);
  /// x = above x² + beta x where x > 0, else below (exp(x) - 1 - x) + beta x.
  void (*xielu)(float above, float below, float beta, int64_t n, float* x);
  void (*convolve)(const ConvolveTask&);
  void (*recur)(const RecurTask&);
  void (*scan)(const ScanTask&);
  /// m *= activation(factors), of n elements each.
  void (*scale)(const float* factors, Activation activation, int64_t n, float* m);
  /// x = activation(x).
  void (*activate)(Activation activation, int64_t n, float* x);
  /// x = cap · tanh(x / cap).
  void (*soft_cap)(float cap, int64_t n, float* x);
  void (*attention)(const AttentionTask&);
  /// The largest logit of each block; false when a logit is NaN.
  bool (*largest_logits)(const float* logits, int64_t count, float* largest);
  /// The same, and the sum of e^(logit - largest) of each block.
  bool (*sum_logits)(const float* logits, int64_t count, float* largest, float* sums);
  /// What such sums of blocks are together, relative to the largest logit of all, which is finite.
  double (*add_sums)(const float* largest, const float* sums, int64_t blocks, float largest_of_all);
  /// Copies those in [low, high], in order, and returns how many. `to` has room for all, and a
  /// block more; it may be the logits themselves.
  int64_t (*copy_logits)(const LogitSpan&, float low, float high, float* to);
  /// Where the n-th (from 0) of those that equal `logit` is, which there must be.
  int64_t (*find_logit)(const LogitSpan&, float logit, int64_t n);
  /// Each logit weighs 1; all have bins.
  void (*count_logits)(const HistogramTask&);
  /// Each logit weighs its mass; those that have one have bins.
  void (*weigh_logits)(const HistogramTask&, const MassScale&);
  uint64_t (*total_mass)(const float* logits, int64_t count, const MassScale&);
};

/// Kernels for any processor.
Kernels portable_kernels();
#if defined(__x86_64__)
Kernels avx2_kernels();
Kernels avx512_kernels();
/// Adds what the instruction set has to `kernels`.
void add_avx_vnni_kernels(Kernels& kernels);
void add_avx512_vnni_kernels(Kernels& kernels);
void add_avx512_bf16_kernels(Kernels& kernels);
void add_amx_kernels(Kernels& kernels);
#endif

}  // namespace faststream
