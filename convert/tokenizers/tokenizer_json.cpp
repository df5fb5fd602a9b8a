#include "convert/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int32_t kMaxId = (1 << 22) - 1;
constexpr size_t kMaxProcessorTokens = 256;  // of all that a post-processor puts around texts

// The special tokens that tokenizer_config.json names.
constexpr std::array kNamedTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

// Of the tokenizers' classes of Transformers 5.23 those that give encoders the segments of pairs. A
// name may end with "Fast".
constexpr std::array kClassesWithSegments = {
    "BertTokenizer",    "ConvBertTokenizer", "DebertaTokenizer",    "DebertaV2Tokenizer",
    "ElectraTokenizer", "LayoutLMTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"};

/// A token given as its text or as an object with "content"; nothing for null.
std::optional<std::string> token_text(const JsonView& members, std::string_view key) {
  const auto token = members.find(key);
  if (!token) return std::nullopt;
  if (token->value().is_object()) return token->get<std::string>("content");
  return token->as<std::string>();
}

/// What tokenizer.json's parts say, collected by id.
class HfTokenizerReader {
 public:
  HfTokenizerReader(json tokenizer, const json& config, const json& special_tokens_map,
                    std::string_view where, std::string_view name)
      : where_(std::string(where) + ": " + std::string(name)),
        json_(std::move(tokenizer)),
        view_(json_, where_),
        config_(config, std::string(where) + ": tokenizer_config.json"),
        special_tokens_map_(special_tokens_map, std::string(where) + ": special_tokens_map.json") {}

  HfTokenizer read() {
    read_vocabulary();
    read_merges();
    read_added_tokens();
    read_config_tokens();
    for (auto& [id, rule] : rules_) result_.description.added_tokens.push_back(std::move(rule));
    read_config();
    json& pipeline = result_.description.pipeline;
    for (const char* part : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
      if (json_.contains(part)) pipeline[part] = std::move(json_[part]);
    }
    json& model = json_["model"];
    model.erase("vocab");
    model.erase("merges");
    pipeline["model"] = std::move(model);
    return std::move(result_);
  }

 private:
  using Vocabulary = std::unordered_map<std::string_view, int32_t>;

  [[noreturn]] void fail(const std::string& what) const { throw Error(where_ + ": " + what); }

  void set_text(int32_t id, const std::string& text) {
    auto& vocabulary = result_.description.vocabulary;
    if (vocabulary.size() <= static_cast<size_t>(id))
      vocabulary.resize(static_cast<size_t>(id) + 1);
    std::string& stored = vocabulary[static_cast<size_t>(id)];
    if (!stored.empty() && stored != text) {
      fail("the tokens " + in_quotes(stored) + " and " + in_quotes(text) + " have the same id, " +
           std::to_string(id));
    }
    stored = text;
  }

