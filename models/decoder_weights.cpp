#include "models/decoder_weights.h"

#include <map>

namespace faststream {
namespace {

class Finder {
 public:
  Finder(const ModelConfig& config, const WeightLookup& lookup) : config_(config) {
    for (TensorPlan& tensor : tensor_plan(config)) {
      if (tensor.name.starts_with(kEncoderPrefix)) continue;
      const std::string name = tensor.name;
      found_[name] = {std::move(tensor), lookup(name)};
    }
  }

  DecoderWeights all(const Weight& shared) {
    DecoderWeights weights;
    const bool is_shared = config_.embedding.shared;
    weights.embedding = {.table = is_shared ? shared : linear("embedding").weight,
                         .multiplier = config_.embedding.multiplier,
                         .positions = linear("positions").weight,
                         .offset = static_cast<int32_t>(config_.embedding.offset),
                         .segments = linear("segments").weight};
    weights.embedding_norm = norm("embedding_norm", config_.embedding.norm);
    for (int64_t n = 0; n < config_.n_layers(); ++n) {
      prefix_ = "layers." + std::to_string(n) + ".";
      weights.layers.push_back(layer(config_.layer(n)));
    }
    prefix_.clear();
    weights.output_norm = norm("output_norm", config_.output.norm);
    weights.output = config_.output.tied ? Linear{weights.embedding.table, vector("output_bias")}
                                         : linear("output");
    for (size_t n = 0; config_.pooling && n < config_.pooling->dense.size(); ++n) {
      const std::string name = "dense." + std::to_string(n);
      weights.dense.push_back({linear(name), norm(name + "_norm", config_.pooling->dense[n].norm)});
    }
    return weights;
  }

 private:
  struct Found {
    TensorPlan plan;
    const std::byte* data = nullptr;
  };

  LayerWeights layer(const LayerConfig& layer) const {
    const AttentionConfig& attention = layer.attention;
    LayerWeights weights;
    weights.attention_norms = branch("attention", layer.attention_norms);
    weights.qkv = linear("attention_qkv");
    if (attention.qk_norm == QkNorm::whole) {
      weights.q_norm = norm("attention_q_norm", attention.qk_norm_as);
      weights.k_norm = norm("attention_k_norm", attention.qk_norm_as);
    } else if (attention.qk_norm == QkNorm::head) {
      weights.heads = {.norm = attention.qk_norm_as.kind,
                       .q_weight = vector("attention_q_norm"),
                       .k_weight = vector("attention_k_norm"),
                       .eps = attention.qk_norm_as.eps};
    }
    weights.heads.query_scaling = attention.query_scaling;
    weights.heads.query_scaling_from = static_cast<int32_t>(attention.query_scaling_from);
    weights.rule = {.scale = attention.scale,
                    .window = static_cast<int32_t>(attention.window),
                    .bidirectional = attention.bidirectional,
                    .soft_cap = attention.soft_cap,
                    .sinks = vector("attention_sinks")};
    weights.attention_out = linear("attention_out");
    weights.distances = vector("attention_distances");
    if (layer.cross_attention) {
      weights.cross = {.norms = branch("cross", layer.cross_attention->norms),
                       .q = linear("cross_q"),
                       .kv = linear("cross_kv"),
                       .out = linear("cross_out")};
    }
    weights.ffn_norms = branch("ffn", layer.ffn_norms);
    if (layer.experts) {
      experts(*layer.experts, weights);
    } else {
      weights.ffn = feed_forward("ffn", layer.ffn);
    }
    return weights;
  }

  void experts(const ExpertsConfig& config, LayerWeights& weights) const {
    weights.router = linear("router");
    weights.routing = {.used = config.router.used,
                       .score = config.router.score,
                       .correction = vector("router_correction"),
                       .groups = config.router.groups,
                       .groups_used = config.router.groups_used,
                       .normalized = config.router.normalized,
                       .scale = config.router.scale};
    const FeedForwardWeights each = feed_forward("experts", config.each);
    weights.experts = {.n_experts = static_cast<int32_t>(config.count),
                       .up = each.up.weight,
                       .up_bias = each.up.bias,
                       .down = each.down.weight,
                       .down_bias = each.down.bias,
                       .gated = config.each.gated,
                       .activation = config.each.activation};
    if (config.shared.size != 0) weights.shared = feed_forward("shared", config.shared);
    if (config.shared_gate) weights.shared_gate = linear("shared_gate");
  }

  FeedForwardWeights feed_forward(const std::string& name, const FeedForwardConfig& ffn) const {
    return {linear(name + (ffn.gated ? "_gate_up" : "_up")), linear(name + "_down")};
  }

  BranchNormWeights branch(const std::string& name, const BranchNorms& norms) const {
    return {norm(name + "_norm", norms.before), norm(name + "_after_norm", norms.after),
            norm(name + "_stream_norm", norms.stream)};
  }

  Norm norm(const std::string& name, const NormConfig& config) const {
    return {.kind = config.kind,
            .weight = vector(name),
            .bias = vector(name + "_bias"),
            .eps = config.eps};
  }

  // Absent where the plan has no such matrix.
  Linear linear(const std::string& name) const {
    const auto found = found_.find(prefix_ + name);
    if (found == found_.end()) return {};
    const TensorPlan& plan = found->second.plan;
    return {.weight = {.data = found->second.data,
                       .dtype = plan.dtype,
                       .rows = plan.shape[0],
                       .cols = plan.shape[1],
                       .scales = vector(name + ".scales"),
                       .input_bits = config_.activation_bits,
                       .rotated = plan.rotated},
            .bias = vector(name + "_bias")};
  }

  // Null where the plan has no such vector.
  const float* vector(const std::string& name) const {
    const auto found = found_.find(prefix_ + name);
    return found == found_.end() ? nullptr : reinterpret_cast<const float*>(found->second.data);
  }

  const ModelConfig& config_;
  std::map<std::string, Found> found_;
  std::string prefix_;
};

}  // namespace

DecoderWeights find_weights(const ModelConfig& config, const WeightLookup& lookup,
                            const Weight& shared) {
  return Finder(config, lookup).all(shared);
}

}  // namespace faststream
