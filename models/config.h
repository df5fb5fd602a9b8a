// What a model computes, as data: the header's "model" of a model file. A description is validated
// whole before anything is allocated; models/decoder runs any that is valid.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "support/weight_format.h"

namespace faststream {

/// Limits of a description. With them products of three counts are far below 2^63.
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxContext = int64_t{1} << 28;  ///< positions
inline constexpr int64_t kMaxPredictors = 16;

/// One of several that compute each step together: stages, one after the other, have layers that
/// follow each other, and the ranks of a stage share each of its layers.
struct RankPlace {
  int32_t index = 0;  ///< among the ranks of its stage
  int32_t count = 1;  ///< of each stage
  int32_t stage = 0;
  int32_t stages = 1;
  bool operator==(const RankPlace&) const = default;
};

/// Layers that follow each other.
struct LayerRange {
  int64_t first = 0;
  int64_t end = 0;  ///< behind the last one
  bool operator==(const LayerRange&) const = default;
};

struct NormConfig {
  NormKind kind = NormKind::none;
  float eps = 0;
  bool bias = false;  ///< layer only

  [[nodiscard]] explicit operator bool() const { return kind != NormKind::none; }
  bool operator==(const NormConfig&) const = default;
};

/// How positions become rotations. Scaling rules are arithmetic of the converter, but for those
/// that depend on the length of the text.
struct RopeConfig {
  std::string name;
  std::vector<float> frequencies;  ///< radians a position, of each pair of elements; at least one
  float attention_factor = 1;      ///< of cosines and sines (YaRN, arXiv:2309.00071)
  /// Longer texts than this are rotated by long_frequencies as a whole, if there are any (LongRoPE,
  /// arXiv:2402.13753), or their tokens by NTK-aware frequencies (`dynamic`): those of a prompt by
  /// the prompt's, later ones by their own length. 0: no such rule. As Transformers does.
  int64_t original_max_context = 0;
  std::vector<float> long_frequencies;
  double dynamic_factor = 0;

  [[nodiscard]] int64_t dims() const { return 2 * static_cast<int64_t>(frequencies.size()); }
  bool operator==(const RopeConfig&) const = default;
};

/// theta^(-2i / dims) for i from 0 while 2i < dims, in float32 as Transformers computes it.
std::vector<float> plain_frequencies(double theta, int64_t dims);

enum class QkNorm {
  none,
  head,   ///< each head of queries and keys by itself, with weights of its own
  whole,  ///< all query heads together and all key heads together
};

/// A number that is added to scores for each head and distance of the key from the query, learned
/// for buckets of distances (T5, arXiv:1910.10683): small ones by themselves, larger ones on a
/// logarithmic scale up to max_distance, beyond which all are alike.
struct RelativeBiasConfig {
  int64_t buckets = 0;  ///< 0: none
  int64_t max_distance = 0;
  /// Half the buckets are for keys after the query; else such keys are as near as can be.
  bool bidirectional = false;

  [[nodiscard]] explicit operator bool() const { return buckets != 0; }
  bool operator==(const RelativeBiasConfig&) const = default;
};

/// What a query's and a key's positions relative to each other add to their score (disentangled
/// attention, arXiv:2006.03654): the query's product with a vector of the head's own, and the key's
/// with another, both of the row that their distance has in matrices of so many rows a head.
struct RelativeScoresConfig {
  int64_t rows = 0;  ///< of each head, an even number; 0: none. See row_by_distance()
  /// Distances of a quarter of the rows and more are on a logarithmic scale up to this one; 0: each
  /// has a row of its own, as far as there are rows.
  int64_t max_distance = 0;
  bool of_queries = false;  ///< these have vectors to be multiplied with
  bool of_keys = false;     ///< likewise

  [[nodiscard]] explicit operator bool() const { return rows != 0; }
  /// From here on all distances have the same row.
  [[nodiscard]] int64_t reach() const { return max_distance > 0 ? max_distance : rows / 2; }
  bool operator==(const RelativeScoresConfig&) const = default;
};

struct AttentionConfig {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;                   ///< of queries and keys
  std::optional<int64_t> value_head_dim;  ///< of values and their sums; none: head_dim
  float scale = 0;                        ///< of scores
  bool qkv_bias = false;                  ///< of queries, keys and values
  bool out_bias = false;
  QkNorm qk_norm = QkNorm::none;
  NormConfig qk_norm_as;
  bool qk_norm_after_rope = false;  ///< of each head by itself: see HeadTransform
  bool v_norm = false;              ///< of each head of values likewise, without weights
  std::optional<size_t> rope;       ///< index in ModelConfig::ropes; none: no rotation
  float query_scaling = 0;          ///< see HeadTransform
  int64_t query_scaling_from = 0;
  int64_t query_scaling_ahead = 0;
  bool query_power = false;
  int64_t window = 0;             ///< see AttentionRule; 0: all positions
  bool window_in_blocks = false;  ///< likewise
  bool bidirectional = false;     ///< likewise
  float soft_cap = 0;             ///< 0: none
  bool sinks = false;
  std::vector<float> slopes;  ///< [n_heads] of ALiBi (arXiv:2108.12409); empty: none
  RelativeBiasConfig relative_bias;
  RelativeScoresConfig relative_scores = {};
  /// The earlier layer whose keys and values it reads, having none of its own (arXiv:2405.12981).
  std::optional<int64_t> kv_of;
  /// Sums of values are multiplied by an activated product of their own (arXiv:2505.06708).
  bool output_gate = false;
  bool head_gate = false;  ///< of which each head's sums have one element, not each its own
  Activation gate = Activation::sigmoid;
  NormConfig sums_norm = {};  ///< of all heads' sums of values together, before the last product
  // Of a rank's share (models/shares.h): of what QkNorm::whole and sums_norm are.
  NormShare q_norm_share = {};
  NormShare k_norm_share = {};
  NormShare sums_norm_share = {};

