// BioGPT (arXiv:2210.10341).
#include <cmath>

#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_biogpt(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 24,
                                     .hidden = 1024,
                                     .n_heads = 16,
                                     .ffn_hidden = 4096,
                                     .vocab = 42384,
                                     .max_context = 1024};
  const PlainShape shape = shape_in(config, kOtherwise);
  FamilyModel model{plain_decoder(shape)};
  constexpr int64_t kOffset = 2;
  model.config.embedding.positions = shape.max_context + kOffset;
  model.config.embedding.offset = kOffset;
  if (config.get("scale_embedding", true)) {
    model.config.embedding.multiplier = std::sqrt(static_cast<float>(shape.hidden));
  }
  remove_rotation(model.config);
  model.config.output.tied = config.get("tie_word_embeddings", true);
  // Whatever "layer_norm_eps" says.
  set_norms(model.config, {.kind = NormKind::layer, .eps = 1e-5F, .bias = true});
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, true);
  set_plain_ffn(layer, activation_in(config, "hidden_act", "gelu"), true);

  Modules& m = model.modules;
  m.base = "biogpt.";
  name_as_fairseq(m);
  m.output = "output_projection";
  return model;
}

}  // namespace faststream::convert
