// What most architectures share is read here from metadata that they all have, and from which
// tensors there are; gguf_architectures.cpp adds what each has of its own.
#include "convert/gguf/gguf_family.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "convert/families/family.h"
#include "convert/families/rope_rules.h"
#include "convert/gguf/gguf_architectures.h"
#include "convert/gguf/gguf_encoders.h"
#include "convert/gguf/gguf_source.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

// Whether feed-forwards with this ending have no gates.
bool is_plain(const GgufSource& source, const std::string& ending) {
  return source.a_layer_has("ffn_up" + ending + ".weight") &&
         !source.a_layer_has("ffn_gate" + ending + ".weight");
}

// The names of llama.cpp's gguf-py (constants.py).
Modules gguf_modules(const GgufSource& source) {
  Modules modules;
  modules.base = "";
  modules.embedding = "token_embd";
  modules.positions = "position_embd";
  modules.embedding_norm = "token_embd_norm";
  modules.layers = "blk.";
  modules.attention_norm = "attn_norm";
  modules.qkv = {"attn_q", "attn_k", "attn_v"};
  if (!source.a_layer_has("attn_q.weight") && source.a_layer_has("attn_qkv.weight")) {
    modules.qkv = {"attn_qkv"};
  }
  modules.q_norm = "attn_q_norm";
  modules.k_norm = "attn_k_norm";
  modules.norms_of_each_head = source.shape_in_layer("attn_q_norm.weight").size() == 2;
  modules.sinks = "attn_sinks.weight";
  modules.attention_out = "attn_output";
  modules.attention_after_norm = "post_attention_norm";
  modules.ffn_norm = "ffn_norm";
  if (!source.a_layer_has("ffn_norm.weight") && !source.a_layer_has("post_ffw_norm.weight")) {
    std::swap(modules.ffn_norm, modules.attention_after_norm);  // it stands before the feed-forward
  }
  modules.gate_up = {"ffn_gate", "ffn_up"};
  if (!source.a_layer_has("ffn_gate.weight")) modules.gate_up = {"ffn_up"};
  modules.down = "ffn_down";
  modules.router = "ffn_gate_inp";
  modules.correction = "exp_probs_b.bias";
  if (source.a_layer_has("exp_probs_b")) modules.correction = "exp_probs_b";
  modules.experts_gate_up = {"ffn_gate_exps", "ffn_up_exps"};
  if (source.a_layer_has("ffn_gate_up_exps.weight")) modules.experts_gate_up = {"ffn_gate_up_exps"};
  if (is_plain(source, "_exps")) modules.experts_gate_up = {"ffn_up_exps"};
  modules.experts_down = "ffn_down_exps";
  modules.shared_gate_up = {"ffn_gate_shexp", "ffn_up_shexp"};
  if (is_plain(source, "_shexp")) modules.shared_gate_up = {"ffn_up_shexp"};
  modules.shared_down = "ffn_down_shexp";
  modules.shared_gate = "ffn_gate_inp_shexp";
  modules.ffn_after_norm = "post_ffw_norm";
  modules.output_norm = "output_norm";
  const auto* of_encoder = source.weights().find("enc.output_norm.weight");
  if (of_encoder != nullptr) modules.output_norm = "enc.output_norm";
  modules.output = "output";
  modules.unused = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"};
  return modules;
}

int64_t head_dim_in(const GgufSource& source, const PlainShape& shape, bool sizes_differ) {
  if (has_latent_attention(source)) return source.count("rope.dimension_count", kMaxHeadDim);
  const bool given = source.has("attention.key_length");
  if (!given && shape.hidden % shape.n_heads != 0) {
    source.fail("embedding_length",
                "is not a multiple of " + in_quotes(source.key("attention.head_count")) +
                    ", and there is no " + in_quotes(source.key("attention.key_length")));
  }
  const int64_t head_dim =
      given ? source.count("attention.key_length", kMaxHeadDim) : shape.hidden / shape.n_heads;
  const int64_t of_values = source.count("attention.value_length", kMaxHeadDim, head_dim);
  if (of_values != head_dim && !sizes_differ) {
    source.fail("attention.value_length", "is " + std::to_string(of_values) + " where keys have " +
                                              std::to_string(head_dim) +
                                              "; heads of two lengths are not supported");
  }
  return head_dim;
}