  [[nodiscard]] int64_t v_head_dim() const { return value_head_dim.value_or(head_dim); }
  // Elements of a token's queries, keys, values, what the layer makes of these, and sums of values.
  [[nodiscard]] int64_t q_dim() const { return n_heads * head_dim; }
  [[nodiscard]] int64_t k_dim() const { return n_kv_heads * head_dim; }
  [[nodiscard]] int64_t v_dim() const { return n_kv_heads * v_head_dim(); }
  [[nodiscard]] int64_t qkv_dim() const { return q_dim() + (kv_of ? 0 : k_dim() + v_dim()); }
  [[nodiscard]] int64_t sums_dim() const { return n_heads * v_head_dim(); }
  [[nodiscard]] int64_t gates_dim() const {
    return !output_gate ? 0 : head_gate ? n_heads : sums_dim();
  }
  /// Of all that the first product gives: queries, keys and values, then the output's gates.
  [[nodiscard]] int64_t in_dim() const { return qkv_dim() + gates_dim(); }
  bool operator==(const AttentionConfig&) const = default;
};

/// Multi-head latent attention (arXiv:2405.04434). Of each token a layer keeps one row, of which
/// all heads' keys and values are made: rope_dim rotated elements, a part of every head's key, then
/// the latent. Queries go to where latents are, and sums of latents to where values are, so that
/// nothing is ever made of what is kept: attention of one KV head whose values are in its keys.
struct LatentAttentionConfig {
  int64_t n_heads = 0;
  int64_t q_rank = 0;    ///< of the latent that queries are made of; 0: of the input itself
  int64_t kv_rank = 0;   ///< of the latent that keys and values are made of
  int64_t rope_dim = 0;  ///< rotated elements of a head's queries and keys, the first ones
  int64_t nope_dim = 0;  ///< the others
  int64_t value_head_dim = 0;
  float scale = 0;              ///< of scores
  bool bias = false;            ///< of what makes latents, and of the output
  NormConfig latent_norm = {};  ///< of both latents; without bias
  bool head_gate = false;       ///< each head's sums are multiplied by the sigmoid of a product
  /// Index in ModelConfig::ropes, of rope_dim elements; none: no rotation.
  std::optional<size_t> rope = {};

  // Elements of a head's query, and of the row that a token has in the cache.
  [[nodiscard]] int64_t q_head_dim() const { return rope_dim + nope_dim; }
  [[nodiscard]] int64_t kept_dim() const { return rope_dim + kv_rank; }
  // Of a token's queries as they are made, where latents are, and of all heads' sums of values.
  [[nodiscard]] int64_t q_dim() const { return n_heads * q_head_dim(); }
  [[nodiscard]] int64_t latent_q_dim() const { return n_heads * kept_dim(); }
  [[nodiscard]] int64_t sums_dim() const { return n_heads * value_head_dim; }
  bool operator==(const LatentAttentionConfig&) const = default;
};

/// A weighted sum of each channel's last elements, one a token.
struct ConvolutionConfig {
  int64_t taps = 0;  ///< elements
  bool bias = false;
  Activation activation = Activation::none;
  bool operator==(const ConvolutionConfig&) const = default;
};

/// The gated delta rule (arXiv:2412.06464): queries, keys and values go through a convolution, then
/// through Backend::recur(), whose sums are normalized head by head and multiplied by an activated
/// product of their own.
struct DeltaNetConfig {
  int64_t n_key_heads = 0;
  int64_t n_value_heads = 0;  ///< a multiple
  int64_t key_head_dim = 0;
  int64_t value_head_dim = 0;
  ConvolutionConfig convolution;
  float strength = 1;  ///< the largest share of a value that is written
  /// Each channel of a value head's keys decays by itself (arXiv:2510.26692).
  bool decays_by_channel = false;
  int64_t decay_rank = 0;     ///< of a latent that these gates are made of; 0: of the input itself
  float least_log_decay = 0;  ///< see Recurrence
  NormConfig norm;            ///< of each head's sums, with the same weights
  int64_t gate_rank = 0;      ///< likewise of what the sums are multiplied by
  Activation gate = Activation::silu;

