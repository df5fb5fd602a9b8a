#include "convert/gguf/gguf_encoders.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convert/families/family.h"
#include "convert/gguf/gguf_layers.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr const char* kClassifier = "cls.output";
constexpr const char* kHead = "cls";

bool has_weight(const GgufSource& source, const std::string& module) {
  return source.weights().find(module + ".weight") != nullptr;
}
bool has_bias(const GgufSource& source, const std::string& module) {
  return source.weights().find(module + ".bias") != nullptr;
}

// Of a table or a product; a single row may be stored as a vector. 0: there is none.
int64_t rows_of(const GgufSource& source, const std::string& module) {
  const SourceTensor* tensor = source.weights().find(module + ".weight");
  if (tensor == nullptr) return 0;
  return tensor->shape.size() == 2 ? tensor->shape[0] : 1;
}

// Its tokens see each other, and hidden states are what it gives.
void make_encoder(GgufFamilyModel& model) {
  model.config.output = {.norm = model.config.output.norm, .none = true};
  for (LayerConfig& layer : model.config.layer_kinds) layer.attention().bidirectional = true;
}

// Layers of BERT's kind: norms of the sums after each branch.
void use_stream_norms(const GgufSource& source, GgufFamilyModel& model) {
  make_encoder(model);
  LayerConfig& layer = model.config.layer_kinds[0];
  const NormConfig norm = model.config.embedding.norm;
  layer.mixer_norms = layer.ffn_norms = {.before = {}, .after = {}, .stream = norm};
  model.config.embedding.segments = rows_of(source, "token_types");
  Modules& m = model.modules;
  m.segments = "token_types";
  m.attention_stream_norm = "attn_output_norm";
  m.ffn_stream_norm = "layer_output_norm";
}

// The activation of ModernBERT's feed-forwards; those before there was a word for it have GELU.
Activation activation_of(const GgufSource& source) {
  constexpr std::string_view kName = "hidden_activation";
  const auto name = source.metadata().find_text(source.key(kName));
  if (!name) return Activation::gelu;
  const auto activation = find_activation(*name);
  if (activation) return *activation;
  source.fail(kName, "is " + in_quotes(*name) + ", an activation that is not supported");
}

DenseConfig dense_of(const GgufSource& source, const std::string& module, Activation activation) {
  return {.size = rows_of(source, module),
          .bias = has_bias(source, module),
          .activation = activation,
          .norm = {}};
}

// Of what stands before a classifier's labels. DistilBERT has no architecture of its own.
Activation head_activation(const GgufSource& source, const ModelConfig& config) {
  if (source.architecture() == "modern-bert") return Activation::gelu;
  const bool is_distilled = source.architecture() == "bert" && config.embedding.segments == 0;
  return is_distilled ? Activation::relu : Activation::tanh;
}

// What a classifier's vectors go through before labels are scored.
void add_head(const GgufSource& source, const ModelConfig& config, PoolingConfig& pooling,
              std::vector<DenseModules>& modules) {
  DenseConfig head = dense_of(source, kHead, head_activation(source, config));
  std::string norm;
  if (has_weight(source, "cls.norm")) {
    head.norm = config.output.norm;
    head.norm.bias = has_bias(source, "cls.norm");
    norm = "cls.norm";
  }
  pooling.dense.push_back(head);
  modules.push_back({.product = kHead, .norm = norm});
}

// As "pooling_type" counts them; none: of hidden states nothing is made, or nobody says what.
std::optional<Pooling> pooling_of(const GgufSource& source, std::string_view name) {
  constexpr int64_t kRank = 4;
  const int64_t type = source.metadata().find_integer(source.key(name)).value_or(0);
  switch (type) {
    case 1:
      return Pooling::mean;
    case 2:
      return Pooling::first;
    case 3:
      return Pooling::last;
    case 0:
    case -1:
      return std::nullopt;
    default:
      break;
  }
  const bool is_rank = type == kRank;
  if (is_rank && has_weight(source, kClassifier)) return std::nullopt;
  source.fail(name, is_rank ? "asks for scores, but there is no classifier"
                            : "is " + std::to_string(type) + ", which this version does not know");
}

// What goes before labels' scores in all classifiers is as wide as hidden states. The converter
// writes BERT's and Jina's without it: it takes it for a pooler of vectors.
bool has_classifier(const GgufSource& source, const ModelConfig& config) {
  const bool has_head = rows_of(source, kHead) == config.hidden;
  const bool has_scores = has_weight(source, kClassifier);
  if (has_scores && !config.output.none) {
    throw Error(
        source.metadata().where() +
        ": is a decoder that ranks by its classifier and a template, which is not supported");
  }
  if (has_scores && has_head) return true;
  if (!has_scores && (has_head || !has_weight(source, kHead))) return false;
  throw Error(
      source.metadata().where() +
      ": has a classifier without the product before it, which llama.cpp's converter leaves "
      "out; convert the Hugging Face folder");
}