int64_t vocabulary_rows(const GgufSource& source) {
  const SourceTensor* embedding = source.weights().find("token_embd.weight");
  if (embedding != nullptr && embedding->shape.size() == 2) return embedding->shape[0];
  return source.count("vocab_size", kMaxSize);  // check_tensors() says what the tensor lacks
}

// Those of the layers that have attention; others have 0.
int64_t kv_heads_in(const GgufSource& source, const PlainShape& shape) {
  constexpr std::string_view kName = "attention.head_count_kv";
  if (!source.has(kName)) return shape.n_heads;
  int64_t heads = 0;
  for (const int64_t of_layer : source.of_layers(kName)) {
    if (heads != 0 && of_layer != 0 && of_layer != heads) {
      source.fail(kName, "differs from layer to layer, which is not supported");
    }
    if (of_layer != 0) heads = of_layer;
  }
  return source.in_range(kName, heads, kMaxHeads);
}

// Those of the first layer where layers may differ, else of all.
void set_heads(const GgufSource& source, bool sizes_differ, PlainShape& shape) {
  constexpr std::string_view kHeads = "attention.head_count";
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  if (!sizes_differ && source.metadata().find_integer(source.key(kHeads)) == 0) {  // no attention
    shape.n_heads = shape.n_kv_heads = 1;
    shape.head_dim = 2;
    return;
  }
  shape.n_heads = sizes_differ
                      ? source.in_range(kHeads, source.of_layers(kHeads).front(), kMaxHeads)
                      : source.count(kHeads, kMaxHeads);
  shape.n_kv_heads = sizes_differ && source.has(kKvHeads)
                         ? source.in_range(kKvHeads, source.of_layers(kKvHeads).front(), kMaxHeads)
                         : kv_heads_in(source, shape);
  shape.head_dim = head_dim_in(source, shape, sizes_differ);
}

// Of the first feed-forward that is none of experts, if there is one: not all converters have meant
// the same by the number that metadata give.
int64_t ffn_size_in(const GgufSource& source, const PlainShape& shape, bool sizes_differ) {
  constexpr std::string_view kName = "feed_forward_length";
  if (sizes_differ) return source.counts(kName, shape.n_layers, kMaxSize).front();
  const std::vector<int64_t> down = source.shape_in_layer("ffn_down.weight");
  if (down.size() == 2) return source.in_range(kName, down[1], kMaxSize);
  if (source.a_layer_has("ffn_gate.weight") || source.a_layer_has("ffn_up.weight")) {
    return source.count(kName, kMaxSize);
  }
  // None but of experts, or none at all.
  const auto found = source.metadata().values().find(source.key(kName));
  if (found == source.metadata().values().end()) return 1;
  if (found->second.type == GgufType::array) return 1;
  const int64_t size = source.metadata().integer(source.key(kName));
  return size == 0 ? 1 : source.in_range(kName, size, kMaxSize);
}

PlainShape shape_in(const GgufSource& source, bool sizes_differ) {
  PlainShape shape;
  shape.n_layers = source.count("block_count", kMaxLayers) - source.n_predicting_layers();
  shape.hidden = source.count("embedding_length", kMaxSize);
  set_heads(source, sizes_differ, shape);
  shape.ffn_hidden = ffn_size_in(source, shape, sizes_differ);
  shape.vocab = vocabulary_rows(source);
  shape.max_context = source.count("context_length", kMaxContext);
  shape.rope_theta = source.number("rope.freq_base", shape.rope_theta);
  return shape;
}

// ROPE scaling, as llama.cpp applies what the metadata say.
class Scaling {
 public:
  Scaling(const GgufSource& source, const PlainShape& shape, int64_t rotated)
      : source_(source), shape_(shape), rotated_(rotated) {}