  [[nodiscard]] int64_t k_dim() const { return n_key_heads * key_head_dim; }
  [[nodiscard]] int64_t v_dim() const { return n_value_heads * value_head_dim; }
  /// Gates that decays are made of.
  [[nodiscard]] int64_t n_decays() const {
    return n_value_heads * (decays_by_channel ? key_head_dim : 1);
  }
  bool operator==(const DeltaNetConfig&) const = default;
};

/// Mamba 2 (arXiv:2405.21060): inputs x, B and C go through a convolution, then through
/// Backend::recur() as values, keys and queries, whose sums are multiplied by an activated product
/// of their own and normalized by group.
struct StateSpaceConfig {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t n_groups = 1;    ///< of heads, which share B and C
  int64_t state_size = 0;  ///< of B and C
  ConvolutionConfig convolution;
  bool in_bias = false;
  bool out_bias = false;
  NormConfig norm;          ///< of each group's sums
  bool norm_first = false;  ///< before they are multiplied
  Activation gate = Activation::silu;
  float least_step = 0;                 ///< see Recurrence
  std::optional<float> most_step = {};  ///< none: any
  NormShare norm_share = {};            ///< of a rank's share: of what `norm` is

  [[nodiscard]] int64_t x_dim() const { return n_heads * head_dim; }
  bool operator==(const StateSpaceConfig&) const = default;
};

/// A convolution between two gates (LFM2): of B, C and x, each of the hidden size, C ⊙ conv(B ⊙ x).
struct ShortConvolutionConfig {
  ConvolutionConfig convolution;
  bool bias = false;     ///< of both products
  int64_t channels = 0;  ///< of a rank's share (models/shares.h); 0: the hidden size
  bool operator==(const ShortConvolutionConfig&) const = default;
};

/// Mamba (arXiv:2312.00752): of two products of the input the first, x, goes through a convolution.
/// Of what that gives are made a latent of steps, B and C, then steps of their latent, with which
/// Backend::scan() goes over x; its sums are multiplied by the second product, activated.
struct SelectiveScanConfig {
  int64_t channels = 0;    ///< of x
  int64_t state_size = 0;  ///< of a channel, and so of B and C
  int64_t step_rank = 0;   ///< of the latent of steps
  ConvolutionConfig convolution;
  bool bias = false;  ///< of the first product and of the last
  NormConfig norm;    ///< of the latent, of B and of C, each by itself; without bias
  Activation gate = Activation::silu;
  bool shares_gates = false;  ///< of a rank's share: latent, B and C are sums over all ranks

  bool operator==(const SelectiveScanConfig&) const = default;
};

/// Lightning attention (arXiv:2401.04658): queries, keys and values are activated products, which
/// go through Backend::recur() with decays that each head has for good; its sums are normalized all
/// together and multiplied by an activated product of their own.
struct LinearAttentionConfig {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  Activation activation = Activation::silu;
  NormConfig norm;
  Activation gate = Activation::sigmoid;
  NormShare norm_share = {};  ///< of a rank's share: of what `norm` is

  /// Elements of all heads' queries, keys, values or sums.
  [[nodiscard]] int64_t dim() const { return n_heads * head_dim; }
  bool operator==(const LinearAttentionConfig&) const = default;
};

/// How a layer's tokens learn of others of their text: one of a few kinds. Whoever depends on the
/// kind visits it, and does not compile before it knows a new one.
using Mixer = std::variant<AttentionConfig, LatentAttentionConfig, DeltaNetConfig, StateSpaceConfig,
                           ShortConvolutionConfig, SelectiveScanConfig, LinearAttentionConfig>;

/// The sizes of a mixer that keeps a state of fixed size, in elements of a token.
struct RecurrentShape {
  int64_t in = 0;        ///< of the first product: what is convolved, then the gates of the sums
  int64_t channels = 0;  ///< convolved
  int64_t taps = 1;
  int64_t gates = 0;   ///< of the product that steps and strengths are made of; 0: none
  int64_t rank = 0;    ///< of the widest latent among them; 0: none
  int64_t raised = 0;  ///< what is made of the first of these, if it is of gates
  int64_t sums = 0;    ///< what the last product multiplies
  // Of the matrices that Backend::recur() goes on with, or Backend::scan() with one; 0: none.
  int64_t n_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;

