// MiniMax-Text (arXiv:2501.08313): lightning attention, whose decays depend on the layer and the
// head, and attention in some layers, with experts. What a branch adds to is its normed input,
// times a factor α, and what it gives is times β: a norm follows each sum, before which x α + y β
// is as x + y β / α, but for its eps.
#include "convert/families/minimax.h"

#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// "full_attn_alpha_factor" and "full_attn_beta_factor", of `begin` and `end`.
MiniMaxFactors factors_in(const JsonView& config, const std::string& begin,
                          const std::string& end) {
  const std::string alpha = begin + "_alpha" + end;
  const MiniMaxFactors factors{number_in(config, alpha, 1),
                               number_in(config, begin + "_beta" + end, 1)};
  if (!(factors.stream > 0)) config.member(alpha).fail("is not above 0");
  return factors;
}

// The norm of α x as one of x.
NormConfig of_sum(NormConfig norm, const MiniMaxFactors& factors) {
  norm.eps /= factors.stream * factors.stream;
  return norm;
}

// log(-rate) of each head in a layer, in float32 as Transformers computes rates.
std::vector<float> log_slopes(int64_t n, int64_t n_layers, int64_t n_heads) {
  const double base = 1 / std::exp2(8.0 / static_cast<double>(n_heads));
  const double of_layer =
      1 - static_cast<double>(n) / (static_cast<double>(n_layers) - 1 + 1e-5) + 1e-5;
  std::vector<float> slopes;
  for (int64_t head = 1; head <= n_heads; ++head) {
    const auto of_head = std::pow(static_cast<float>(base), static_cast<float>(head));
    slopes.push_back(std::log(of_head * static_cast<float>(of_layer)));
  }
  return slopes;
}

float ratio(const MiniMaxFactors& factors) { return factors.branch / factors.stream; }

// Layers as `layers` has them, `rotated` elements of heads being rotated where there is attention.
FamilyModel minimax_in(const JsonView& config, const PlainShape& shape, int64_t rotated,
                       MiniMaxShape layers) {
  const double share = static_cast<double>(rotated) / static_cast<double>(shape.head_dim);
  FamilyModel model{plain_decoder_in(config, shape, {.rotated_share = share})};
  LayerConfig& first = model.config.layer_kinds[0];
  first.attention().window = window_in(config, 0);
  const int64_t n_experts =
      count_in(config, key_in(config, {"num_experts", "num_local_experts"}), kMaxExperts, 8);
  use_experts(first, config, n_experts, 2);
  make_minimax(layers, model.config);
  Modules& m = model.modules;
  m.embedding_norm = "layers.0.input_layernorm";
  m.attention_stream_norm = "post_attention_layernorm";
  m.ffn_stream_norm = "input_layernorm";
  m.router = "block_sparse_moe.gate";
  m.experts = "block_sparse_moe.experts.";
  m.expert_gate_up = {"w1", "w3"};
  m.expert_down = "w2";
  name_linear_attention(model.config, "self_attn.qkv_proj", m);
  m.recurrent_norm = "self_attn.norm";
  m.recurrent_factors = "self_attn.output_gate";
  m.recurrent_out = "self_attn.out_proj";
  // What decays are made of, in tables.
  for (const char* table : {"slope_rate", "query_decay", "key_decay", "diagonal_decay"}) {
    m.unused.push_back(std::string("self_attn.") + table);
  }
  model.finish = [layers = std::move(layers), m](const ModelConfig& of_model, const Checkpoint&,
                                                 TensorParts& parts) {
    finish_minimax(layers, m, of_model, parts);
  };
  return model;
}

}  // namespace

void make_minimax(const MiniMaxShape& shape, ModelConfig& model) {
  LayerConfig& first = model.layer_kinds[0];
  first.name = "attention";
  first.experts->router.normalized = true;
  const NormConfig norm = first.mixer_norms.before;
  const LinearAttentionConfig linear{.n_heads = first.attention().n_heads,
                                     .head_dim = first.attention().head_dim,
                                     .activation = first.experts->each.activation,
                                     .norm = {.kind = NormKind::rms, .eps = 1e-6F}};
  // The norm before a branch is one of the stream, after the branch before it.
  model.embedding.norm = norm;
  model.output.norm = of_sum(norm, shape.ffn);
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    const bool is_linear = shape.is_linear[static_cast<size_t>(n)];
    const bool is_last = n + 1 == model.n_layers();
    if (is_linear) {
      layer.name = "linear attention";
      layer.mixers = {linear};
    }
    if (is_last) layer.name += ", last";
    layer.mixer_norms = {
        .before = {},
        .after = {},
        .stream = of_sum(norm, is_linear ? shape.linear_attention : shape.attention)};
    layer.ffn_norms = {};
    if (!is_last) layer.ffn_norms.stream = of_sum(norm, shape.ffn);
  });
}

