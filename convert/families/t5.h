// What T5's stacks are made of, whatever a checkpoint calls it.
#pragma once

#include <cstdint>

#include "models/config.h"

namespace faststream::convert {

struct T5Shape {
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t positions = 512;  ///< of the training
  int64_t n_layers = 0;     ///< of the encoder
  int64_t n_decoder_layers = 0;
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn_size = 0;
  int64_t buckets = 0;  ///< see RelativeBiasConfig
  int64_t max_distance = 128;
  bool gated = false;
  Activation activation = Activation::relu;
  float norm_eps = 1e-6F;
};

/// The encoder by itself, whose tokens see each other and which gives hidden states, or the decoder
/// without what looks at the encoder.
ModelConfig make_t5_stack(const T5Shape& shape, bool bidirectional);

/// Both, with one embedding, which is the output matrix too.
ModelConfig make_t5(const T5Shape& shape);

}  // namespace faststream::convert
