// OPT (arXiv:2205.01068).
#include <utility>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Embeddings are `width` wide, with a matrix before the layers and one after them: both become part
// of the tables.
void project_embeddings(const ModelConfig& config, const Checkpoint& weights, int64_t width,
                        bool tied, TensorParts& parts) {
  TensorPart& table = parts.at({TensorKind::embedding}).front();
  const std::string base = table.source.substr(0, table.source.find("embed_tokens"));
  table.shape = {config.vocab, width};
  TensorPart& output = parts.at({TensorKind::output}).front();
  output.shape = table.shape;
  if (tied && weights.find(output.source) == nullptr) output.source = table.source;
  table.projection = {.matrix = base + "project_in.weight", .inputs = width};
  output.projection = {.matrix = base + "project_out.weight", .inputs = width, .transposed = true};
}

}  // namespace

FamilyModel describe_opt(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape;
  shape.n_layers = count_in(config, "num_hidden_layers", kMaxLayers);
  shape.hidden = count_in(config, "hidden_size");
  shape.n_heads = shape.n_kv_heads = count_in(config, "num_attention_heads", kMaxHeads);
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = count_in(config, "ffn_dim");
  shape.vocab = count_in(config, "vocab_size");
  shape.max_context = count_in(config, "max_position_embeddings", kMaxContext);
  FamilyModel model{plain_decoder(shape)};
  constexpr int64_t kOffset = 2;
  model.config.embedding.positions = shape.max_context + kOffset;
  model.config.embedding.offset = kOffset;
  remove_rotation(model.config);
  model.config.output.tied = config.get("tie_word_embeddings", true);
  const NormConfig norm{.kind = NormKind::layer, .eps = 1e-5F, .bias = true};
  set_norms(model.config, norm);
  LayerConfig& layer = model.config.layer_kinds[0];
  const bool bias = config.get("enable_bias", true);
  set_attention_bias(layer, bias);
  set_plain_ffn(layer, activation_in(config, "activation_function", "relu"), bias);
  if (!config.get("do_layer_norm_before", true)) {
    for (BranchNorms* norms : {&layer.mixer_norms, &layer.ffn_norms}) {
      norms->stream = std::exchange(norms->before, {});
    }
    model.config.output.norm = {};
  } else if (config.get("_remove_final_layer_norm", false)) {
    model.config.output.norm = {};
  }

  Modules& m = model.modules;
  m.base = "model.decoder.";
  name_as_fairseq(m);
  m.output_norm = "final_layer_norm";

  const int64_t embedded = count_in(config, "word_embed_proj_dim", kMaxSize, shape.hidden);
  if (embedded != shape.hidden) {  // OPT-350m
    const bool tied = std::exchange(model.config.output.tied, false);
    model.finish = [embedded, tied](const ModelConfig& made, const Checkpoint& weights,
                                    TensorParts& parts) {
      project_embeddings(made, weights, embedded, tied, parts);
    };
  }
  return model;
}

}  // namespace faststream::convert
