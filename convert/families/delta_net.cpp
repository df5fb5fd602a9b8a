#include "convert/families/delta_net.h"

#include <algorithm>

namespace faststream::convert {

void split_convolutions(const ModelConfig& config, const Checkpoint& weights, TensorParts& parts) {
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const auto* mixer = config.layer(n).find<DeltaNetConfig>();
    if (mixer == nullptr) continue;
    std::vector<TensorPart>& convolution = parts[{TensorKind::recurrent_convolution, n}];
    const TensorPart joined = convolution[0];
    if (weights.find(joined.source) != nullptr) continue;
    convolution.clear();
    for (const auto& [name, channels] :
         {std::pair{"q_", mixer->k_dim()}, {"k_", mixer->k_dim()}, {"v_", mixer->v_dim()}}) {
      TensorPart part = joined;
      part.source.insert(part.source.rfind("conv1d"), name);
      part.shape[0] = channels;
      convolution.push_back(std::move(part));
    }
  }
}

void take_shapes_of_rates(const Checkpoint& weights, TensorParts& parts) {
  for (auto& [id, of_tensor] : parts) {
    if (id.kind != TensorKind::recurrent_decay) continue;
    TensorPart& part = of_tensor.at(0);
    const SourceTensor* found = weights.find(part.source);
    if (found == nullptr) continue;
    std::vector<int64_t> shape = found->shape;
    std::erase(shape, 1);
    if (shape.empty()) shape = {1};
    if (shape == part.shape) part.shape = found->shape;
  }
}

DeltaNetConfig channel_delta_net(int64_t heads, int64_t head_dim, int64_t taps,
                                 const NormConfig& norm) {
  DeltaNetConfig mixer{.n_key_heads = heads,
                       .n_value_heads = heads,
                       .key_head_dim = head_dim,
                       .value_head_dim = head_dim,
                       .convolution = {},
                       .decays_by_channel = true,
                       .norm = norm,
                       .gate = Activation::sigmoid};
  mixer.convolution = {.taps = taps, .activation = Activation::silu};
  return mixer;
}

void name_channel_delta_net(Modules& m, const DeltaNetConfig& mixer, const std::string& prefix) {
  const auto whole = [&](const char* module, int64_t rows) {
    return RecurrentRows{prefix + module, rows, 0, rows};
  };
  m.recurrent_in = {whole("q_proj", mixer.k_dim()), whole("k_proj", mixer.k_dim()),
                    whole("v_proj", mixer.v_dim())};
  if (mixer.gate_rank == 0) m.recurrent_in.push_back(whole("g_proj", mixer.v_dim()));
  m.recurrent_gates.clear();
  if (mixer.decay_rank == 0) m.recurrent_gates.push_back(whole("f_proj", mixer.n_decays()));
  m.recurrent_gates.push_back(whole("b_proj", mixer.n_value_heads));
  if (mixer.decay_rank > 0) m.recurrent_gates.push_back(whole("f_a_proj", mixer.decay_rank));
  if (mixer.gate_rank > 0) m.recurrent_gates.push_back(whole("g_a_proj", mixer.gate_rank));
  m.recurrent_gates_up = prefix + "f_b_proj";
  m.recurrent_factors = prefix + "g_b_proj";
  m.recurrent_convolution = prefix + "conv1d";
  m.recurrent_decay = prefix + "A_log";
  m.recurrent_step = prefix + "dt_bias";
  m.recurrent_norm = prefix + "o_norm";
  m.recurrent_out = prefix + "o_proj";
}

}  // namespace faststream::convert
