#include "convert/tokenizers/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "convert/tokenizers/pretokenizers.h"
#include "support/error.h"
#include "support/printable.h"
#include "support/utf8.h"
#include "text/sentencepiece_model.h"

namespace faststream::convert {
namespace {

using nlohmann::json;
using PieceType = SentencePieceModel::PieceType;  // numbered as GGUF's types of tokens

// The vocabulary of any kind of tokenizer.
struct Vocabulary {
  std::vector<std::string> texts;
  std::vector<float> scores;                          // as many, or none
  std::vector<PieceType> types;                       // as many
  std::unordered_map<std::string_view, int32_t> ids;  // by text
  std::vector<bool> merged;                           // as many, or none: those that a merge makes

  [[nodiscard]] std::optional<int32_t> find(std::string_view text) const {
    const auto found = ids.find(text);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] PieceType& type(int32_t id) { return types[static_cast<size_t>(id)]; }
};

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kMerges = "tokenizer.ggml.merges";

Vocabulary read_vocabulary(const GgufMetadata& metadata) {
  Vocabulary vocabulary;
  const std::vector<std::string>* texts = metadata.find_strings(kTokens);
  if (texts == nullptr || texts->empty()) metadata.fail(kTokens, "is missing from the metadata");
  vocabulary.texts = *texts;
  for (size_t id = 0; id < vocabulary.texts.size(); ++id) {
    std::string& text = vocabulary.texts[id];
    const std::string name = "has a token " + std::to_string(id) + " that ";
    if (text.empty()) text = "[EMPTY_" + std::to_string(id) + "]";
    if (!is_valid_utf8(text)) metadata.fail(kTokens, name + "is not UTF-8 text");
    const auto [other, is_new] = vocabulary.ids.emplace(text, static_cast<int32_t>(id));
    if (!is_new) metadata.fail(kTokens, name + "repeats token " + std::to_string(other->second));
  }
  vocabulary.scores = metadata.numbers(kScores);
  if (!vocabulary.scores.empty() && vocabulary.scores.size() != vocabulary.texts.size()) {
    metadata.fail(kScores, "has " + std::to_string(vocabulary.scores.size()) + " scores for " +
                               std::to_string(vocabulary.texts.size()) + " tokens");
  }
  const std::vector<int32_t> types = metadata.integers(kTypes);
  if (!types.empty() && types.size() != vocabulary.texts.size()) {
    metadata.fail(kTypes, "has " + std::to_string(types.size()) + " types for " +
                              std::to_string(vocabulary.texts.size()) + " tokens");
  }
  vocabulary.types.assign(vocabulary.texts.size(), PieceType::normal);
  for (size_t id = 0; id < types.size(); ++id) {
    const bool known = types[id] >= 1 && types[id] <= 6;
    if (known) vocabulary.types[id] = static_cast<PieceType>(types[id]);
  }
  return vocabulary;
}

// --- Tokens with a meaning
// ------------------------------------------------------------------------

// Texts of tokens that end a text whatever the metadata says (llama.cpp's llama-vocab.cpp: its list
// of "end of generation" and those that it takes for the end of a file in code models).
constexpr std::array<std::string_view, 33> kEnds = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};

// Tokens of gpt-oss that are seen in texts, whatever their type says.
constexpr std::array<std::string_view, 4> kChannelMarks = {"<|channel|>", "<|message|>",
                                                           "<|start|>", "<|constrain|>"};

// A token that the metadata names, or `otherwise`; nothing for one that is not in the vocabulary.
std::optional<int32_t> special_token(const GgufMetadata& metadata, const Vocabulary& vocabulary,
                                     std::string_view name,
                                     std::optional<int32_t> otherwise = std::nullopt) {
  const std::string key = "tokenizer.ggml." + std::string(name) + "_token_id";
  const auto size = static_cast<int64_t>(vocabulary.texts.size());
  const auto named = metadata.find_integer(key);
  const std::optional<int64_t> id =
      named && *named >= 0 && *named < size ? named : std::optional<int64_t>(otherwise);
  if (!id || *id >= size) return std::nullopt;
  return static_cast<int32_t>(*id);
}

// All tokens that end a text, the one that the metadata calls so first; they become control tokens.
std::vector<int32_t> end_tokens(const GgufMetadata& metadata, Vocabulary& vocabulary,
                                std::optional<int32_t> eos) {
  std::vector<int32_t> ends;
  const auto add = [&](std::optional<int32_t> id) {
    if (id && std::ranges::find(ends, *id) == ends.end()) ends.push_back(*id);
  };
  add(eos);
  for (const char* name : {"eot", "eom", "fim_pad", "fim_rep", "fim_sep"}) {
    add(special_token(metadata, vocabulary, name));
  }
  for (const std::string_view text : kEnds) {
    const auto id = vocabulary.find(text);
    add(id);
    if (!id) continue;
    // Qwen's "</s>", for one, is an ordinary token.
    const bool is_ordinary =
        !vocabulary.merged.empty() && vocabulary.merged[static_cast<size_t>(*id)];
    if (!is_ordinary) vocabulary.type(*id) = PieceType::control;
  }
  // In some vocabularies one of these is something else.
  const auto ends_here = [&](std::string_view text) {
    const auto id = vocabulary.find(text);
    return id && std::ranges::find(ends, *id) != ends.end();
  };
  const auto make = [&](std::string_view text, PieceType type) {
    const auto id = vocabulary.find(text);
    if (!id || id == eos) return;
    std::erase(ends, *id);
    vocabulary.type(*id) = type;
  };
  const bool harmony = ends_here("<|call|>") && ends_here("<|return|>");
  const bool solar = (ends_here("<|call|>") || ends_here("<|calls|>")) && ends_here("<|flush|>");
  if (harmony || solar) make("<|end|>", PieceType::user_defined);
  if (ends_here("<|tool_response>")) make("</s>", PieceType::normal);
  return ends;
}

// --- SentencePiece
// --------------------------------------------------------------------------------

// A model has one unknown piece; others that are called so are never found in a text.
void settle_unknown(const GgufMetadata& metadata, Vocabulary& vocabulary,
                    std::optional<int32_t> named, SentencePieceModel& model) {
  const auto first = std::ranges::find(vocabulary.types, PieceType::unknown);
  const bool is_unknown = named && vocabulary.type(*named) == PieceType::unknown;
  if (first != vocabulary.types.end() && !is_unknown) {
    named = static_cast<int32_t>(first - vocabulary.types.begin());
  }
  if (!named) metadata.fail("tokenizer.ggml.unknown_token_id", "is missing from the metadata");
  std::ranges::replace(vocabulary.types, PieceType::unknown, PieceType::control);
  vocabulary.type(*named) = PieceType::unknown;
  model.unk_id = *named;
}

// llama.cpp finds user-defined tokens in the text as it is, so that files write Gemma's runs of
// spaces as spaces; SentencePiece finds them where spaces are "▁" already.
void write_as_pieces(const GgufMetadata& metadata, Vocabulary& vocabulary) {
  for (size_t id = 0; id < vocabulary.texts.size(); ++id) {
    std::string& text = vocabulary.texts[id];
    if (vocabulary.types[id] != PieceType::user_defined) continue;
    if (text.find(' ') == std::string::npos) continue;
    vocabulary.ids.erase(text);
    text = with_space_symbols(text);
    const auto [other, is_new] = vocabulary.ids.emplace(text, static_cast<int32_t>(id));
    if (is_new) continue;
    metadata.fail(kTokens, "has a token " + std::to_string(id) + " that repeats token " +
                               std::to_string(other->second) + " when its spaces are \"▁\"");
  }
}

// What stands before and after a text.
void surround(TokenizerConfig& config, bool add_bos, bool add_eos) {
  if (add_bos && config.bos) config.prefix = {*config.bos};
  if (add_eos && !config.eos.empty()) config.suffix = {config.eos.front()};
}

// What llama.cpp's server puts between the texts of a pair, where the metadata say nothing else.
void set_between(const GgufMetadata& metadata, const Vocabulary& vocabulary, bool add_eos,
                 bool add_separator, TokenizerConfig& config) {
  std::vector<int32_t> between;
  const auto asks = [&](const char* key, bool otherwise) {
    return metadata.find_boolean(key).value_or(otherwise);
  };
  if (asks("tokenizer.ggml.add_eos_token", add_eos) && !config.eos.empty()) {
    between.push_back(config.eos.front());
  }
  const auto separator =
      special_token(metadata, vocabulary, "seperator",  // sic
                    config.eos.empty() ? std::nullopt : std::optional(config.eos.front()));
  if (asks("tokenizer.ggml.add_sep_token", add_separator) && separator) {
    between.push_back(*separator);
  }
  if (!between.empty()) config.between = std::move(between);
}

GgufTokenizer read_sentencepiece(const GgufMetadata& metadata, Vocabulary vocabulary,
                                 SentencePieceModel::Algorithm algorithm) {
  const bool is_bpe = algorithm == SentencePieceModel::Algorithm::bpe;
  if (vocabulary.scores.empty()) metadata.fail(kScores, "is missing from the metadata");
  GgufTokenizer tokenizer;
  using Id = std::optional<int32_t>;
  tokenizer.config.bos = special_token(metadata, vocabulary, "bos", is_bpe ? Id(1) : std::nullopt);
  const Id eos = special_token(metadata, vocabulary, "eos", is_bpe ? 2 : 1);
  tokenizer.config.eos = end_tokens(metadata, vocabulary, eos);
  surround(tokenizer.config, metadata.find_boolean("tokenizer.ggml.add_bos_token").value_or(is_bpe),
           metadata.find_boolean("tokenizer.ggml.add_eos_token").value_or(!is_bpe));
  if (!is_bpe) set_between(metadata, vocabulary, true, true, tokenizer.config);

  SentencePieceModel model;
  model.algorithm = algorithm;
  model.byte_fallback =
      std::ranges::find(vocabulary.types, PieceType::byte) != vocabulary.types.end();
  model.charsmap = metadata.bytes("tokenizer.ggml.precompiled_charsmap");
  model.normalizer_name = model.charsmap.empty() ? "identity" : "user_defined";
  model.add_dummy_prefix = metadata.find_boolean("tokenizer.ggml.add_space_prefix").value_or(true);
  model.remove_extra_whitespaces =
      metadata.find_boolean("tokenizer.ggml.remove_extra_whitespaces").value_or(false);
  settle_unknown(metadata, vocabulary,
                 special_token(metadata, vocabulary, "unknown", is_bpe ? 0 : 2), model);
  write_as_pieces(metadata, vocabulary);
  model.bos_id = tokenizer.config.bos.value_or(-1);
  model.eos_id = eos.value_or(-1);
  for (size_t id = 0; id < vocabulary.texts.size(); ++id) {
    model.pieces.push_back(
        {std::move(vocabulary.texts[id]), vocabulary.scores[id], vocabulary.types[id]});
  }
  tokenizer.sentencepiece = serialize_sentencepiece_model(model);
  return tokenizer;
}

// --- Byte-pair encoding and WordPiece
// -------------------------------------------------------------

// Control tokens are for templates; user-defined ones are found in users' texts too.
void add_special_tokens(const Vocabulary& vocabulary, TokenizerDescription& description) {
  for (size_t id = 0; id < vocabulary.texts.size(); ++id) {
    const PieceType type = vocabulary.types[id];
    const bool special = type == PieceType::control || type == PieceType::unknown;
    if (!special && type != PieceType::user_defined) continue;
    description.added_tokens.push_back(
        {.id = static_cast<int32_t>(id), .text = description.vocabulary[id], .special = special});
  }
}

// "left right", where left may begin with a space of its own.
std::array<int32_t, 2> read_merge(const GgufMetadata& metadata, const Vocabulary& vocabulary,
                                  const std::string& merge) {
  const size_t space = merge.find(' ', 1);
  if (space != std::string::npos) {
    const auto left = vocabulary.find(std::string_view(merge).substr(0, space));
    const auto right = vocabulary.find(std::string_view(merge).substr(space + 1));
    if (left && right) return {*left, *right};
  }
  metadata.fail(kMerges, "has the merge " + in_quotes(merge) + ", which is not of two tokens");
}

// Sets vocabulary.merged.
std::vector<std::array<int32_t, 2>> read_merges(const GgufMetadata& metadata,
                                                Vocabulary& vocabulary) {
  const std::vector<std::string>* texts = metadata.find_strings(kMerges);
  if (texts == nullptr) metadata.fail(kMerges, "is missing from the metadata");
  std::vector<std::array<int32_t, 2>> merges;
  merges.reserve(texts->size());
  vocabulary.merged.resize(vocabulary.texts.size());
  for (const std::string& text : *texts) {
    const auto [left, right] = merges.emplace_back(read_merge(metadata, vocabulary, text));
    const auto whole = vocabulary.find(vocabulary.texts[static_cast<size_t>(left)] +
                                       vocabulary.texts[static_cast<size_t>(right)]);
    if (!whole)
      metadata.fail(kMerges, "has the merge " + in_quotes(text) + ", which makes no token");
    vocabulary.merged[static_cast<size_t>(*whole)] = true;
  }
  return merges;
}

const Pretokenizer& read_pretokenizer(const GgufMetadata& metadata, const std::string& model) {
  constexpr const char* kKey = "tokenizer.ggml.pre";
  const std::string otherwise = model == "gemma4" ? "gemma4" : "default";
  const std::string name = metadata.find_text(kKey).value_or(otherwise);
  if (const Pretokenizer* found = find_pretokenizer(model == "gemma4" ? model : name)) {
    return *found;
  }
  metadata.fail(kKey, "is " + in_quotes(name) + ", which this version does not know");
}

GgufTokenizer read_bpe(const GgufMetadata& metadata, Vocabulary vocabulary,
                       const std::string& model) {
  const Pretokenizer& pretokenizer = read_pretokenizer(metadata, model);
  std::vector<std::array<int32_t, 2>> merges = read_merges(metadata, vocabulary);
  GgufTokenizer tokenizer;
  const auto eos = special_token(metadata, vocabulary, "eos");
  tokenizer.config.bos = special_token(metadata, vocabulary, "bos");
  tokenizer.config.eos = end_tokens(metadata, vocabulary, eos);
  surround(tokenizer.config,
           metadata.find_boolean("tokenizer.ggml.add_bos_token").value_or(pretokenizer.add_bos),
           metadata.find_boolean("tokenizer.ggml.add_eos_token").value_or(false));
  set_between(metadata, vocabulary, false, pretokenizer.add_separator, tokenizer.config);
  for (const std::string_view text : kChannelMarks) {
    if (const auto id = vocabulary.find(text)) vocabulary.type(*id) = PieceType::user_defined;
  }

  TokenizerDescription& description = tokenizer.description.emplace();
  description.pipeline = bpe_pipeline(pretokenizer);
  description.merges = std::move(merges);
  description.vocabulary = vocabulary.texts;
  add_special_tokens(vocabulary, description);
  return tokenizer;
}

// GGUF spells the beginning of a word as "▁word" and its continuation as "word".
std::string wordpiece_text(const std::string& text, PieceType type) {
  if (text.starts_with(kSpaceSymbol)) return text.substr(kSpaceSymbol.size());
  const bool bracketed = text.starts_with('[') && text.ends_with(']') && text.size() > 2;
  return type == PieceType::normal && !bracketed ? "##" + text : text;
}

GgufTokenizer read_wordpiece(const GgufMetadata& metadata, Vocabulary vocabulary) {
  GgufTokenizer tokenizer;
  const auto separator = special_token(metadata, vocabulary, "seperator", 102);  // sic
  const auto cls = special_token(metadata, vocabulary, "cls", 101);
  tokenizer.config.bos = special_token(metadata, vocabulary, "bos", cls);
  tokenizer.config.eos = end_tokens(metadata, vocabulary, separator);
  surround(tokenizer.config, true, true);  // llama.cpp asks no metadata
  set_between(metadata, vocabulary, false, true, tokenizer.config);
  const auto unknown = special_token(metadata, vocabulary, "unknown", 100);
  if (!unknown) metadata.fail("tokenizer.ggml.unknown_token_id", "is missing from the metadata");

  TokenizerDescription& description = tokenizer.description.emplace();
  for (size_t id = 0; id < vocabulary.texts.size(); ++id) {
    description.vocabulary.push_back(wordpiece_text(vocabulary.texts[id], vocabulary.types[id]));
  }
  const bool lowercase =
      metadata.find_boolean("tokenizer.ggml.normalizer.lowercase").value_or(true);
  const bool strip_accents =
      metadata.find_boolean("tokenizer.ggml.normalizer.strip_accents").value_or(lowercase);
  description.pipeline = {{"normalizer",
                           {{"type", "BertNormalizer"},
                            {"clean_text", true},
                            {"handle_chinese_chars", true},
                            {"strip_accents", strip_accents},
                            {"lowercase", lowercase}}},
                          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                          {"post_processor", nullptr},
                          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
                          {"model",
                           {{"type", "WordPiece"},
                            {"unk_token", description.vocabulary[static_cast<size_t>(*unknown)]},
                            {"continuing_subword_prefix", "##"},
                            {"max_input_chars_per_word", 100}}}};
  add_special_tokens(vocabulary, description);
  for (AddedTokenRule& token : description.added_tokens) token.in_model = true;
  return tokenizer;
}

}  // namespace

GgufTokenizer tokenizer_from_gguf(const GgufMetadata& metadata) {
  constexpr const char* kModel = "tokenizer.ggml.model";
  const std::string model = metadata.text(kModel);
  Vocabulary vocabulary = read_vocabulary(metadata);
  if (model == "llama") {
    return read_sentencepiece(metadata, std::move(vocabulary), SentencePieceModel::Algorithm::bpe);
  }
  if (model == "t5") {
    return read_sentencepiece(metadata, std::move(vocabulary),
                              SentencePieceModel::Algorithm::unigram);
  }
  if (model == "gpt2" || model == "gemma4") {
    return read_bpe(metadata, std::move(vocabulary), model);
  }
  if (model == "bert") return read_wordpiece(metadata, std::move(vocabulary));
  metadata.fail(kModel, "is " + in_quotes(model) +
                            ", which is not supported; this version knows llama, gpt2, gemma4, "
                            "bert and t5");
}

}  // namespace faststream::convert