  /// Floats of a state: the channels' last elements, then the matrices.
  [[nodiscard]] int64_t tail_size() const { return (taps - 1) * channels; }
  [[nodiscard]] int64_t state_size() const { return tail_size() + n_heads * key_dim * value_dim; }
  bool operator==(const RecurrentShape&) const = default;
};
RecurrentShape recurrent_shape(const DeltaNetConfig& mixer, int64_t hidden);
RecurrentShape recurrent_shape(const StateSpaceConfig& mixer, int64_t hidden);
RecurrentShape recurrent_shape(const ShortConvolutionConfig& mixer, int64_t hidden);
RecurrentShape recurrent_shape(const SelectiveScanConfig& mixer, int64_t hidden);
RecurrentShape recurrent_shape(const LinearAttentionConfig& mixer, int64_t hidden);
/// None of a mixer that keeps no state.
std::optional<RecurrentShape> recurrent_shape(const Mixer& mixer, int64_t hidden);

/// The keys and values that a layer keeps of each token.
struct KvGeometry {
  int64_t n_heads = 0;
  int64_t k_head_dim = 0;  ///< of a key
  int64_t v_head_dim = 0;
  int64_t window = 0;           ///< see AttentionRule
  bool values_in_keys = false;  ///< see KvLayer
  /// Never rounded to codes of fewer bits (KvFormat): latents, of which all heads' keys and values
  /// are made; and beside sinks, where that was never measured.
  bool exact = false;

  // Elements of a token's keys, and of its values where these are kept beside them.
  [[nodiscard]] int64_t k_dim() const { return n_heads * k_head_dim; }
  [[nodiscard]] int64_t v_dim() const { return values_in_keys ? 0 : n_heads * v_head_dim; }
  bool operator==(const KvGeometry&) const = default;
};
/// None of a mixer that keeps no keys and values, as one that reads another layer's.
std::optional<KvGeometry> kv_geometry(const Mixer& mixer);
/// Those that attention reads, its own or another layer's.
KvGeometry kv_read(const AttentionConfig& attention);
/// Those of its queries; of other kinds what they have of the like.
int64_t n_heads_of(const Mixer& mixer);

/// A feed-forward of one gate and up, or up alone, and down.
struct FeedForwardConfig {
  int64_t size = 0;  ///< width of its middle
  bool gated = true;
  Activation activation = Activation::silu;
  float gate_limit = kUsualGateLimit;  ///< see Gate
  bool xielu = false;  ///< in its place, without gates: xIELU, with numbers of each layer's own
  /// Of gates, before their activation, the largest are kept: see Backend::keep_largest().
  std::optional<float> cutoff = {};
  bool bias = false;                 ///< of all its products
  NormConfig middle_norm = {};       ///< of what the last product reads
  NormShare middle_norm_share = {};  ///< of a rank's share (models/shares.h): of what that is

  /// Rows of the first product.
  [[nodiscard]] int64_t up_dim() const { return gated ? 2 * size : size; }
  [[nodiscard]] Gate gate() const { return {activation, gate_limit}; }
  bool operator==(const FeedForwardConfig&) const = default;
};

/// See Router.
struct RouterConfig {
  int32_t used = 1;
  Router::Score score = Router::Score::softmax;
  float margin = 0;    ///< of sparse_mixer
  float soft_cap = 0;  ///< of logits, see Backend::soft_cap(); 0: none
  bool bias = false;   ///< of the product that makes the scores
  bool correction = false;
  int32_t groups = 1;
  int32_t groups_used = 1;
  Router::GroupScore group_score = Router::GroupScore::two_best;
  bool normalized = false;
  float scale = 1;
  bool weighs_input = false;
  bool expert_scales = false;

  bool operator==(const RouterConfig&) const = default;
};

/// Feed-forwards of which each token uses a few, and one that all use.
struct ExpertsConfig {
  int64_t count = 0;
  RouterConfig router;
  FeedForwardConfig each;
  FeedForwardConfig shared;  ///< size 0: none
  bool shared_gate = false;  ///< a gate for the shared one, its sigmoid a factor
  int64_t identities = 0;    ///< further ones, without tensors, which give what they read
  /// What they give, but not the shared one, is added after the next layer (arXiv:2404.05019).
  bool deferred = false;
  /// Of experts beside a feed-forward with which they share no norms (Gemma 4). What the router and
  /// the experts read is made of the stream itself by these; none: they read what the shared one
  /// reads.
  NormConfig router_norm = {};
  NormConfig norm = {};
  NormConfig norm_after = {};         ///< of what the experts give
  NormConfig shared_norm_after = {};  ///< of what the shared one gives
  bool sum_bias = false;              ///< a vector is added to what all of them give together

