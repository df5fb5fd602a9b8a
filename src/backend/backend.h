// What models are written against: the operations of a device.
//
// Three implementations: the plain float reference (kernels/cpu/reference.cpp), the fast CPU
// backend (kernels/cpu) and the CUDA backend (kernels/cuda). Every operation of the fast ones is
// tested against the reference (tests/unit/backend/backend_ops_test.cpp).
//
// Operations are asynchronous in order: an operation sees the results of all earlier ones; only
// Choices::wait(), copy_to_host() and synchronize() wait for them. One thread at a time may use a
// backend, and another its choices. Shapes are the caller's duty (the reference asserts them).
// Operations throw Error when the device fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/activation.h"
#include "backend/batch.h"
#include "backend/rank_link.h"
#include "backend/tensor.h"
#include "support/dtype.h"
#include "support/kv_format.h"
#include "support/weight_source.h"

namespace faststream {

/// Memory that a backend allocated; freed on destruction, which must precede the backend's.
using Buffer = std::unique_ptr<std::byte, std::function<void(std::byte*)>>;

/// The KV pages of one layer. K is [n_pages, n_kv_heads, kPageTokens, head_dim] of dtype (f32, f16
/// or bf16), stored after rotation; V the same of v_head_dim. Where values are in the keys (latent
/// attention, arXiv:2405.04434) V has no memory of its own: a token's value is the last v_head_dim
/// elements of its key, and v is where the first page has the first of them; there is one KV head.
///
/// Of a format that is not plain, elements are codes of a byte, and behind the kPageTokens rows of
/// a page's head are as many scales (support/kv_format.h): pages are [n_pages, n_kv_heads,
/// kPageTokens (head_dim + sizeof(KvScale))] bytes. Values are beside the keys then.
struct KvLayer {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::f32;
  int32_t n_pages = 0;
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;  ///< of queries and keys
  int32_t v_head_dim = 0;
  int32_t group = 0;  ///< of the batch's page table
  bool values_in_keys = false;
  KvFormat format = KvFormat::plain;

  // Elements of a token's keys, and of its values where these are kept beside them.
  [[nodiscard]] constexpr int64_t k_dim() const { return int64_t{n_kv_heads} * head_dim; }
  [[nodiscard]] constexpr int64_t v_dim() const {
    return values_in_keys ? 0 : int64_t{n_kv_heads} * v_head_dim;
  }
  /// Elements from a head's value to that of the next token.
  [[nodiscard]] constexpr int64_t v_stride() const {
    return values_in_keys ? head_dim : v_head_dim;
  }
  [[nodiscard]] constexpr bool is_coded() const { return format != KvFormat::plain; }
  // Bytes of a page of one head's keys; of its values, where these are kept beside them.
  [[nodiscard]] constexpr int64_t k_head_bytes() const {
    return kPageTokens * kv_row_bytes({dtype, format}, head_dim);
  }
  [[nodiscard]] constexpr int64_t v_head_bytes() const {
    return values_in_keys ? 0 : kPageTokens * kv_row_bytes({dtype, format}, v_head_dim);
  }
};

/// What a recurrent layer keeps of sequences: states of fixed size, of which the first is that of
/// an empty text: zeros, which are never written.
struct StateLayer {
  float* data = nullptr;  ///< [n_states, stride]
  int64_t stride = 0;     ///< floats from a state to the next
  int32_t n_states = 0;

  /// The part of each state that begins after so many floats.
  [[nodiscard]] StateLayer from(int64_t first) const {
    StateLayer part = *this;
    part.data += first;
    return part;
  }
};

/// Copy page `from` to page `to`, K and V, in every layer.
struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
};

/// A change to the logit of one token before a draw, or to its log-probability before a ranking: l
/// becomes l / repetition if l > 0, else l * repetition; then `bias` is added. -infinity as bias
/// forbids the token.
struct LogitEdit {
  int32_t token = 0;
  float repetition = 1;  ///< above 0
  float bias = 0;
};

/// Log-probabilities that a draw can report of the likeliest tokens.
inline constexpr int32_t kMaxLogprobs = 20;
/// Tokens that a ranking can report.
inline constexpr int32_t kMaxCandidates = 1024;

/// How one row of logits becomes a token, or a ranking. The draw depends on (seed, sequence,
/// position) only.
struct SamplingRow {
  float temperature = 0;  ///< 0: greedy (the smallest id among equal logits)
  int32_t top_k = 0;      ///< keep the k largest; 0 or at least the vocabulary: all
  float top_p = 1;        ///< keep the fewest whose probability sums to at least p; 1: all
  uint64_t seed = 0;
  uint64_t sequence = 0;
  uint64_t position = 0;  ///< the position that the drawn token will have
  float min_p = 0;        ///< keep those at least min_p times as probable as the likeliest
  /// -1: no log-probabilities; else the drawn token's and those of so many likeliest tokens.
  int32_t n_logprobs = -1;
  std::span<const LogitEdit> edits = {};  ///< at most one for each token, in any order; host memory
  /// Above 0, at most kMaxCandidates: nothing is drawn, but so many tokens are ranked for a beam
  /// search. Only n_logprobs, the edits and `renormalizes` matter then.
  int32_t n_candidates = 0;
  /// Of a draw: the tokens that may be drawn, token t if bit t % 32 of word t / 32 is set. Empty:
  /// all. Host memory.
  std::span<const uint32_t> mask = {};
  /// Of a ranking with edits: log softmax is taken again after them.
  bool renormalizes = false;
};

