#include "bench/step_work.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/kv_groups.h"
#include "models/tensor_plan.h"

namespace faststream::bench {
namespace {

// The sum of min(p, most) for positions p from first to last, counted from 1.
double sum_seen(double first, double last, double most) {
  const double full = std::clamp(most, first - 1, last);  // positions up to here see all before
  return (full * (full + 1) - (first - 1) * first) / 2 + (last - full) * most;
}

void add_weights(const ModelConfig& config, int64_t sequences, int64_t n_new, StepWork& work) {
  double used = 1;  // share of experts that a token uses
  for (const LayerConfig& layer : config.layer_kinds) {
    if (!layer.experts) continue;
    used =
        static_cast<double>(layer.experts->router.used) / static_cast<double>(layer.experts->count);
  }
  for (const TensorPlan& tensor : tensor_plan(config)) {
    if (tensor.readers == TensorReaders::lookup || tensor.id.predictor > 0) continue;
    const bool for_logits = tensor.readers == TensorReaders::wanted;
    const auto tokens = static_cast<double>(sequences * (for_logits ? 1 : n_new));
    double elements = 1;
    for (const int64_t n : tensor.shape) elements *= static_cast<double>(n);
    const double read = tensor.experts > 0 ? 1 - std::pow(1 - used, tokens) : 1;
    work.weight_bytes += read * elements / static_cast<double>(tensor.columns()) *
                         static_cast<double>(tensor.bytes_of_columns(tensor.columns()));
    if (!tensor.is_multiplied()) continue;
    const double ops = 2 * tokens * elements * (tensor.experts > 0 ? used : 1);
    (tensor.format == config.weight_format ? work.weight_ops : work.activation_ops) += ops;
  }
}

}  // namespace

StepWork& StepWork::operator+=(const StepWork& other) {
  weight_bytes += other.weight_bytes;
  kv_bytes += other.kv_bytes;
  weight_ops += other.weight_ops;
  activation_ops += other.activation_ops;
  return *this;
}

StepWork step_work(const ModelConfig& config, KvType kv, int64_t sequences, int64_t n_cached,
                   int64_t n_new) {
  StepWork work;
  add_weights(config, sequences, n_new, work);
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const LayerConfig& layer = config.layer(n);
    // Of latent attention with the width of a head's query and value.
    const auto add_attention = [&](int64_t n_heads, const KvGeometry& geometry,
                                   int64_t head_dims = 0) {
      work += attention_work({.sequences = sequences,
                              .n_cached = n_cached,
                              .n_new = n_new,
                              .n_heads = n_heads,
                              .geometry = geometry,
                              .kv = kv_type_of(config, geometry, kv),
                              .head_dims = head_dims});
    };
    if (layer.aside) add_attention(layer.aside->attention.n_heads, kv_read(layer.aside->attention));
    for (const Mixer& mixer : layer.mixers) {
      if (const auto* attention = std::get_if<AttentionConfig>(&mixer)) {
        add_attention(attention->n_heads, kv_read(*attention));  // which may be another layer's
      } else if (const auto* latent = std::get_if<LatentAttentionConfig>(&mixer)) {
        add_attention(latent->n_heads, *kv_geometry(mixer),
                      latent->q_head_dim() + latent->value_head_dim);
      } else if (const auto shape = recurrent_shape(mixer, config.hidden)) {
        work += recurrent_work(*shape, sequences, n_new);
      }
    }
  }
  return work;
}

StepWork attention_work(const AttentionShape& shape) {
  const int64_t length = shape.n_cached + shape.n_new;
  const KvGeometry& kv = shape.geometry;
  const int64_t window = kv.window == 0 ? length : kv.window;
  const auto touched =
      static_cast<double>(shape.sequences * (std::min(shape.n_cached, window - 1) + shape.n_new));
  const double seen = sum_seen(static_cast<double>(shape.n_cached + 1), static_cast<double>(length),
                               static_cast<double>(window));
  // A product with a key and one with a value for each query and each position that it sees. Where
  // heads make these of latents there are the fewest operations if they do, but for that, which
  // takes few where there are many queries.
  const int64_t dims =
      shape.n_new > 1 && shape.head_dims > 0 ? shape.head_dims : kv.k_head_dim + kv.v_head_dim;
  return {.kv_bytes = touched * static_cast<double>(kv_token_bytes(kv, shape.kv)),
          .activation_ops = static_cast<double>(shape.sequences) * seen * 2 *
                            static_cast<double>(shape.n_heads * dims)};
}

StepWork recurrent_work(const RecurrentShape& shape, int64_t sequences, int64_t n_new) {
  const auto matrices = static_cast<double>(shape.n_heads * shape.key_dim * shape.value_dim);
  const auto tokens = static_cast<double>(sequences * n_new);
  // A matrix is multiplied with a key and a query, and a product of two vectors is added to it.
  constexpr double kOperations = 6;
  return {.kv_bytes = 2 * static_cast<double>(sequences * shape.state_size()) * sizeof(float),
          .activation_ops = tokens * (kOperations * matrices +
                                      2 * static_cast<double>(shape.taps * shape.channels))};
}

Share share_of(const StepWork& work, const Ceilings& ceilings) {
  const double memory = work.memory_seconds(ceilings);
  const double arithmetic = work.arithmetic_seconds(ceilings);
  return {.ceiling_seconds = std::max(memory, arithmetic), .by_memory = memory >= arithmetic};
}

}  // namespace faststream::bench
