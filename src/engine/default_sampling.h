// What the makers of a model recommend for sampling from it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "engine/sampling.h"
#include "model_file/model_file.h"

namespace faststream {

/// The keys of the settings (engine/request_settings.h) that a model file may recommend.
std::span<const std::string_view> recommended_keys();

/// SamplingParams with the members of `json`, any of recommended_keys(). Throws Error, starting
/// with `where`, for other members and values out of range.
SamplingParams sampling_from_json(const nlohmann::json& json, std::string_view where);

/// Those in a model file's header under "sampling"; without them SamplingParams' own.
SamplingParams default_sampling(const ModelFile& file);

}  // namespace faststream
