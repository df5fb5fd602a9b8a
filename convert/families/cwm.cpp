// Code World Model (arXiv:2510.02387): Llama 3 with windows in most layers.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_cwm(const FamilySource& source) {
  const JsonView& config = source.config;
  // Its class has a rule of its own where there is none.
  if (!config.find("rope_scaling")) (void)config.member("rope_parameters");
  constexpr PlainShape kOtherwise = {.n_kv_heads = 8,
                                     .head_dim = 128,
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 1e6};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  constexpr int64_t kWindow = 8192;
  set_windows(model.config, config, window_in(config, kWindow),
              [](int64_t n) { return n % 4 != 0; });
  return model;
}

}  // namespace faststream::convert
