#include "cli/batch/batch_origin.h"

#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "engine/request_settings.h"
#include "model_file/model_file.h"
#include "program/input.h"
#include "support/error.h"
#include "support/hash.h"
#include "support/printable.h"

namespace faststream::cli {
namespace {

using nlohmann::json;

constexpr std::string_view kModel = "--model";

std::string hash_text(std::string_view text) { return hash_digits(stable_hash(text)); }

// As it is where that is short: messages show it.
std::string value_of(const std::string& text) {
  constexpr size_t kShort = 40;
  return text.size() <= kShort ? text : hash_text(text);
}

// Of a list one value.
std::string value_of(const std::vector<std::string>& texts) {
  return texts.size() == 1 ? value_of(texts.front()) : value_of(json(texts).dump());
}

std::string value_of(const std::vector<LogitBias>& biases) {
  json list = json::array();
  for (const LogitBias& bias : biases) list.push_back({bias.token, bias.bias});
  return value_of(list.dump());
}

std::string_view option_of(const OutputRule& rule) {
  if (rule.kind == OutputRule::Kind::regex) return "--regex";
  return rule.kind == OutputRule::Kind::grammar ? "--grammar" : "--json-schema";
}

// A template's name, or of its file what is in it.
std::string chat_template_of(const std::string& asked) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(asked, none)) return asked;
  return hash_text(read_text_file(asked, "--chat-template"));
}

}  // namespace

std::string BatchOrigin::to_json() const {
  const json members = {{"model_name", model_name}, {"options", options}};
  return members.dump(-1, ' ', false, json::error_handler_t::replace);
}

bool BatchOrigin::from_json(std::string_view text, BatchOrigin& origin) {
  const json members = json::parse(text, nullptr, false);
  if (!members.is_object() || !members.contains("model_name") || !members.contains("options") ||
      !members["model_name"].is_string() || !members["options"].is_object()) {
    return false;
  }
  origin.model_name = members["model_name"];
  origin.options.clear();
  for (const auto& [option, value] : members["options"].items()) {
    if (!value.is_string()) return false;
    origin.options.emplace(option, value);
  }
  return true;
}

BatchOrigin batch_origin(const std::filesystem::path& model, const EngineOptions& engine,
                         const Request& asked) {
  BatchOrigin origin{.model_name = model.filename().string(), .options = {}};
  const auto add = [&](std::string_view option, bool is_given, const auto& value) {
    if (is_given) origin.options.emplace(option, value());
  };
  const auto add_flag = [&](std::string_view option, bool is_given) {
    add(option, is_given, [] { return std::string("given"); });
  };
  origin.options.emplace(kModel, ModelFile::open(model).fingerprint());
  std::vector<std::string> adapters;
  for (const AdapterOption& adapter : engine.adapters) {
    adapters.push_back(adapter.name + "=" + ModelFile::open(adapter.path).fingerprint());
  }
  add("--adapter", !adapters.empty(), [&] { return value_of(adapters); });
  add("--kv", !engine.kv.empty(), [&] { return engine.kv; });
  add("--chat-template", !engine.chat_template.empty(),
      [&] { return chat_template_of(engine.chat_template); });
  for (const RequestSetting& setting : request_settings()) {
    const bool is_seed = setting.key == "seed";
    add(setting.option.name, !setting.option.name.empty() && !is_seed && !setting.is_unset(asked),
        [&] { return setting.show(asked); });
  }
  add("--logit-bias", !asked.sampling.logit_bias.empty(),
      [&] { return value_of(asked.sampling.logit_bias); });
  add("--stop", !asked.stop.empty(), [&] { return value_of(asked.stop); });
  if (asked.rule) origin.options.emplace(option_of(*asked.rule), hash_text(asked.rule->text));
  add("--source-lang", asked.source_language.has_value(),
      [&] { return value_of(*asked.source_language); });
  add("--target-lang", asked.target_language.has_value(),
      [&] { return value_of(*asked.target_language); });
  add_flag("--ignore-eos", asked.ignore_eos);
  add_flag("--special", asked.show_special);
  add_flag("--parse-special", asked.parse_special);
  return origin;
}

void check_same_origin(const BatchOrigin& former, const BatchOrigin& now,
                       const std::string& output) {
  const auto value_in = [](const BatchOrigin& origin, const std::string& option) {
    const auto found = origin.options.find(option);
    return found == origin.options.end() ? std::string() : found->second;
  };
  const auto given = [](const std::string& option, const std::string& value) {
    return value.empty() ? "without " + option : "with " + option + " " + printable(value);
  };
  BatchOrigin::Options both = former.options;
  both.insert(now.options.begin(), now.options.end());
  if (value_in(former, std::string(kModel)) != value_in(now, std::string(kModel))) {
    throw Error(output + " was begun with another model, " + in_quotes(former.model_name) +
                "; resume with that one, or give another output");
  }
  for (const auto& [option, any] : both) {
    const std::string before = value_in(former, option);
    const std::string after = value_in(now, option);
    if (before == after) continue;
    throw Error(output + " was begun " + given(option, before) + ", and this run is " +
                given(option, after) +
                "; resume with the former run's options, or give another output");
  }
}

}  // namespace faststream::cli
