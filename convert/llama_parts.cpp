#include "convert/llama_parts.h"

namespace faststream {

TensorParts llama_parts(const ModelConfig& config, const LlamaNames& names, bool interleaved) {
  const int64_t hidden = config.hidden;
  const int64_t q_dim = config.q_dim();
  const int64_t kv_dim = config.kv_dim();
  const int64_t ffn = config.ffn_hidden;
  const int64_t pairs = interleaved ? config.head_dim : 0;
  const auto weight = [](std::string_view name) { return std::string(name) + ".weight"; };
  const auto bias = [](std::string_view name) { return std::string(name) + ".bias"; };

  TensorParts parts;
  parts["embedding"] = {{weight(names.embedding), {config.vocab, hidden}}};
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const std::string to = "layers." + std::to_string(layer) + ".";
    const std::string from = std::string(names.layer) + std::to_string(layer) + ".";
    parts[to + "attention_norm"] = {{from + weight(names.attention_norm), {hidden}}};
    parts[to + "attention_qkv"] = {{from + weight(names.q), {q_dim, hidden}, pairs},
                                   {from + weight(names.k), {kv_dim, hidden}, pairs},
                                   {from + weight(names.v), {kv_dim, hidden}}};
    parts[to + "attention_out"] = {{from + weight(names.attention_out), {hidden, q_dim}}};
    if (config.attention_bias) {
      parts[to + "attention_qkv_bias"] = {{from + bias(names.q), {q_dim}, pairs},
                                          {from + bias(names.k), {kv_dim}, pairs},
                                          {from + bias(names.v), {kv_dim}}};
      parts[to + "attention_out_bias"] = {{from + bias(names.attention_out), {hidden}}};
    }
    parts[to + "ffn_norm"] = {{from + weight(names.ffn_norm), {hidden}}};
    parts[to + "ffn_gate_up"] = {{from + weight(names.gate), {ffn, hidden}},
                                 {from + weight(names.up), {ffn, hidden}}};
    parts[to + "ffn_down"] = {{from + weight(names.down), {hidden, ffn}}};
  }
  parts["output_norm"] = {{weight(names.output_norm), {hidden}}};
  parts["output"] = {
      {weight(config.tied_output ? names.embedding : names.output), {config.vocab, hidden}}};
  return parts;
}

}  // namespace faststream