// Decoders whose tokens were made to see later ones.
void see_both_ways(const GgufSource& source, ModelConfig& config) {
  constexpr std::string_view kName = "attention.causal";
  if (source.metadata().find_boolean(source.key(kName)).value_or(true)) return;
  for (LayerConfig& layer : config.layer_kinds) {
    auto* attention = std::get_if<AttentionConfig>(layer.mixers.data());
    if (attention != nullptr && attention->bidirectional) continue;
    if (attention == nullptr || attention->window > 0 || layer.mixers.size() > 1) {
      source.fail(kName, "is false, which is not supported with layers of this kind");
    }
    attention->bidirectional = true;
  }
}

PoolingConfig scores_of(const GgufSource& source, const ModelConfig& config,
                        std::vector<DenseModules>& modules) {
  PoolingConfig pooling{.mode = Pooling::first};
  if (source.architecture() == "modern-bert") {
    pooling.mode = pooling_of(source, "classifier.pooling_type").value_or(Pooling::mean);
  }
  add_head(source, config, pooling, modules);
  pooling.dense.push_back(dense_of(source, kClassifier, Activation::none));
  pooling.scores = true;
  pooling.sigmoid = pooling.dense.back().size == 1;  // as sentence-transformers
  modules.push_back({.product = kClassifier});
  return pooling;
}

}  // namespace

void adjust_bert(const GgufSource& source, GgufFamilyModel& model) {
  use_stream_norms(source, model);
  model.config.embedding.positions = model.config.max_context;
}

void adjust_nomic_bert(const GgufSource& source, GgufFamilyModel& model) {
  use_stream_norms(source, model);
}

void adjust_jina_bert_v2(const GgufSource& source, GgufFamilyModel& model) {
  if (source.a_layer_has("attn_norm_2.weight") || source.a_layer_has("attn_q_norm.weight")) {
    source.metadata().fail("general.architecture",
                           "has norms that Jina's models of code have, which are not supported");
  }
  use_stream_norms(source, model);
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().slopes = alibi_slopes(layer.attention().n_heads);
  layer.ffn.bias = source.a_layer_has("ffn_down.bias");
  model.modules.gate_up_bias = source.a_layer_has("ffn_up.bias");
}

void adjust_modern_bert(const GgufSource& source, GgufFamilyModel& model) {
  make_encoder(model);
  model.config.layer_kinds[0].ffn.activation = activation_of(source);
  constexpr int64_t kPattern = 3;
  set_windows(source, model,
              source.windowed_layers(model.config.n_layers(), kPattern, FullLayer::first));
  constexpr double kThetaOfWindows = 10000;
  set_plain_rope_of_windows(source, model, kThetaOfWindows);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (layer.attention().window > 0) layer.attention().window = layer.attention().window / 2 + 1;
    if (source.layer_has(n, "attn_norm.weight")) return;
    layer.name += ", first";  // the embedding's norm is before it
    layer.mixer_norms.before = {};
  });
}

// Queries, keys and values are as the checkpoint has them, head by head.
void adjust_neo_bert(const GgufSource&, GgufFamilyModel& model) {
  make_encoder(model);
  model.modules.joined_qkv = JoinedQkv::by_kv_head;
}

void adjust_eurobert(const GgufSource&, GgufFamilyModel& model) { make_encoder(model); }

void adjust_gemma_embedding(const GgufSource& source, GgufFamilyModel& model) {
  make_encoder(model);
  model.config.embedding.multiplier = std::sqrt(static_cast<float>(model.config.hidden));
  constexpr int64_t kPattern = 6;
  set_windows(source, model, kPattern);
  constexpr double kThetaOfWindows = 10000;
  set_plain_rope_of_windows(source, model, kThetaOfWindows);
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (layer.attention().window > 0) layer.attention().window = layer.attention().window / 2 + 1;
  }
}

void set_pooling(const GgufSource& source, GgufFamilyModel& model) {
  ModelConfig& config = model.config;
  Modules& m = model.modules;
  const std::optional<Pooling> mode = pooling_of(source, "pooling_type");
  if (has_classifier(source, config)) {
    config.pooling = scores_of(source, config, m.dense);
    return;
  }
  for (const char* ending : {".weight", ".bias"}) {  // of a model of masked words
    for (const char* module : {kHead, "cls.norm"}) m.unused.push_back(std::string(module) + ending);
  }
  see_both_ways(source, config);
  if (!mode) return;
  config.pooling = {.mode = *mode};
  for (const char* module : {"dense_2", "dense_3"}) {
    if (!has_weight(source, module)) continue;
    config.pooling->dense.push_back(dense_of(source, module, Activation::none));
    m.dense.push_back({.product = module});
  }
  if (config.output.none) return;
  config.output = {.norm = config.output.norm, .none = true};
  config.predictors.clear();  // whose tensors are left out
  m.unused.push_back(m.output + ".weight");
  m.left_out.insert(m.left_out.end(), model.predictors.names.begin(), model.predictors.names.end());
  model.predictors = {};
}

}  // namespace faststream::convert
