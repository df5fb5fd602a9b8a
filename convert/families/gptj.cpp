// GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward side by side on one norm; and
// CodeGen (arXiv:2203.13474), which is GPT-J with one module for queries, keys and values.
#include <utility>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr int64_t kCores = 4;  // whose rows lie together: of each its queries, values and keys

void join_qkv(const ModelConfig& config, const Checkpoint& weights, TensorParts& parts) {
  const Modules defaults{.base = "transformer.", .layers = "h."};
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    std::vector<TensorPart>& qkv = parts[{TensorKind::attention_qkv, n}];
    const SidewisePairs pairs = qkv.front().pairs;
    const std::string source =
        base_in(weights, defaults) + defaults.layers + std::to_string(n) + ".attn.qkv_proj.weight";
    qkv.clear();
    const int64_t rows = config.hidden / kCores;
    for (const int64_t place : {0, 2, 1}) {
      for (int64_t core = 0; core < kCores; ++core) {
        TensorPart part{.source = source, .shape = {3 * config.hidden, config.hidden}};
        part.first_row = (3 * core + place) * rows;
        part.n_rows = rows;
        if (place != 1) part.pairs = pairs;
        qkv.push_back(std::move(part));
      }
    }
  }
}

}  // namespace

FamilyModel describe_gptj(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape = gpt2_shape_in(config);
  shape.max_context = count_in(config, "n_positions", kMaxContext, 2048);
  const bool is_null = config.has("rotary_dim") && !config.find("rotary_dim");  // all of a head
  const int64_t rotated =
      is_null ? shape.head_dim : count_in(config, "rotary_dim", shape.head_dim, 64);
  FamilyModel model{plain_decoder(shape)};
  model.config.ropes[0].frequencies = plain_frequencies(shape.rope_theta, rotated);
  set_norms(model.config, layer_norm_in(config, "layer_norm_epsilon"));
  model.config.output.tied = config.get("tie_word_embeddings", false);
  model.config.output.bias = true;
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = true;
  layer.ffn_norms = {};
  set_plain_ffn(layer, activation_in(config, "activation_function", "gelu_new"), true);

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "wte";
  m.layers = "h.";
  m.attention_norm = "ln_1";
  m.qkv = {"attn.q_proj", "attn.k_proj", "attn.v_proj"};
  m.attention_out = "attn.out_proj";
  m.gate_up = {"mlp.fc_in"};
  m.down = "mlp.fc_out";
  m.output_norm = "ln_f";
  m.interleaved = true;
  m.unused = {".attn.bias", ".attn.masked_bias"};
  return model;
}

FamilyModel describe_codegen(const FamilySource& source) {
  FamilyModel model = describe_gptj(source);
  if (model.config.layer(0).attention().n_heads % kCores != 0) {
    source.config.member("n_head").fail("is not a multiple of " + std::to_string(kCores));
  }
  model.modules.unused.emplace_back(".attn.causal_mask");
  model.finish = join_qkv;
  return model;
}

}  // namespace faststream::convert