  void apply(RopeConfig& rope) const {
    if (const auto factors = source_.vector("rope_freqs.weight", pairs())) {
      divide(rope.frequencies, *factors);
    }
    if (const auto factors = source_.vector("rope_factors_short.weight", pairs())) {
      return apply_longrope(*factors, rope);
    }
    const double factor =
        source_.number("rope.scaling.factor", source_.number("rope.scale_linear", 0));
    const std::string type =
        source_.metadata().find_text(source_.key("rope.scaling.type")).value_or("linear");
    if (factor < 0) source_.fail("rope.scaling.factor", "is below 0");
    if (type == "none" || factor == 0) return;  // 0 stands for none
    if (type == "linear") {
      for (float& frequency : rope.frequencies) frequency /= static_cast<float>(factor);
    } else if (type == "yarn") {
      apply_yarn(factor, rope);
    } else {
      source_.fail("rope.scaling.type",
                   "is " + in_quotes(type) +
                       ", which is not supported; this version knows none, linear and yarn");
    }
  }

 private:
  [[nodiscard]] int64_t pairs() const { return (rotated_ + 1) / 2; }

  static void divide(std::vector<float>& frequencies, const std::vector<float>& factors) {
    for (size_t i = 0; i < factors.size(); ++i) frequencies[i] /= factors[i];
  }

  void apply_yarn(double factor, RopeConfig& rope) const {
    const YarnRule rule{.factor = factor,
                        .original_max_context = static_cast<double>(original_context()),
                        .beta_fast = positive("rope.scaling.yarn_beta_fast", 32),
                        .beta_slow = positive("rope.scaling.yarn_beta_slow", 1),
                        .truncate = source_.architecture() != "gpt-oss"};
    if (shape_.rope_theta <= 1) source_.fail("rope.freq_base", "is not above 1, as yarn needs it");
    rope.frequencies = yarn_frequencies(shape_.rope_theta, rotated_, rule);
    const double all = source_.number("rope.scaling.yarn_log_multiplier", 0);
    const double attention =
        yarn_attention_factor(factor) / (all == 0 ? 1 : yarn_attention_factor(factor, all));
    // As Transformers has it; llama.cpp goes by the rule in any case.
    const double given = source_.number("rope.scaling.yarn_attn_factor", attention);
    rope.attention_factor =
        static_cast<float>(given * source_.number("rope.scaling.attn_factor", 1));
  }

  void apply_longrope(const std::vector<float>& short_factors, RopeConfig& rope) const {
    const auto long_factors = source_.vector("rope_factors_long.weight", pairs());
    if (!long_factors) {
      source_.fail("rope.scaling.attn_factor", "comes without \"rope_factors_long.weight\"");
    }
    rope.long_frequencies = rope.frequencies;
    divide(rope.frequencies, short_factors);
    divide(rope.long_frequencies, *long_factors);
    rope.original_max_context = original_context();
    rope.attention_factor = static_cast<float>(source_.number("rope.scaling.attn_factor", 1));
  }

  [[nodiscard]] int64_t original_context() const {
    return source_.count("rope.scaling.original_context_length", kMaxContext, shape_.max_context);
  }

  [[nodiscard]] double positive(std::string_view name, double otherwise) const {
    const double value = source_.number(name, otherwise);
    if (value <= 0) source_.fail(name, "is not above 0");
    return value;
  }

  const GgufSource& source_;
  const PlainShape& shape_;
  int64_t rotated_;
};

RopeConfig rope_in(const GgufSource& source, const PlainShape& shape) {
  if (shape.rope_theta <= 0) source.fail("rope.freq_base", "is not above 0");
  // 0 stands for all of a head, as DeepSeek's OCR models have it.
  constexpr std::string_view kRotated = "rope.dimension_count";
  const int64_t given = source.metadata().find_integer(source.key(kRotated)).value_or(0);
  const int64_t rotated = given == 0 ? shape.head_dim : source.count(kRotated, shape.head_dim);
  RopeConfig rope;
  rope.name = "rope";
  rope.frequencies = plain_frequencies(shape.rope_theta, rotated);
  Scaling(source, shape, rotated).apply(rope);
  return rope;
}

// Norms are where their tensors are; their kind is in the name of their epsilon.
class Norms {
 public:
  Norms(const GgufSource& source, NormKind kind) : source_(source) {
    const bool has_layer_norm = source.has("attention.layer_norm_epsilon");
    const char* key =
        has_layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    norm_.kind = has_layer_norm ? NormKind::layer : NormKind::rms;
    if (kind != NormKind::none) norm_.kind = kind;
    norm_.eps = static_cast<float>(source.metadata().number(source.key(key)));
  }

