// Baichuan 1 and 2 (arXiv:2309.10305).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_baichuan(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape = shape_in(config);
  // Only the class of the models with rotary embeddings has this member; the others have ALiBi.
  const bool rotates = config.find("max_position_embeddings").has_value();
  if (!rotates) shape.max_context = count_in(config, "model_max_length", kMaxContext, 4096);
  FamilyModel model{plain_decoder_in(config, shape)};
  if (!rotates) {
    remove_rotation(model.config);
    model.config.layer_kinds[0].attention().slopes = alibi_slopes(shape.n_heads);
  }
  model.modules.qkv = {"self_attn.W_pack"};
  // The member is one that only Baichuan 2's class has.
  model.modules.unit_output =
      shape.vocab == kBaichuan2Vocab || config.find("z_loss_weight").has_value();
  return model;
}

}  // namespace faststream::convert
