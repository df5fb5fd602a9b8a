// Jina Embeddings v3 (arXiv:2409.10173): XLM-RoBERTa with rotations in place of learned positions.
// Transformers' class loads what its authors' own code wrote, and writes tensors under those names.
// It knows no "lora_adaptations": a checkpoint that lists tasks there and has no tensors of theirs
// is the model without, as that class computes it.
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kJina = {.n_layers = 24,
                              .hidden = 1024,
                              .n_heads = 16,
                              .ffn_hidden = 4096,
                              .vocab = 250002,
                              .max_context = 8194,
                              .rope_theta = 20000};

bool has_module(const Checkpoint& weights, const std::string& module) {
  return weights.find(module + ".weight") != nullptr;
}

// As the authors' code has them.
void name_as_authors(Modules& m) {
  m.embedding_norm = "emb_ln";
  m.layers = "encoder.layers.";
  m.qkv = {"mixer.Wqkv"};
  m.attention_out = "mixer.out_proj";
  m.attention_stream_norm = "norm1";
  m.ffn_stream_norm = "norm2";
}

void name_as_transformers(Modules& m) {
  m.embedding_norm = "embeddings.LayerNorm";
  m.layers = "layers.";
  m.qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  m.attention_out = "self_attn.o_proj";
  m.attention_stream_norm = "post_attention_layernorm";
  m.ffn_stream_norm = "post_mlp_layernorm";
}

}  // namespace

FamilyModel describe_jina_embeddings_v3(const FamilySource& source) {
  const JsonView& config = source.config;
  const PlainShape shape = shape_in(config, kJina);
  const NormConfig norm = layer_norm_in(config, "layer_norm_eps");
  FamilyModel model{post_norm_encoder(shape, norm, activation_in(config, "hidden_act", "gelu"))};
  model.config.ropes = {rope_from_hf(
      config,
      {.head_dim = shape.head_dim, .max_context = shape.max_context, .theta = shape.rope_theta},
      "")};
  model.config.layer_kinds[0].attention().rope = 0;
  model.config.embedding.segments = count_in(config, "type_vocab_size", kMaxSize, 1);

  Modules& m = model.modules;
  m.base = "roberta.";
  m.embedding = "embeddings.word_embeddings";
  m.segments = "embeddings.token_type_embeddings";
  m.gate_up = {"mlp.fc1"};
  m.down = "mlp.fc2";
  const bool is_of_transformers = has_module(source.weights, "embeddings.LayerNorm") ||
                                  has_module(source.weights, "roberta.embeddings.LayerNorm");
  (is_of_transformers ? name_as_transformers : name_as_authors)(m);
  m.unused.emplace_back(".position_ids");
  use_heads_of_roberta(model, config);
  return model;
}

}  // namespace faststream::convert
