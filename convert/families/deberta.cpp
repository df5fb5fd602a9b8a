// DeBERTa in its three versions (arXiv:2006.03654, arXiv:2111.09543): BERT's layers, whose
// attention scores what a query and a key are and where they are relative to each other.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "convert/families/family.h"
#include "convert/families/normalized_table.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kFirst = {.n_layers = 12,
                               .hidden = 768,
                               .n_heads = 12,
                               .ffn_hidden = 3072,
                               .vocab = 50265,
                               .max_context = 512};
constexpr PlainShape kSecond = {.n_layers = 24,
                                .hidden = 1536,
                                .n_heads = 24,
                                .ffn_hidden = 6144,
                                .vocab = 128100,
                                .max_context = 512};

// "p2c|c2p", or the words in a list.
std::set<std::string> words_in(const JsonView& config, std::string_view key) {
  std::set<std::string> words;
  const auto found = config.find(key);
  if (!found) return words;
  if (found->value().is_array()) {
    for (const JsonView& word : found->elements()) words.insert(word.as<std::string>());
    return words;
  }
  std::string text = found->as<std::string>();
  std::erase(text, ' ');
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('|', begin), text.size());
    words.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// The products of attention that make vectors of them, for queries and for keys.
struct PositionProducts {
  std::string for_queries;
  std::string for_keys;
  bool bias_for_queries = true;
};

