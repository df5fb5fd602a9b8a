// GPT-NeoX and Pythia (arXiv:2204.06745, arXiv:2304.01373), and the Japanese one of ABEJA.
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

void name_modules(Modules& m) {
  m.base = "gpt_neox.";
  m.embedding = "embed_in";
  m.qkv = {"attention.query_key_value"};
  m.joined_qkv = JoinedQkv::by_kv_head;
  m.attention_out = "attention.dense";
  m.gate_up = {"mlp.dense_h_to_4h"};
  m.down = "mlp.dense_4h_to_h";
  m.output_norm = "final_layer_norm";
  m.output = "embed_out";
  m.unused = {".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"};
}

}  // namespace

FamilyModel describe_gpt_neox(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape = shape_in(config);
  shape.rope_theta = config.get("rotary_emb_base", 10000.0);
  FamilyModel model{
      plain_decoder_in(config, shape, {.rotated_share = config.get("rotary_pct", 0.25)})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps"));
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = config.get("use_parallel_residual", true);
  set_attention_bias(layer, config.get("attention_bias", true));
  set_plain_ffn(layer, activation_in(config, "hidden_act", "gelu"), true);

  name_modules(model.modules);
  return model;
}

// One branch after the other, all of a head rotated, and no bias but that of the last attention.
FamilyModel describe_gpt_neox_japanese(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 2560,
                                     .n_heads = 32,
                                     .ffn_hidden = 1,
                                     .vocab = 32000,
                                     .max_context = 2048};
  PlainShape shape = shape_in(config, kOtherwise);
  shape.ffn_hidden = shape.hidden * count_in(config, "intermediate_multiple_size", 64, 4);
  shape.rope_theta = config.get("rotary_emb_base", 10000.0);
  const double share = config.get("rotary_pct", 1.0);
  FamilyModel model{plain_decoder_in(config, shape, {.tied = true, .rotated_share = share})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps"));
  set_plain_ffn(model.config.layer_kinds[0], activation_in(config, "hidden_act", "gelu"), false);
  const int64_t last = shape.n_layers - 1;
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    layer.attention().out_bias = n == last;
    if (n == last) layer.name = "last";
  });
  Modules& m = model.modules;
  name_modules(m);
  m.base = "gpt_neox_japanese.";
  model.finish = [last](const ModelConfig&, const Checkpoint&, TensorParts& parts) {
    std::string& source_name =
        parts[bias_of({TensorKind::attention_out, last})].front().source;  // attention.dense.bias
    source_name[source_name.rfind('.')] = '_';
  };
  return model;
}

}  // namespace faststream::convert
