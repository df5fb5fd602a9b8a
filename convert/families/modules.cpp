#include "convert/families/modules.h"

#include <array>
#include <charconv>
#include <utility>

#include "support/error.h"

namespace faststream {
namespace {

constexpr std::string_view kLayers = "layers.";
constexpr std::string_view kBias = "_bias";
constexpr std::string_view kDense = "dense.";

// "layers.3.attention_qkv_bias" as layer 3, "attention_qkv", a bias.
struct Target {
  int64_t layer = 0;
  std::string_view name;
  bool bias = false;
};

Target target_of(std::string_view name) {
  Target target;
  if (name.starts_with(kLayers)) {
    name.remove_prefix(kLayers.size());
    const char* end = std::from_chars(name.begin(), name.end(), target.layer).ptr;
    name.remove_prefix(static_cast<size_t>(end - name.begin()) + 1);
  }
  target.bias = name.ends_with(kBias);
  if (target.bias) name.remove_suffix(kBias.size());
  target.name = name;
  return target;
}

using Parts = std::vector<TensorPart>;

// Makes the parts of one tensor.
class PartsMaker {
 public:
  PartsMaker(const ModelConfig& config, const Modules& modules, std::string base, Target target)
      : config_(config),
        modules_(modules),
        base_(std::move(base)),
        target_(target),
        layer_(config.layer(target.layer)) {}

  [[nodiscard]] Parts make() const {
    const std::string_view name = target_.name;
    const Modules& m = modules_;
    if (name == "embedding") return {matrix(base_ + m.embedding, config_.vocab, config_.hidden)};
    if (name == "positions") {
      return {matrix(base_ + m.positions, config_.embedding.positions, config_.hidden)};
    }
    if (name == "segments") {
      return {matrix(base_ + m.segments, config_.embedding.segments, config_.hidden)};
    }
    if (name == "embedding_norm") return {norm(base_ + m.embedding_norm, config_.hidden)};
    if (name == "output_norm") {
      TensorPart part = norm(base_ + m.output_norm, config_.hidden);
      part.scale = m.output_norm_scale;
      return {part};
    }
    if (name == "output") return {output()};
    if (name.starts_with(kDense)) return dense(name.substr(kDense.size()));
    if (name.starts_with("attention")) return attention(name);
    if (name.starts_with("cross")) return cross_attention(name);
    if (name.starts_with("experts") || name.starts_with("router")) return experts(name);
    return feed_forward(name);
  }

 private:
  [[nodiscard]] std::string in_layer(const std::string& module) const {
    return base_ + modules_.layers + std::to_string(target_.layer) + "." + module;
  }

  // The module's weight [rows, cols], or its bias [rows].
  [[nodiscard]] TensorPart matrix(const std::string& module, int64_t rows, int64_t cols) const {
    if (target_.bias) return {.source = module + ".bias", .shape = {rows}};
    return {.source = module + ".weight", .shape = {rows, cols}};
  }

  // The same of a layer's product.
  [[nodiscard]] TensorPart product(const std::string& module, int64_t rows, int64_t cols) const {
    TensorPart part = matrix(in_layer(module), rows, cols);
    if (modules_.transposed && !target_.bias) {
      std::swap(part.shape[0], part.shape[1]);
      part.transposed = true;
    }
    return part;
  }

  // A module without a name has no weights: they are 1.
  [[nodiscard]] TensorPart norm(const std::string& module, int64_t size) const {
    if (module.empty()) return {.source = "", .shape = {size}, .add = 1};
    if (target_.bias) return {.source = module + ".bias", .shape = {size}};
    return {.source = module + ".weight", .shape = {size}, .add = modules_.norm_add};
  }
  [[nodiscard]] TensorPart layer_norm(const std::string& module) const {
    return norm(module.empty() ? "" : in_layer(module), config_.hidden);
  }

  [[nodiscard]] TensorPart output() const {
    const std::string& module =
        config_.output.tied && !target_.bias ? base_ + modules_.embedding : modules_.output;
    TensorPart part = matrix(module, config_.vocab, config_.hidden);
    part.unit_rows = modules_.unit_output && !target_.bias;
    return part;
  }

  // "0", or "0_norm".
  [[nodiscard]] Parts dense(std::string_view name) const {
    size_t n = 0;
    const bool is_norm = std::from_chars(name.begin(), name.end(), n).ptr != name.end();
    const std::vector<DenseConfig>& layers = config_.pooling->dense;
    if (is_norm) return {norm(modules_.dense.at(n).norm, layers.at(n).size)};
    const int64_t columns = n == 0 ? config_.hidden : layers.at(n - 1).size;
    return {matrix(modules_.dense.at(n).product, layers.at(n).size, columns)};
  }