/// A token and the logarithm of its probability.
struct LogProbability {
  int32_t token = 0;
  float value = 0;
};

/// What sample() drew from one row, or how it ranked it.
struct SampledToken {
  int32_t token = 0;
  float logprob = 0;                ///< of the token, if n_logprobs >= 0
  std::vector<LogProbability> top;  ///< n_logprobs likeliest tokens (or the vocabulary), descending
  std::vector<LogProbability> candidates = {};  ///< of a ranking, in place of token and logprob
  float renormalization = 0;  ///< what taking log softmax again has added to the candidates' values
};

/// What the device chooses from rows of logits, one choice a rule, once it has come to that.
class Choices {
 public:
  Choices() = default;
  Choices(const Choices&) = delete;
  Choices& operator=(const Choices&) = delete;
  virtual ~Choices() = default;

  /// Waits until the device has chosen; not for operations that were begun later.
  virtual void wait() = 0;
  /// Writes what was chosen from row r to `to`, which keeps its memory. After wait(), and once a
  /// row; several threads may do so for different rows.
  virtual void read(size_t r, SampledToken& to) = 0;
};

/// What an operation does with its result.
enum class OutputMode {
  store,  ///< out = result
  add,    ///< out += result
  share,  ///< out = result, which sum_over_ranks() reads as the next operation, and nobody else
};

/// Of what is not the last to write `out` before it is read.
constexpr OutputMode kept(OutputMode output) {
  return output == OutputMode::share ? OutputMode::store : output;
}

/// What linear() does besides multiplying.
struct Epilogue {
  const float* bias = nullptr;  ///< [weight.rows]; null: none
  OutputMode output = OutputMode::store;
  Activation activation = Activation::none;  ///< applied after the bias; only where stored
  /// Each row's sums have an order that does not depend on the number of rows, down to the last
  /// bit: of a router's scores, where that decides, and of small f32 matrices beside 16-bit ones,
  /// which would round what floats in another order give to other numbers.
  bool in_order = false;
};

enum class NormKind {
  none,   ///< x itself
  rms,    ///< x / sqrt(mean(x²) + eps) · weight, arXiv:1910.07467
  layer,  ///< (x - mean(x)) / sqrt(var(x) + eps) · weight + bias, arXiv:1607.06450
};

/// A normalization of rows.
struct Norm {
  NormKind kind = NormKind::none;
  const float* weight = nullptr;  ///< [n]
  const float* bias = nullptr;    ///< [n], of layer alone; null: none
  float eps = 0;

  /// That of the elements from here on alone.
  [[nodiscard]] Norm from(int64_t first) const {
    Norm part = *this;
    if (weight != nullptr) part.weight += first;
    if (bias != nullptr) part.bias += first;
    return part;
  }
};

/// What a rank has of rows that are normalized as a whole, of which each rank has some columns.
/// Several such rows, the groups, may lie beside each other, as those of queries and of keys.
struct NormShare {
  int64_t columns = 0;  ///< of a row, on all ranks together; 0: there is nothing on others
  int32_t group = 0;    ///< which of the groups it is of
  int32_t groups = 1;   ///< that all ranks together have
  /// False: a rank before this one has the same columns, and lets them count.
  bool counts = true;

  [[nodiscard]] explicit operator bool() const { return columns > 0; }
  bool operator==(const NormShare&) const = default;
};

/// An RMS norm of such rows.
struct SharedNorm {
  Matrix x;   ///< [rows, n] act or f32: the columns of this rank
  Norm norm;  ///< weights of these
  NormShare share;
};

/// What a product multiplies: the rows of x, or, if there is memory for it, what norm makes of them
/// as elements of normed's type.
///
/// A backend normalizes while it multiplies, or first: then it writes the rows to `normed` and
/// makes this the Input of what is there, for the next product of the same rows. So x must not
/// change between the products of one Input.
struct Input {
  Matrix x;            ///< [rows, in] act or f32
  Norm norm = {};      ///< of each row of x
  Matrix normed = {};  ///< [rows, in] act; without data: x is multiplied as it is

  [[nodiscard]] bool is_ready() const { return normed.data == nullptr; }
};

/// What logits are made of: soft_cap(x weightᵀ + bias), where x is what `input` says.
struct LogitProduct {
  Input input;                  ///< a row for each row of logits
  Weight weight;                ///< [vocab, in]
  const float* bias = nullptr;  ///< [vocab]; null: none
  float soft_cap = 0;           ///< see Backend::soft_cap(); 0: none
};

/// How a token becomes the first row of the residual stream.
struct Embedding {
  Weight table = {};      ///< [vocab, hidden] f32, f16 or bf16
  float multiplier = 1;   ///< of the table's rows
  Weight positions = {};  ///< [positions, hidden] f32, f16 or bf16, learned; without data: none
  int32_t offset = 0;     ///< position p has row p + offset
  Weight segments = {};   ///< [segments, hidden] as positions; without data: none
};

