// What the makers of a model recommend for sampling from it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "engine/sampling.h"
#include "model_file/model_file.h"

namespace faststream {

/// SamplingParams with the members of `json`: any of temperature, top_k, top_p, min_p,
/// repetition_penalty, presence_penalty, frequency_penalty. Throws Error, starting with `where`,
/// for other members and values that validate() refuses.
SamplingParams sampling_from_json(const nlohmann::json& json, std::string_view where);

/// Those in a model file's header under "sampling"; without them SamplingParams' own.
SamplingParams default_sampling(const ModelFile& file);

}  // namespace faststream