  /// Those that the router chooses among.
  [[nodiscard]] int64_t scored() const { return count + identities; }
  /// Whether what they give is added up, each part by itself.
  [[nodiscard]] bool has_parts() const { return norm_after || shared_norm_after; }
  bool operator==(const ExpertsConfig&) const = default;
};

/// Normalizations around a mixer or feed-forward f: x += after(f(before(x))), x = stream(x).
struct BranchNorms {
  NormConfig before;
  NormConfig after;
  NormConfig stream;
  bool operator==(const BranchNorms&) const = default;
};

/// Attention of a decoder's tokens to what the encoder made of the source: with the heads, the
/// scale, the cap and the biases of the layer's mixer, which is attention, and neither positions
/// nor a window.
struct CrossAttentionConfig {
  BranchNorms norms;
  bool operator==(const CrossAttentionConfig&) const = default;
};

/// A learned augmented residual (arXiv:2411.07501): x = (x + after(mixers(n)) + n + norm(B A n)) /
/// √2 where n is what the mixers read of x.
struct LaurelConfig {
  int64_t rank = 0;  ///< rows of A; 0: none
  NormConfig norm = {};

  [[nodiscard]] explicit operator bool() const { return rank != 0; }
  bool operator==(const LaurelConfig&) const = default;
};

/// A convolution of the tokens around each, beside a layer of an encoder (DeBERTa v2): x = norm(y +
/// activation(Σ_i W_i x_i + b)), y what the layer gives, and x_i what it reads of the token taps /
/// 2
/// - i places before, zeros beyond the text's ends.
struct TokenConvolutionConfig {
  int64_t taps = 0;  ///< an odd number; 0: there is none
  Activation activation = Activation::none;
  NormConfig norm = {};

  [[nodiscard]] explicit operator bool() const { return taps != 0; }
  bool operator==(const TokenConvolutionConfig&) const = default;
};

/// A block beside the stream (Zamba 2, arXiv:2411.15242): attention reads a norm of the stream and
/// the embedding side by side, a feed-forward one of what that gives. What the feed-forward gives
/// is added to what the layer's mixers read, and to nothing else.
struct AsideConfig {
  NormConfig norm;            ///< of twice the hidden size
  AttentionConfig attention;  ///< plain: with keys and values of its own, without norms and gates
  NormConfig ffn_norm;
  FeedForwardConfig ffn;
  bool operator==(const AsideConfig&) const = default;
};

/// One kind of layer: mixers, cross attention where there is an encoder, then the feed-forward or
/// experts, if there are any.
struct LayerConfig {
  std::string name;
  /// Both branches read the layer's input: x += mixer(..) + feed_forward(..). Without a norm before
  /// the feed-forward it takes the mixer's.
  bool parallel = false;
  std::optional<AsideConfig> aside;
  BranchNorms mixer_norms;
  /// At least one; several read the same input, and what they give is added up. In the order of
  /// their kinds, one of each at most, of which one keeps keys and values and one a state.
  std::vector<Mixer> mixers;
  LaurelConfig laurel = {};
  std::optional<CrossAttentionConfig> cross_attention;
  BranchNorms ffn_norms;
  FeedForwardConfig ffn;  ///< size 0 where there are experts, or neither
  std::optional<ExpertsConfig> experts;
  TokenConvolutionConfig token_convolution = {};
  bool scaled = false;  ///< at last the stream is multiplied by a number, a tensor
  // Of a rank's share (models/shares.h): what all ranks' mixers give, or their feed-forwards, is
  // added up.
  bool shares_mixers = false;
  bool shares_feed_forward = false;

  [[nodiscard]] bool has_feed_forward() const { return ffn.size != 0 || experts.has_value(); }

  /// The mixer of a kind; null: none is.
  template <typename Kind>
  [[nodiscard]] const Kind* find() const {
    for (const Mixer& mixer : mixers) {
      if (const Kind* found = std::get_if<Kind>(&mixer)) return found;
    }
    return nullptr;
  }
  /// The same for those who know that there is one, as whoever made it so.
  template <typename Kind>
  [[nodiscard]] const Kind& get() const {
    if (const Kind* found = find<Kind>()) return *found;
    throw std::bad_variant_access();
  }
  template <typename Kind>
  [[nodiscard]] Kind& get() {
    return const_cast<Kind&>(std::as_const(*this).template get<Kind>());
  }
  [[nodiscard]] AttentionConfig& attention() { return get<AttentionConfig>(); }
  [[nodiscard]] const AttentionConfig& attention() const { return get<AttentionConfig>(); }
  bool operator==(const LayerConfig&) const = default;
};

/// Of the one of a layer's mixers, or the block beside the stream, that keeps them, or a state;
/// none if none does.
std::optional<KvGeometry> kv_geometry(const LayerConfig& layer);
std::optional<RecurrentShape> recurrent_shape(const LayerConfig& layer, int64_t hidden);

struct EmbeddingConfig {
  bool shared = false;  ///< of an encoder or a predictor: the table is the decoder's
  float multiplier = 1;
  int64_t positions = 0;  ///< rows of the table of learned positions; 0: none
  int64_t offset = 0;     ///< position p has row p + offset
  int64_t segments = 0;   ///< rows of the table of segments (BERT's token types); 0: none
  /// Elements of the tables' rows, which a product P x + b takes to the hidden size, behind the
  /// norm (ALBERT, arXiv:1909.11942); 0: they have the hidden size.
  int64_t size = 0;
  NormConfig norm;
  bool operator==(const EmbeddingConfig&) const = default;
};

/// What of a decoder's stream a predictor reads in place of its last hidden state (EAGLE-3,
/// arXiv:2503.01840): P [s_1, .., s_n] + b, s_i the stream after so many layers, P a matrix
/// [hidden, n · hidden].
struct LayerStatesConfig {
  std::vector<int64_t> after = {};  ///< ascending; 0: the embedding. Empty: there are none
  NormConfig norm = {};             ///< of all side by side, [n · hidden]
  bool norm_of_each = false;        ///< of each by itself, with its part of the weights
  bool bias = false;

