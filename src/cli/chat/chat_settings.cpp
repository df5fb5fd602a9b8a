#include "cli/chat/chat_settings.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/error.h"

namespace faststream {
namespace {

template <typename Number>
std::string show(Number value) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// `what`: such as "a whole number".
template <typename Number>
Number parse(std::string_view name, std::string_view text, std::string_view what) {
  Number value{};
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || stop != text.data() + text.size()) {
    throw UsageError(std::string(name) + ": \"" + std::string(text) + "\" is not " +
                     std::string(what));
  }
  return value;
}

// What stands for the absence of a number, such as of a limit; null in JSON.
constexpr std::string_view kNoLimit = "unlimited";
constexpr std::string_view kRandom = "random";

struct Setting {
  SettingName name;
  std::string (*show)(const ChatSettings&);
  void (*change)(ChatSettings&, std::string_view name, std::string_view value);
  std::string_view absent = {};
};

template <float SamplingParams::*member>
constexpr Setting number(std::string_view name, std::string_view option) {
  return {{name, option},
          [](const ChatSettings& settings) { return show(settings.sampling.*member); },
          [](ChatSettings& settings, std::string_view of, std::string_view value) {
            settings.sampling.*member = parse<float>(of, value, "a number");
          }};
}

const std::array<Setting, 9>& all_settings() {
  static const std::array<Setting, 9> settings = {{
      number<&SamplingParams::temperature>("temperature", "--temp"),
      {{"top-k", "--top-k"},
       [](const ChatSettings& s) { return show(s.sampling.top_k); },
       [](ChatSettings& s, std::string_view name, std::string_view value) {
         s.sampling.top_k = parse<int32_t>(name, value, "a whole number");
       }},
      number<&SamplingParams::top_p>("top-p", "--top-p"),
      number<&SamplingParams::min_p>("min-p", "--min-p"),
      number<&SamplingParams::repetition_penalty>("repetition-penalty", "--repetition-penalty"),
      number<&SamplingParams::presence_penalty>("presence-penalty", "--presence-penalty"),
      number<&SamplingParams::frequency_penalty>("frequency-penalty", "--frequency-penalty"),
      {{"max-tokens", "--tokens"},
       [](const ChatSettings& s) {
         return s.max_tokens < 0 ? std::string(kNoLimit) : show(s.max_tokens);
       },
       [](ChatSettings& s, std::string_view name, std::string_view value) {
         s.max_tokens = value == kNoLimit ? -1
                                          : static_cast<int64_t>(parse<uint32_t>(
                                                name, value, "a whole number or unlimited"));
       },
       kNoLimit},
      {{"seed", "--seed"},
       [](const ChatSettings& s) {
         return s.sampling.seed ? show(*s.sampling.seed) : std::string(kRandom);
       },
       [](ChatSettings& s, std::string_view name, std::string_view value) {
         if (value == kRandom) {
           s.sampling.seed.reset();
         } else {
           s.sampling.seed = parse<uint64_t>(name, value, "a whole number or random");
         }
       },
       kRandom},
  }};
  return settings;
}

const Setting& find(std::string_view name) {
  std::string names;
  for (const Setting& setting : all_settings()) {
    if (setting.name.name == name) return setting;
    names += (names.empty() ? "" : ", ") + std::string(setting.name.name);
  }
  throw UsageError("there is no setting \"" + std::string(name) + "\"; there are " + names);
}

}  // namespace

const std::vector<SettingName>& setting_names() {
  static const std::vector<SettingName> names = [] {
    std::vector<SettingName> all;
    for (const Setting& setting : all_settings()) all.push_back(setting.name);
    return all;
  }();
  return names;
}

std::string show_setting(const ChatSettings& settings, std::string_view name) {
  return find(name).show(settings);
}

void change_setting(ChatSettings& settings, std::string_view name, std::string_view value) {
  ChatSettings changed = settings;
  find(name).change(changed, name, value);
  SamplingParams numbers = changed.sampling;
  numbers.logit_bias.clear();  // no setting, and checked with the vocabulary where it came in
  validate(numbers, 0);
  settings = std::move(changed);
}

std::string list_settings(const ChatSettings& settings) {
  std::string lines;
  for (const Setting& setting : all_settings()) {
    constexpr size_t kColumn = 20;
    std::string line(setting.name.name);
    line.resize(kColumn, ' ');
    lines += line + setting.show(settings) + "\n";
  }
  return lines;
}

nlohmann::ordered_json settings_to_json(const ChatSettings& settings) {
  auto json = nlohmann::ordered_json::object();
  for (const Setting& setting : all_settings()) {
    const std::string value = setting.show(settings);
    const bool absent = value == setting.absent;
    json[std::string(setting.name.name)] =
        absent ? nlohmann::ordered_json() : nlohmann::ordered_json::parse(value);
  }
  return json;
}

void settings_from_json(ChatSettings& settings, const nlohmann::json& json,
                        std::string_view where) {
  if (!json.is_object() || json.size() != all_settings().size()) {
    throw Error(std::string(where) + ": \"settings\" is not an object of " +
                std::to_string(all_settings().size()) + " numbers");
  }
  ChatSettings changed = settings;
  for (const auto& [name, value] : json.items()) {
    try {
      const Setting& setting = find(name);
      if (!value.is_number() && !(value.is_null() && !setting.absent.empty())) {
        throw UsageError(name + " is not a number");
      }
      change_setting(changed, name, value.is_null() ? std::string(setting.absent) : value.dump());
    } catch (const UsageError& error) {
      throw Error(std::string(where) + ": a setting is wrong: " + error.what());
    }
  }
  settings = std::move(changed);
}

}  // namespace faststream
