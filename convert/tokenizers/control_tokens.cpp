#include "convert/tokenizers/control_tokens.h"

#include <algorithm>
#include <span>

#include "text/sentencepiece_model.h"

namespace faststream::convert {

void add_control_tokens(const ControlTokens& control, std::string_view where, std::string& model,
                        TokenizerConfig& config) {
  SentencePieceModel parsed = parse_sentencepiece_model(std::as_bytes(std::span(model)), where);
  const auto id_of = [&](const std::string& text) {
    const auto found = std::ranges::find(parsed.pieces, text, &SentencePieceModel::Piece::text);
    if (found == parsed.pieces.end()) {
      parsed.pieces.push_back({text, 0, SentencePieceModel::PieceType::control});
      return static_cast<int32_t>(parsed.pieces.size() - 1);
    }
    return static_cast<int32_t>(found - parsed.pieces.begin());
  };
  for (const std::string& token : control.tokens) (void)id_of(token);
  if (!control.prefix.empty()) {
    config.bos.reset();
    config.prefix.clear();
    for (const std::string& token : control.prefix) config.prefix.push_back(id_of(token));
  }
  for (const std::string& token : control.ends) config.eos.push_back(id_of(token));
  model = serialize_sentencepiece_model(parsed);
}

}  // namespace faststream::convert