  [[nodiscard]] explicit operator bool() const { return !after.empty(); }
  [[nodiscard]] int64_t count() const { return static_cast<int64_t>(after.size()); }
  bool operator==(const LayerStatesConfig&) const = default;
};

/// What a predictor of further tokens (arXiv:2404.19737, arXiv:2412.19437) reads beside embeddings.
/// Its layers' input is P [e, h]: e the embedding of the token after the one that h belongs to,
/// with the embedding's norm, h a hidden state, with this norm, P a matrix [hidden, 2 · hidden].
struct HiddenInputConfig {
  NormConfig norm;
  /// h is what the output's norm reads; else what that norm gives.
  bool before_output_norm = false;
  /// Of the decoder's tokens h is this; of those that the predictor drew it is its own hidden
  /// state.
  LayerStatesConfig layer_states = {};
  /// Of a further predictor: h is the decoder's hidden state, as for the first one, not that of the
  /// predictor before.
  bool of_decoder = false;
  /// There is no P: the layers' input is h as it is, and the first one's mixer, attention, reads
  /// [e, norm(h)], twice the hidden size.
  bool side_by_side = false;
  bool normed_stream = false;  ///< that input is norm(h)
  bool operator==(const HiddenInputConfig&) const = default;
};

/// What each layer learns of a token by itself (per-layer embeddings: Gemma 3n and 4). All layers'
/// inputs are rows of a table, times `multiplier`, plus norm(W x), x being the embedding; after its
/// feed-forward a layer adds norm_after(W (activation(W x) ⊙ input)), x being the stream.
struct LayerInputsConfig {
  int64_t size = 0;   ///< elements of a layer's; 0: there are none
  bool table = true;  ///< false: they are norm(W x) alone (EmbeddingGemma 2)
  float multiplier = 1;
  NormConfig norm;  ///< of each layer's part by itself, with the same weights
  Activation activation = Activation::none;
  NormConfig norm_after;
  bool scaled = false;  ///< what is activated is of x times a vector, element by element

  [[nodiscard]] explicit operator bool() const { return size != 0; }
  bool operator==(const LayerInputsConfig&) const = default;
};

/// Alternating updates (arXiv:2301.13310): beside the stream that layers work on there are others.
/// They are products of the embedding at first, of its length; at last the stream becomes the mean
/// of itself and of products of theirs, of its length. Before a layer each stream becomes a
/// weighted sum of all, and after it what the layer has changed is added to each, times a weight.
/// All weights are products of tanh(W norm(x)), x being the stream. What layers make of their
/// inputs is added to the others alone.
struct AltUpConfig {
  int64_t streams = 0;  ///< all; 0: there are no others
  NormConfig norm = {};

  [[nodiscard]] explicit operator bool() const { return streams != 0; }
  /// Parts of a row: the stream, the others, and the stream as it was before the layer.
  [[nodiscard]] int64_t parts() const { return streams == 0 ? 1 : streams + 1; }
  bool operator==(const AltUpConfig&) const = default;
};

/// A product that a text's vector, or the hidden states that logits are made of, go through:
/// norm(activation(W x + b)).
struct DenseConfig {
  int64_t size = 0;
  bool bias = false;
  Activation activation = Activation::none;
  NormConfig norm = {};

