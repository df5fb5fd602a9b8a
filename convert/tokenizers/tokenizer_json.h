// The tokenizer of a Hugging Face folder: tokenizer.json and the files beside it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "convert/source_files.h"
#include "text/tokenizer.h"
#include "text/tokenizer_description.h"

namespace faststream::convert {

struct HfTokenizer {
  TokenizerDescription description;
  /// Of the kind "compiled". `eos` is what tokenizer_config.json says alone; prefix and suffix are
  /// what Transformers 5 puts around a text.
  TokenizerConfig config;
};

/// Reads a tokenizer.json, whatever its name, and tokenizer_config.json and special_tokens_map.json
/// beside it where they are. Throws Error, naming the file, when one is not as it should be. What
/// is in the description may still be unknown to compile_tokenizer().
HfTokenizer read_tokenizer_json(const std::filesystem::path& path, SourceFiles& files);

/// The same from JSON objects; `tokenizer_config` and `special_tokens_map` may be empty ones, and
/// `where` is the folder's name, `name` the file's in it.
HfTokenizer tokenizer_from_json(nlohmann::json tokenizer, const nlohmann::json& tokenizer_config,
                                const nlohmann::json& special_tokens_map, std::string_view where,
                                std::string_view name = "tokenizer.json");

}  // namespace faststream::convert
