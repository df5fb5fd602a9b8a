// Hyperparameters of a model, as the model file's header keeps them under "model".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "support/dtype.h"

namespace faststream {

/// How positions become rotation angles.
struct RopeConfig {
  double theta = 10000.0;
  std::string scaling = "none";         ///< "none", "linear" or "llama3"
  double factor = 1.0;                  ///< linear, llama3
  double low_freq_factor = 1.0;         ///< llama3
  double high_freq_factor = 4.0;        ///< llama3
  int64_t original_max_context = 8192;  ///< llama3
};

/// A transformer decoder's shape. Validated: every count is at least 1 and small enough that
/// products of any three fit in 63 bits; n_heads is a multiple of n_kv_heads; head_dim is even.
struct ModelConfig {
  std::string architecture = "llama";
  int64_t n_layers = 0;
  int64_t hidden = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn_hidden = 0;
  int64_t vocab = 0;
  int64_t max_context = 0;  ///< positions the model was trained for
  float norm_eps = 1e-5F;
  RopeConfig rope;
  bool tied_output = false;      ///< the output matrix is the embedding table
  bool attention_bias = false;   ///< q, k, v and output projections have biases
  DType weights = DType::f32;    ///< of the layers' matrices
  DType embedding = DType::f32;  ///< of the embedding table (never i8)
  DType output = DType::f32;     ///< of the output matrix; embedding's when tied

  [[nodiscard]] int64_t q_dim() const { return n_heads * head_dim; }
  [[nodiscard]] int64_t kv_dim() const { return n_kv_heads * head_dim; }
  [[nodiscard]] int64_t qkv_dim() const { return q_dim() + 2 * kv_dim(); }
};

/// Throws Error with one sentence that starts with `where` when a member is missing, of the wrong
/// type, or out of range, or the architecture is unknown.
ModelConfig config_from_json(const nlohmann::json& json, std::string_view where);
nlohmann::json config_to_json(const ModelConfig& config);

/// Throws Error, starting with `where`, unless the documented invariants hold.
void validate(const ModelConfig& config, std::string_view where);

/// Rotation frequencies [head_dim / 2] with the scaling applied; float32 arithmetic as Transformers
/// does it. "llama3": Transformers' modeling_rope_utils, _compute_llama3_parameters.
std::vector<float> rope_inv_freq(const RopeConfig& rope, int64_t head_dim);

/// A tensor that a model file must hold for a configuration.
struct TensorPlan {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

/// All tensors of a configuration in file order, the scales of an i8 matrix right after it:
///
///   embedding                       [vocab, hidden]
///   layers.N.attention_norm         [hidden] f32
///   layers.N.attention_qkv          [qkv_dim, hidden]          Q rows, then K, then V
///   layers.N.attention_qkv_bias     [qkv_dim] f32              if attention_bias
///   layers.N.attention_out          [hidden, q_dim]
///   layers.N.attention_out_bias     [hidden] f32               if attention_bias
///   layers.N.ffn_norm               [hidden] f32
///   layers.N.ffn_gate_up            [2 ffn_hidden, hidden]     gate rows, then up rows
///   layers.N.ffn_down               [hidden, ffn_hidden]
///   output_norm                     [hidden] f32
///   output                          [vocab, hidden]            unless tied_output
///
/// X.scales is [rows of X] f32.
/// Rows of Q and K are in Transformers' order (halves of a head are the pairs' members).
std::vector<TensorPlan> tensor_plan(const ModelConfig& config);

}  // namespace faststream
