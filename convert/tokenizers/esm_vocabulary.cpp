#include "convert/tokenizers/esm_vocabulary.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/tokenizers/tokenizer_json.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 5> kSpecial = {"<cls>", "<pad>", "<eos>", "<unk>", "<mask>"};

std::string_view stripped(std::string_view line) {
  constexpr std::string_view kWhite = " \t\r\f\v";
  const size_t begin = line.find_first_not_of(kWhite);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kWhite) + 1 - begin);
}

// A token a line, without one behind the last line's end.
std::vector<std::string> tokens_in(std::string_view text) {
  std::vector<std::string> tokens;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    tokens.emplace_back(stripped(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return tokens;
}

bool are_of_esm(const std::vector<std::string>& tokens) {
  return std::ranges::all_of(std::array{"<cls>", "<eos>", "<unk>"}, [&](const char* needed) {
    return std::ranges::find(tokens, needed) != tokens.end();
  });
}

// The id of each token.
json vocabulary_of(const std::vector<std::string>& tokens, const std::string& where) {
  json vocabulary = json::object();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (vocabulary.contains(tokens[id])) {
      throw Error(where + ": has the token " + in_quotes(tokens[id]) + " twice");
    }
    vocabulary[tokens[id]] = id;
  }
  return vocabulary;
}

std::string escaped(std::string_view token) {
  std::string pattern;
  for (const char c : token) {
    if (std::string_view("\\^$.|?*+()[]{}-#&~/").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

// Any token but the special ones, of several that begin alike the longest.
std::string pattern_of(const json& vocabulary) {
  std::vector<std::string> tokens;
  for (const auto& [token, id] : vocabulary.items()) {
    if (!token.empty() && std::ranges::find(kSpecial, token) == kSpecial.end()) {
      tokens.push_back(token);
    }
  }
  std::ranges::stable_sort(tokens, std::ranges::greater(), &std::string::size);
  std::string pattern;
  for (const std::string& token : tokens) pattern += (pattern.empty() ? "" : "|") + escaped(token);
  return pattern;
}

json added_tokens(const json& vocabulary) {
  json added = json::array();
  for (const std::string_view token : kSpecial) {
    if (!vocabulary.contains(token)) continue;
    added.push_back({{"id", vocabulary[token]},
                     {"content", token},
                     {"special", true},
                     {"normalized", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"single_word", false}});
  }
  return added;
}

// <cls> text <eos>, of a pair <cls> text <eos> second <eos>.
json around_texts(const json& vocabulary) {
  const auto special = [](const char* token) {
    return json{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  };
  const auto sequence = [](const char* name) {
    return json{{"Sequence", {{"id", name}, {"type_id", 0}}}};
  };
  json tokens = json::object();
  for (const char* token : {"<cls>", "<eos>"}) {
    tokens[token] = {
        {"id", token}, {"ids", json::array({vocabulary[token]})}, {"tokens", json::array({token})}};
  }
  json pair = json::array(
      {special("<cls>"), sequence("A"), special("<eos>"), sequence("B"), special("<eos>")});
  json single = json::array({special("<cls>"), sequence("A"), special("<eos>")});
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(tokens)}};
}

// As tokenizer.json has it.
json described(const json& vocabulary) {
  json splits = json::array({{{"type", "Split"},
                              {"pattern", {{"Regex", pattern_of(vocabulary)}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             {{"type", "WhitespaceSplit"}}});
  return {{"added_tokens", added_tokens(vocabulary)},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(splits)}}},
          {"post_processor", around_texts(vocabulary)},
          {"decoder", nullptr},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "<unk>"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", vocabulary}}}};
}

}  // namespace

std::optional<TokenizerFile> read_esm_vocabulary(const std::filesystem::path& folder,
                                                 SourceFiles& files) {
  constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  const std::filesystem::path path = folder / "vocab.txt";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::vector<std::string> tokens = tokens_in(files.read(path, kMaxBytes));
  if (!are_of_esm(tokens)) return std::nullopt;
  const json vocabulary = vocabulary_of(tokens, path.string());
  HfTokenizer read =
      tokenizer_from_json(described(vocabulary), files.read_json(folder / "tokenizer_config.json"),
                          json::object(), folder.string(), "vocab.txt");
  return TokenizerFile{
      .path = path, .description = std::move(read.description), .config = std::move(read.config)};
}

}  // namespace faststream::convert
