// Control tokens that a family's own tokenizer class knows and a SentencePiece model does not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace faststream::convert {

struct ControlTokens {
  std::vector<std::string> tokens = {};  ///< behind those of the model, in the order of their ids
  std::vector<std::string> prefix = {};  ///< of them, what begins every text in the place of BOS
  std::vector<std::string> ends = {};    ///< and what ends one, besides what the checkpoint says
};

/// Adds those that a serialized SentencePiece model lacks, and says in `config` what they do.
/// Throws Error, starting with `where`, when the model is damaged.
void add_control_tokens(const ControlTokens& control, std::string_view where, std::string& model,
                        TokenizerConfig& config);

}  // namespace faststream::convert
