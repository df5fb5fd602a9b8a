// GPT-Neo (doi:10.5281/zenodo.5297715): GPT-2 whose every other layer has a window, without a scale
// of scores.
#include <string>
#include <vector>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// "global" or "local" for each layer: a list, or [[types, times], ...].
std::vector<std::string> attention_types(const JsonView& config, int64_t n_layers) {
  std::vector<std::string> types;
  if (const auto list = config.find("attention_layers")) {
    for (const JsonView& type : list->elements()) types.push_back(type.as<std::string>());
  } else if (const auto groups = config.find("attention_types")) {
    for (const JsonView& group : groups->elements()) {
      const std::vector<JsonView> pair = group.elements();
      if (pair.size() != 2) group.fail("is not a list of types and a number");
      const std::vector<JsonView> of_group = pair[0].elements();
      const auto times = pair[1].as<int64_t>(1, kMaxLayers);
      for (int64_t n = 0; n < times && std::ssize(types) <= n_layers; ++n) {
        for (const JsonView& type : of_group) types.push_back(type.as<std::string>());
      }
    }
  } else {
    for (int64_t n = 0; n < n_layers; ++n) types.emplace_back(n % 2 == 0 ? "global" : "local");
  }
  if (std::ssize(types) != n_layers) config.fail("has not a type of attention for each layer");
  return types;
}

}  // namespace

FamilyModel describe_gpt_neo(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape;
  shape.n_layers = count_in(config, "num_layers", kMaxLayers);
  shape.hidden = count_in(config, "hidden_size");
  shape.n_heads = shape.n_kv_heads = count_in(config, "num_heads", kMaxHeads);
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = count_in(config, "intermediate_size", kMaxSize, 4 * shape.hidden);
  shape.vocab = count_in(config, "vocab_size");
  shape.max_context = count_in(config, "max_position_embeddings", kMaxContext, 2048);
  FamilyModel model{plain_decoder(shape)};
  model.config.embedding.positions = shape.max_context;
  remove_rotation(model.config);
  model.config.output.tied = config.get("tie_word_embeddings", true);
  set_norms(model.config, layer_norm_in(config, "layer_norm_epsilon"));
  LayerConfig& first = model.config.layer_kinds[0];
  first.attention().out_bias = true;
  first.attention().scale = 1;
  set_plain_ffn(first, activation_in(config, "activation_function", "gelu_new"), true);
  const int64_t window = count_in(config, "window_size", kMaxContext, 256);
  const std::vector<std::string> types = attention_types(config, shape.n_layers);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (types[static_cast<size_t>(n)] != "local") return;
    layer.name = "windowed";
    layer.attention().window = window;
  });

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "wte";
  m.positions = "wpe";
  m.layers = "h.";
  m.attention_norm = "ln_1";
  m.qkv = {"attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"};
  m.attention_out = "attn.attention.out_proj";
  m.ffn_norm = "ln_2";
  m.gate_up = {"mlp.c_fc"};
  m.down = "mlp.c_proj";
  m.output_norm = "ln_f";
  m.unused = {".attn.attention.bias", ".attn.attention.masked_bias"};
  return model;
}

}  // namespace faststream::convert