void name_linear_attention(const ModelConfig& model, const std::string& module, Modules& modules) {
  for (int64_t n = 0; n < model.n_layers(); ++n) {
    const auto* linear = model.layer(n).find<LinearAttentionConfig>();
    if (linear == nullptr) continue;
    for (int64_t kind = 0; kind < 3; ++kind) {
      for (int64_t head = 0; head < linear->n_heads; ++head) {
        modules.recurrent_in.push_back(
            {module, 3 * linear->dim(), (3 * head + kind) * linear->head_dim, linear->head_dim});
      }
    }
    return;  // they are alike
  }
}

void finish_minimax(const MiniMaxShape& shape, const Modules& modules, const ModelConfig& model,
                    TensorParts& parts) {
  const int64_t n_layers = model.n_layers();
  for (auto& [id, of_tensor] : parts) {
    float scale = 1;
    switch (id.kind) {
      case TensorKind::attention_out:
        scale = ratio(shape.attention);
        break;
      case TensorKind::recurrent_out:
        scale = ratio(shape.linear_attention);
        break;
      case TensorKind::experts_down:
        scale = ratio(shape.ffn);
        break;
      case TensorKind::recurrent_decay: {
        const int64_t n_heads = model.layer(id.n).get<LinearAttentionConfig>().n_heads;
        of_tensor.clear();
        TensorPart& slopes = of_tensor.emplace_back();
        slopes.shape = {n_heads};
        slopes.values =
            std::make_shared<const std::vector<float>>(log_slopes(id.n, n_layers, n_heads));
        break;
      }
      case TensorKind::ffn_stream_norm: {  // the next layer's
        std::string& name = of_tensor.at(0).source;
        const std::string own = modules.layers + std::to_string(id.n) + ".";
        name.replace(name.find(own), own.size(), modules.layers + std::to_string(id.n + 1) + ".");
        break;
      }
      default:
        break;
    }
    if (scale == 1) continue;
    for (TensorPart& part : of_tensor) part.scale *= scale;
  }
}

FamilyModel describe_minimax(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 14336,
                                     .vocab = 32000,
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 1e6};
  const PlainShape shape = shape_in(config, kOtherwise);
  MiniMaxShape layers{.is_linear = {},
                      .attention = factors_in(config, "full_attn", "_factor"),
                      .linear_attention = factors_in(config, "linear_attn", "_factor"),
                      .ffn = factors_in(config, "mlp", "_factor")};
  for (const std::string& type :
       layer_types_in(config, shape.n_layers, {"linear_attention", "full_attention"},
                      [](int64_t n) { return n % 2 == 0 ? 1 : 0; })) {
    layers.is_linear.push_back(type == "linear_attention");
  }
  return minimax_in(config, shape, shape.head_dim, std::move(layers));
}

// The same as it was published, with code of its own: MiniMax-Text-01 and M1.
FamilyModel describe_minimax_text_01(const FamilySource& source) {
  const JsonView& config = source.config;
  if (!config.get("postnorm", false)) {
    config.fail(
        "\"postnorm\" is not true: what branches add to would be their input before its norm, "
        "which is not supported");
  }
  refuse_other(config, "shared_intermediate_size", 0);
  const PlainShape shape = shape_in(config, {.norm_eps = 1e-5F, .rope_theta = 1e6});
  if (!std::has_single_bit(static_cast<uint64_t>(shape.n_heads))) {
    config.member("num_attention_heads")
        .fail("is no power of two, and decays of other numbers of heads are not supported");
  }
  MiniMaxShape layers{.is_linear = flags_in(config.member("attn_type_list"), shape.n_layers),
                      .attention = factors_in(config, "layernorm_full_attention", ""),
                      .linear_attention = factors_in(config, "layernorm_linear_attention", ""),
                      .ffn = factors_in(config, "layernorm_mlp", "")};
  layers.is_linear.flip();  // 1 is for attention
  const int64_t rotated = count_in(config, "rotary_dim", shape.head_dim, shape.head_dim);
  return minimax_in(config, shape, rotated, std::move(layers));
}

}  // namespace faststream::convert
