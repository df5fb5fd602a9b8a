// EuroBERT (arXiv:2503.05500): Llama's layers, whose tokens all see each other.
#include "convert/families/family.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kEuroBert = {.n_layers = 12,
                                  .hidden = 768,
                                  .n_heads = 12,
                                  .ffn_hidden = 3072,
                                  .vocab = 128256,
                                  .max_context = 8192,
                                  .norm_eps = 1e-5F};

// What a classifier's vector is made of. The first releases' own code has another name for it.
// "late" is the mean of the tokens' scores, which is what the mean before the last product gives.
LabelHead head_in(const JsonView& config) {
  LabelHead head{.dense = "dense",
                 .scores = "classifier",
                 .activation = Activation::gelu,
                 .pooling = Pooling::mean};
  const std::string_view key = key_in(config, {"classifier_pooling", "clf_pooling"});
  const auto pooling = config.get<std::string>(key, "late");
  head.pools_late = pooling == "late";
  if (pooling == "bos") {
    head.pooling = Pooling::first;
  } else if (pooling != "mean" && pooling != "late") {
    config.member(key).fail("is " + in_quotes(pooling) + ", an unknown way");
  }
  return head;
}

}  // namespace

FamilyModel describe_eurobert(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config, kEuroBert))};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().bidirectional = true;
  layer.ffn.bias = config.get("mlp_bias", false);
  remove_output(model);
  model.modules.unused.emplace_back("lm_head.bias");
  if (is_classifier(config)) score_labels(model, config, head_in(config));
  return model;
}

}  // namespace faststream::convert
