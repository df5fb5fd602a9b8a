// Families of decoders: what config.json means and what the tensors are called.
//
// A family is a function in a file of its own that turns config.json into the description of the
// model (models/config.h) and the names of the checkpoint's modules (convert/families/modules.h).
// docs/new-family.md shows how to add one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/families/modules.h"
#include "convert/rope_rules.h"
#include "models/config.h"
#include "support/json.h"

namespace faststream {

/// What a family has to go by.
struct FamilySource {
  JsonView config;            ///< config.json, or its part about the text model
  const Checkpoint& weights;  ///< the text model's tensors alone
};

struct FamilyModel {
  ModelConfig config;  ///< valid; types of weights left as they are by default
  Modules modules = {};
  /// Changes what modules cannot say; may be empty.
  std::function<void(TensorParts&)> finish = {};
};

/// The model that config.json describes: by its architecture, or where it names none by its model
/// type. Throws Error, starting with `where`, when a member is missing, of the wrong type or out of
/// range, or the architecture or something that it asks for is not supported.
FamilyModel describe_family(const FamilySource& source, std::string_view where);

// For families. ---------------------------------------------------------------------------------

/// A whole number from 1 to `most` that must be there, or has a value when it is not.
int64_t count_in(const JsonView& config, std::string_view key, int64_t most = int64_t{1} << 24);
int64_t count_in(const JsonView& config, std::string_view key, int64_t most, int64_t otherwise);

/// The sizes that config.json gives under the names that most families use; members that are absent
/// have the defaults of most, and "head_dim" is hidden_size / num_attention_heads.
PlainShape shape_in(const JsonView& config);

/// hidden / n_heads. Throws Error unless it is whole.
int64_t head_dim_of(const JsonView& config, const PlainShape& shape);

/// plain_decoder() of the shape, with config.json's rotation, "tie_word_embeddings" or else `tied`,
/// and the activation that "hidden_act" names, if any.
ModelConfig plain_decoder_in(const JsonView& config, const PlainShape& shape, bool tied = false);

/// The activation that a member names as Transformers does ("silu", "gelu_new", ...).
Activation activation_in(const JsonView& config, std::string_view key, std::string_view otherwise);

/// "rms_norm_eps" and its like.
float eps_in(const JsonView& config, std::string_view key, double otherwise);

/// A finite number.
float number_in(const JsonView& config, std::string_view key, double otherwise);

/// "layer_types", as many as there are layers; empty when there is no such member.
std::vector<std::string> layer_types_in(const JsonView& config, int64_t n_layers);

/// Gives the description a second kind of layer after the first, and each layer whose number `is`
/// accepts that kind.
LayerConfig& add_layer_kind(ModelConfig& config, std::string_view name,
                            const std::function<bool(int64_t)>& is);

/// Throws Error when the member is true (or, for a number, not 0): `what` the model would need.
void refuse_if(const JsonView& config, std::string_view key, std::string_view what);

/// 1 / sqrt(size): the scale of scores, unless a family has another.
float inverse_root(double size);

// The families, a file each. --------------------------------------------------------------------

FamilyModel describe_llama(const FamilySource& source);

}  // namespace faststream
