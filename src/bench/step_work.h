// What a step cannot do without: the bytes it reads and the operations it does.
#pragma once

#include <cstdint>

#include "models/config.h"
#include "support/kv_format.h"

namespace faststream::bench {

/// How fast a device is at what bounds everything else, as measured (ceilings.h).
struct Ceilings {
  double memory = 0;       ///< bytes read a second
  double weights = 0;      ///< operations a second of products with matrices of the weights' type
  double activations = 0;  ///< the same of the activations' type
};

/// A multiplication and an addition are two operations. What is read is counted once a step,
/// activations not at all: a perfect program would keep them on the chip.
struct StepWork {
  double weight_bytes = 0;
  double kv_bytes = 0;        ///< keys and values, of which new ones are written, and states
  double weight_ops = 0;      ///< of products with matrices of the weights' type
  double activation_ops = 0;  ///< of attention, and of products with other matrices

  [[nodiscard]] double bytes() const { return weight_bytes + kv_bytes; }
  [[nodiscard]] double memory_seconds(const Ceilings& ceilings) const {
    return bytes() / ceilings.memory;
  }
  [[nodiscard]] double arithmetic_seconds(const Ceilings& ceilings) const {
    return weight_ops / ceilings.weights + activation_ops / ceilings.activations;
  }
  StepWork& operator+=(const StepWork& other);
};

/// Of a step in which each of `sequences` sequences has n_new tokens after n_cached, and wants the
/// logits of the last. kv: how keys and values are kept (kv_type_of()). Of experts as many are read
/// as tokens use that choose at random.
StepWork step_work(const ModelConfig& config, KvType kv, int64_t sequences, int64_t n_cached,
                   int64_t n_new);

/// The attention of one layer in such a step.
struct AttentionShape {
  int64_t sequences = 0;
  int64_t n_cached = 0;
  int64_t n_new = 0;
  int64_t n_heads = 0;
  KvGeometry geometry;
  KvType kv;
  int64_t head_dims = 0;  ///< of a key and a value that heads make of latents; 0: they do not
};
StepWork attention_work(const AttentionShape& shape);

/// The same of a mixer that keeps a state, which is read and written once.
StepWork recurrent_work(const RecurrentShape& shape, int64_t sequences, int64_t n_new);

/// Work and time, against the ceiling that is reached first.
struct Share {
  double ceiling_seconds = 0;  ///< that the work would take
  bool by_memory = false;      ///< the ceiling is memory's, not arithmetic's
};
Share share_of(const StepWork& work, const Ceilings& ceilings);

}  // namespace faststream::bench