/// How positions become rotations. The frequencies f[pairs] of a token at position p depend, where
/// `original` is not 0, on its length: the larger of p + 1 and its sequence's rope_lengths entry.
/// Where the length is above `original`, they are long_frequencies, if there are any (LongRoPE,
/// arXiv:2402.13753); or else frequencies[i] · s^(-2i / (2 pairs - 2)) with s = dynamic_factor ·
/// length / original - (dynamic_factor - 1), computed in double (NTK-aware, `dynamic` in
/// Transformers; at least two pairs).
struct Rope {
  const float* frequencies = nullptr;  ///< [pairs] radians a position
  float factor = 1;                    ///< of cosines and sines
  int32_t original = 0;
  const float* long_frequencies = nullptr;
  double dynamic_factor = 0;
};

/// What happens to queries, keys and values before these are stored, besides rotation.
struct HeadTransform {
  NormKind norm = NormKind::none;    ///< of each head by itself
  bool norm_after_rotation = false;  ///< else before
  bool query_power = false;          ///< see query_scaling
  const float* q_weight = nullptr;   ///< [n_heads, head_dim]
  const float* k_weight = nullptr;   ///< [n_kv_heads, head_dim]
  const float* v_weight = nullptr;   ///< [n_kv_heads, v_head_dim]; null: values have no norm
  const float* q_bias = nullptr;     ///< as q_weight, of layer alone; null: none
  const float* k_bias = nullptr;
  float eps = 0;
  /// Queries at position p are multiplied by 1 + query_scaling · log(1 + ⌊(p + query_scaling_ahead)
  /// / query_scaling_from⌋) after rotation (Ministral 3; Llama 4, one position ahead), or, if
  /// query_power, by (1 + (p + query_scaling_ahead) / query_scaling_from)^query_scaling (Beam, one
  /// position ahead); 0: not.
  float query_scaling = 0;
  int32_t query_scaling_from = 1;
  int32_t query_scaling_ahead = 0;
};

/// How many numbers Backend::xielu() takes.
inline constexpr int64_t kXieluNumbers = 3;

/// See Backend::combine() and match_lengths().
inline constexpr int32_t kMostParts = 9;
inline constexpr double kLeastMeanSquare = 1e-5;

/// What positions relative to each other add to scores where it depends on content, too
/// (disentangled attention, arXiv:2006.03654). Of n vectors for each head, of which the distance of
/// a key from a query chooses one, all products with queries, and with keys, are known.
struct RelativeScores {
  Matrix of_queries = {};  ///< [tokens, n_heads n] act, of each token's queries; no data: none
  Matrix of_keys = {};     ///< [tokens, n_heads n] act, of each token's keys likewise
  /// [2 reach + 1] for each distance d, as AttentionRule::bias has it, which of the n it is.
  const int32_t* vectors = nullptr;
  int32_t reach = 0;
};

/// Which cached positions a query sees, and how scores become weights. In this order: the score
/// q · k, and what `relative` adds to it, are multiplied by scale; soft_cap; slopes; bias; what is
/// not seen is left out; softmax.
struct AttentionRule {
  float scale = 1;
  /// Positions at a distance of `window` or more are not seen; 0: they are.
  int32_t window = 0;
  /// In place of that only those from the last multiple of `window` up to its own position are
  /// seen: texts are cut into blocks (Llama 4). Not of bidirectional ones.
  bool window_in_blocks = false;
  /// All cached positions are seen, those after the query's own too: a step holds whole texts then.
  bool bidirectional = false;
  float soft_cap = 0;            ///< score = cap · tanh(score / cap); 0: none
  const float* sinks = nullptr;  ///< [n_heads] a score more in each softmax, of no value; or null
  const float* slopes =
      nullptr;  ///< [n_heads] score -= slope · distance of the key from the query, or null
  /// [n_heads, 2 bias_reach + 1] score += bias[reach + d], d = the key's position - the query's,
  /// but at most bias_reach before or after; or null.
  const float* bias = nullptr;
  int32_t bias_reach = 0;
  /// Of as many KV heads as heads, and where steps hold whole texts; or null.
  const RelativeScores* relative = nullptr;
};

/// A sum over the last elements of each channel: y[t, c] = activation(bias[c] + Σ_i weight[i, c]
/// x[t - (taps - 1) + i, c]), zero before a text's first token.
struct Convolution {
  int32_t taps = 0;               ///< 2 at least
  const float* weight = nullptr;  ///< [taps, channels]
  const float* bias = nullptr;    ///< [channels]; null: none
  Activation activation = Activation::none;
};

