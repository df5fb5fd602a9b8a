// Jina Embeddings v3 (arXiv:2409.10173): XLM-RoBERTa with rotations in place of learned positions.
// Transformers' class loads what its authors' own code wrote, and writes tensors under those names.
// It knows no "lora_adaptations": a checkpoint that lists tasks there and has no tensors of theirs
// is the model without, as that class computes it. Of one that has them merge_task() has made one
// without.
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

}  // namespace

FamilyModel describe_jina_embeddings_v3(const FamilySource& source) {
  const JsonView& config = source.config;
  const PlainShape shape = shape_in(config, kJina);
  const NormConfig norm = layer_norm_in(config, "layer_norm_eps");
  const double theta = config.get("rotary_emb_base", shape.rope_theta);  // as the authors name it
  FamilyModel model{post_norm_encoder(shape, norm, activation_in(config, "hidden_act", "gelu"))};
  model.config.ropes = {rope_from_hf(
      config, {.head_dim = shape.head_dim, .max_context = shape.max_context, .theta = theta}, "")};
  model.config.layer_kinds[0].attention().rope = 0;
  model.config.embedding.segments = count_in(config, "type_vocab_size", kMaxSize, 1);

  Modules& m = model.modules;
  m.base = "roberta.";
  m.embedding = "embeddings.word_embeddings";
  m.segments = "embeddings.token_type_embeddings";
  (has_modules(source.weights, "emb_ln.") ? name_as_flash_bert : name_as_rotated_bert)(m);
  m.gate_up = {"mlp.fc1"};
  m.down = "mlp.fc2";
  m.unused.emplace_back(".position_ids");
  use_heads_of_roberta(model, config);
  return model;
}

}  // namespace faststream::convert
