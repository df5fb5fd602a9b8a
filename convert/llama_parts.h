// Which tensors of a Llama checkpoint make up which tensor of the model file.
#pragma once

#include <string>

#include "convert/source_model.h"

namespace faststream {

/// What a checkpoint calls its tensors, "weight" and "bias" aside; those of a layer come after
/// `layer` and the layer's number.
struct LlamaNames {
  std::string_view embedding;
  std::string_view layer;
  std::string_view attention_norm;
  std::string_view q;
  std::string_view k;
  std::string_view v;
  std::string_view attention_out;
  std::string_view ffn_norm;
  std::string_view gate;
  std::string_view up;
  std::string_view down;
  std::string_view output_norm;
  std::string_view output;
};

/// Those of Transformers' LlamaForCausalLM.
inline constexpr LlamaNames kHfLlamaNames = {"model.embed_tokens",
                                             "model.layers.",
                                             "input_layernorm",
                                             "self_attn.q_proj",
                                             "self_attn.k_proj",
                                             "self_attn.v_proj",
                                             "self_attn.o_proj",
                                             "post_attention_layernorm",
                                             "mlp.gate_proj",
                                             "mlp.up_proj",
                                             "mlp.down_proj",
                                             "model.norm",
                                             "lm_head"};

/// Those of GGUF files (llama.cpp's gguf-py, constants.py).
inline constexpr LlamaNames kGgufLlamaNames = {
    "token_embd", "blk.",     "attn_norm", "attn_q",   "attn_k",      "attn_v", "attn_output",
    "ffn_norm",   "ffn_gate", "ffn_up",    "ffn_down", "output_norm", "output"};

/// `interleaved`: Q and K keep the members of a rotary pair side by side, as in llama2.c and GGUF.
TensorParts llama_parts(const ModelConfig& config, const LlamaNames& names, bool interleaved);

}  // namespace faststream
