// Checkpoints in the folder format of Hugging Face's Transformers.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "convert/source_model.h"

namespace faststream::convert {

/// The part of a config.json that is about the text model: all of it, or in a multimodal one
/// "text_config" (or what else it is called) with what the whole says of tokens and of the output.
nlohmann::json text_config(const nlohmann::json& config);

/// Gives the weights and biases of layer normalizations that are called gamma and beta, as BERT's
/// first checkpoints have it, the names that they have since.
void rename_old_norms(Checkpoint& weights);

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

/// Opens a folder with config.json, safetensors and, unless `tokenizer` names another, a tokenizer.
/// Its weights are read as its own adapter for the task changes them (merge_task()), and then those
/// in these folders, one after the other. Throws Error, naming the file, when one is missing,
/// unsound or not supported.
SourceModel open_hf_folder(const std::filesystem::path& folder,
                           const std::optional<std::filesystem::path>& tokenizer,
                           std::span<const std::filesystem::path> adapter_folders = {},
                           std::string_view task = {});

}  // namespace faststream::convert