  [[nodiscard]] NormConfig of_layer(const std::string& module) const {
    return made(source_.a_layer_has(module + ".weight"), source_.a_layer_has(module + ".bias"));
  }
  [[nodiscard]] NormConfig named(const std::string& module) const {
    return made(source_.weights().find(module + ".weight") != nullptr,
                source_.weights().find(module + ".bias") != nullptr);
  }

 private:
  [[nodiscard]] NormConfig made(bool is_there, bool has_bias) const {
    if (!is_there) return {};
    NormConfig norm = norm_;
    norm.bias = has_bias;
    return norm;
  }

  const GgufSource& source_;
  NormConfig norm_;
};

void set_norms(const GgufSource& source, NormKind kind, const Modules& modules,
               ModelConfig& config) {
  const Norms norms(source, kind);
  config.embedding.norm = norms.named(modules.embedding_norm);
  config.output.norm = norms.named(modules.output_norm);
  LayerConfig& layer = config.layer_kinds[0];
  layer.mixer_norms.before = norms.of_layer(modules.attention_norm);
  layer.mixer_norms.after = norms.of_layer(modules.attention_after_norm);
  layer.ffn_norms.before = norms.of_layer(modules.ffn_norm);
  layer.ffn_norms.after = norms.of_layer(modules.ffn_after_norm);
  AttentionConfig& attention = layer.attention();
  attention.qk_norm_as = norms.of_layer(modules.q_norm);
  if (!attention.qk_norm_as) return;
  const std::vector<int64_t> shape = source.shape_in_layer(modules.q_norm + ".weight");
  const bool heads = shape.size() == 2 || shape[0] == attention.head_dim;
  attention.qk_norm = heads ? QkNorm::head : QkNorm::whole;
}

void set_attention(const GgufSource& source, const Modules& modules, AttentionConfig& attention) {
  attention.qkv_bias = source.a_layer_has(modules.qkv[0] + ".bias");
  attention.out_bias = source.a_layer_has(modules.attention_out + ".bias");
  attention.sinks = source.a_layer_has(modules.sinks);
  attention.soft_cap = static_cast<float>(source.number("attn_logit_softcapping", 0));
}

void set_feed_forward(const GgufSource& source, const Modules& modules, FeedForwardConfig& ffn) {
  const std::vector<int64_t> up = source.shape_in_layer("ffn_up.weight");
  ffn.gated = modules.gate_up.size() == 2 || (!up.empty() && up[0] == 2 * ffn.size);
  ffn.bias = source.a_layer_has("ffn_up.bias");
}

void set_experts(const GgufSource& source, const Modules& modules, LayerConfig& layer) {
  ExpertsConfig& experts = layer.experts.emplace();
  experts.count = source.count("expert_count", 1024);
  experts.router.used = static_cast<int32_t>(source.count("expert_used_count", experts.count));
  experts.router.bias = source.a_layer_has(modules.router + ".bias");
  experts.router.correction = source.a_layer_has(modules.correction);
  experts.each = layer.ffn;
  experts.each.gated = !is_plain(source, "_exps");
  experts.each.bias = source.a_layer_has("ffn_up_exps.bias");
  experts.each.size = source.count("expert_feed_forward_length", kMaxSize, layer.ffn.size);
  const std::vector<int64_t> up = source.shape_in_layer("ffn_up_shexp.weight");
  const std::vector<int64_t> down = source.shape_in_layer("ffn_down_shexp.weight");
  if (up.size() == 2) {
    const bool is_joined = down.size() == 2 && up[0] == 2 * down[1];  // with the gate
    experts.shared = layer.ffn;
    experts.shared.size = is_joined ? down[1] : up[0];
    experts.shared.gated = is_joined || !is_plain(source, "_shexp");
    experts.shared.bias = source.a_layer_has("ffn_up_shexp.bias");
    experts.shared_gate = source.a_layer_has(modules.shared_gate + ".weight");
  }
  layer.ffn.size = 0;
}

