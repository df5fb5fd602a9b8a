#include "convert/kept_formats.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "models/tensor_plan.h"
#include "support/error.h"
#include "support/name_list.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr std::string_view kOutputWord = "output";
constexpr const char* kNamesNone = "names no tensors of this model (--check shows what it is)";

// Words for the tensors of all families that do the same.
struct KeptWord {
  std::string_view name;
  std::vector<TensorKind> kinds;
};
const std::vector<KeptWord>& table_of_words() {
  using enum TensorKind;
  static const std::vector<KeptWord> all = {
      {"qkv",
       {attention_qkv, cross_q, cross_kv, aside_qkv, latent_q_down, latent_q, latent_kv, latent_k,
        latent_v}},
      {"attention_out", {attention_out, cross_out, aside_out}},
      {"recurrent", {recurrent_in, recurrent_factors, recurrent_out}},
      {"gate_up",
       {ffn_gate_up, ffn_up, experts_gate_up, experts_up, shared_gate_up, shared_up, aside_gate_up,
        aside_up}},
      {"down", {kDownKinds.begin(), kDownKinds.end()}},
      {"experts", {experts_gate_up, experts_up, experts_down}},
      {"shared", {shared_gate_up, shared_up, shared_down}},
  };
  return all;
}

[[noreturn]] void refuse_entry(std::string_view entry, const std::string& why) {
  throw UsageError("--keep: \"" + printable(std::string(entry)) + "\" " + why);
}

// A tensor by the whole name that --show prints, "layers.3.ffn_down", as that of a layer,
// "ffn_down:3"; of other names what they are.
std::string with_layer_last(std::string_view place) {
  constexpr std::string_view kLayers = "layers.";
  const size_t dot = place.find('.', kLayers.size());
  if (!place.starts_with(kLayers) || dot == std::string_view::npos) return std::string(place);
  const std::string_view layer = place.substr(kLayers.size(), dot - kLayers.size());
  return std::string(place.substr(dot + 1)) + ':' + std::string(layer);
}

std::vector<TensorKind> kept_kinds(std::string_view entry, std::string_view name) {
  const auto word = std::ranges::find(table_of_words(), name, &KeptWord::name);
  if (word != table_of_words().end()) return word->kinds;
  const auto kind = kind_from_name(name);
  if (kind && takes_format(*kind)) return {*kind};
  std::string known;
  for (const std::string_view each : kept_words()) add_name(known, each);
  refuse_entry(entry, "names no tensors whose format can be chosen; such are " + known +
                          " and tensors of model files, as ffn_down");
}

struct KeptLayers {
  int64_t first = 0;
  int64_t count = 0;
};

// "3" or "3-5".
KeptLayers kept_layers(std::string_view entry, std::string_view text, int64_t n_layers) {
  const auto number = [&](std::string_view digits) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0 ||
        value >= n_layers) {
      refuse_entry(entry,
                   "names no layers; those of the model are 0 to " + std::to_string(n_layers - 1));
    }
    return value;
  };
  const size_t dash = text.find('-');
  const int64_t first = number(text.substr(0, dash));
  const int64_t last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
  if (last < first) refuse_entry(entry, "names its last layer first");
  return {first, last - first + 1};
}

void add_format_rules(const std::vector<FormatRule>& rules, ModelConfig& config) {
  config.formats.insert(config.formats.end(), rules.begin(), rules.end());
  for (ModelConfig& predictor : config.predictors) add_format_rules(rules, predictor);
  if (!config.encoder) return;
  auto encoder = std::make_shared<ModelConfig>(*config.encoder);
  add_format_rules(rules, *encoder);
  config.encoder = std::move(encoder);
}

// Whether the model, or one that it contains, has tensors of one of the rules.
bool has_tensors(const ModelConfig& config, const std::vector<FormatRule>& rules) {
  const auto is_ruled = [&](const TensorPlan& plan) {
    const bool is_own = plan.id.predictor == 0 && !plan.id.of_encoder;
    return std::ranges::any_of(rules, [&](const FormatRule& rule) {
      return rule.is_of(plan.id.kind, plan.id.n) && (is_own || rule.n_layers == 0);
    });
  };
  return std::ranges::any_of(tensor_plan(config), is_ruled);
}

// A matrix that has not the table's format cannot be the table.
void keep_output(WeightFormat format, ModelConfig& config) {
  config.output_format = format;
  config.output.tied = config.output.tied && format == config.embedding_format;
  for (ModelConfig& predictor : config.predictors) keep_output(format, predictor);
}

}  // namespace

std::vector<std::string_view> kept_words() {
  std::vector<std::string_view> names = {kOutputWord};
  for (const KeptWord& word : table_of_words()) names.push_back(word.name);
  return names;
}

std::string usually_kept(const ModelConfig& config) {
  if (config.weight_format != WeightFormat::int4 || config.activation_bits != 8 ||
      config.hidden >= kNarrow) {
    return {};
  }
  std::string kept;
  const auto keep_those_of = [&](std::string_view word, int64_t n_layers,
                                 const std::string& entry) {
    std::vector<FormatRule> rules;
    for (const TensorKind kind : kept_kinds(entry, word)) {
      rules.push_back({.tensor = kind, .format = WeightFormat::int8, .n_layers = n_layers});
    }
    if (has_tensors(config, rules)) kept += (kept.empty() ? "" : ",") + entry;
  };
  keep_those_of("qkv", 0, "qkv=int8");
  const int64_t third = config.n_layers() / 3;
  if (third > 0) keep_those_of("down", third, "down:0-" + std::to_string(third - 1) + "=int8");
  return kept;
}

void keep_formats(std::string_view kept, ModelConfig& config) {
  for (size_t begin = 0; begin <= kept.size();) {
    const size_t end = std::min(kept.find(',', begin), kept.size());
    const std::string_view entry = kept.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos)
      refuse_entry(entry, "has no format, as \"down=int8\" has");
    const auto format = format_from_name(entry.substr(equals + 1));
    if (!format) {
      std::string known;
      for (const WeightFormat each : kWeightFormats) add_name(known, format_name(each));
      refuse_entry(entry, "has an unknown format; known are " + known);
    }
    const std::string place = with_layer_last(entry.substr(0, equals));
    const size_t colon = place.find(':');
    const std::string_view name = std::string_view(place).substr(0, colon);
    if (name == kOutputWord) {
      if (colon != std::string_view::npos)
        refuse_entry(entry, "names layers, but the output is in none");
      keep_output(*format, config);
      continue;
    }
    std::vector<FormatRule> rules;
    for (const TensorKind kind : kept_kinds(entry, name)) rules.push_back({kind, *format});
    if (colon == std::string_view::npos) {
      if (!has_tensors(config, rules)) refuse_entry(entry, kNamesNone);
      add_format_rules(rules, config);
      continue;
    }
    const auto [first, count] =
        kept_layers(entry, std::string_view(place).substr(colon + 1), config.n_layers());
    for (FormatRule& rule : rules) {
      if (!is_of_layers(rule.tensor)) refuse_entry(entry, "names layers of what is in none");
      rule.first_layer = first;
      rule.n_layers = count;
      config.formats.push_back(rule);
    }
    if (!has_tensors(config, rules)) refuse_entry(entry, kNamesNone);
  }
}

}  // namespace faststream::convert
