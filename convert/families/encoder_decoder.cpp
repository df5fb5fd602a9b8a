// Encoder-decoders that are made of two encoders (arXiv:1907.12461), BERT's or RoBERTa's: tokens of
// the second see no later ones, and its layers attend to what the first gives before their
// feed-forward.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "convert/families/bert.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

/// A class of encoders that Transformers can make a decoder of.
struct StackType {
  std::string_view model_type;
  const char* name;           ///< of the layers in a model with a head
  bool begins_after_padding;  ///< see begin_after_padding()
  const char* head;           ///< begins the names of what stands before the output, and of that
  const char* dense;          ///< what stands there: a product
  const char* norm;           ///< and a norm
  bool head_has_gelu;         ///< whatever the layers' activation is
};

constexpr StackType roberta_named(std::string_view model_type) {
  return {model_type, "roberta", true, "decoder.lm_head.", "dense", "layer_norm", true};
}

constexpr auto kStackTypes =
    std::to_array<StackType>({{"bert", "bert", false, "decoder.cls.predictions.", "transform.dense",
                               "transform.LayerNorm", false},
                              roberta_named("roberta"),
                              roberta_named("xlm-roberta"),
                              roberta_named("camembert")});

const StackType& stack_type_in(const JsonView& config) {
  const auto name = config.get<std::string>("model_type");
  const auto* const found = std::ranges::find(kStackTypes, name, &StackType::model_type);
  if (found != kStackTypes.end()) return *found;
  config.fail("is a stack of the type " + in_quotes(name) +
              ", which is not supported in an encoder-decoder");
}

FamilyModel stack_in(const JsonView& config, const StackType& type, const std::string& base) {
  refuse_other(config, "position_embedding_type", "absolute");
  FamilyModel stack = bert_stack(config, base);
  if (type.begins_after_padding) begin_after_padding(stack.config, config);
  return stack;
}

void look_at_encoder(FamilyModel& decoder) {
  LayerConfig& layer = decoder.config.layer_kinds[0];
  layer.attention().bidirectional = false;
  layer.cross_attention.emplace().norms = layer.mixer_norms;
  Modules& m = decoder.modules;
  m.cross_qkv = {"crossattention.self.query", "crossattention.self.key",
                 "crossattention.self.value"};
  m.cross_out = "crossattention.output.dense";
  m.cross_stream_norm = "crossattention.output.LayerNorm";
}

// What predicts an encoder's masked tokens predicts the next one.
void add_output(FamilyModel& decoder, const JsonView& config, const StackType& type) {
  const LayerConfig& layer = decoder.config.layer_kinds[0];
  OutputConfig& output = decoder.config.output;
  output.none = false;
  output.tied = config.get("tie_word_embeddings", true);
  output.bias = true;
  output.dense = {.size = decoder.config.hidden,
                  .bias = true,
                  .activation = type.head_has_gelu ? Activation::gelu : layer.ffn.activation,
                  .norm = layer.ffn_norms.stream};
  const std::string head = type.head;
  Modules& m = decoder.modules;
  m.dense = {{.product = head + type.dense, .norm = head + type.norm}};
  m.output = head + "decoder";
  // The bias has two names: of the product, and of the head, which one that is tied may have alone.
  const std::string other = head + "bias";
  m.unused.push_back(other);
  decoder.finish = [stored = m.output + ".bias", other](const ModelConfig& described,
                                                        const Checkpoint& weights,
                                                        TensorParts& parts) {
    if (weights.find(stored) != nullptr) return;
    parts[bias_of({TensorKind::output})] = {{.source = other, .shape = {described.vocab}}};
  };
}

}  // namespace

FamilyModel describe_encoder_decoder(const FamilySource& source) {
  const JsonView of_encoder = source.config.member("encoder");
  const JsonView of_decoder = source.config.member("decoder");
  FamilyModel encoder = stack_in(of_encoder, stack_type_in(of_encoder), "encoder");
  const StackType& type = stack_type_in(of_decoder);
  FamilyModel model = stack_in(of_decoder, type, std::string("decoder.") + type.name);
  if (encoder.config.hidden != model.config.hidden) {
    source.config.fail("has an encoder and a decoder of different widths, which is not supported");
  }
  look_at_encoder(model);
  add_output(model, of_decoder, type);
  leave_out(model.modules, {"pooler.dense", "cls.seq_relationship"});
  model.config.encoder = std::make_shared<const ModelConfig>(std::move(encoder.config));
  model.encoder_modules = std::move(encoder.modules);
  return model;
}

}  // namespace faststream::convert
