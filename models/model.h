// A model: its forward pass over a packed batch, in the operations of a backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "models/config.h"
#include "models/tensor_plan.h"

namespace faststream {

/// Gives the place of a tensor of tensor_plan() in the backend's memory.
using WeightLookup = std::function<const std::byte*(const TensorId&)>;

/// Hidden states that a predictor has memory for beside those of a pass.
inline constexpr int32_t kMostKeptHidden = 512;

/// What layers keep of sequences: an entry for each of kv_layers(), and of state_layers().
struct LayerMemory {
  std::span<const KvLayer> kv;
  std::span<const StateLayer> states = {};
};

class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  /// Processes a batch: appends its tokens' keys and values to their pages in memory.kv, and writes
  /// the states after them. Returns what the logits of batch.logit_rows are made of, in the model's
  /// memory until the next pass. Of a description with an output matrix alone.
  virtual LogitProduct forward(const BatchView& batch, const LayerMemory& memory) = 0;

  // Of a stage (ModelConfig::stage) in place of forward(), which is run_stage() of each stage in
  // turn, then finish() of the first one.

  /// What run_stage() begins with where it is not the first one's: what that of the stage before
  /// returned, put here by the caller. [rows, stream_dim] f32 in the model's memory.
  [[nodiscard]] virtual Matrix stage_input(int64_t rows) const = 0;
  /// Likewise of what predictors read of each token (states_kept()), which stages complete one
  /// after the other, each in run_stage(). [tokens, n · hidden] f32; without columns where none do.
  [[nodiscard]] virtual Matrix stage_states(int64_t tokens) const = 0;
  /// Has the stage's layers process a batch as forward() does. Returns the stream of all tokens, or
  /// of batch.logit_rows alone after the last layer, f32 in the model's memory until the next pass.
  virtual Matrix run_stage(const BatchView& batch, const LayerMemory& memory) = 0;
  /// As stage_input(): what finish() begins with.
  [[nodiscard]] virtual Matrix finish_input(int64_t rows) const = 0;
  /// As stage_states(): those of the last stage, of all of the step's tokens.
  [[nodiscard]] virtual Matrix finish_states(int64_t tokens) const = 0;
  /// What the logits of so many rows are made of, as forward() returns it. tokens: whose states are
  /// there; 0: there are none but of these rows.
  virtual LogitProduct finish(int64_t rows, int64_t tokens) = 0;

  /// The same without the output matrix: the hidden states of all tokens, after the output's norm
  /// if there is one. [n_tokens, hidden] f32 in the model's memory, until the next pass.
  virtual Matrix encode(const BatchView& batch, const LayerMemory& memory) = 0;

  /// Of a description with an encoder: has that encode a batch of whole sources and writes the keys
  /// and values of cross attention to their pages in `kv`, the decoder's. The encoder's layers use
  /// the same pages of the first layer before. forward() sees them as the batch's sources.
  virtual void read_sources(const BatchView& batch, std::span<const KvLayer> kv) = 0;

  /// What predictors read of the last forward(), or finish(): hidden states as output_norm() reads
  /// them, [rows, hidden] f32 in the model's memory until the next pass. Of a description whose
  /// predictors read what is after the last layer those of all tokens, where the batch wants some
  /// of them (Batch::n_states()); else those whose logits were wanted.
  [[nodiscard]] virtual Matrix hidden_states() const = 0;
  [[nodiscard]] virtual const Norm& output_norm() const = 0;
  /// Of a description whose predictors read them (LayerStatesConfig): the states of all tokens of
  /// the last forward(), or finish(), those of a token side by side. [n_tokens, n · hidden] f32
  /// likewise; without columns where there are none.
  [[nodiscard]] virtual Matrix layer_states() const = 0;
  /// Of a predictor: to [rows, hidden] f32 = what it reads, made of rows of its decoder's
  /// layer_states().
  virtual void join_layer_states(const Matrix& states, const Matrix& to) = 0;
  /// Of a predictor: memory for what the next forward() reads of each token beside it. [max_tokens,
  /// hidden] f32.
  [[nodiscard]] virtual Matrix hidden_input() const = 0;
  /// Likewise for what later ones do. [kMostKeptHidden, hidden] f32.
  [[nodiscard]] virtual Matrix kept_hidden() const = 0;

  /// Of a description with pooling: encode(), then what pooling and dense layers make of each
  /// sequence, before `normalize` and `sigmoid`. [n_sequences, vector_size()] f32 likewise. Of one
  /// with an encoder that has read the sources.
  virtual Matrix embed(const BatchView& batch, const LayerMemory& memory) = 0;
};

/// Elements from a row of logits to the next: rows begin at multiples of 16 bytes, which devices
/// write and read fastest.
constexpr int64_t logits_stride(int64_t vocab) { return (vocab + 3) / 4 * 4; }

/// What a forward pass may hold at most; activations are allocated for it once.
struct BatchLimits {
  int32_t max_tokens = 0;
  int32_t max_logits = 0;  ///< rows of logits; or of vectors, one a sequence
};

/// Bytes of activations that make_model() will allocate.
size_t activation_bytes(const ModelConfig& config, DType activations, const BatchLimits& limits);

/// What steps within `limits` hold at most, of so many sequences of `context` tokens.
StepBounds step_bounds(const ModelConfig& config, const BatchLimits& limits, int64_t sequences,
                       int64_t context);

/// The model that `config` describes. `backend` must outlive it.
std::unique_ptr<Model> make_model(const ModelConfig& config, const WeightLookup& weights,
                                  Backend& backend, const BatchLimits& limits);
/// One of its predictors, predictor_of().
std::unique_ptr<Model> make_predictor(const ModelConfig& config, size_t predictor,
                                      const WeightLookup& weights, Backend& backend,
                                      const BatchLimits& limits);

}  // namespace faststream
