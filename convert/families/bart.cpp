// BART (arXiv:1910.13461) and the encoder-decoders that are built like it: PLBart
// (arXiv:2103.06333), mBART (arXiv:2001.08210, 2008.00401), MVP (arXiv:2206.12131), Pegasus
// (arXiv:1912.08777), Blenderbot (arXiv:2004.13637), M2M-100 (arXiv:2010.11125) with NLLB
// (arXiv:2207.04672), and Marian (arXiv:1804.00344), the original transformer.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/families/normalized_table.h"
#include "convert/families/positions.h"

namespace faststream::convert {
namespace {

constexpr int64_t kBartOffset = 2;

/// What differs between them.
struct BartKind {
  bool norms_before = false;    ///< before attention and feed-forward and at the end, not after
  bool embedding_norm = false;  ///< of the sum of embedding and position
  bool positions_stored = true;
  int64_t offset = kBartOffset;  ///< of stored positions
  std::string_view activation = "gelu";
  bool scaled = false;  ///< embeddings, by the root of their width
};

LayerConfig bart_layer(const JsonView& config, const BartKind& kind, int64_t hidden,
                       const std::string& stack) {
  LayerConfig layer;
  layer.name = "layer";
  AttentionConfig& attention = std::get<AttentionConfig>(layer.mixers.emplace_back());
  attention.n_heads = attention.n_kv_heads =
      count_in(config, stack + "_attention_heads", kMaxHeads, 16);
  if (hidden % attention.n_heads != 0) {
    config.fail("\"d_model\" is not a multiple of \"" + stack + "_attention_heads\"");
  }
  attention.head_dim = hidden / attention.n_heads;
  attention.scale = inverse_root(static_cast<double>(attention.head_dim));
  set_attention_bias(layer, true);
  layer.ffn.size = count_in(config, stack + "_ffn_dim", kMaxSize, 4096);
  set_plain_ffn(layer, activation_in(config, "activation_function", kind.activation), true);
  const NormConfig norm{.kind = NormKind::layer, .eps = 1e-5F, .bias = true};
  for (BranchNorms* norms : {&layer.mixer_norms, &layer.ffn_norms}) {
    (kind.norms_before ? norms->before : norms->stream) = norm;
  }
  return layer;
}

ModelConfig bart_stack(const JsonView& config, const BartKind& kind, const std::string& stack) {
  const NormConfig norm{.kind = NormKind::layer, .eps = 1e-5F, .bias = true};
  ModelConfig model;
  model.hidden = count_in(config, "d_model", kMaxSize, 1024);
  model.vocab = count_in(config, "vocab_size");
  model.max_context = count_in(config, "max_position_embeddings", kMaxContext, 1024);
  model.layer_kinds = {bart_layer(config, kind, model.hidden, stack)};
  model.layers.assign(static_cast<size_t>(count_in(config, stack + "_layers", kMaxLayers, 12)), 0);
  if (config.get("scale_embedding", kind.scaled)) {
    model.embedding.multiplier = static_cast<float>(std::sqrt(static_cast<double>(model.hidden)));
  }
  model.embedding.positions = model.max_context;
  if (kind.positions_stored) {
    model.embedding.positions += kind.offset;
    model.embedding.offset = kind.offset;
  }
  if (kind.embedding_norm) model.embedding.norm = norm;
  if (kind.norms_before) model.output.norm = norm;
  return model;
}

Modules bart_modules(const std::string& stack) {
  Modules m;
  m.base = "model." + stack + ".";
  name_as_fairseq(m);
  m.embedding_norm = "layernorm_embedding";
  m.cross_norm = m.cross_stream_norm = "encoder_attn_layer_norm";
  m.cross_qkv = {"encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"};
  m.cross_out = "encoder_attn.out_proj";
  // Of checkpoints that came from fairseq.
  m.unused.insert(m.unused.end(),
                  {"encoder.version", "decoder.version", "embed_positions.weights"});
  return m;
}

FamilyModel describe_like_bart(const FamilySource& source, const BartKind& kind) {
  const JsonView& config = source.config;
  FamilyModel model{bart_stack(config, kind, "decoder")};
  ModelConfig encoder = bart_stack(config, kind, "encoder");
  encoder.output.none = true;
  encoder.layer_kinds[0].attention().bidirectional = true;
  encoder.embedding.shared = config.get("share_encoder_decoder_embeddings", true);
  model.modules = bart_modules("decoder");
  model.encoder_modules = bart_modules("encoder");
  model.embeddings = {"decoder.embed_tokens"};
  if (encoder.embedding.shared) {
    model.embeddings.insert(model.embeddings.end(), {"shared", "encoder.embed_tokens"});
  } else {
    model.config.vocab = count_in(config, "decoder_vocab_size", kMaxSize, model.config.vocab);
  }
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.cross_attention.emplace().norms = layer.mixer_norms;
  model.config.output.tied = config.get("tie_word_embeddings", true);
  const bool has_bias = source.weights.find("final_logits_bias") != nullptr;
  model.config.output.bias = has_bias;
  model.config.encoder = std::make_shared<const ModelConfig>(std::move(encoder));
  if (has_bias) {
    model.finish = [](const ModelConfig& described, const Checkpoint&, TensorParts& parts) {
      parts[bias_of({TensorKind::output})] = {
          {.source = "final_logits_bias", .shape = {1, described.vocab}}};
    };
  }
  return model;
}

}  // namespace

FamilyModel describe_bart(const FamilySource& source) {
  FamilyModel model = describe_like_bart(source, {.embedding_norm = true});
  model.answers.start = 2;
  if (is_classifier(source.config)) score_labels_of_text(model, source.config);
  return model;
}

FamilyModel describe_mvp(const FamilySource& source) {
  refuse_if(source.config, "use_prompt", "prompts in its attention");
  return describe_bart(source);
}

FamilyModel describe_mbart(const FamilySource& source) {
  FamilyModel model = describe_like_bart(source, {.norms_before = true, .embedding_norm = true});
  model.answers.start = 2;
  model.answers.languages.target = TargetLanguage::first;
  return model;
}

FamilyModel describe_plbart(const FamilySource& source) {
  FamilyModel model = describe_like_bart(source, {.embedding_norm = true, .scaled = true});
  model.answers.start = 2;
  model.answers.languages.target = TargetLanguage::first;
  return model;
}

FamilyModel describe_pegasus(const FamilySource& source) {
  FamilyModel model = describe_like_bart(source, {.norms_before = true, .positions_stored = false});
  compute_positions(model, sinusoid);
  return model;
}

FamilyModel describe_blenderbot(const FamilySource& source) {
  FamilyModel model = describe_like_bart(source, {.norms_before = true, .offset = 0});
  model.answers.start = 1;
  return model;
}

// The decoder normalizes embeddings before it adds positions to them: its table has them so, beside
// that of the encoder and the output.
FamilyModel describe_blenderbot_small(const FamilySource& source) {
  refuse_other(source.config, "tie_word_embeddings", true);
  FamilyModel model = describe_like_bart(source, {.embedding_norm = true, .offset = 0});
  model.answers.start = 1;
  EmbeddingConfig& embedding = model.config.embedding;
  const float eps = embedding.norm.eps / (embedding.multiplier * embedding.multiplier);
  embedding.norm = {};
  embedding.multiplier = 1;
  model.config.output.tied = false;
  ModelConfig encoder = *model.config.encoder;
  encoder.embedding.shared = false;
  model.config.encoder = std::make_shared<const ModelConfig>(std::move(encoder));
  leave_out(model.modules, {"decoder.layernorm_embedding", "lm_head"});
  model.finish = [eps, modules = model.modules, finish = std::move(model.finish)](
                     const ModelConfig& described, const Checkpoint& weights, TensorParts& parts) {
    if (finish) finish(described, weights, parts);
    const std::string base = base_in(weights, modules);
    const NormalizedTable table{.name = base + modules.embedding + ".weight",
                                .norm = base + modules.embedding_norm,
                                .eps = eps};
    const std::vector<int64_t> shape = {described.vocab, described.hidden};
    TensorPart normalized{.source = "", .shape = shape};
    normalized.values = std::make_shared<const std::vector<float>>(
        rows_of(table, described.vocab, described.hidden, weights));
    const TensorId of_decoder{TensorKind::embedding};
    TensorId of_encoder = of_decoder;
    of_encoder.of_encoder = true;
    parts[of_decoder] = {std::move(normalized)};
    parts[of_encoder] = {{.source = table.name, .shape = shape}};
    parts[{TensorKind::output}] = {{.source = table.name, .shape = shape}};
  };
  return model;
}

FamilyModel describe_m2m_100(const FamilySource& source) {
  FamilyModel model = describe_like_bart(
      source,
      {.norms_before = true, .positions_stored = false, .activation = "relu", .scaled = true});
  if (model.config.hidden < 4) source.config.fail("\"d_model\" is too small");
  compute_positions(model, fairseq_sinusoid);
  model.answers.start = 2;
  model.answers.languages.target = TargetLanguage::first;
  return model;
}

FamilyModel describe_marian(const FamilySource& source) {
  FamilyModel model = describe_like_bart(source, {.positions_stored = false});
  compute_positions(model, sinusoid);
  model.answers.start = 58100;
  model.answers.languages.target = TargetLanguage::source;
  return model;
}

}  // namespace faststream::convert
