// NeoBERT (arXiv:2502.19587).
#include <string>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kNeoBert = {.n_layers = 28,
                                 .hidden = 768,
                                 .n_heads = 12,
                                 .ffn_hidden = 3072,
                                 .vocab = 30522,
                                 .max_context = 1024};

// Of what config.json says.
int64_t two_thirds_in_eights(int64_t given) {
  constexpr int64_t kMultiple = 8;
  return (2 * given / 3 + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace

FamilyModel describe_neobert(const FamilySource& source) {
  const JsonView& config = source.config;
  for (const char* key : {"rope", "rms_norm"}) refuse_other(config, key, true);
  refuse_if(config, "ngpt", "norms of weights");
  if (config.get<std::string>("hidden_act", "swiglu") != "SwiGLU") {
    refuse_other(config, "hidden_act", "swiglu");  // in either spelling
  }
  PlainShape shape = shape_in(config, kNeoBert);
  shape.ffn_hidden = two_thirds_in_eights(shape.ffn_hidden);
  shape.max_context = count_in(config, "max_length", kMaxContext, shape.max_context);
  shape.norm_eps = number_in(config, "norm_eps", 1e-6);
  FamilyModel model{plain_decoder(shape)};
  model.config.output.none = true;
  model.config.layer_kinds[0].attention().bidirectional = true;

  Modules& m = model.modules;
  m.embedding = "encoder";
  m.layers = "transformer_encoder.";
  m.attention_norm = "attention_norm";
  m.qkv = {"qkv"};
  m.joined_qkv = JoinedQkv::by_kv_head;
  m.interleaved = true;
  m.attention_out = "wo";
  m.ffn_norm = "ffn_norm";
  m.gate_up = {"ffn.w12"};
  m.down = "ffn.w3";
  m.output_norm = "layer_norm";
  if (is_classifier(config)) {
    score_labels(model, config, {.dense = "dense", .scores = "classifier"});
  } else {
    leave_out(m, {"decoder"});
  }
  return model;
}

}  // namespace faststream::convert