  [[nodiscard]] explicit operator bool() const { return size != 0; }
  bool operator==(const DenseConfig&) const = default;
};

struct OutputConfig {
  NormConfig norm;
  bool none = false;    ///< no output matrix: the model gives hidden states, not logits
  bool shared = false;  ///< of a predictor: the matrix is the decoder's, and whether it has a bias
  bool tied = false;    ///< the output matrix is the embedding table
  bool bias = false;
  /// Of a predictor: the token of each row of the matrix, where not all have one; empty: row t is
  /// token t's.
  std::vector<int32_t> tokens = {};
  float soft_cap = 0;      ///< logits = cap · tanh(logits / cap); 0: none
  DenseConfig dense = {};  ///< between the norm and the output matrix, as wide as hidden states
  bool operator==(const OutputConfig&) const = default;
};

/// What an encoder's hidden states of a text become: a vector, or scores of labels.
struct PoolingConfig {
  Pooling mode = Pooling::mean;
  std::vector<DenseConfig> dense = {};  ///< one after the other
  int64_t dense_before = 0;             ///< so many of these are of each token, before pooling
  bool normalize = false;               ///< at last, to length 1
  bool scores = false;                  ///< of labels, for a text or a pair of texts
  bool sigmoid = false;                 ///< of each score
  int64_t max_tokens = 0;               ///< longer texts are cut; 0: max_context
  std::string prompt = {};              ///< stands before every text
  /// Of a decoder with an encoder, which both read the text: the token that the decoder sees before
  /// it, and not its last one (BART).
  std::optional<int32_t> start = {};
  bool operator==(const PoolingConfig&) const = default;
};

enum class TensorKind : uint8_t;  // models/tensor_plan.h

/// Another format for the matrices of one kind, in all layers or in some that follow each other.
struct FormatRule {
  TensorKind tensor{};
  WeightFormat format = WeightFormat::f32;
  int64_t first_layer = 0;
  int64_t n_layers = 0;  ///< 0: all
  /// Whether it is of a layer's tensors of that kind.
  [[nodiscard]] bool is_of(TensorKind kind, int64_t layer) const {
    return tensor == kind &&
           (n_layers == 0 || (first_layer <= layer && layer - first_layer < n_layers));
  }
  bool operator==(const FormatRule&) const = default;
};

/// An adapter beside a model: of each matrix that it changes, by the tensor's name, the rank of
/// what it adds (models/adapter_plan.h).
using AdapterRanks = std::map<std::string, int64_t>;

/// Why a model takes no longer texts.
enum class ContextEnd : uint8_t {
  trained,           ///< it was trained for no more
  sparse_attention,  ///< an indexer would choose what the tokens of longer ones attend to
  scaled_queries,    ///< latent attention would scale queries of later positions
};

/// A decoder, or, without an output matrix, an encoder. A decoder may have an encoder, whose output
/// each of its layers attends to. Validated: every count is at least 1 and small enough that
/// products of any three fit in 63 bits, and that what has an entry for each head or expert of each
/// layer is small; indices exist; head_dim is even.
struct ModelConfig {
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t max_context = 0;  ///< positions the model takes
  ContextEnd context_end = ContextEnd::trained;
  EmbeddingConfig embedding;
  LayerInputsConfig layer_inputs;
  AltUpConfig altup;
  std::vector<RopeConfig> ropes;
  std::vector<LayerConfig> layer_kinds;
  std::vector<size_t> layers;  ///< of each layer: its kind, an index in layer_kinds
  OutputConfig output;
  WeightFormat weight_format = WeightFormat::f32;  ///< of the layers' matrices, but for routers
  std::vector<FormatRule> formats;  ///< of some of them; where several hold, the last one does
  int32_t activation_bits = 8;      ///< of what int8 matrices multiply: 8 or 16
  bool rotated = false;             ///< int8 matrices and what they multiply, see Weight
  bool values_rotated = false;      ///< likewise, and so their sums; see HeadRotation
  WeightFormat embedding_format = WeightFormat::f32;  ///< of the embedding's tables: floats
  WeightFormat output_format =
      WeightFormat::f32;  ///< of the output matrix; as embedding_format when tied
  std::shared_ptr<const ModelConfig> encoder;  ///< of what cross attention looks at; null: none
  /// Decoders that predict further tokens: the first one the token after the next, of this one's
  /// hidden states, each other one the token after that, of those of the predictor before it, or of
  /// this one's, too (HiddenInputConfig::of_decoder).
  std::vector<ModelConfig> predictors;
  std::optional<HiddenInputConfig> hidden_input;  ///< of a predictor
  std::optional<PoolingConfig> pooling;           ///< only where there is no output matrix
  RankPlace rank;                                 ///< whose share this is (models/shares.h)
  /// Of a share: the layers that its stage has; none: all of them. The first stage has besides what
  /// stands before the first layer and after the last.
  std::optional<LayerRange> stage;
  std::vector<AdapterRanks> adapters;  ///< beside it while it runs; in no model file

