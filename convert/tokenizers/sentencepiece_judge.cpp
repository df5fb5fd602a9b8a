#include "convert/tokenizers/sentencepiece_judge.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <vector>

#include "support/error.h"
#include "support/printable.h"
#include "support/split_mix.h"

namespace faststream::convert {
namespace {

// Spaces, letters that are composed, widened, ligatures or rare, signs, and bytes that are none.
constexpr std::array<std::string_view, 24> kParts = {" ",
                                                     "  ",
                                                     "\n",
                                                     "\t",
                                                     "a",
                                                     "The ",
                                                     "user",
                                                     "1",
                                                     "2024",
                                                     ".",
                                                     "\"",
                                                     "\u00E9",
                                                     "e\u0301",
                                                     "\u00A0",
                                                     "\u2581",
                                                     "\uFB01",
                                                     "\uFF21",
                                                     "\u4F60\u597D",
                                                     "\u0645\u0631",
                                                     "\u200B",
                                                     "\U0001F642",
                                                     "\uFFFD",
                                                     "<s>",
                                                     "\xC3"};

/// Texts that are the same for the same vocabulary.
class TextMaker {
 public:
  explicit TextMaker(const sentencepiece::SentencePieceProcessor& library) : library_(library) {}

  std::string make(int n_parts) {
    std::string text;
    for (int i = 0; i < n_parts; ++i) {
      if (below(3) == 0) {
        text += kParts.at(below(kParts.size()));
      } else {
        std::string piece = library_.IdToPiece(
            static_cast<int>(below(static_cast<uint64_t>(library_.GetPieceSize()))));
        piece.resize(std::min(piece.size(), kMostOfAPiece));
        if (below(2) == 0) replace_space_symbols(piece);
        text += piece;
      }
    }
    return text;
  }

 private:
  static constexpr size_t kMostOfAPiece = 1024;  // real ones have less; bytes that are cut are none

  uint64_t below(uint64_t bound) { return split_mix(1, ++n_drawn_) % bound; }

  static void replace_space_symbols(std::string& piece) {
    constexpr std::string_view kSymbol = "\u2581";
    for (size_t at = piece.find(kSymbol); at != std::string::npos; at = piece.find(kSymbol, at)) {
      piece.replace(at, kSymbol.size(), " ");
    }
  }

  const sentencepiece::SentencePieceProcessor& library_;
  uint64_t n_drawn_ = 0;
};

}  // namespace

void compare_with_sentencepiece(const SentencePieceModel& model, const Tokenizer& tokenizer,
                                std::string_view where) {
  const auto refuse = [where](const std::string& what) {
    throw Error(std::string(where) + ": " + what);
  };
  sentencepiece::SentencePieceProcessor library;
  std::string refusal;
  try {
    const auto status = library.LoadFromSerializedProto(serialize_sentencepiece_model(model));
    if (!status.ok()) refusal = status.ToString();
  } catch (const std::exception& error) {  // its trie builder throws
    refusal = error.what();
  }
  if (!refusal.empty()) {
    refuse("SentencePiece cannot load the tokenizer (" + printable(refusal) +
           "); use the model's original one");
  }
  constexpr int kTexts = 300;
  constexpr int kMostParts = 24;
  TextMaker texts(library);
  for (int i = 0; i < kTexts; ++i) {
    const std::string text = texts.make(1 + i % kMostParts);
    std::vector<int> expected;
    // It fails where the text spells a control piece of one character.
    if (!library.Encode(text, &expected).ok()) continue;
    const std::vector<int32_t> ids = tokenizer.encode(text, false);
    if (!std::equal(ids.begin(), ids.end(), expected.begin(), expected.end())) {
      refuse("SentencePiece splits the text " + in_quotes(text) +
             " otherwise than this program; please report it with the tokenizer");
    }
    std::string decoded;
    if (library.Decode(expected, &decoded).ok() && decoded != tokenizer.decode(ids)) {
      refuse("SentencePiece makes another text of the tokens of " + in_quotes(text) +
             " than this program; please report it with the tokenizer");
    }
  }
}

}  // namespace faststream::convert