// Of each head what its rows of a product, `module`, make of all rows of the table.
std::vector<TensorPart> vectors_of(const std::shared_ptr<const std::vector<float>>& table,
                                   const AttentionConfig& attention, int64_t hidden,
                                   const std::string& module, bool has_bias) {
  const int64_t rows = attention.relative_scores.rows;
  std::vector<TensorPart> parts;
  for (int64_t head = 0; head < attention.n_heads; ++head) {
    TensorPart part{.source = "", .shape = {rows, hidden}};
    part.values = table;
    part.projection = {.matrix = module + ".weight",
                       .inputs = hidden,
                       .of_rows = attention.q_dim(),
                       .first_row = head * attention.head_dim};
    if (has_bias) {
      TensorPart bias{.source = module + ".bias", .shape = {attention.q_dim()}};
      bias.first_row = head;
      bias.n_rows = rows;
      bias.row_step = 0;
      part.plus = std::make_shared<const TensorPart>(std::move(bias));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

// Gives each layer what its queries and keys are multiplied with.
void set_vectors(const Modules& modules, const NormalizedTable& table,
                 const PositionProducts& products, const ModelConfig& config,
                 const Checkpoint& weights, TensorParts& parts) {
  const std::string base = base_in(weights, modules);
  const AttentionConfig& attention = config.layer(0).attention();
  const RelativeScoresConfig& scores = attention.relative_scores;
  const auto rows = std::make_shared<const std::vector<float>>(
      rows_of({.name = base + table.name,
               .norm = table.norm.empty() ? "" : base + table.norm,
               .eps = table.eps},
              scores.rows, config.hidden, weights));
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const std::string in_layer = base + modules.layers + std::to_string(n) + ".attention.self.";
    if (scores.of_queries) {
      parts[{TensorKind::attention_relative_keys, n}] =
          vectors_of(rows, attention, config.hidden, in_layer + products.for_queries,
                     products.bias_for_queries);
    }
    if (scores.of_keys) {
      parts[{TensorKind::attention_relative_queries, n}] =
          vectors_of(rows, attention, config.hidden, in_layer + products.for_keys, true);
    }
  }
}

// A checkpoint has it, and its norm, also where attention makes nothing of it.
void leave_out_table(Modules& modules, const NormalizedTable& table) {
  modules.unused.push_back(table.name);
  if (!table.norm.empty()) leave_out(modules, {table.norm});
}

// A classifier scores labels; what predicts masked tokens, or tells replaced ones, is left out.
void use_heads_of_deberta(FamilyModel& model, const JsonView& config) {
  if (is_classifier(config)) {
    return score_labels(model, config,
                        {.dense = "pooler.dense",
                         .scores = "classifier",
                         .activation = activation_in(config, "pooler_hidden_act", "gelu")});
  }
  leave_out(model.modules, {"pooler.dense", "cls.predictions.transform.dense",
                            "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
                            "lm_predictions.lm_head.dense", "lm_predictions.lm_head.LayerNorm",
                            "mask_predictions.dense", "mask_predictions.LayerNorm",
                            "mask_predictions.classifier"});
  for (const char* bias : {"cls.predictions.bias", "lm_predictions.lm_head.bias"}) {
    model.modules.unused.emplace_back(bias);
  }
}

// How positions relative to each other count, where `bucketed` is whether far ones may share rows.
RelativeScoresConfig relative_scores_in(const JsonView& config, int64_t positions, bool bucketed) {
  const std::set<std::string> types = words_in(config, "pos_att_type");
  RelativeScoresConfig scores;
  scores.of_queries = types.contains("c2p");
  scores.of_keys = types.contains("p2c");
  if (!config.get("relative_attention", false)) return {};
  if (!scores.of_queries && !scores.of_keys) return {};
  // Below 1, as by default, they mean that there is nothing of the kind.
  const auto farthest = config.get<int64_t>("max_relative_positions", -1);
  const int64_t buckets = bucketed ? config.get<int64_t>("position_buckets", -1) : -1;
  const int64_t reach = farthest < 1 ? positions : farthest;
  if (std::max(reach, buckets) > kMaxSize) config.fail("has too many relative positions");
  scores.rows = 2 * (buckets > 0 ? buckets : reach);
  if (buckets > 0) scores.max_distance = reach;
  return scores;
}

FamilyModel deberta_in(const JsonView& config, const PlainShape& otherwise, bool bucketed) {
  const PlainShape shape = shape_in(config, otherwise);
  if (count_in(config, "embedding_size", kMaxSize, shape.hidden) != shape.hidden) {
    config.fail("\"embedding_size\" is not \"hidden_size\", which is not supported");
  }
  refuse_other(config, "attention_head_size", shape.head_dim);
  NormConfig norm = layer_norm_in(config, "layer_norm_eps");
  norm.eps = number_in(config, "layer_norm_eps", 1e-7);
  FamilyModel model{post_norm_encoder(shape, norm, activation_in(config, "hidden_act", "gelu"))};
  model.config.embedding.segments = number_of(config, "type_vocab_size", kMaxSize, 0);
  const bool has_positions = config.get("position_biased_input", true);
  if (has_positions) model.config.embedding.positions = shape.max_context;
  AttentionConfig& attention = model.config.layer_kinds[0].attention();
  attention.relative_scores = relative_scores_in(config, shape.max_context, bucketed);

  model.modules.base = "deberta.";
  name_as_bert(model.modules);
  // Of heads that predict masked tokens, which the model does not read.
  if (!has_positions) leave_out(model.modules, {"embeddings.position_embeddings"});
  use_heads_of_deberta(model, config);
  return model;
}

// Beside the first layer, as "conv_kernel_size" asks for it.
void add_token_convolution(ModelConfig& model, const JsonView& config) {
  const int64_t taps = number_of(config, "conv_kernel_size", kMaxSize, 0);
  if (taps == 0) return;
  refuse_other(config, "conv_groups", 1);
  if (taps == 1 || taps % 2 == 0) {
    config.member("conv_kernel_size")
        .fail("is not an odd number above 1, which alone is supported");
  }
  const auto name = config.get<std::string>("conv_act", "tanh");
  const TokenConvolutionConfig convolution{
      .taps = taps,
      .activation = name == "tanh" ? Activation::tanh : activation_named(config, name),
      .norm = model.embedding.norm};
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    if (n == 0) layer.token_convolution = convolution;
  });
}

