#include "convert/tokenizers/separate_vocabulary.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/tokenizers/vocabulary_json.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "support/utf8.h"
#include "text/sentencepiece_model.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Piece = SentencePieceModel::Piece;
using PieceType = SentencePieceModel::PieceType;

constexpr uint64_t kMaxModelBytes = uint64_t{64} << 20;
constexpr int32_t kMaxExtraIds = 1000;
constexpr const char* kEnd = "</s>";
constexpr const char* kUnknown = "<unk>";

SentencePieceModel read_model(const fs::path& path, SourceFiles& files) {
  const std::string bytes = files.read(path, kMaxModelBytes);
  return parse_sentencepiece_model(std::as_bytes(std::span(bytes)), path.string());
}

// Language codes of Marian's, and what texts have no words for.
bool is_control(std::string_view text) {
  return text == "<s>" || text == kEnd || text == "<pad>" ||
         (text.starts_with(">>") && text.ends_with("<<"));
}

// Gives a model's pieces the places that a vocabulary has for them. What the model does not have is
// never found in a text, but for single characters: those that are unknown to the model are looked
// up in the vocabulary all the same. They cost what unknown ones do. (Of several
// in a row Transformers makes one, most often unknown.)
void reorder(SentencePieceModel& model, std::vector<std::string> by_id) {
  constexpr float kUnknownPenalty = 10;  // SentencePiece's
  std::map<std::string, Piece, std::less<>> pieces;
  float lowest = 0;
  for (const Piece& piece : model.pieces) {
    pieces.emplace(piece.text, piece);
    if (piece.type == PieceType::normal) lowest = std::min(lowest, piece.score);
  }
  const auto is_character = [](const std::string& text) {
    return utf8_character(text) == static_cast<int>(text.size());
  };
  std::vector<Piece> ordered;
  for (std::string& text : by_id) {
    const auto found = pieces.find(text);
    Piece piece{.text = std::move(text), .type = PieceType::unused};
    if (is_character(piece.text)) {
      piece.type = PieceType::normal;
      piece.score = lowest - kUnknownPenalty;
    }
    if (found != pieces.end() && found->second.type != PieceType::unknown) piece = found->second;
    if (is_control(piece.text)) piece.type = PieceType::control;
    if (piece.text == kUnknown) piece.type = PieceType::unknown;
    ordered.push_back(std::move(piece));
  }
  model.pieces = std::move(ordered);
}

int32_t id_of(const SentencePieceModel& model, std::string_view text, const fs::path& path) {
  const auto found = std::ranges::find(model.pieces, text, &Piece::text);
  if (found != model.pieces.end()) return static_cast<int32_t>(found - model.pieces.begin());
  throw Error(path.string() + ": has no token " + in_quotes(text));
}

TokenizerFile finished(const fs::path& path, SentencePieceModel model,
                       std::vector<int32_t> prefix = {}) {
  const int32_t end = id_of(model, kEnd, path);
  model.unk_id = id_of(model, kUnknown, path);
  model.eos_id = end;
  model.bos_id = model.pad_id = -1;
  TokenizerConfig config;
  config.eos = {end};
  config.prefix = std::move(prefix);
  config.suffix = {end};
  return {.path = path,
          .sentencepiece = serialize_sentencepiece_model(model),
          .config = std::move(config)};
}

TokenizerFile read_side(const fs::path& path, const fs::path& vocabulary, SourceFiles& files) {
  SentencePieceModel model = read_model(path, files);
  reorder(model, read_vocabulary_json(vocabulary, files));
  return finished(path, std::move(model));
}

TokenizerFiles read_marian(const fs::path& folder, SourceFiles& files) {
  TokenizerFile of_sources = read_side(folder / "source.spm", folder / "vocab.json", files);
  const json config = files.read_json(folder / "tokenizer_config.json");
  const JsonView view(config, (folder / "tokenizer_config.json").string());
  if (!view.get("separate_vocabs", false)) return {std::move(of_sources)};
  return {.tokenizer = read_side(folder / "target.spm", folder / "target_vocab.json", files),
          .encoder = std::move(of_sources)};
}

// The tokens "__LANGUAGE__" that follow the vocabulary, in their order.
std::vector<std::string> m2m_languages(const fs::path& folder, SourceFiles& files) {
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const json config = files.read_json(folder / name);
    const JsonView view(config, (folder / name).string());
    const auto list = view.find("additional_special_tokens");
    if (!list) continue;
    std::vector<std::string> languages;
    for (const JsonView& token : list->elements()) {
      languages.push_back(token.value().is_object() ? token.get<std::string>("content")
                                                    : token.as<std::string>());
    }
    if (!languages.empty()) return languages;
  }
  throw Error(folder.string() +
              ": neither special_tokens_map.json nor tokenizer_config.json lists the languages "
              "(\"additional_special_tokens\")");
}