  /// The length by which ropes whose rules depend on it rotate a text that begins with n_tokens;
  /// 0 if none does. Texts of the same are rotated alike as far as their tokens agree.
  [[nodiscard]] int32_t rope_length(int64_t n_tokens) const;
  /// Whether a text of this rope_length is rotated otherwise as a whole now that it has n_tokens,
  /// so that all of it is to be computed again.
  [[nodiscard]] bool outgrows(int32_t rope_length, int64_t n_tokens) const;
  /// Elements of an embedding.
  [[nodiscard]] int64_t embedding_size() const {
    return embedding.size == 0 ? hidden : embedding.size;
  }
  /// Elements of a text's vector.
  [[nodiscard]] int64_t vector_size() const {
    return pooling && !pooling->dense.empty() ? pooling->dense.back().size : hidden;
  }
  /// Rows of the output matrix: logits of a token.
  [[nodiscard]] int64_t output_rows() const {
    return output.tokens.empty() ? vocab : static_cast<int64_t>(output.tokens.size());
  }
  /// Elements that the mixers of a layer read of each token.
  [[nodiscard]] int64_t mixer_input(int64_t layer) const {
    return hidden_input && hidden_input->side_by_side && layer == 0 ? 2 * hidden : hidden;
  }
  /// Ids of a prompt's tokens are below this: the encoder reads it, if there is one.
  [[nodiscard]] int64_t prompt_vocab() const { return encoder ? encoder->vocab : vocab; }
  [[nodiscard]] int64_t n_layers() const { return static_cast<int64_t>(layers.size()); }
  /// Those that this is a description of; of a stage, whose numbers stay those of the model.
  [[nodiscard]] LayerRange own_layers() const { return stage.value_or(LayerRange{0, n_layers()}); }
  [[nodiscard]] bool has_first_layer() const { return own_layers().first == 0; }
  [[nodiscard]] bool has_last_layer() const { return own_layers().end == n_layers(); }
  /// Elements of a token's streams.
  [[nodiscard]] int64_t stream_dim() const { return altup.parts() * hidden; }
  /// Elements of a token's inputs to all layers.
  [[nodiscard]] int64_t layer_inputs_dim() const { return n_layers() * layer_inputs.size; }
  [[nodiscard]] const LayerConfig& layer(int64_t n) const {
    return layer_kinds[layers[static_cast<size_t>(n)]];
  }
};

/// A description as most runs need it: predictors stay in the file.
inline ModelConfig without_predictors(ModelConfig config) {
  config.predictors.clear();
  return config;
}
/// What predictors read of a decoder's layers; empty: its last hidden states, or there are none.
inline LayerStatesConfig states_for_predictors(const ModelConfig& config) {
  if (config.predictors.empty() || !config.predictors.front().hidden_input) return {};
  return config.predictors.front().hidden_input->layer_states;
}
/// Whether one of several, counted from 0, reads the hidden states of the one before it.
bool reads_predictor(const ModelConfig& config, size_t predictor);
/// Whether they read what is after the last layer.
bool read_last_states(const ModelConfig& config);
/// After how many layers each the stream of all tokens is kept for predictors, ascending: layers'
/// states, and of a stage, which hands them on to the next, the last one. Empty: none are.
std::vector<int64_t> states_kept(const ModelConfig& config);
/// A predictor, counted from 0, as a model of its own: what it shares has the decoder's formats,
/// and one that reads its hidden states is its predictor.
ModelConfig predictor_of(const ModelConfig& config, size_t predictor);

/// Why texts have max_context tokens at most, as a clause: "the model has no more".
std::string why_context_ends(const ModelConfig& config);

/// All that a text's vector goes through, or what stands before an output matrix.
std::vector<DenseConfig> dense_layers(const ModelConfig& config);

/// Of its own layers those that keep keys and values, in order. A model is given a KvLayer for
/// each.
std::vector<int64_t> kv_layers(const ModelConfig& config);
/// Whether other layers read those of a layer.
bool lends_kv(const ModelConfig& config, int64_t layer);
/// The same of those that keep a state, for which it is given a StateLayer.
std::vector<int64_t> state_layers(const ModelConfig& config);

/// Gives a description, its encoder's and its predictors', other formats of weights.
void set_formats(ModelConfig& config, WeightFormat layers, WeightFormat embedding,
                 WeightFormat output);

/// What most models since Llama are (arXiv:2302.13971): layers of one kind, each with an RMS norm
/// before attention and one before a gated feed-forward with SiLU; one rope over all of a head.
struct PlainShape {
  int64_t n_layers = 0;
  int64_t hidden = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn_hidden = 0;
  int64_t vocab = 0;
  int64_t max_context = 0;
  float norm_eps = 1e-5F;
  double rope_theta = 10000.0;
};
ModelConfig plain_decoder(const PlainShape& shape);

/// Throws Error with one sentence that starts with `where` when a member is missing, unknown, of
/// the wrong type, or out of range.
ModelConfig config_from_json(const nlohmann::json& json, std::string_view where);
nlohmann::json config_to_json(const ModelConfig& config);

/// [n_heads, 2 max_distance + 1] what a relative bias adds, as AttentionRule::bias has it, from the
/// table [buckets, n_heads].
std::vector<float> bias_by_distance(const RelativeBiasConfig& bias,
                                    const std::vector<float>& table);

/// [2 reach + 1] which row each distance has, of a key from a query, as RelativeScores::vectors has
/// them: row rows / 2 + b is of a key that is b positions before the query, for small b; the first
/// and the last row are of all that are too far.
std::vector<int32_t> row_by_distance(const RelativeScoresConfig& scores);

/// Throws Error, starting with `where`, unless the documented invariants hold.
void validate(const ModelConfig& config, std::string_view where);

}  // namespace faststream