  // Files of before 2021 do not name the model's type.
  static std::string type_of(const json& model) {
    if (model.contains("merges")) return "BPE";
    if (model.contains("vocab") && model["vocab"].is_array()) return "Unigram";
    return model.contains("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
  }

  void read_vocabulary() {
    const JsonView model = view_.member("model");
    if (!model.value().is_object()) model.fail("is not an object");
    if (!model.find("type")) json_["model"]["type"] = type_of(model.value());
    const JsonView vocab = model.member("vocab");
    if (vocab.value().is_object()) {
      for (const auto& [text, id] : vocab.value().items()) {
        if (!id.is_number_integer() || id < 0 || id > kMaxId) {
          vocab.fail("gives the token " + in_quotes(text) + " no id from 0 to " +
                     std::to_string(kMaxId));
        }
        set_text(id.get<int32_t>(), text);
        model_ids_.emplace(text, id.get<int32_t>());
      }
      return;
    }
    if (!vocab.value().is_array()) vocab.fail("is neither an object nor a list");
    int32_t id = 0;
    for (const json& entry : vocab.value()) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
          !entry[1].is_number() || id > kMaxId) {
        vocab.fail("has no text with a score at " + std::to_string(id));
      }
      set_text(id, entry[0].get<std::string>());
      result_.description.scores.push_back(entry[1].get<double>());
      model_ids_[entry[0].get_ref<const std::string&>()] = id++;
    }
  }

  void read_merges() {
    const JsonView model = view_.member("model");
    if (model.get<std::string>("type") != "BPE") return;
    const JsonView merges = model.member("merges");
    if (!merges.value().is_array()) merges.fail("is not a list");
    const auto id_of = [&](std::string_view text) {
      const auto found = model_ids_.find(text);
      if (found == model_ids_.end()) {
        merges.fail("has " + in_quotes(text) + ", which is not in the vocabulary");
      }
      return found->second;
    };
    for (const json& merge : merges.value()) {
      std::string_view left;
      std::string_view right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      } else if (merge.is_string()) {
        const std::string_view both = merge.get_ref<const std::string&>();
        if (both.starts_with("#version")) continue;
        const size_t space = both.find(' ');
        if (space == std::string_view::npos ||
            both.find(' ', space + 1) != std::string_view::npos) {
          merges.fail("has " + in_quotes(both) + ", which is not two tokens with a space between");
        }
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else {
        merges.fail("has a member that is not two tokens");
      }
      result_.description.merges.push_back({id_of(left), id_of(right)});
    }
  }

  void add_rule(int32_t id, const JsonView& token) {
    AddedTokenRule rule;
    rule.text = token.get<std::string>("content");
    if (rule.text.empty()) return;
    rule.special = token.get("special", false);
    rule.normalized = token.get("normalized", !rule.special);
    rule.lstrip = token.get("lstrip", false);
    rule.rstrip = token.get("rstrip", false);
    rule.single_word = token.get("single_word", false);
    const auto known = model_ids_.find(rule.text);  // counts more than what is said here
    rule.in_model = known != model_ids_.end();
    rule.id = rule.in_model ? known->second : id;
    set_text(rule.id, rule.text);
    rules_[rule.id] = std::move(rule);
  }

  void read_added_tokens() {
    const auto tokens = view_.find("added_tokens");
    if (!tokens) return;
    for (const JsonView& token : tokens->elements()) {
      add_rule(token.member("id").as<int32_t>(0, kMaxId), token);
    }
  }

  // What tokenizer_config.json says of a token replaces what tokenizer.json says.
  void read_config_tokens() {
    if (const auto decoder = config_.find("added_tokens_decoder")) {
      if (!decoder->value().is_object()) decoder->fail("is not an object");
      for (const auto& [key, value] : decoder->value().items()) {
        int32_t id = -1;
        const auto [stop, status] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (status != std::errc() || stop != key.data() + key.size() || id < 0 || id > kMaxId) {
          decoder->fail("names " + in_quotes(key) + ", which is no token id");
        }
        add_rule(id, decoder->member(key));
      }
    }
    for (const char* name : kNamedTokens) {
      if (const auto text = named_token(name)) add_special(*text);
    }
    for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
      const auto tokens = config_.find(name);
      if (!tokens || !tokens->value().is_array()) continue;
      for (const json& token : tokens->value()) {
        if (token.is_string()) add_special(token.get_ref<const std::string&>());
      }
    }
  }

  // A token that is named as special, if the vocabulary has it.
  void add_special(const std::string& text) {
    for (const auto& [id, rule] : rules_) {
      if (rule.text == text) return;
    }
    const auto known = model_ids_.find(text);
    if (known == model_ids_.end() || text.empty()) return;
    rules_[known->second] = {.id = known->second, .text = text, .special = true, .in_model = true};
  }

  [[nodiscard]] std::optional<std::string> named_token(const char* name) const {
    if (config_.has(name)) return token_text(config_, name);
    return token_text(special_tokens_map_, name);
  }

  [[nodiscard]] std::optional<int32_t> id_of_named(const char* name) const {
    const auto text = named_token(name);
    if (!text) return std::nullopt;
    for (const AddedTokenRule& rule : result_.description.added_tokens) {
      if (rule.text == *text) return rule.id;
    }
    const auto known = model_ids_.find(*text);
    return known == model_ids_.end() ? std::nullopt : std::optional(known->second);
  }

  // As TokenizersBackend of Transformers 5.23: add_bos_token and add_eos_token, where one is given
  // or there is no post-processor, and else the post-processor.
  void read_config() {
    TokenizerConfig& config = result_.config;
    config.bos = id_of_named("bos_token");
    const auto eos = id_of_named("eos_token");
    if (eos) config.eos = {*eos};
    const auto processor = view_.find("post_processor");
    if (config_.has("add_bos_token") || config_.has("add_eos_token") || !processor) {
      if (config_.get("add_bos_token", false) && config.bos) config.prefix = {*config.bos};
      if (config_.get("add_eos_token", false) && eos) config.suffix = {*eos};
    } else {
      read_processor(*processor);
      config.pair_segments = config.pair_segments && gives_segments();
    }
  }

  // Models get the inputs that the file names, or else those of the class that it names. Where it
  // names neither the model's own class counts: BERT's, of models that have segments.
  [[nodiscard]] bool gives_segments() const {
    if (const auto inputs = config_.find("model_input_names")) {
      const std::vector<JsonView> names = inputs->elements();
      return std::ranges::any_of(
          names, [](const JsonView& name) { return name.value() == "token_type_ids"; });
    }
    const auto name = config_.get<std::string>("tokenizer_class", "BertTokenizer");
    return std::ranges::any_of(kClassesWithSegments, [&](const std::string& with_segments) {
      return name == with_segments || name == with_segments + "Fast";
    });
  }

  void read_processor(const JsonView& processor) {
    TokenizerConfig& config = result_.config;
    const auto type = processor.get<std::string>("type");
    const auto surround = [&](const std::vector<int32_t>& before,
                              const std::vector<int32_t>& after) {
      config.prefix.insert(config.prefix.begin(), before.begin(), before.end());
      config.suffix.insert(config.suffix.end(), after.begin(), after.end());
    };
    if (type == "Sequence") {
      for (const JsonView& part : processor.member("processors").elements()) read_processor(part);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      const auto id = [&](const char* name) {
        const std::vector<JsonView> pair = processor.member(name).elements();
        if (pair.size() != 2) processor.member(name).fail("is not a token with its id");
        return processor_token(pair[1]);
      };
      surround({id("cls")}, {id("sep")});
      const bool bert = type == "BertProcessing";
      config.between = bert ? std::vector{id("sep")} : std::vector{id("sep"), id("sep")};
      config.pair_segments = bert;
    } else if (type == "TemplateProcessing") {
      const JsonView single = processor.member("single");
      const std::vector<Surrounding> around = read_template(processor, single);
      if (around.size() != 2) single.fail("does not have the text once, which is not supported");
      surround(around[0].ids, around[1].ids);
      const auto pair = processor.find("pair");
      const auto of_pair = pair ? read_template(processor, *pair) : std::vector<Surrounding>();
      // Pairs that begin and end unlike single texts are for tasks of their own.
      if (of_pair.size() == 3 && of_pair[0].ids == around[0].ids &&
          of_pair[2].ids == around[1].ids) {
        config.between = of_pair[1].ids;
        config.pair_segments = of_pair[2].segment == 1;
      }
    } else if (type != "ByteLevel") {  // which changes no ids
      processor.member("type").fail("is the post-processor " + in_quotes(type) +
                                    ", which is not supported");
    }
  }

  // Special tokens before, between or after a template's texts, and the segment of the text that
  // they follow.
  struct Surrounding {
    std::vector<int32_t> ids;
    int64_t segment = 0;
  };

  std::vector<Surrounding> read_template(const JsonView& processor, const JsonView& pieces) {
    std::vector<Surrounding> around(1);
    for (const JsonView& piece : pieces.elements()) {
      if (const auto text = piece.find("Sequence")) {
        around.push_back({.ids = {}, .segment = text->get<int64_t>("type_id", 0)});
        continue;
      }
      const auto name = piece.member("SpecialToken").get<std::string>("id");
      const JsonView ids = processor.member("special_tokens").member(name).member("ids");
      for (const JsonView& id : ids.elements()) around.back().ids.push_back(processor_token(id));
    }
    return around;
  }

  // A piece of a template stands for many tokens, and many pieces may be of the same one: a short
  // file would ask for more than there is memory for.
  int32_t processor_token(const JsonView& id) {
    if (++n_processor_tokens_ > kMaxProcessorTokens) {
      view_.member("post_processor")
          .fail("puts more than " + std::to_string(kMaxProcessorTokens) +
                " tokens around texts, which is not supported");
    }
    const auto n = static_cast<int32_t>(result_.description.vocabulary.size());
    return id.as<int32_t>(0, n - 1);
  }

  std::string where_;
  json json_;
  JsonView view_;
  JsonView config_;
  JsonView special_tokens_map_;
  HfTokenizer result_;
  size_t n_processor_tokens_ = 0;  // read so far
  Vocabulary model_ids_;           // texts are in json_
  std::map<int32_t, AddedTokenRule> rules_;
};

}  // namespace

HfTokenizer tokenizer_from_json(json tokenizer, const json& tokenizer_config,
                                const json& special_tokens_map, std::string_view where,
                                std::string_view name) {
  return HfTokenizerReader(std::move(tokenizer), tokenizer_config, special_tokens_map, where, name)
      .read();
}

HfTokenizer read_tokenizer_json(const fs::path& path, SourceFiles& files) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  return tokenizer_from_json(files.read_json(path),
                             files.read_json(folder / "tokenizer_config.json"),
                             files.read_json(folder / "special_tokens_map.json"), folder.string(),
                             path.filename().string());
}

}  // namespace faststream::convert
