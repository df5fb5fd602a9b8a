// The tensors of a description: the one table that all who deal with weights read. What the model
// file holds, where the converter takes it from, what a model looks up, what its products are, what
// a step reads, and how several ranks share it, come from here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "models/config.h"
#include "support/weight_format.h"

namespace faststream {

/// Which tensor, of the model or of a layer. Their names in the file are these.
enum class TensorKind : uint8_t {
  embedding,
  positions,
  segments,
  embedding_norm,
  embedding_projection,
  layer_inputs,
  layer_inputs_projection,
  layer_inputs_norm,
  hidden_norm,
  hidden_projection,
  layer_states_norm,
  layer_states_projection,
  altup_in,
  altup_norm,  // of each layer, from here on
  altup_gates,
  altup_predict,
  altup_correct,
  attention_norm,
  aside_norm,
  aside_qkv,
  aside_out,
  aside_middle_norm,
  aside_gate_up,
  aside_up,
  aside_down,
  attention_qkv,
  attention_q_norm,
  attention_k_norm,
  attention_sinks,
  attention_distances,
  attention_relative_keys,
  attention_relative_queries,
  latent_q_down,
  latent_q_norm,
  latent_q,
  latent_kv,
  latent_kv_norm,
  latent_k,
  latent_v,
  latent_gate,
  attention_sums_norm,
  attention_out,
  recurrent_in,
  recurrent_gates,
  recurrent_gates_norm,
  recurrent_gates_up,
  recurrent_convolution,
  recurrent_decay,
  recurrent_step,
  recurrent_skip,
  recurrent_norm,
  recurrent_factors,
  recurrent_out,
  attention_after_norm,
  attention_stream_norm,
  laurel_in,
  laurel_out,
  laurel_norm,
  cross_norm,
  cross_q,
  cross_kv,
  cross_out,
  cross_after_norm,
  cross_stream_norm,
  ffn_norm,
  ffn_gate_up,
  ffn_up,
  ffn_middle_norm,
  ffn_down,
  ffn_xielu,
  router_norm,
  router,
  router_correction,
  expert_scales,
  experts_norm,
  experts_gate_up,
  experts_up,
  experts_down,
  experts_after_norm,
  shared_gate_up,
  shared_up,
  shared_down,
  shared_gate,
  shared_after_norm,
  experts_sum_bias,
  ffn_after_norm,
  ffn_stream_norm,
  token_convolution,
  token_convolution_norm,
  input_scale,
  input_gate,
  input_out,
  input_after_norm,
  stream_scale,
  altup_out,  // of the model again
  output_norm,
  dense,
  dense_norm,
  output,
};

/// Whether there is one in each layer, rather than in the model.
constexpr bool is_of_layers(TensorKind kind) {
  return TensorKind::altup_norm <= kind && kind <= TensorKind::stream_scale;
}

/// A tensor of that kind, or one that belongs to it.
enum class TensorMember : uint8_t {
  weights,
  scales,  ///< of a matrix whose format has some
  bias,
  adapter_a,  ///< of an adapter, what is multiplied first (models/adapter_plan.h)
  adapter_b,
};

/// "ffn_down": as tensors of that kind are called in the file, and its inverse.
std::string_view kind_name(TensorKind kind);
std::optional<TensorKind> kind_from_name(std::string_view name);

/// Whether a FormatRule can be of it: matrices that have ModelConfig::weight_format else.
bool takes_format(TensorKind kind);

/// The last matrices of feed-forwards.
inline constexpr std::array kDownKinds = {TensorKind::ffn_down, TensorKind::experts_down,
                                          TensorKind::shared_down, TensorKind::aside_down};

/// Tells a tensor of a model from all others.
struct TensorId {
  TensorKind kind = TensorKind::embedding;
  int64_t n = 0;  ///< of which layer, or of which dense layer; else 0
  TensorMember member = TensorMember::weights;
  bool of_encoder = false;
  int64_t predictor = 0;  ///< of which predictor, counted from 1; 0: of none
  int64_t adapter = 0;    ///< of which adapter, counted from 1; 0: of none