/// How a matrix S [key_dim, value_dim] of each head goes from token to token, zero before the
/// first. With Δ = log(1 + exp(g + steps[h])), within least_step and most_step, and its gate g:
///
///   S = exp(rates[h] Δ) S + k uᵀ,  y = Sᵀ q + skips[h] v
///
/// where u = Δ v (a state space, arXiv:2405.21060), or, if `delta`, u = β (v - S'ᵀ k) with S' =
/// exp(rates[h] Δ) S and β = strength / (1 + exp(-b)), b a second gate (the gated delta rule,
/// arXiv:2412.06464). Each row of S, that of a channel of keys, may have a gate and so a factor of
/// its own (arXiv:2510.26692).
struct Recurrence {
  int32_t n_heads = 0;
  int32_t n_key_heads = 0;  ///< each serves n_heads / n_key_heads heads in a row
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  bool delta = false;
  bool by_channel = false;  ///< see above; of delta alone
  float strength = 1;
  /// Above 0: each head's queries and keys x are first x / sqrt(Σ x² + unit_eps).
  float unit_eps = 0;
  float query_scale = 1;         ///< of queries
  const float* rates = nullptr;  ///< [n_heads], below 0
  /// [n_heads], if by_channel [n_heads key_dim]; null, but not then: Δ is 1 and made of no gate.
  const float* steps = nullptr;
  const float* skips = nullptr;  ///< [n_heads] or null: 0
  /// Below 0: in place of exp(rates[h] Δ) stands exp(least_log_decay / (1 + exp(rates[h] (g +
  /// steps[h])))), which falls no lower than exp(least_log_decay).
  float least_log_decay = 0;
  float least_step = 0;
  float most_step = std::numeric_limits<float>::infinity();
};

/// Columns of its gates.
constexpr int64_t gate_columns(const Recurrence& r) {
  const int64_t of_decays = r.steps == nullptr ? 0 : r.by_channel ? r.key_dim : 1;
  return r.n_heads * (of_decays + (r.delta ? 1 : 0));
}

/// The heads of latent attention (arXiv:2405.04434). Of each token there is one row, of which all
/// heads' keys and values are made: rope_dim rotated elements, the first ones of every key, and a
/// latent, which each head's parts of `keys` and `values` make the others of its key of, and its
/// value.
struct LatentHeads {
  int64_t n_heads = 0;
  int64_t rope_dim = 0;
  Weight keys;    ///< [n_heads · rank, nope_dim]: of each head what makes keys, transposed
  Weight values;  ///< [n_heads · value_dim, rank]
};

/// The selective scan of Mamba (arXiv:2312.00752): how a vector s [state_size] of each channel c
/// goes from token to token, zero before the first. With Δ = log(1 + exp(step + steps[c])):
///
///   s[n] = exp(rates[n, c] Δ) s[n] + Δ b[n] x,  y = Σ_n c[n] s[n] + skips[c] x
struct SelectiveScan {
  int32_t state_size = 0;
  const float* rates = nullptr;  ///< [state_size, channels], below 0
  const float* steps = nullptr;  ///< [channels]
  const float* skips = nullptr;  ///< [channels]
};

/// What one row is made of the rows x_1 to x_n of a sequence.
enum class Pooling {
  first,
  last,
  largest,  ///< of each column
  mean,
  mean_by_root,   ///< their sum / √n
  weighted_mean,  ///< Σ i x_i / Σ i
};

/// How experts are chosen and weighed from the router's logits.
struct Router {
  enum class Score { softmax, sigmoid, sparse_mixer, logit };
  enum class GroupScore { two_best, largest };
  int32_t used = 1;  ///< experts of each token
  /// Of all experts; each by itself; or, of each expert that is chosen, a softmax of those that are
  /// not yet chosen and whose logits s are near its own, the largest m: (m - s) / max(|s|, m) <=
  /// margin (SparseMixer, arXiv:2409.12136). Of these no correction and no groups. Or the logit,
  /// which chooses, while its sigmoid weighs.
  Score score = Score::softmax;
  float margin = 0;
  const float* correction = nullptr;  ///< [scores] added to scores to choose, not to weigh
  /// Experts are in so many groups of equal size; those of the groups_used groups with the largest
  /// scores can be chosen.
  int32_t groups = 1;
  int32_t groups_used = 1;
  /// The sum of a group's two best scores (arXiv:2412.19437) or its best one (arXiv:2405.04434).
  GroupScore group_score = GroupScore::two_best;
  bool normalized = false;    ///< weights are divided by their sum
  float scale = 1;            ///< of the weights
  bool weighs_input = false;  ///< weights multiply what experts read, not what they give (Llama 4)
  /// [scores] of the weights of each, too; null: none.
  const float* expert_scales = nullptr;
};

/// Feed-forwards of which each token uses a few. Expert e has the e-th of n_experts equal parts of
/// each tensor's rows.
struct Experts {
  int32_t n_experts = 0;
  Weight up = {};                  ///< [n_experts · n, in]; gated: [n_experts · 2n, in], G then U
  const float* up_bias = nullptr;  ///< [up.rows]
  Weight down = {};                ///< [n_experts · hidden, n]
  const float* down_bias = nullptr;  ///< [down.rows]
  bool gated = true;
  Activation activation = Activation::silu;
  float gate_limit = kUsualGateLimit;

  [[nodiscard]] Gate gate() const { return {activation, gate_limit}; }
};

