#include "convert/llama_parts.h"

namespace faststream {

TensorParts llama_parts(const ModelConfig& config, bool interleaved) {
  const int64_t hidden = config.hidden;
  const int64_t q_dim = config.q_dim();
  const int64_t kv_dim = config.kv_dim();
  const int64_t ffn = config.ffn_hidden;
  const int64_t pairs = interleaved ? config.head_dim : 0;

  TensorParts parts;
  parts["embedding"] = {{"model.embed_tokens.weight", {config.vocab, hidden}}};
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const std::string to = "layers." + std::to_string(layer) + ".";
    const std::string from = "model." + to;
    const std::string attention = from + "self_attn.";
    parts[to + "attention_norm"] = {{from + "input_layernorm.weight", {hidden}}};
    parts[to + "attention_qkv"] = {{attention + "q_proj.weight", {q_dim, hidden}, pairs},
                                   {attention + "k_proj.weight", {kv_dim, hidden}, pairs},
                                   {attention + "v_proj.weight", {kv_dim, hidden}}};
    parts[to + "attention_out"] = {{attention + "o_proj.weight", {hidden, q_dim}}};
    if (config.attention_bias) {
      parts[to + "attention_qkv_bias"] = {{attention + "q_proj.bias", {q_dim}, pairs},
                                          {attention + "k_proj.bias", {kv_dim}, pairs},
                                          {attention + "v_proj.bias", {kv_dim}}};
      parts[to + "attention_out_bias"] = {{attention + "o_proj.bias", {hidden}}};
    }
    parts[to + "ffn_norm"] = {{from + "post_attention_layernorm.weight", {hidden}}};
    parts[to + "ffn_gate_up"] = {{from + "mlp.gate_proj.weight", {ffn, hidden}},
                                 {from + "mlp.up_proj.weight", {ffn, hidden}}};
    parts[to + "ffn_down"] = {{from + "mlp.down_proj.weight", {hidden, ffn}}};
  }
  parts["output_norm"] = {{"model.norm.weight", {hidden}}};
  parts["output"] = {{config.tied_output ? "model.embed_tokens.weight" : "lm_head.weight",
                      {config.vocab, hidden}}};
  return parts;
}

}  // namespace faststream