  bool operator==(const TensorId&) const = default;
  bool operator<(const TensorId& other) const {
    return std::tie(of_encoder, predictor, adapter, n, kind, member) <
           std::tie(other.of_encoder, other.predictor, other.adapter, other.n, other.kind,
                    other.member);
  }
};

/// Whose layers' a tensor is: the description's, its encoder's or a predictor's.
const ModelConfig& stack_of(const ModelConfig& config, const TensorId& id);

/// Those that belong to a tensor.
constexpr TensorId scales_of(TensorId id) {
  id.member = TensorMember::scales;
  return id;
}
constexpr TensorId bias_of(TensorId id) {
  id.member = TensorMember::bias;
  return id;
}

/// "layers.3.attention_qkv_bias", "encoder.embedding", "predictors.0.hidden_norm": its name in a
/// model file; of an adapter, in its own.
std::string tensor_name(const TensorId& id);

/// The first and the last matrix of a layer's feed-forward, of its experts, or of the one that all
/// tokens use beside these.
struct FeedForwardTensors {
  TensorKind up;
  TensorKind down;
};
FeedForwardTensors ffn_tensors(const FeedForwardConfig& ffn);
FeedForwardTensors expert_tensors(const FeedForwardConfig& each);
FeedForwardTensors shared_tensors(const FeedForwardConfig& shared);
FeedForwardTensors aside_tensors(const FeedForwardConfig& ffn);

/// What a tensor is for.
enum class TensorRole {
  table,   ///< rows that are looked up: embedding, positions, segments
  matrix,  ///< of a product, [out, in]
  norm,    ///< weights of a normalization
  bias,    ///< what is added: biases, corrections, sinks
  scales,  ///< of the matrix before it
};

/// Whose products a step needs a tensor for.
enum class TensorReaders {
  lookup,  ///< nobody's: its rows are looked up
  all,     ///< all tokens'
  wanted,  ///< those of tokens whose logits, or of texts whose vectors, are wanted
};

/// How ranks that compute one step together share a tensor (models/shares.h says what each has).
enum class SplitBy {
  none,        ///< each has all of it
  output,      ///< rows: each has some elements of the result
  input,       ///< columns: results of all are added up
  head,        ///< rows, or columns of what has them there, in whole heads
  vocabulary,  ///< rows, of tokens
};

/// The rows of a tensor, or its columns, are one or more parts, one after the other, of which each
/// rank has its share: of Q, K and V; of gate and up.
struct SplitRule {
  SplitBy by = SplitBy::none;
  bool columns = false;
  struct Part {
    int64_t extent = 0;  ///< 0: no more parts
    int64_t unit = 1;    ///< rows or columns that stay together; the last unit may be shorter
    /// The same where there are more ranks than units, so that several share one: those of a query
    /// head; 0: each of them has all of it, as of a key head.
    int64_t fine = 0;
    bool operator==(const Part&) const = default;
  };
  using Parts = std::array<Part, 4>;
  Parts parts{};
  int64_t repeats = 1;  ///< so many times these parts: those of each expert
};

/// Rows or columns that follow each other.
struct SplitShare {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const SplitShare&) const = default;
};
/// What a rank has of a part, from its beginning: whole units in order, shares that differ by one
/// unit at most. It may be nothing where units are shared by more ranks than they can be.
SplitShare share_of(const SplitRule::Part& part, RankPlace rank);
/// What a rank has of a tensor that is split: its shares of all parts, in order.
std::vector<SplitShare> shares_of(const SplitRule& rule, RankPlace rank);

/// How a mixer's heads are shared: in units of so many key heads and the heads that they serve. So
/// each rank has the key heads of its heads, and nobody else has them, unless there are more ranks
/// than units.
struct HeadUnits {
  int64_t key_heads = 1;
  int64_t heads = 1;
  int64_t fine = 0;  ///< heads, see SplitRule::Part; 0: no unit is shared

  /// Of elements, so many of each of n heads.
  [[nodiscard]] SplitRule::Part of_heads(int64_t n, int64_t dim) const {
    return {n * dim, heads * dim, fine * dim};
  }
  [[nodiscard]] SplitRule::Part of_key_heads(int64_t n, int64_t dim) const {
    return {n * dim, key_heads * dim, 0};
  }
};
HeadUnits head_units(const ModelConfig& config, const AttentionConfig& attention);
HeadUnits head_units(const ModelConfig& config, const LatentAttentionConfig& attention);
HeadUnits head_units(const ModelConfig& config, const DeltaNetConfig& mixer);
HeadUnits head_units(const ModelConfig& config, const StateSpaceConfig& mixer);
HeadUnits head_units(const ModelConfig& config, const LinearAttentionConfig& mixer);
// Whose heads are channels.
HeadUnits head_units(const ModelConfig& config, const SelectiveScanConfig& mixer);
HeadUnits head_units(const ModelConfig& config, const ShortConvolutionConfig& mixer);
/// How the middle of a feed-forward is shared.
SplitRule::Part middle_part(const ModelConfig& config, const FeedForwardConfig& ffn);

/// Which heads of a tensor its conversion rotates where ModelConfig::values_rotated, each by
/// itself: V's rows, and the columns of what multiplies attention's sums of values, whose products
/// stay what they are. So these sums need no rotation when the model runs.
struct HeadRotation {
  int64_t dim = 0;        ///< of a head; 0: none
  int64_t first_row = 0;  ///< from here on; all before are left as they are
  bool columns = false;   ///< of columns rather than of rows
};