  [[nodiscard]] SidewisePairs pairs() const {
    const AttentionConfig& attention = layer_.attention;
    if (!modules_.interleaved || !attention.rope) return {};
    return {attention.head_dim, config_.ropes[*attention.rope].dims()};
  }

  [[nodiscard]] Parts attention(std::string_view name) const {
    const AttentionConfig& attention = layer_.attention;
    if (name == "attention_norm") return {layer_norm(modules_.attention_norm)};
    if (name == "attention_after_norm") return {layer_norm(modules_.attention_after_norm)};
    if (name == "attention_stream_norm") return {layer_norm(modules_.attention_stream_norm)};
    if (name == "attention_qkv") return queries_keys_values();
    if (name == "attention_q_norm") return head_norms(modules_.q_norm, attention.n_heads);
    if (name == "attention_k_norm") return head_norms(modules_.k_norm, attention.n_kv_heads);
    if (name == "attention_sinks") {
      return {{.source = in_layer(modules_.sinks), .shape = {attention.n_heads}}};
    }
    if (name == "attention_distances") {
      const std::string& common = modules_.common_distances;
      return {{.source = common.empty() ? in_layer(modules_.distances) : base_ + common,
               .shape = {attention.relative_bias.buckets, attention.n_heads}}};
    }
    return {residual(product(modules_.attention_out, config_.hidden, attention.q_dim()))};
  }

  [[nodiscard]] Parts cross_attention(std::string_view name) const {
    const AttentionConfig& attention = layer_.attention;
    const Modules& m = modules_;
    if (name == "cross_norm") return {layer_norm(m.cross_norm)};
    if (name == "cross_after_norm") return {layer_norm(m.cross_after_norm)};
    if (name == "cross_stream_norm") return {layer_norm(m.cross_stream_norm)};
    if (name == "cross_q") return {product(m.cross_qkv[0], attention.q_dim(), config_.hidden)};
    if (name == "cross_out") {
      return {residual(product(m.cross_out, config_.hidden, attention.q_dim()))};
    }
    const int64_t in = config_.encoder->hidden;
    return {product(m.cross_qkv[1], attention.kv_dim(), in),
            product(m.cross_qkv[2], attention.kv_dim(), in)};
  }

  [[nodiscard]] TensorPart residual(TensorPart part) const {
    part.scale = modules_.residual_scale;
    return part;
  }

  [[nodiscard]] Parts queries_keys_values() const {
    const AttentionConfig& attention = layer_.attention;
    const std::array<int64_t, 3> rows = {attention.q_dim(), attention.kv_dim(), attention.kv_dim()};
    const bool by_kv_head =
        modules_.qkv.size() == 1 && modules_.joined_qkv == JoinedQkv::by_kv_head;
    const int64_t blocks = by_kv_head ? attention.n_kv_heads : 1;
    Parts parts;
    int64_t before = 0;  // rows of a block that stand before those of this kind
    for (size_t kind = 0; kind < rows.size(); ++kind) {
      const int64_t n_rows = rows[kind] / blocks;
      for (int64_t block = 0; block < blocks; ++block) {
        TensorPart part;
        if (modules_.qkv.size() == 1) {
          part = product(modules_.qkv[0], attention.qkv_dim(), config_.hidden);
          part.first_row = block * (attention.qkv_dim() / blocks) + before;
          part.n_rows = n_rows;
        } else {
          part = product(modules_.qkv[kind], n_rows, config_.hidden);
        }
        if (kind < 2) part.pairs = pairs();
        parts.push_back(part);
      }
      before += n_rows;
    }
    return parts;
  }

  [[nodiscard]] Parts head_norms(const std::string& module, int64_t heads) const {
    const int64_t head_dim = layer_.attention.head_dim;
    TensorPart part = norm(in_layer(module), heads * head_dim);
    part.pairs = pairs();
    if (layer_.attention.qk_norm == QkNorm::whole) return {part};
    if (modules_.norms_of_each_head) {
      part.shape = {heads, head_dim};
      return {part};
    }
    part.shape = {head_dim};
    return Parts(static_cast<size_t>(heads), part);
  }

  // `prefix` begins the modules' names within the layer.
  [[nodiscard]] Parts gate_up(const FeedForwardConfig& ffn, const std::string& prefix,
                              const std::vector<std::string>& modules) const {
    if (modules.size() == 1) return {product(prefix + modules[0], ffn.up_dim(), config_.hidden)};
    Parts parts;
    for (const std::string& module : modules) {
      parts.push_back(product(prefix + module, ffn.size, config_.hidden));
    }
    return parts;
  }