/// The largest linear() or gated_linear() of its shape in a model's steps.
struct ProductBound {
  int64_t rows = 0;  ///< of x
  int64_t in = 0;    ///< columns of x and of the weight
  int64_t out = 0;   ///< rows of the weight: of gate and up together when gated
  WeightFormat format = WeightFormat::f32;  ///< of the weight
  bool gated = false;
  bool bias = false;
  bool activation = false;  ///< of linear(), after it
  int64_t experts = 0;      ///< of experts(): how many; `rows` counts a token once for each it uses
  bool weighs_input = false;  ///< of experts(): see Router
  int32_t input_bits = 8;     ///< of the weight

  bool operator==(const ProductBound&) const = default;
};

/// The largest latent_attention() of a model.
struct LatentBound {
  int64_t n_heads = 0;
  int64_t head_dim = 0;  ///< nope_dim + value_dim
  int64_t kept_dim = 0;  ///< rope_dim + rank

  bool operator==(const LatentBound&) const = default;
};

/// The largest steps of a model, for backends to say what memory their operations will need.
struct StepBounds {
  int64_t tokens = 0;     ///< of a batch
  int64_t sequences = 0;  ///< of a batch
  int64_t logits = 0;     ///< rows of logits of a batch
  int64_t context = 0;    ///< the largest kv_len
  int64_t vocab = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;  ///< the largest, of keys or values
  int64_t recurrent_heads = 0;
  LatentBound latent = {};
  WeightFormat weight_format = WeightFormat::f32;  ///< as activation_dtype() and kv_dtype() want it
  KvFormat kv_format = KvFormat::plain;            ///< of layers that have it
  std::vector<ProductBound> products;              ///< every shape that occurs
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// For the user: "CPU (2 threads, AMX)", "CUDA 0 (NVIDIA H100 80GB HBM3)".
  [[nodiscard]] virtual std::string description() const = 0;
  /// Bytes that can still be allocated. What a mapped file occupies counts as free.
  [[nodiscard]] virtual size_t free_memory() const = 0;
  /// Whether allocate() takes memory only as it is first written to, as a host's does, or at once.
  [[nodiscard]] virtual bool takes_memory_on_use() const = 0;
  /// Whether operations run while the host goes on, or in their calls.
  [[nodiscard]] virtual bool runs_beside_host() const = 0;
  /// Whether a batch may have tokens that choose() chose last and nobody has read: chosen_from().
  [[nodiscard]] virtual bool keeps_choices() const { return false; }
  /// The element type of activations between operations (the residual stream and logits are always
  /// f32), for a model whose matrices are of `weight_format`.
  [[nodiscard]] virtual DType activation_dtype(WeightFormat weight_format) const = 0;
  /// The element type of KV pages for a model whose matrices are of `weight_format`.
  [[nodiscard]] virtual DType kv_dtype(WeightFormat weight_format) const = 0;

  /// Sequences in decode beyond which a step is not more efficient.
  [[nodiscard]] virtual int32_t most_slots() const = 0;
  /// Tokens of a prompt that do not take long on the slowest such device.
  [[nodiscard]] virtual int32_t first_tokens() const = 0;
  /// Ascending: a step of more rows than one of these may sum a row's products in another order
  /// than a step of fewer. None: no order depends on how many rows there are.
  [[nodiscard]] virtual std::span<const int32_t> row_borders() const { return {}; }
  /// Bytes that operations of steps within `bounds` take for temporaries, besides what allocate()
  /// gives: at most so many, all operations and threads together, once each has run. A plan of
  /// memory leaves them free, so that no step fails for want of them.
  [[nodiscard]] virtual size_t scratch_bytes(const StepBounds& bounds) const = 0;

  // Memory. ------------------------------------------------------------------------------------

  /// At least `bytes` bytes, 256-byte aligned, contents undefined. Throws Error when there is no
  /// room.
  virtual Buffer allocate(size_t bytes) = 0;
  /// Products with matrices of this format will come, when so many bytes of weights are loaded:
  /// what takes long before the first may begin now, beside the caller.
  virtual void expect_products(WeightFormat /*weight_format*/, size_t /*weight_bytes*/) {}
  /// Makes a model's weights readable by operations and returns where the first byte is: a copy on
  /// the device that lives as long as the backend, or, without slices, source.bytes itself, which
  /// must then outlive it. `progress`, if set, is called with the bytes done so far.
  virtual const std::byte* load_weights(const WeightSource& source,
                                        const std::function<void(size_t)>& progress) = 0;
  /// To be called once of each matrix of weights that has come to this backend's memory, before
  /// operations take it: may put its elements in an order of the backend's own.
  virtual void arrange(const Weight& /*weight*/) {}
  virtual void copy_to_device(void* device, const void* host, size_t bytes) = 0;
  /// Waits for all operations, then copies.
  virtual void copy_to_host(void* host, const void* device, size_t bytes) = 0;
  virtual void synchronize() = 0;
  /// Has the device begin with all operations, where it might collect more until someone waits for
  /// them: other ranks do.
  virtual void launch() {}
  /// Makes a batch readable by operations. The view holds until the next call; `batch` must live
  /// and stay unchanged as long.
  virtual BatchView upload(const Batch& batch) = 0;

  // The forward pass. "act" is activation_dtype(), or f32. ----------------------------------------

  /// out [tokens, hidden] f32 = multiplier · table[tokens] + positions[positions + offset] +
  /// segments[segments].
  virtual void embed(const BatchView& batch, const Embedding& embedding, const Matrix& out) = 0;

