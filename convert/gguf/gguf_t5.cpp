#include "convert/gguf/gguf_t5.h"

#include <string>

#include "convert/families/family.h"
#include "convert/families/t5.h"

namespace faststream::convert {
namespace {

// Blocks of a stack, of which the first one has a table of distances, or each.
Modules modules_of(const GgufSource& source, const std::string& stack, bool gated) {
  Modules m;
  m.base = "";
  m.embedding = "token_embd";
  m.layers = stack + "blk.";
  m.attention_norm = "attn_norm";
  m.qkv = {"attn_q", "attn_k", "attn_v"};
  m.attention_out = "attn_o";
  m.distances = "attn_rel_b.weight";
  if (source.weights().find(m.layers + "1." + m.distances) == nullptr) {
    m.common_distances = m.layers + "0." + m.distances;
  }
  m.cross_norm = "cross_attn_norm";
  m.cross_qkv = {"cross_attn_q", "cross_attn_k", "cross_attn_v"};
  m.cross_out = "cross_attn_o";
  m.ffn_norm = "ffn_norm";
  m.gate_up = {"ffn_up"};
  if (gated) m.gate_up = {"ffn_gate", "ffn_up"};
  m.down = "ffn_down";
  m.output_norm = stack + "output_norm";
  m.output = "output";
  return m;
}

// The metadata do not say from which distance on all are alike: it is 128 in all releases.
T5Shape shape_of(const GgufSource& source) {
  T5Shape shape;
  shape.hidden = source.count("embedding_length", kMaxSize);
  const SourceTensor* embedding = source.weights().find("token_embd.weight");
  shape.vocab = embedding != nullptr && embedding->shape.size() == 2
                    ? embedding->shape[0]
                    : source.count("vocab_size", kMaxSize);
  shape.positions = source.count("context_length", kMaxContext);
  shape.n_layers = source.count("block_count", kMaxLayers);
  shape.n_decoder_layers = source.count("decoder_block_count", kMaxLayers, shape.n_layers);
  shape.n_heads = source.count("attention.head_count", kMaxHeads);
  shape.head_dim = source.count("attention.key_length", kMaxHeadDim);
  constexpr std::string_view kOfValues = "attention.value_length";
  if (source.count(kOfValues, kMaxHeadDim, shape.head_dim) != shape.head_dim) {
    source.fail(kOfValues, "is not that of keys, which is not supported");
  }
  shape.ffn_size = source.count("feed_forward_length", kMaxSize);
  shape.buckets = source.count("attention.relative_buckets_count", kMaxSize);
  shape.gated = source.weights().find("enc.blk.0.ffn_gate.weight") != nullptr;
  shape.activation = shape.gated ? Activation::gelu_tanh : Activation::relu;
  shape.norm_eps =
      static_cast<float>(source.metadata().number(source.key("attention.layer_norm_rms_epsilon")));
  return shape;
}

}  // namespace

GgufFamilyModel describe_gguf_t5(const GgufSource& source) {
  const T5Shape shape = shape_of(source);
  GgufFamilyModel model{make_t5(shape), modules_of(source, "dec.", shape.gated)};
  model.encoder_modules = modules_of(source, "enc.", shape.gated);
  // Old checkpoints have a table that nothing reads.
  model.modules.unused = {"cross_attn_rel_b.weight"};
  model.config.output.tied = source.weights().find("output.weight") == nullptr;
  // What a matrix that is the embedding too reads is scaled, as Transformers has it: in the first
  // T5 and in UMT5, but not in those between, whose feed-forwards have gates.
  const bool is_between = shape.gated && !model.modules.common_distances.empty();
  if (model.config.output.tied && !is_between) {
    model.modules.output_norm_scale = inverse_root(static_cast<double>(shape.hidden));
  }
  constexpr std::string_view kStart = "decoder_start_token_id";
  model.answers.start = source.metadata().find_token(source.key(kStart)).value_or(0);
  if (model.answers.start >= shape.vocab) source.fail(kStart, "is not in the vocabulary");
  return model;
}

GgufFamilyModel describe_gguf_t5_encoder(const GgufSource& source) {
  const T5Shape shape = shape_of(source);
  GgufFamilyModel model{make_t5_stack(shape, true), modules_of(source, "enc.", shape.gated)};
  model.modules.unused = {"output.weight"};
  return model;
}

}  // namespace faststream::convert
