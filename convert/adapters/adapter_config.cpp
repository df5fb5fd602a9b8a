#include "convert/adapters/adapter_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "text/tokenizer/budget.h"

namespace faststream::convert {
namespace {

constexpr int64_t kMaxRank = int64_t{1} << 24;
constexpr size_t kMaxPatterns = 65536;

// Members that, if they say anything, make something else of the model than two factors do.
struct Variant {
  std::string_view key;
  std::string_view what;
};
constexpr auto kVariants = std::to_array<Variant>({
    {"trainable_token_indices", "rows of the embedding for single tokens"},
    {"layer_replication", "layers that are there twice"},
    {"use_qalora", "QA-LoRA"},
    {"use_bdlora", "BD-LoRA"},
    {"arrow_config", "Arrow's routing between adapters"},
    {"kasa_config", "KaSA"},
    {"monteclora_config", "MonteCLoRA"},
    {"alora_invocation_tokens", "an adapter that begins to count within a text (aLoRA)"},
});

bool says_something(const nlohmann::json& value) {
  return !(value.is_null() || value == false || (value.is_structured() && value.empty()));
}

void refuse_variants(const JsonView& config) {
  for (const Variant& variant : kVariants) {
    const auto found = config.find(variant.key);
    if (found && says_something(found->value())) {
      found->fail("asks for " + std::string(variant.what) + ", which cannot be merged");
    }
  }
}

// Some ways to begin the training change the model's own weights, which are not in the adapter.
void refuse_changed_models(const JsonView& config) {
  const auto found = config.find("init_lora_weights");
  if (!found || found->value().is_boolean()) return;
  const auto name = found->as<std::string>();
  constexpr std::array<std::string_view, 4> kKnown = {"gaussian", "eva", "orthogonal", "mica"};
  if (std::ranges::find(kKnown, name) != kKnown.end()) return;
  found->fail("is " + in_quotes(name) +
              ": the adapter may belong to weights that its training changed first; save it with "
              "path_initial_model_for_weight_conversion, as PEFT's documentation has it");
}

double number(const JsonView& value) {
  const auto number = value.as<double>();
  if (!std::isfinite(static_cast<float>(number))) value.fail("is too large");
  return number;
}

// As PEFT matches names: from the beginning or after a dot, to the end.
Pattern pattern_of(const std::string& key, const std::string& where) {
  return {"\\A(?:.*\\.)?(?:" + key + ")\\z", where};
}

// In the order in which the file has them.
template <typename Read>
auto values_of_modules(const JsonView& config, const nlohmann::ordered_json& in_order,
                       const std::string& key, const std::string& where, Read read) {
  ValuesOfModules<decltype(read(config))> values;
  const auto members = config.find(key);
  if (!members) return values;
  if (!members->value().is_object()) members->fail("is no object");
  if (members->value().size() > kMaxPatterns) members->fail("has too many members");
  for (const auto& [pattern, unused] : in_order.at(key).items()) {
    values.emplace_back(pattern_of(pattern, where + ": " + key), read(members->member(pattern)));
  }
  return values;
}

bool matches(const Pattern& pattern, std::string_view module) {
  bool found = false;
  TokenizerBudget budget(module.size());
  try {
    pattern.find_all(module, budget, [&](size_t, size_t) { found = true; });
  } catch (const Error&) {  // which would speak of a tokenizer
    throw Error("a pattern of adapter_config.json takes too long on " + in_quotes(module) +
                "; write it in a simpler way");
  }
  return found;
}

template <typename T>
T value_of(const ValuesOfModules<T>& values, std::string_view module, T otherwise) {
  for (const auto& [pattern, value] : values) {
    if (matches(pattern, module)) return value;
  }
  return otherwise;
}

}  // namespace

int64_t AdapterConfig::rank_of(std::string_view module) const {
  return value_of(ranks, module, rank);
}

float AdapterConfig::scale_of(std::string_view module) const {
  const auto of_module = static_cast<double>(rank_of(module));
  return static_cast<float>(value_of(alphas, module, alpha) /
                            (by_root ? std::sqrt(of_module) : of_module));
}

AdapterConfig parse_adapter_config(std::string_view text, std::string_view where) {
  const nlohmann::json object = parse_python_json_object(text, where);
  const JsonView config(object, where);
  const auto kind = config.get<std::string>("peft_type");
  if (kind != "LORA") {
    config.member("peft_type")
        .fail("is " + in_quotes(kind) + "; adapters of the type LORA can be merged");
  }
  refuse_variants(config);
  refuse_changed_models(config);
  const auto rank_in = [](const JsonView& value) { return value.as<int64_t>(1, kMaxRank); };
  const nlohmann::ordered_json in_order = parse_ordered_json(text, where);
  AdapterConfig adapter;
  if (const auto rank = config.find("r")) adapter.rank = rank_in(*rank);
  if (const auto alpha = config.find("lora_alpha")) adapter.alpha = number(*alpha);
  adapter.by_root = config.get("use_rslora", false);
  adapter.has_magnitudes = config.get("use_dora", false);
  adapter.ties = config.get("ensure_weight_tying", false);
  adapter.ranks = values_of_modules(config, in_order, "rank_pattern", std::string(where), rank_in);
  adapter.alphas = values_of_modules(config, in_order, "alpha_pattern", std::string(where), number);
  return adapter;
}

}  // namespace faststream::convert