/// A tensor that a model file must hold.
struct TensorPlan {
  TensorId id = {};
  std::string name = {};  ///< tensor_name(id)
  WeightFormat format = WeightFormat::f32;
  std::vector<int64_t> shape = {};  ///< what it means; a matrix is [rows, columns]
  TensorRole role = TensorRole::matrix;
  TensorReaders readers = TensorReaders::all;
  SplitRule split = {};
  int64_t experts = 0;      ///< of a matrix of experts: how many; a step reads those that are used
  int64_t blocks = 0;       ///< of Backend::head_linear(): how many heads; 0: of other products
  bool gated = false;       ///< of a matrix: rows of gates, then as many of what they multiply
  bool cuts_gates = false;  ///< then: whether gates are cut before they are activated
  Activation activation = Activation::none;  ///< of its products, or of those of the gates
  bool rotated = false;                      ///< see Weight
  HeadRotation heads = {};

  /// Its element type and shape in the file.
  [[nodiscard]] DType stored_as() const { return stored_type(format); }
  [[nodiscard]] std::vector<int64_t> stored_shape() const;
  /// Bytes of so many of its columns in a row; a vector is a column.
  [[nodiscard]] int64_t bytes_of_columns(int64_t columns) const {
    return row_bytes(format, columns);
  }
  [[nodiscard]] int64_t columns() const { return shape.size() == 2 ? shape[1] : 1; }

  /// Whether rows are multiplied with it, as with the embedding table where that is the output
  /// matrix.
  [[nodiscard]] bool is_multiplied() const {
    return role == TensorRole::matrix ||
           (role == TensorRole::table && readers == TensorReaders::wanted);
  }
};

