// Llama checkpoints in the folder format of Hugging Face's Transformers.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "convert/source_model.h"

namespace faststream {

/// The hyperparameters in a config.json of Transformers 4 (rope_theta, rope_scaling) or 5
/// (rope_parameters). Members that are absent have the defaults of Transformers' LlamaConfig; the
/// types of weights are left at f32. Throws Error, starting with `where`, when a member is missing,
/// of the wrong type or out of range, or asks for something that FastStream does not do.
ModelConfig llama_config_from_hf(const nlohmann::json& config, std::string_view where);

/// Which ids begin and end a text, from config.json, generation_config.json (which has the last
/// word on where a text ends) and tokenizer_config.json; the latter two may be empty objects.
/// Throws Error, starting with `where`.
TokenizerConfig tokenizer_config_from_hf(const nlohmann::json& config,
                                         const nlohmann::json& generation_config,
                                         const nlohmann::json& tokenizer_config,
                                         std::string_view where);

/// What a generation_config.json recommends for sampling, as sampling_from_json() takes it; null
/// where it recommends nothing. Throws Error, starting with `where`, for what no sampling can be.
nlohmann::json sampling_from_hf(const nlohmann::json& generation_config, std::string_view where);

/// Opens a folder with config.json, safetensors and, unless `tokenizer` names another,
/// tokenizer.model. Throws Error, naming the file, when one is missing, unsound or not supported.
SourceModel open_hf_llama(const std::filesystem::path& folder,
                          const std::optional<std::filesystem::path>& tokenizer);

}  // namespace faststream