  [[nodiscard]] Parts feed_forward(std::string_view name) const {
    const Modules& m = modules_;
    if (name == "ffn_norm") return {layer_norm(m.ffn_norm)};
    if (name == "ffn_after_norm") return {layer_norm(m.ffn_after_norm)};
    if (name == "ffn_stream_norm") return {layer_norm(m.ffn_stream_norm)};
    if (name == "ffn_down") return {residual(product(m.down, config_.hidden, layer_.ffn.size))};
    if (name.starts_with("ffn")) {
      if (target_.bias && !m.gate_up_bias) return {{.source = "", .shape = {layer_.ffn.up_dim()}}};
      return gate_up(layer_.ffn, "", m.gate_up);
    }
    const FeedForwardConfig& shared = layer_.experts->shared;
    if (name == "shared_gate") return {product(m.shared_gate, 1, config_.hidden)};
    if (name == "shared_down")
      return {residual(product(m.shared_down, config_.hidden, shared.size))};
    return gate_up(shared, "", m.shared_gate_up);
  }

  [[nodiscard]] Parts experts(std::string_view name) const {
    const ExpertsConfig& experts = *layer_.experts;
    if (name == "router") return {product(modules_.router, experts.count, config_.hidden)};
    if (name == "router_correction") {
      return {{.source = in_layer(modules_.correction), .shape = {experts.count}}};
    }
    const bool down = name == "experts_down";
    if (down && !modules_.experts_down.empty()) {
      return {residual(of_all_experts(modules_.experts_down, config_.hidden, experts.each.size))};
    }
    Parts all;
    for (int64_t e = 0; e < experts.count; ++e) {
      const Parts one = down ? Parts{expert_down(e)} : expert_gate_up(e);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  // A tensor [experts, rows, cols], or the biases [experts, rows].
  [[nodiscard]] TensorPart of_all_experts(const std::string& module, int64_t rows,
                                          int64_t cols) const {
    TensorPart part = product(module, rows, cols);
    part.shape.insert(part.shape.begin(), layer_.experts->count);
    return part;
  }

  [[nodiscard]] TensorPart expert_down(int64_t e) const {
    return residual(product(modules_.experts + std::to_string(e) + "." + modules_.expert_down,
                            config_.hidden, layer_.experts->each.size));
  }

  [[nodiscard]] Parts expert_gate_up(int64_t e) const {
    const FeedForwardConfig& each = layer_.experts->each;
    if (modules_.experts_gate_up.empty()) {
      return gate_up(each, modules_.experts + std::to_string(e) + ".", modules_.expert_gate_up);
    }
    const int64_t rows = each.up_dim() / static_cast<int64_t>(modules_.experts_gate_up.size());
    Parts parts;
    for (const std::string& module : modules_.experts_gate_up) {
      TensorPart part = of_all_experts(module, rows, config_.hidden);
      part.first_row = e * rows;
      part.n_rows = rows;
      parts.push_back(std::move(part));
    }
    return parts;
  }

  const ModelConfig& config_;
  const Modules& modules_;
  std::string base_;
  Target target_;
  const LayerConfig& layer_;
};

// A configuration can ask for more than any checkpoint has; its tensors should not be listed first.
void check_number_of_layers(const ModelConfig& config, const Checkpoint& weights) {
  const auto n_tensors = static_cast<int64_t>(weights.tensors().size());
  if (config.n_layers() <= n_tensors) return;
  throw Error(weights.name() + ": the configuration asks for " + std::to_string(config.n_layers()) +
              " layers, but the checkpoint has only " + std::to_string(n_tensors) +
              " tensors; is it complete?");
}

bool has_names_with(const Checkpoint& weights, const std::string& prefix) {
  const auto first = weights.tensors().lower_bound(prefix);
  return first != weights.tensors().end() && first->first.starts_with(prefix);
}

}  // namespace

void leave_out(Modules& modules, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    for (const char* tensor : {".weight", ".bias"}) {
      modules.unused.push_back(std::string(name) + tensor);
    }
  }
}

std::string base_in(const Checkpoint& weights, const Modules& modules) {
  if (has_names_with(weights, modules.base)) return modules.base;
  return modules.base.substr(modules.base.find('.') + 1);
}

TensorParts parts_of(const ModelConfig& config, const Modules& modules, const Checkpoint& weights,
                     const Modules& encoder) {
  check_number_of_layers(config, weights);
  const std::string base = base_in(weights, modules);
  TensorParts parts;
  const auto add = [&](const std::string& name) {
    parts[name] = PartsMaker(config, modules, base, target_of(name)).make();
  };
  for (const TensorPlan& plan : tensor_plan(config)) {
    if (plan.role != TensorRole::scales && !plan.name.starts_with(kEncoderPrefix)) add(plan.name);
  }
  if (!config.output.none) add("output");
  if (config.encoder) {
    for (auto& [name, of_tensor] : parts_of(*config.encoder, encoder, weights)) {
      parts[kEncoderPrefix + name] = std::move(of_tensor);
    }
  }
  return parts;
}

std::string in_layer(int64_t n, std::string_view name) {
  return std::string(kLayers) + std::to_string(n) + "." + std::string(name);
}

}  // namespace faststream
