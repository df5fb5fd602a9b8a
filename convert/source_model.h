// A checkpoint as the pipeline sees it, whatever format and family it came from.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/added_tokens.h"
#include "convert/checkpoint.h"
#include "models/config.h"
#include "text/tokenizer.h"
#include "text/tokenizer_description.h"

namespace faststream {

/// Rows of a model file's tensor that one tensor of the checkpoint provides.
struct TensorPart {
  std::string source;          ///< the checkpoint's name
  std::vector<int64_t> shape;  ///< that it must have there; the model file gets all its rows
  /// 0, or the head_dim of a checkpoint that keeps the members of a rotary pair side by side: rows
  /// 2i and 2i + 1 of a head become rows i and i + head_dim / 2.
  int64_t interleaved_head_dim = 0;
};

/// The parts of each tensor of models/config.h's tensor_plan(), scales aside, top to bottom.
/// "output" is always there; for a tied model it comes from the embedding table.
using TensorParts = std::map<std::string, std::vector<TensorPart>>;

struct SourceModel {
  ModelConfig config;  ///< weights, embedding and output: the checkpoint's own type
  TokenizerConfig tokenizer;
  std::string tokenizer_model;  ///< the tensor: a SentencePiece model, or compiled tables
  std::optional<TokenizerDescription> tokenizer_description;  ///< which these are compiled from
  nlohmann::json chat_template;   ///< Jinja, or {"default": Jinja, "tool_use": Jinja}, or null
  nlohmann::json special_tokens;  ///< their spellings, as ChatTemplate takes them, or null
  nlohmann::json sampling;  ///< what sampling_from_json() takes; null where nothing is recommended
  Checkpoint weights;
  TensorParts parts;
  std::vector<AddedToken> added_tokens;  ///< which the tokenizer must have
  SourceFiles files;                     ///< all that were read
};

/// Opens a checkpoint: a Hugging Face folder, a GGUF file or a llama2.c file. `tokenizer` replaces
/// the one that comes with it. Throws Error when it is neither, incomplete or not supported. When
/// this returns, every tensor that the configuration asks for is there, in the right shape, and the
/// tokenizer has a token for each row of the vocabulary but for padding.
SourceModel open_source_model(const std::filesystem::path& path,
                              const std::optional<std::filesystem::path>& tokenizer);

/// Throws Error, naming the first, when the checkpoint has tensors that no part asks for, but for
/// those that `is_derived` knows by name: a model with more tensors is another model, and its text
/// would be wrong.
void refuse_unknown_tensors(const SourceModel& model,
                            const std::function<bool(std::string_view)>& is_derived);

}  // namespace faststream
