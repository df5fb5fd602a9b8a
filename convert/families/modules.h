// Which tensors of a checkpoint make up each tensor of the model file, by the modules' names.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/source_model.h"
#include "models/config.h"

namespace faststream::convert {

/// In what order one tensor holds queries, keys and values.
enum class JoinedQkv {
  by_kind,     ///< all queries, then all keys, then all values
  by_kv_head,  ///< for each KV head its queries, its key, its value
};

/// Rows of a module: those from `first` on, of as many as it has.
struct RecurrentRows {
  std::string module;
  int64_t of = 0;
  int64_t first = 0;
  int64_t count = 0;
};

/// A product that vectors go through, and the norm of what it gives: whole names, without base.
struct DenseModules {
  std::string product;
  std::string norm = {};
};

/// What a checkpoint calls the modules of a decoder: the names of tensors without ".weight" and
/// ".bias". Those of a layer are relative to it. The weights of a norm without a name are 1. The
/// defaults are Llama's in Transformers.
struct Modules {
  std::string base = "model.";  ///< begins all names but output's; see base_in()
  std::string embedding = "embed_tokens";
  std::string positions = {};
  std::string segments = {};
  std::string embedding_norm = {};
  std::string embedding_projection = {};
  std::string layer_inputs = {};  ///< these four: of LayerInputsConfig
  std::string layer_inputs_projection = {};
  std::string layer_inputs_norm = {};
  float layer_inputs_norm_scale = 1;  ///< of its weights
  int64_t layer_inputs_rows = 0;  ///< of their table, whose first serves further ids; 0: as it must
  // Of AltUpConfig; the first and the last begin names, and the number of a stream follows.
  std::string altup_in = {};
  std::string altup_norm = {};
  std::string altup_gates = {};
  float altup_gates_scale = 1;     ///< of its weights
  std::string altup_predict = {};  ///< what makes all weights [streams², streams], target by target
  std::string altup_correct = {};  ///< what makes those of changes [streams, streams], less 1
  std::string altup_out = {};
  std::string hidden_norm = {};  ///< these two: of HiddenInputConfig
  std::string hidden_projection = {};
  std::vector<std::string> layer_states_norms = {};  ///< these two: of LayerStatesConfig
  std::string layer_states_projection = {};
  std::string layers = "layers.";  ///< the number and a dot follow
  /// The numbers that the checkpoint has for a layer's mixer and its feed-forward, where they are
  /// layers of their own there; empty: the layer's.
  std::vector<int64_t> mixer_layers = {};
  std::vector<int64_t> ffn_layers = {};
  std::string attention_norm = "input_layernorm";
  /// Three, or one that holds all.
  std::vector<std::string> qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  JoinedQkv joined_qkv = JoinedQkv::by_kind;
  float value_scale = 1;                  ///< of values
  std::set<int64_t> keys_as_values = {};  ///< layers whose values are what the keys' module gives
  /// Of the output's gates; without a name, each query head's follow its queries in their module.
  std::string output_gate = {};
  std::string output_gate_bias = {};  ///< a tensor's name: [heads], of all gates of a head
  bool qkv_bias = true;  ///< where there is such a bias; false: queries', keys' and values' are 0
  std::string q_norm = "self_attn.q_norm";
  std::string k_norm = "self_attn.k_norm";
  bool norms_of_each_head = false;        ///< [heads, head_dim], not [head_dim] for all heads
  std::string sinks = "self_attn.sinks";  ///< a tensor's name
  // Of latent attention: what makes queries, of a latent or of the input, what makes the row that
  // is kept, and what makes keys' and values' parts of its latent, head by head.
  std::string latent_q_down = "self_attn.q_a_proj";
  std::string latent_q_norm = "self_attn.q_a_layernorm";
  float latent_q_scale = 1;  ///< of its weights, as of latent_kv_norm's
  std::string latent_q = "self_attn.q_b_proj";
  std::string latent_q_of_input = "self_attn.q_proj";
  std::string latent_kv = "self_attn.kv_a_proj_with_mqa";
  std::string latent_kv_norm = "self_attn.kv_a_layernorm";
  float latent_kv_scale = 1;
  std::string latent_kv_up = "self_attn.kv_b_proj";
  /// If named, in place of that one: [heads, kv_rank, nope_dim] and [heads, value_head_dim,
  /// kv_rank].
  std::string latent_k = {};
  std::string latent_v = {};
  std::string latent_gate = "self_attn.g_proj";
  std::string attention_sums_norm = {};
  std::string attention_out = "self_attn.o_proj";
  /// Of mixers that keep a state: the rows of their first products, in the order of the tensors.
  std::vector<RecurrentRows> recurrent_in = {};
  std::vector<RecurrentRows> recurrent_gates = {};
  /// Of a selective scan: the norms of steps' latent, of B and of C; none: they have no weights.
  std::vector<std::string> recurrent_gate_norms = {};
  std::string recurrent_gates_up = {};
  std::string recurrent_convolution = {};
  std::string recurrent_decay = {};  ///< a tensor's name, as the next two
  bool decay_is_rate = false;        ///< it holds rates below 0, not logarithms of their opposites
  std::string recurrent_step = {};
  std::string recurrent_skip = {};
  std::string recurrent_norm = {};
  std::string recurrent_factors = {};
  std::string recurrent_out = {};
  /// Where the checkpoint has each head of a delta net's values; empty: in their order. The rows of
  /// first products are as `recurrent_in` and `recurrent_gates` have them.
  std::vector<int64_t> value_heads = {};
  std::string attention_after_norm = {};
  std::string attention_stream_norm = {};
  std::string laurel_in = {};  ///< these three: of LaurelConfig
  std::string laurel_out = {};
  std::string laurel_norm = {};
  std::string distances = {};  ///< a tensor's name: the table of a relative bias
  std::string common_distances =
      {};                       ///< in its place one of all layers, named like what is in none
  std::string cross_norm = {};  ///< here and below: of cross attention
  std::vector<std::string> cross_qkv = {};
  std::string cross_out = {};
  std::string cross_after_norm = {};
  std::string cross_stream_norm = {};
  std::string ffn_norm = "post_attention_layernorm";
  /// The gate and up, or one that holds both in this order; up alone where there is no gate.
  std::vector<std::string> gate_up = {"mlp.gate_proj", "mlp.up_proj"};
  bool up_first = false;     ///< one that holds both has up's rows before the gate's
  bool gate_up_bias = true;  ///< where the feed-forward has biases; false: theirs are 0
  std::string ffn_middle_norm = {};
  std::string down = "mlp.down_proj";
  std::string xielu = "mlp.act_fn";
  std::string router_norm = {};  ///< a tensor's name
  float router_norm_scale = 1;   ///< of its weights
  std::string router = "mlp.gate";
  std::string correction = "mlp.gate.e_score_correction_bias";  ///< a tensor's name
  std::string expert_scales = {};                               ///< likewise
  std::string experts_norm = {};
  std::string experts_after_norm = {};
  std::string experts = "mlp.experts.";  ///< the number and a dot follow
  std::vector<std::string> expert_gate_up = {"gate_proj", "up_proj"};
  std::string expert_down = "down_proj";
  /// If named, modules for all experts, [experts, rows, columns], in place of these three: the gate
  /// and up, or one that holds the gate's rows and then up's for each expert.
  std::vector<std::string> experts_gate_up = {};
  std::string experts_down = {};
  std::string experts_sum_bias = {};    ///< a tensor's name
  bool experts_are_tensors = false;     ///< these are tensors' names, without ".weight"
  bool experts_are_transposed = false;  ///< [experts, columns, rows]
  std::vector<std::string> shared_gate_up = {"mlp.shared_expert.gate_proj",
                                             "mlp.shared_expert.up_proj"};
  std::string shared_down = "mlp.shared_expert.down_proj";
  float shared_scale = 1;  ///< of what the shared one gives
  std::string shared_gate = "mlp.shared_expert_gate";
  std::string shared_after_norm = {};
  std::string ffn_after_norm = {};
  std::string ffn_stream_norm = {};
  std::string input_scale = {};  ///< a tensor's name: this and the next three of LayerInputsConfig
  std::string input_gate = {};
  std::string input_out = {};
  std::string input_after_norm = {};
  std::string stream_scale = {};  ///< a tensor's name
  std::string output_norm = "norm";
  std::string output = "lm_head";
  std::vector<DenseModules> dense = {};  ///< of dense_layers()