// A checkpoint's rows have the taps of each input side by side.
void set_token_convolution(const Modules& modules, const ModelConfig& config,
                           const Checkpoint& weights, TensorParts& parts) {
  const int64_t taps = config.layer(0).token_convolution.taps;
  if (taps == 0) return;
  const std::string base = base_in(weights, modules) + "encoder.conv.";
  TensorPart part{.source = base + "conv.weight", .shape = {config.hidden, config.hidden, taps}};
  static_cast<void>(weights.require(part.source, part.shape));  // before a list as wide is made
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t input = 0; input < config.hidden; ++input) {
      part.column_blocks.push_back(input * taps + tap);
    }
  }
  const TensorId product{TensorKind::token_convolution};
  const TensorId norm{TensorKind::token_convolution_norm};
  parts[product] = {std::move(part)};
  parts[bias_of(product)] = {{.source = base + "conv.bias", .shape = {config.hidden}}};
  parts[norm] = {{.source = base + "LayerNorm.weight", .shape = {config.hidden}}};
  parts[bias_of(norm)] = {{.source = base + "LayerNorm.bias", .shape = {config.hidden}}};
}

// Scores are divided by the root of so many times head_dim.
float scale_of(const AttentionConfig& attention, size_t summands) {
  return inverse_root(static_cast<double>(attention.head_dim) * static_cast<double>(summands));
}

}  // namespace

FamilyModel describe_deberta(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "talking_head", "products of all heads' scores");
  FamilyModel model = deberta_in(config, kFirst, false);
  AttentionConfig& attention = model.config.layer_kinds[0].attention();
  attention.scale = scale_of(attention, 1 + words_in(config, "pos_att_type").size());
  model.modules.qkv = {"attention.self.in_proj"};
  model.modules.joined_qkv = JoinedQkv::by_kv_head;
  const NormalizedTable table{.name = "encoder.rel_embeddings.weight"};
  leave_out_table(model.modules, table);
  model.finish = [table, modules = model.modules](const ModelConfig& described,
                                                  const Checkpoint& weights, TensorParts& parts) {
    const std::string layers = base_in(weights, modules) + modules.layers;
    const int64_t dim = described.layer(0).attention().q_dim();
    for (int64_t n = 0; n < described.n_layers(); ++n) {
      const std::string self = layers + std::to_string(n) + ".attention.self.";
      parts[bias_of({TensorKind::attention_qkv, n})] = {
          {.source = self + "q_bias", .shape = {dim}},
          {.source = "", .shape = {dim}},
          {.source = self + "v_bias", .shape = {dim}}};
    }
    if (!described.layer(0).attention().relative_scores) return;
    set_vectors(modules, table,
                {.for_queries = "pos_proj", .for_keys = "pos_q_proj", .bias_for_queries = false},
                described, weights, parts);
  };
  return model;
}

FamilyModel describe_deberta_v2(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = deberta_in(config, kSecond, true);
  AttentionConfig& attention = model.config.layer_kinds[0].attention();
  const std::set<std::string> types = words_in(config, "pos_att_type");
  attention.scale = scale_of(attention, 1 + types.count("c2p") + types.count("p2c"));
  model.modules.qkv = {"attention.self.query_proj", "attention.self.key_proj",
                       "attention.self.value_proj"};
  const bool has_norm = words_in(config, "norm_rel_ebd").contains("layer_norm");
  const NormalizedTable table{.name = "encoder.rel_embeddings.weight",
                              .norm = has_norm ? "encoder.LayerNorm" : "",
                              .eps = model.config.embedding.norm.eps};
  leave_out_table(model.modules, table);
  add_token_convolution(model.config, config);
  // Where they are shared, those that make keys and queries.
  const std::string own = config.get("share_att_key", false) ? "" : "pos_";
  model.finish = [table, own, modules = model.modules](
                     const ModelConfig& described, const Checkpoint& weights, TensorParts& parts) {
    set_token_convolution(modules, described, weights, parts);
    if (!described.layer(0).attention().relative_scores) return;
    set_vectors(modules, table, {.for_queries = own + "key_proj", .for_keys = own + "query_proj"},
                described, weights, parts);
  };
  return model;
}

}  // namespace faststream::convert