// Of layers with experts those have a plain feed-forward, of that size, that lack a router, or that
// are before.
void set_dense_layers(const GgufSource& source, int64_t size, GgufFamilyModel& model) {
  const int64_t first =
      source.metadata().find_integer(source.key("leading_dense_block_count")).value_or(0);
  const std::vector<int64_t>& numbers = model.modules.ffn_layers;
  const auto is_dense = [&](int64_t n) {
    if (!model.config.layer(n).experts) return false;
    const int64_t block = numbers.empty() ? n : numbers[static_cast<size_t>(n)];
    return block < first || (source.layer_has(block, model.modules.down + ".weight") &&
                             !source.layer_has(block, model.modules.router + ".weight"));
  };
  std::vector<bool> dense;
  for (int64_t n = 0; n < model.config.n_layers(); ++n) dense.push_back(is_dense(n));
  if (std::ranges::find(dense, true) == dense.end()) return;
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!layer.experts) return;
    if (!dense[static_cast<size_t>(n)]) {
      layer.name += " with experts";
      return;
    }
    layer.experts.reset();
    layer.ffn.size = size;
  });
}

// The last layers may predict further tokens. Those that differ from the model's stay out.
void add_predictors(const GgufSource& source, bool are_alike, GgufFamilyModel& model) {
  const int64_t first = source.count("block_count", kMaxLayers) - source.n_predicting_layers();
  for (int64_t n = first; n < first + source.n_predicting_layers(); ++n) {
    const std::string block = model.modules.layers + std::to_string(n) + ".";
    model.predictors.names.push_back(block);
    const LayerConfig* kind =
        find_attention_layer(model.config, source.layer_has(n, model.modules.router + ".weight"));
    if (!are_alike || kind == nullptr || !source.layer_has(n, "nextn.eh_proj.weight")) continue;
    Modules own = model.modules;
    own.embedding = block + "nextn.embed_tokens";
    own.embedding_norm = block + "nextn.enorm";
    own.hidden_norm = block + "nextn.hnorm";
    own.hidden_projection = block + "nextn.eh_proj";
    own.output = block + "nextn.shared_head_head";
    if (source.layer_has(n, "nextn.shared_head_norm.weight")) {
      own.output_norm = block + "nextn.shared_head_norm";
    }
    static_cast<void>(add_predictor(*kind, n, std::move(own), model.config, model.predictors));
  }
}

// By what most architectures share, and what each has of its own.
GgufFamilyModel describe_decoder(const GgufSource& source, const GgufArchitecture& architecture) {
  const PlainShape shape = shape_in(source, architecture.sizes_differ);
  GgufFamilyModel model{plain_decoder(shape), gguf_modules(source)};
  model.modules.interleaved = architecture.pairs == GgufPairs::side_by_side;
  ModelConfig& config = model.config;
  LayerConfig& layer = config.layer_kinds[0];
  if (architecture.pairs == GgufPairs::none) {
    remove_rotation(config);
  } else {
    config.ropes = {rope_in(source, shape)};
  }
  set_norms(source, architecture.norms, model.modules, config);
  set_attention(source, model.modules, layer.attention());
  layer.ffn.activation = architecture.activation;
  set_feed_forward(source, model.modules, layer.ffn);
  const int64_t ffn_size = layer.ffn.size;
  if (source.metadata().find_integer(source.key("expert_count")).value_or(0) != 0) {
    set_experts(source, model.modules, layer);
  }
  config.output.tied = source.weights().find("output.weight") == nullptr;
  config.output.bias = source.weights().find("output.bias") != nullptr;
  config.output.soft_cap = static_cast<float>(source.number("final_logit_softcapping", 0));
  if (architecture.adjust != nullptr) architecture.adjust(source, model);
  set_dense_layers(source, ffn_size, model);
  add_predictors(source, architecture.predicts, model);
  return model;
}

}  // namespace

GgufFamilyModel describe_gguf(const GgufMetadata& metadata, const Checkpoint& weights) {
  const GgufSource source(metadata, weights);
  const GgufArchitecture& architecture = find_gguf_architecture(source);
  GgufFamilyModel model = architecture.describe != nullptr ? architecture.describe(source)
                                                           : describe_decoder(source, architecture);
  if (!model.config.encoder) set_pooling(source, model);
  refuse_scalings(source);
  validate(model.config, metadata.where());
  return model;
}

}  // namespace faststream::convert
