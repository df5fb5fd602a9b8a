// Falcon-H1 (arXiv:2507.22448): attention and a state space side by side in each layer, and numbers
// that multiply what products read and give, folded into their weights.
#include <array>
#include <cmath>

#include "convert/families/state_space.h"

namespace faststream::convert {
namespace {

/// Of products, by what they give.
struct Multipliers {
  float embedding = 1;
  float output = 1;
  float attention_in = 1;
  float keys = 1;
  float attention_out = 1;
  float state_space_in = 1;
  std::array<float, 5> state_space = {1, 1, 1, 1, 1};  ///< of z, x, B, C and steps
  float state_space_out = 1;
  std::array<float, 2> ffn = {1, 1};  ///< of the gate and of the last product
};

template <size_t kCount>
void read_numbers(const JsonView& config, std::string_view key,
                  std::array<float, kCount>& numbers) {
  const auto list = config.find(key);
  if (!list) return;
  const std::vector<JsonView> elements = list->elements();
  if (elements.size() != kCount) {
    list->fail("is not a list of " + std::to_string(kCount) + " numbers");
  }
  for (size_t n = 0; n < kCount; ++n) {
    numbers[n] = static_cast<float>(elements[n].as<double>());
    if (!std::isfinite(numbers[n])) elements[n].fail("is too large, or no number");
  }
}

Multipliers multipliers_in(const JsonView& config) {
  Multipliers m{.embedding = number_in(config, "embedding_multiplier", 1),
                .output = number_in(config, "lm_head_multiplier", 1),
                .attention_in = number_in(config, "attention_in_multiplier", 1),
                .keys = number_in(config, "key_multiplier", 1),
                .attention_out = number_in(config, "attention_out_multiplier", 1),
                .state_space_in = number_in(config, "ssm_in_multiplier", 1),
                .state_space_out = number_in(config, "ssm_out_multiplier", 1)};
  read_numbers(config, "ssm_multipliers", m.state_space);
  read_numbers(config, "mlp_multipliers", m.ffn);
  return m;
}

void multiply(std::vector<TensorPart>& parts, float factor) {
  for (TensorPart& part : parts) part.scale *= factor;
}

// What multiplies a product's input multiplies its weights, but not its biases.
void fold(const Multipliers& m, TensorParts& parts) {
  for (auto& [id, of_tensor] : parts) {
    const bool is_bias = id.member == TensorMember::bias;
    const float attention_in = is_bias ? 1 : m.attention_in;
    const float state_space_in = is_bias ? 1 : m.state_space_in;
    const auto& [z, x, b, c, step] = m.state_space;
    switch (id.kind) {
      case TensorKind::attention_qkv:
        multiply(of_tensor, attention_in);
        break;
      case TensorKind::attention_out:
        multiply(of_tensor, m.attention_out);
        break;
      case TensorKind::recurrent_in:  // in this order, see describe_falcon_h1()
        multiply(of_tensor, state_space_in);
        of_tensor.at(0).scale *= x;
        of_tensor.at(1).scale *= b;
        of_tensor.at(2).scale *= c;
        of_tensor.at(3).scale *= z;
        break;
      case TensorKind::recurrent_gates:
        multiply(of_tensor, state_space_in * step);
        break;
      case TensorKind::recurrent_out:
        multiply(of_tensor, m.state_space_out);
        break;
      case TensorKind::ffn_gate_up:
        of_tensor.at(0).scale *= m.ffn[0];
        break;
      case TensorKind::ffn_down:
        multiply(of_tensor, m.ffn[1]);
        break;
      default:
        break;
    }
  }
}

}  // namespace

FamilyModel describe_falcon_h1(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 14336,
                                     .vocab = 128000,
                                     .max_context = 8192,
                                     .norm_eps = 1e-5F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  const Multipliers multipliers = multipliers_in(config);
  model.config.embedding.multiplier = multipliers.embedding;

  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().scale *= multipliers.keys;
  layer.ffn.bias = config.get("mlp_bias", false);
  const bool normalizes = config.get("mamba_rms_norm", false);
  StateSpaceConfig mixer = state_space_in(config, {}, model.config.hidden,
                                          normalizes ? layer.mixer_norms.before : NormConfig{});
  mixer.norm_first = normalizes && config.get("mamba_norm_before_gate", true);
  mixer.out_bias = config.get("projectors_bias", false);
  layer.mixers.emplace_back(mixer);

  Modules& m = model.modules;
  m.ffn_norm = "pre_ff_layernorm";
  m.gate_up = {"feed_forward.gate_proj", "feed_forward.up_proj"};
  m.down = "feed_forward.down_proj";
  m.output_norm = "final_layernorm";
  m.output_norm_scale = multipliers.output;
  name_state_space(m, mixer, "mamba.");
  const RecurrentRows all = m.recurrent_in[0];
  const int64_t x_dim = mixer.x_dim();
  const int64_t of_groups = mixer.n_groups * mixer.state_size;
  m.recurrent_in = {{all.module, all.of, x_dim, x_dim},
                    {all.module, all.of, 2 * x_dim, of_groups},
                    {all.module, all.of, 2 * x_dim + of_groups, of_groups},
                    {all.module, all.of, 0, x_dim}};
  model.finish = [multipliers](const ModelConfig&, const Checkpoint&, TensorParts& parts) {
    fold(multipliers, parts);
  };
  return model;
}

}  // namespace faststream::convert