/// All tensors of a description, of a stage's those of its layers, in file order, each only where
/// the description asks for it:
///
///   embedding                         [vocab, hidden], or the embedding's size; so the next three
///   positions                         [embedding.positions, hidden]
///   segments                          [embedding.segments, hidden]
///   embedding_norm                    [hidden]
///   embedding_projection              [hidden, embedding.size]        of that size
///   layer_inputs                      [vocab, layers · size]
///   layer_inputs_projection           [layers · size, hidden]
///   layer_inputs_norm                 [size]
///   hidden_norm                       [hidden]              of a predictor
///   hidden_projection                 [hidden, 2 hidden]    likewise: columns of the embedding,
///                                                           then of the hidden state
///                                                           unless it stands beside that
///   layer_states_norm                 [n hidden]            likewise: of n layers' states
///   layer_states_projection           [hidden, n hidden]
///   altup_in                          [(streams - 1) hidden, hidden]
///   layers.N.altup_norm               [hidden]
///   layers.N.altup_gates             [streams, hidden]     f32
///   layers.N.altup_predict            [parts², streams]     f32: weights of Backend::combine() for
///   layers.N.altup_correct            [parts², streams]     AltUpConfig::parts(); both with biases
///   layers.N.attention_norm           [hidden]              before the mixers
///   layers.N.aside_norm               [2 hidden]            these: of the block beside the stream
///   layers.N.aside_qkv                [in_dim, 2 hidden]
///   layers.N.aside_out                [hidden, sums_dim]
///   layers.N.aside_middle_norm        [hidden]
///   layers.N.aside_gate_up (aside_up), aside_down           as ffn_
///   layers.N.attention_qkv            [in_dim, hidden]      Q rows, then K, then V, then gates;
///                                                           with kv_of no K and V, and so no
///                                                           attention_k_norm
///   layers.N.attention_q_norm         [q_dim]               of qk_norm
///   layers.N.attention_k_norm         [k_dim]
///   layers.N.attention_sinks          [n_heads]
///   layers.N.attention_distances      [buckets, n_heads]    of the relative bias
///   layers.N.attention_relative_keys  [n_heads · rows, head_dim]      of relative scores: what
///                                                           queries are multiplied with
///   layers.N.attention_relative_queries                     likewise keys
///   layers.N.latent_q_down            [q_rank, hidden]      of latent attention, if q_rank > 0
///   layers.N.latent_q_norm            [q_rank]              likewise
///   layers.N.latent_q                 [q_dim, q_rank], or [q_dim, hidden]
///   layers.N.latent_kv                [kept_dim, hidden]    what is rotated, then the latent
///   layers.N.latent_kv_norm           [kv_rank]
///   layers.N.latent_k                 [n_heads · kv_rank, nope_dim]   each head's own
///   layers.N.latent_v                 [n_heads · value_head_dim, kv_rank]   likewise
///   layers.N.latent_gate              [n_heads, hidden]
///   layers.N.attention_sums_norm      [sums_dim]
///   layers.N.attention_out            [hidden, sums_dim]
///   layers.N.recurrent_in             [in, hidden]          see RecurrentShape and its mixer
///   layers.N.recurrent_gates          [gates, hidden]       of steps, then of strengths, latents
///   of
///                                     steps and of factors; of a selective scan [gates, channels],
///                                     of steps' latent, B and C
///   layers.N.recurrent_gates_norm     [gates]               of such a scan's, each by itself
///   layers.N.recurrent_gates_up       [raised, rank]        makes steps of their latent
///   layers.N.recurrent_convolution    [channels, taps]      f32: the newest element's is the last
///   layers.N.recurrent_decay          [n_heads]             log(-rate), see Recurrence; of a
///                                     selective scan [channels, state_size]
///   layers.N.recurrent_step           [n_heads], [channels] added to steps; [n_heads · key_dim]
///                                     where channels decay by themselves
///   layers.N.recurrent_skip           [n_heads], [channels]
///   layers.N.recurrent_norm           [value_dim], of a state space [sums]
///   layers.N.recurrent_factors        [sums, rank]          made of their latent; of linear
///   attention
///                                     [sums, hidden]
///   layers.N.recurrent_out            [hidden, sums]
///   layers.N.attention_after_norm     [hidden]
///   layers.N.attention_stream_norm    [hidden]
///   layers.N.laurel_in                [rank, hidden]
///   layers.N.laurel_out               [hidden, rank]
///   layers.N.laurel_norm              [hidden]
///   layers.N.cross_norm               [hidden]              before
///   layers.N.cross_q                  [q_dim, hidden]
///   layers.N.cross_kv                 [k_dim + v_dim, encoder's hidden]   K rows, then V
///   layers.N.cross_out                [hidden, sums_dim]
///   layers.N.cross_after_norm         [hidden]
///   layers.N.cross_stream_norm        [hidden]
///   layers.N.ffn_norm                 [hidden]              before
///   layers.N.ffn_gate_up              [2 size, hidden]      gate rows, then up; or
///   layers.N.ffn_up                   [size, hidden]
///   layers.N.ffn_middle_norm          [size]
///   layers.N.ffn_down                 [hidden, size]
///   layers.N.ffn_xielu                [3]                   see Backend::xielu()
///   layers.N.router_norm              [hidden]
///   layers.N.router                   [experts, hidden]     f32
///   layers.N.router_correction        [experts]
///   layers.N.expert_scales            [experts]
///   layers.N.experts_norm             [hidden]
///   layers.N.experts_gate_up          [experts · 2 size, hidden], or experts_up
///   layers.N.experts_down             [experts · hidden, size]
///   layers.N.experts_after_norm       [hidden]
///   layers.N.shared_gate_up, shared_up, shared_down         as ffn_
///   layers.N.shared_gate              [1, hidden]           f32
///   layers.N.shared_after_norm        [hidden]
///   layers.N.experts_sum_bias         [hidden]
///   layers.N.ffn_after_norm           [hidden]
///   layers.N.ffn_stream_norm          [hidden]
///   layers.N.token_convolution        [hidden, taps · hidden]   W_0, W_1, ..
///   layers.N.token_convolution_norm   [hidden]
///   layers.N.input_scale              [hidden]              of what input_gate reads
///   layers.N.input_gate               [size, hidden]        of the layer's inputs
///   layers.N.input_out                [hidden, size]
///   layers.N.input_after_norm         [hidden]
///   layers.N.stream_scale             [1]
///   altup_out                         [(streams - 1) hidden, hidden]   each stream's own
///   output_norm                       [hidden]
///   dense.N                           [size, size before]   f32, of pooling or before the output
///   dense.N_norm                      [size]
///   output                            [vocab, hidden]       unless tied or none; of a predictor
///                                                           rows of output.tokens alone
///
/// and then those of the encoder, whose names begin with "encoder.", and those of predictors, last
/// of all, as most runs leave them in the file: "predictors.N.". X.scales follows a matrix whose
/// format has scales (support/weight_format.h); X_bias, f32 with as many elements as X has rows,
/// follows X where that has a bias. Rows of Q and K are in Transformers' order (halves of what is
/// rotated are the pairs' members).
std::vector<TensorPlan> tensor_plan(const ModelConfig& config);

/// What tensors take.
struct TensorSizes {
  uint64_t bytes = 0;        ///< of all of them
  double bits_a_weight = 0;  ///< mean over the matrices that rows are multiplied with; their scales
                             ///< count
};
TensorSizes sizes_of(std::span<const TensorPlan> tensors);

}  // namespace faststream