  /// out [rows, n] (act or f32) = or += norm of each row of x [rows, n] (act or f32); out may be x,
  /// and x one row, repeated.
  virtual void norm(const Matrix& x, const Norm& norm, OutputMode output, const Matrix& out) = 0;
  /// x [rows, n] f32 = norm of each row of x, and copy [rows, n] act the same.
  virtual void norm_stream(const Matrix& x, const Norm& norm, const Matrix& copy) {
    this->norm(x, norm, OutputMode::store, x);
    this->norm(x, {}, OutputMode::store, copy);
  }

  /// out [rows, weight.rows] (act or f32) = or += activation(x [rows, weight.cols] · weightᵀ +
  /// bias), where x is what `input` says. With int8 weights of 8 input_bits the fast backends
  /// quantize each row of x to eight bits (symmetric, scale max|x| / 127), whatever the number of
  /// rows, so that a sequence's text does not depend on how many others share its step. Beside
  /// other weights a row of x with an element that is not finite gives elements that are not,
  /// infinite or NaN.
  virtual void linear(Input& input, const Weight& weight, const Epilogue& epilogue,
                      const Matrix& out) = 0;

  /// The same x. out [rows, n] act = activation(x Gᵀ + bias) ⊙ (x Uᵀ + bias), or as `gate` has it,
  /// where gate_up [2n, in] is G's n rows, then U's, and so is bias [2n], which may be null. The
  /// gated feed-forward of arXiv:2002.05202.
  virtual void gated_linear(Input& input, const Weight& gate_up, const float* bias,
                            const Gate& gate, const Matrix& out) = 0;

