#include "convert/tokenizers/subword_nmt.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/tokenizers/tokenizer_json.h"
#include "convert/tokenizers/vocabulary_json.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kGoesOn = "@@";
constexpr std::string_view kWordEnd = "</w>";

struct NmtMerge {
  std::string left;
  std::string right;
};

// A merge a line, after the file's version.
std::vector<NmtMerge> parse_nmt_merges(std::string_view rest, const std::string& where) {
  std::vector<NmtMerge> merges;
  for (size_t number = 0; rest.find('\n') != std::string_view::npos; ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    if (number == 0 || line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == 0 || space >= line.size() - 1 ||
        line.find(' ', space + 1) != std::string_view::npos) {
      throw Error(where + ": line " + std::to_string(number + 1) + ", " + in_quotes(line) +
                  ", is not two pieces with a space between");
    }
    merges.push_back({std::string(line.substr(0, space)), std::string(line.substr(space + 1))});
  }
  return merges;
}

bool goes_on(std::string_view token) {
  return token.size() > kGoesOn.size() && token.ends_with(kGoesOn);
}

// Others' merges have no ends of words, or their vocabularies have them, too.
bool have_ends_of_words(std::string_view merges) {
  return merges.find(std::string(kWordEnd) + '\n') != std::string_view::npos;
}
bool are_of_subword_nmt(const std::vector<std::string>& tokens) {
  return std::ranges::any_of(tokens, goes_on) &&
         std::ranges::none_of(tokens, [](std::string_view t) { return t.ends_with(kWordEnd); });
}

/// What differs between the models that have such a tokenizer.
struct NmtKind {
  std::vector<std::string> special;  ///< tokens, of which the first one is the unknown one
  json normalizer;
  const char* words;  ///< the pattern of words
};

NmtKind kind_of(const std::vector<std::string>& tokens) {
  const std::vector<std::string> special = {"__unk__", "__start__", "__end__", "__null__"};
  const bool is_blenderbot = std::ranges::all_of(special, [&](const std::string& token) {
    return std::ranges::find(tokens, token) != tokens.end();
  });
  if (!is_blenderbot) return {.special = {"<unk>"}, .normalizer = nullptr, .words = R"(\S+\n?)"};
  // The end of a line is a word, but not after an apostrophe, as in its class.
  json lines = {{"type", "Replace"},
                {"pattern", {{"Regex", R"((?<=[^\s'])\n)"}}},
                {"content", " __newln__ "}};
  json steps = json::array({std::move(lines), {{"type", "Lowercase"}}});
  return {.special = special,
          .normalizer = {{"type", "Sequence"}, {"normalizers", std::move(steps)}},
          .words = R"('|[.,!?()][^\s.,!?()']*|[^\s.,!?()']+)"};
}

/// The vocabulary by the texts that merges have.
class NmtVocabulary {
 public:
  NmtVocabulary(const std::vector<std::string>& tokens, const NmtKind& kind,
                const std::string& where) {
    for (const std::string& token : tokens) {
      const bool is_special = std::ranges::find(kind.special, token) != kind.special.end();
      const std::string text = is_special       ? token
                               : goes_on(token) ? token.substr(0, token.size() - kGoesOn.size())
                                                : token + std::string(kWordEnd);
      if (!ids_.emplace(text, static_cast<int32_t>(ids_.size())).second) {
        throw Error(where + ": has two tokens for the piece " + in_quotes(text));
      }
    }
    n_tokens_ = ids_.size();
    const std::string& unknown = kind.special.front();
    if (!ids_.contains(unknown)) throw Error(where + ": has no token " + in_quotes(unknown));
  }

  /// What merges begin with, or make on their way, and is no token.
  void add_part(const std::string& text) { ids_.emplace(text, static_cast<int32_t>(ids_.size())); }

  [[nodiscard]] const std::map<std::string, int32_t>& ids() const { return ids_; }
  [[nodiscard]] int32_t n_parts() const { return static_cast<int32_t>(ids_.size() - n_tokens_); }

 private:
  std::map<std::string, int32_t> ids_;
  size_t n_tokens_ = 0;
};

// As tokenizer.json has it.
json described_nmt(const NmtVocabulary& vocabulary, const std::vector<NmtMerge>& merges,
                   const NmtKind& kind) {
  json pairs = json::array();
  for (const NmtMerge& merge : merges) pairs.push_back(json::array({merge.left, merge.right}));
  json added = json::array();
  for (const std::string& token : kind.special) {
    const auto found = vocabulary.ids().find(token);
    if (found == vocabulary.ids().end()) continue;
    added.push_back({{"id", found->second}, {"content", token}, {"special", true}});
  }
  return {{"added_tokens", std::move(added)},
          {"normalizer", kind.normalizer},
          {"pre_tokenizer",
           {{"type", "Split"},
            {"pattern", {{"Regex", kind.words}}},
            {"behavior", "Removed"},
            {"invert", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "BPEDecoder"}, {"suffix", kWordEnd}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", kind.special.front()},
            {"end_of_word_suffix", kWordEnd},
            {"fuse_unk", false},
            {"parts_at_last", true},
            {"vocab", vocabulary.ids()},
            {"merges", std::move(pairs)}}}};
}

}  // namespace

std::optional<TokenizerFile> read_subword_nmt(const fs::path& folder, SourceFiles& files) {
  constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  const fs::path path = folder / "vocab.json";
  const fs::path merges_path = folder / "merges.txt";
  if (!fs::exists(path) || !fs::exists(merges_path)) return std::nullopt;
  const std::string lines = files.read(merges_path, kMaxBytes);
  if (!have_ends_of_words(lines)) return std::nullopt;
  const std::vector<std::string> tokens = read_vocabulary_json(path, files);
  if (!are_of_subword_nmt(tokens)) return std::nullopt;
  const std::vector<NmtMerge> merges = parse_nmt_merges(lines, merges_path.string());
  const NmtKind kind = kind_of(tokens);
  NmtVocabulary vocabulary(tokens, kind, path.string());
  for (const auto& [left, right] : merges) {
    for (const std::string& text : {left, right, left + right}) vocabulary.add_part(text);
  }
  HfTokenizer read = tokenizer_from_json(described_nmt(vocabulary, merges, kind),
                                         files.read_json(folder / "tokenizer_config.json"),
                                         json::object(), folder.string(), "vocab.json");
  read.description.n_parts = vocabulary.n_parts();
  return TokenizerFile{
      .path = path, .description = std::move(read.description), .config = std::move(read.config)};
}

}  // namespace faststream::convert