TokenizerFile read_m2m_100(const fs::path& folder, SourceFiles& files) {
  const fs::path path = folder / "sentencepiece.bpe.model";
  SentencePieceModel model = read_model(path, files);
  reorder(model, read_vocabulary_json(folder / "vocab.json", files));
  for (std::string& language : m2m_languages(folder, files)) {
    model.pieces.push_back({.text = std::move(language), .type = PieceType::control});
  }
  const json config = files.read_json(folder / "tokenizer_config.json");
  const auto source = JsonView(config, (folder / "tokenizer_config.json").string())
                          .get<std::string>("src_lang", "en");
  const int32_t language = id_of(model, "__" + source + "__", folder);
  return finished(path, std::move(model), {language});
}

// The tokens of languages behind a model of a few languages, or of many, in their order.
std::vector<std::string> plbart_languages(const JsonView& config) {
  std::vector<std::string> languages = {"__java__", "__python__", "__en_XX__"};
  const auto codes = config.get<std::string>("language_codes", "base");
  if (codes == "base") return languages;
  if (codes != "multi") config.member("language_codes").fail("is neither \"base\" nor \"multi\"");
  languages.insert(languages.end(), {"__javascript__", "__php__", "__ruby__", "__go__"});
  return languages;
}

// What stands before the pieces of fairseq's vocabulary, in place of a model's first ones.
void put_before_pieces(SentencePieceModel& model, const fs::path& path) {
  const std::array<std::string_view, 3> first = {kUnknown, "<s>", kEnd};
  const std::span<const Piece> pieces = model.pieces;
  if (pieces.size() < first.size() ||
      !std::ranges::equal(first, pieces.first(first.size()), {}, {}, &Piece::text)) {
    throw Error(path.string() + ": does not begin with the tokens <unk>, <s> and </s>");
  }
  std::vector<std::string> by_id = {"<s>", "<pad>", kEnd, kUnknown};
  for (const Piece& piece : pieces.subspan(first.size())) by_id.push_back(piece.text);
  reorder(model, std::move(by_id));
}

TokenizerFile read_plbart(const fs::path& folder, const JsonView& config, SourceFiles& files) {
  const fs::path path = folder / "sentencepiece.bpe.model";
  SentencePieceModel model = read_model(path, files);
  put_before_pieces(model, path);
  std::vector<std::string> after = plbart_languages(config);
  const bool has_few = config.get<std::string>("language_codes", "base") == "base";
  if (has_few) after.emplace_back("<mask>");
  for (std::string& token : after) {
    model.pieces.push_back({.text = std::move(token), .type = PieceType::control});
  }
  std::string language = has_few ? "" : "__en_XX__";
  if (const auto named = config.find("src_lang")) language = named->as<std::string>();
  if (!language.empty() && !language.starts_with("__")) language = "__" + language + "__";
  std::vector<int32_t> behind;
  if (!language.empty()) behind.push_back(id_of(model, language, folder));
  TokenizerFile file = finished(path, std::move(model));
  file.config->suffix.insert(file.config->suffix.end(), behind.begin(), behind.end());
  return file;
}

TokenizerFile read_t5(const fs::path& folder, SourceFiles& files) {
  const fs::path path = folder / "spiece.model";
  SentencePieceModel model = read_model(path, files);
  const json config = files.read_json(folder / "tokenizer_config.json");
  const auto extra =
      JsonView(config, (folder / "tokenizer_config.json").string()).find("extra_ids");
  for (int32_t n = extra ? extra->as<int32_t>(0, kMaxExtraIds) : 100; n > 0; --n) {
    model.pieces.push_back(
        {.text = "<extra_id_" + std::to_string(n - 1) + ">", .type = PieceType::control});
  }
  return finished(path, std::move(model));
}

}  // namespace

std::optional<TokenizerFiles> read_separate_vocabulary(const fs::path& folder, SourceFiles& files) {
  const auto has = [&folder](const char* name) { return fs::exists(folder / name); };
  if (has("source.spm") && has("vocab.json")) return read_marian(folder, files);
  if (has("sentencepiece.bpe.model") && has("vocab.json")) {
    return TokenizerFiles{read_m2m_100(folder, files)};
  }
  if (has("sentencepiece.bpe.model")) {
    const json config = files.read_json(folder / "tokenizer_config.json");
    const JsonView view(config, (folder / "tokenizer_config.json").string());
    if (view.get<std::string>("tokenizer_class", "") == "PLBartTokenizer") {
      return TokenizerFiles{read_plbart(folder, view, files)};
    }
  }
  if (has("spiece.model")) return TokenizerFiles{read_t5(folder, files)};
  return std::nullopt;
}

}  // namespace faststream::convert
