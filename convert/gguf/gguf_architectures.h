// The architectures of GGUF files that can be converted, and what each has of its own.
#pragma once

#include <string_view>

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_source.h"

namespace faststream::convert {

/// Where the members of rotary pairs are in a head.
enum class GgufPairs {
  none,          ///< nothing is rotated
  halves,        ///< llama.cpp calls it NEOX
  side_by_side,  ///< and this NORM
};

struct GgufArchitecture {
  std::string_view name;  ///< "general.architecture"
  GgufPairs pairs = GgufPairs::halves;
  Activation activation = Activation::silu;
  /// Adds what metadata and tensors alone do not say; null: nothing.
  void (*adjust)(const GgufSource&, GgufFamilyModel&) = nullptr;
  /// Whether adjust() knows layers of different sizes; the plain decoder has the first one's.
  bool sizes_differ = false;
  /// Of all norms, whatever their epsilon is called; none: as it is called.
  NormKind norms = NormKind::none;
  /// Whether layers that predict further tokens are like the model's last ones with attention.
  bool predicts = false;
  /// In place of all that: of models whose metadata and tensors are not read as others'.
  GgufFamilyModel (*describe)(const GgufSource&) = nullptr;
};

/// Throws Error when there is no such architecture.
const GgufArchitecture& find_gguf_architecture(const GgufSource& source);

/// Whether its attention is latent, so that "key_length" and "value_length" are of what is kept.
bool has_latent_attention(const GgufSource& source);

/// Latent attention, of DeepSeek V2 and V3 and what has their layers, and its modules' names. Where
/// keys' lengths are of what is kept, products of latents lie by themselves, k's transposed
/// already; in older files they are one.
LatentAttentionConfig latent_attention_of(const GgufSource& source, GgufFamilyModel& model);

/// Throws Error when the metadata ask for a factor that their architecture does not know.
void refuse_scalings(const GgufSource& source);

}  // namespace faststream::convert