  /// Products of heads, each with rows of its own, as a block-diagonal matrix has them. Each row of
  /// x [rows, n_heads (p + in)] act and of out [rows, n_heads (p + n)] act is n_heads parts of
  /// equal size; the last `in` elements of the h-th part of x are multiplied by the h-th of so many
  /// equal parts of the weight's rows [n_heads · n, in], and the p elements before them are copied.
  /// out is not x. Inputs are never quantized, and weights not rotated.
  virtual void head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                           const Matrix& out) = 0;

  /// The same x. out [tokens, hidden] f32 = or += for each row of x [tokens, in] the sum of its
  /// experts' feed-forwards by their weights. scores [tokens, n] f32: the router's logits, of
  /// experts.n_experts and, if n is larger, of further ones that give what they read.
  /// Of equal scores the expert with the smaller number is chosen. arXiv:1701.06538.
  virtual void experts(Input& input, const Matrix& scores, const Router& router,
                       const Experts& experts, OutputMode output, const Matrix& out) = 0;

  /// m [rows, n] act or f32: m[r, c] is multiplied by activation(factors[r, c / (n / k)]); factors
  /// [rows, k] act or f32, k a divisor of n: each serves as many columns in a row. One row of
  /// factors may serve all.
  virtual void scale(const Matrix& factors, Activation activation, const Matrix& m) = 0;

  /// m [rows, n] act: each element x becomes activation(x), which is none of gates alone.
  virtual void activate(Activation activation, const Matrix& m) = 0;

  /// m [rows, n] act: each element x becomes max(0, x - (mean + deviations · standard deviation)),
  /// both of its row's elements: about the largest ones stay (Gemma 3n).
  virtual void keep_largest(float deviations, const Matrix& m) = 0;

  /// m [rows, parts · n] f32, of at most kMostParts parts: each part of a row becomes a sum of all,
  /// x_c = Σ_r weights[row, c · parts + r] x_r. weights [rows, parts²] f32.
  virtual void combine(const Matrix& weights, int32_t parts, const Matrix& m) = 0;

  /// m [rows, n] act or f32: each row is multiplied by sqrt(mean(y²) / max(mean(x²),
  /// kLeastMeanSquare)), so that its elements x are as large as y, the same row of like [rows, n]
  /// f32, which is not m.
  virtual void match_lengths(const Matrix& like, const Matrix& m) = 0;

  /// m [rows, n] act = xIELU of each element x (arXiv:2411.13010): softplus(p) x² + βx above 0,
  /// else (softplus(n) + β)(exp(x) - 1 - x) + βx. numbers: p, n, β.
  virtual void xielu(const float* numbers, const Matrix& m) = 0;

  /// The rotations of each token: for pair i, cos_sin[t, 2i] = factor · cos(a) and [t, 2i + 1] =
  /// factor · sin(a), a = positions[t] · f[i] in float32, f the rope's frequencies for the token.
  /// cos_sin [tokens, 2 pairs] f32.
  virtual void rope_table(const BatchView& batch, const Rope& rope, const Matrix& cos_sin) = 0;

  /// qkv [tokens, (n_heads + n_kv_heads) head_dim + n_kv_heads v_head_dim] act: query, key and
  /// value heads, these only where they are not in the keys, which no transform is for then; they
  /// are not kept. Transforms and
  /// rotates queries and keys, writes these keys and the values to the sequences' pages at the
  /// tokens' positions, and then gives out [tokens, n_heads v_head_dim] act = softmax(scores of q
  /// and k) v over the cached positions up to the token's own that `rule` lets it see. cos_sin
  /// [tokens, d] f32 rotates the first d elements of a head, of which i and i + d / 2 are a pair
  /// (arXiv:2104.09864, in the order of Transformers); d = 0: none. n_heads is a multiple of
  /// kv.n_kv_heads, and query head h reads KV head h / (n_heads / n_kv_heads) (arXiv:2305.13245).
  ///
  /// Where qkv is query heads alone, [tokens, n_heads head_dim], what they see is in the pages
  /// already: the tokens' own keys and values, which an earlier layer has written; or those of
  /// another text in cross attention, so that no position has a meaning, nothing is transformed,
  /// and the rule is bidirectional, without window, slopes or bias.
  virtual void attention(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                         const HeadTransform& transform, const KvLayer& kv,
                         const AttentionRule& rule, const Matrix& out) = 0;

  /// out [tokens, n_heads value_dim] act = attention of queries [tokens, n_heads (rope_dim +
  /// nope_dim)] act, which are not kept, over keys and values that heads make of the latents of
  /// kv, a layer with values in keys. The last rope_dim + rank columns of latent_qkv [tokens,
  /// (n_heads + 1) (rope_dim + rank)] act are what the tokens keep: rotated, and written to their
  /// pages. Its other columns, and latent_sums [tokens, n_heads rank] act, are memory.
  ///
  /// Queries may be taken to where latents are, k's product with them being that of its transpose
  /// with the query, and v be multiplied with sums of latents, so that nothing is ever made of what
  /// is kept: the least to read. Or keys and values are made of all latents: the least arithmetic
  /// where there are many queries.
  virtual void latent_attention(const BatchView& batch, const Matrix& queries,
                                const Matrix& cos_sin, const LatentHeads& heads, const KvLayer& kv,
                                const AttentionRule& rule, const Matrix& latent_qkv,
                                const Matrix& latent_sums, const Matrix& out) {
    const int64_t q_dim = heads.n_heads * kv.head_dim;
    head_linear(queries, heads.keys, heads.n_heads, latent_qkv.columns(0, q_dim));
    attention(batch, latent_qkv, cos_sin, {}, kv, rule, latent_sums);
    head_linear(latent_sums, heads.values, heads.n_heads, out);
  }

  /// kv_rows [tokens, kv.k_dim() + kv.v_dim()] act: key heads, then value heads, which are written
  /// to the sequences' pages at the tokens' positions as they are.
  virtual void append(const BatchView& batch, const Matrix& kv_rows, const KvLayer& kv) = 0;

  // Operations over states begin with each sequence's state_from, and write what they are after its
  // last token to state_to, and, where there is one, after the last page that is full before it
  // (border_of()) to state_border. All of a sequence's tokens are as if they came one by one.

  /// out [tokens, channels] act = the convolution of x [tokens, channels] act, which is not out.
  /// states: [taps - 1, channels] each, the last elements, the oldest first.
  virtual void convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                        const StateLayer& states, const Matrix& out) = 0;

  /// out [tokens, n_heads value_dim] act = y of Recurrence for q and k [tokens, n_key_heads
  /// key_dim] act and v [tokens, n_heads value_dim] act. gates [tokens, n_heads] f32, if
  /// by_channel [tokens, n_heads key_dim]; if `delta` n_heads columns more, then b's. states:
  /// [n_heads, key_dim, value_dim] each.
  virtual void recur(const BatchView& batch, const Matrix& q, const Matrix& k, const Matrix& v,
                     const Matrix& gates, const Recurrence& recurrence, const StateLayer& states,
                     const Matrix& out) = 0;

  /// out [tokens, channels] act = y of SelectiveScan for x [tokens, channels] act, steps [tokens,
  /// channels] f32, and b and c [tokens, state_size] f32. states: [state_size, channels] each.
  virtual void scan(const BatchView& batch, const Matrix& x, const Matrix& steps, const Matrix& b,
                    const Matrix& c, const SelectiveScan& scan, const StateLayer& states,
                    const Matrix& out) = 0;

  /// Has this one compute together with those of other ranks: sum_over_ranks() is for them only,
  /// and all of them call it alike. `link` outlives the backend. sums: f32, or what the sums' terms
  /// are rounded to on their way, a type of 16 bits.
  virtual void join(RankLink& link, DType sums) = 0;
  /// out [rows, n] f32 = or += the sum of all ranks' shares [rows, n] f32, without gaps, in their
  /// order: the same everywhere, to the last bit. What is in the share then is not said.
  virtual void sum_over_ranks(const Matrix& share, OutputMode output, const Matrix& out) = 0;
  /// Of all ranks: rank r's m [rows, n] f32 has columns [r · each, (r + 1) · each), as far as there
  /// are so many; then rank 0's has all. each: a multiple of 4. Rows begin at multiples of 16
  /// bytes.
  virtual void gather_columns(const Matrix& m, int64_t each) = 0;

  // Of mixers whose ranks need sums of each other before the last product. These are of float32,
  // whatever join() was told: what goes on from token to token is made of them.

  /// Of all ranks, as sum_over_ranks(): m [rows, n] f32 = the sum of all ranks' m.
  virtual void sum_floats_over_ranks(const Matrix& m) = 0;
  /// Of all ranks, likewise: x of each becomes its norm, whose mean is of all the row's columns on
  /// all ranks. All have as many rows, and as many groups; a rank has at most one part of a group,
  /// and each column of a group counts once. What is exchanged is a number a group and row.
  virtual void norm_over_ranks(std::span<const SharedNorm> norms) = 0;

  /// out [n_logits, n] f32 = rows batch.logit_rows of x [tokens, n] f32.
  virtual void gather_rows(const BatchView& batch, const Matrix& x, const Matrix& out) = 0;

  /// out [n_sequences, n] f32 = what pooling makes of each sequence's rows of x [tokens, n] f32.
  virtual void pool(const BatchView& batch, const Matrix& x, Pooling pooling,
                    const Matrix& out) = 0;

  /// logits = cap · tanh(logits / cap), f32, in place.
  virtual void soft_cap(float cap, const Matrix& logits) = 0;

  /// Draws a token from each row of logits [rows, vocab] f32 under rules[r]. Logits of tokens that
  /// are not in the mask become minus infinity; apply the edits; order by logit, then by id; keep
  /// top_k; p = softmax(logit / temperature); keep top_p; keep min_p; then the first token whose
  /// cumulative probability exceeds u · total, with u in [0, 1) from Philox4x32-10
  /// (doi:10.1145/2063384.2063405): key = seed, counter = (position, sequence), u = (first output
  /// word >> 8) · 2⁻²⁴. The same as cuRAND's curand_init(seed, sequence, 4 * position). The
  /// likeliest token is always kept.
  ///
  /// Log-probabilities are the model's own: log softmax of the logits before mask, edits and
  /// temperature.
  ///
  /// A row with n_candidates is ranked instead: take log softmax of the logits; apply the edits to
  /// log-probabilities, where the processors of Transformers' beam search act; take log softmax
  /// again where the row renormalizes; the candidates are the n_candidates likeliest tokens,
  /// descending, of equal ones the smaller id first (without edits they are in the order of the
  /// logits), less those of minus infinity. It is a beam's share of the best continuations of all
  /// beams of a request, which whoever knows the request's rules merges (engine/beam_search.h).
  ///
  /// Logits may be changed. Logits that are NaN, or all minus infinity (for a draw: after the
  /// edits), throw Error, here or in Choices::wait(). The rules stay as they are, and the backend
  /// lives, as long as the choices. There may be no rows.
  virtual std::unique_ptr<Choices> choose(const Matrix& logits,
                                          std::span<const SamplingRow> rules) = 0;
  /// What choose() gives for the logits of `product`, each row multiplied by itself; or null, where
  /// multiplying and then choosing is as fast, as it is but for likeliest tokens alone. logits
  /// [rows, vocab] f32: memory for what it takes.
  virtual std::unique_ptr<Choices> choose_greedily(LogitProduct& /*product*/,
                                                   const Matrix& /*logits*/,
                                                   std::span<const SamplingRow> /*rules*/) {
    return nullptr;
  }
  /// choose(), and waits. sampled: [rows].
  void sample(const Matrix& logits, std::span<const SamplingRow> rules,
              std::span<SampledToken> sampled) {
    const std::unique_ptr<Choices> choices = choose(logits, rules);
    choices->wait();
    for (size_t r = 0; r < sampled.size(); ++r) choices->read(r, sampled[r]);
  }

  /// Copies whole pages in all `layers`. No page is both source and target in one call.
  virtual void copy_pages(std::span<const KvLayer> layers, std::span<const PageCopy> copies) = 0;

  // Measuring. ---------------------------------------------------------------------------------

  /// Reads memory of allocate() as fast as the device can, and does nothing with it: what
  /// operations that are bound by memory are compared with. bytes: a multiple of 64.
  virtual void read_memory(const std::byte* data, size_t bytes) = 0;
  /// Notes the time at which all operations so far are done. None of the later ones begins before.
  virtual void note_time() = 0;
  /// Waits for all operations. Seconds from each noted time to the next one, which are then
  /// forgotten.
  virtual std::vector<double> take_times() = 0;
};

/// The rows of `input`, made by backend.norm() where they are not ready.
inline const Matrix& normalize(Backend& backend, Input& input) {
  if (!input.is_ready()) {
    backend.norm(input.x, input.norm, OutputMode::store, input.normed);
    input = {.x = input.normed};
  }
  return input.x;
}

/// The plain float32 reference on one thread: activations and arithmetic in float32, KV in f32.
std::unique_ptr<Backend> make_reference_backend();

/// The fast CPU backend. threads >= 1.
std::unique_ptr<Backend> make_cpu_backend(int threads);

/// Number of usable NVIDIA GPUs; 0 without a driver or in a build without CUDA.
int cuda_device_count();

/// Why cuda_device_count() is 0, as the end of a sentence: "this build has no CUDA support", "no
/// NVIDIA driver is installed", ...
std::string cuda_unavailable_reason();

/// The CUDA backend on GPU `device`. Throws Error when there is no such GPU.
std::unique_ptr<Backend> make_cuda_backend(int device);

}  // namespace faststream
