// InternLM 2 (arXiv:2403.17297).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_internlm2(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config))};
  set_attention_bias(model.config.layer_kinds[0], config.get("bias", true));
  Modules& m = model.modules;
  m.embedding = "tok_embeddings";
  m.attention_norm = "attention_norm";
  m.qkv = {"attention.wqkv"};
  m.joined_qkv = JoinedQkv::by_kv_head;
  m.attention_out = "attention.wo";
  m.ffn_norm = "ffn_norm";
  m.gate_up = {"feed_forward.w1", "feed_forward.w3"};
  m.down = "feed_forward.w2";
  m.output = "output";
  return model;
}

}  // namespace faststream::convert