  bool transposed = false;         ///< matrices of layers are [in, out]
  bool interleaved = false;        ///< rotary pairs lie side by side in queries and keys
  bool interleaved_heads = false;  ///< likewise, and as if all of a head were rotated
  float norm_add = 0;              ///< to weights of norms: 1 where they are 1 + γ
  float residual_scale = 1;        ///< of what attention and the feed-forward add to the stream
  float output_norm_scale = 1;     ///< of the last norm, and so of logits
  bool unit_output = false;        ///< rows of the output matrix are divided by their norms

  /// Modules of something beside the model, such as heads that predict further tokens: names of
  /// tensors begin with these, or go on with them after a dot.
  std::vector<std::string> left_out = {};
  std::string without_left_out = {};  ///< what that means for texts, if anything, as a clause
  /// Endings of names of tensors that the model does not need: masks and tables that are computed.
  std::vector<std::string> unused = {"rotary_emb.inv_freq"};
};

/// For Modules::without_left_out.
std::string longest_text(int64_t tokens);

/// Names the parts of layers, learned positions and the last norm as fairseq did.
void name_as_fairseq(Modules& modules);

/// Adds the weights and biases of modules, heads of other tasks, to modules.unused.
void leave_out(Modules& modules, std::initializer_list<std::string_view> names);

/// What begins the names of tensors in a checkpoint: modules.base, or that without its first part,
/// which belongs to the class around the decoder.
std::string base_in(const Checkpoint& weights, const Modules& modules);

/// The parts of all tensors of tensor_plan(config), and of the output if that is tied; `encoder`:
/// what the encoder's modules are called, if there is one.
TensorParts parts_of(const ModelConfig& config, const Modules& modules, const Checkpoint& weights,
                     const Modules& encoder = {});

}  // namespace faststream::convert
