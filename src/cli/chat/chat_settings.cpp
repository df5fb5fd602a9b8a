#include "cli/chat/chat_settings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/error.h"
#include "support/json.h"
#include "support/name_list.h"
#include "support/printable.h"

namespace faststream::cli {

const std::vector<const RequestSetting*>& chat_settings() {
  static const std::vector<const RequestSetting*> settings = [] {
    std::vector<const RequestSetting*> all;
    for (const RequestSetting& setting : request_settings()) {
      if (setting.in_chat) all.push_back(&setting);
    }
    return all;
  }();
  return settings;
}

std::string chat_name(const RequestSetting& setting) {
  std::string name(setting.key);
  std::ranges::replace(name, '_', '-');
  return name;
}

const RequestSetting& find_chat_setting(std::string_view name) {
  std::string names;
  for (const RequestSetting* setting : chat_settings()) {
    if (chat_name(*setting) == name) return *setting;
    add_name(names, chat_name(*setting));
  }
  throw UsageError("there is no setting " + in_quotes(name) + "; there are " + names);
}

void change_setting(Request& request, std::string_view name, std::string_view value) {
  const RequestSetting& setting = find_chat_setting(name);
  try {
    setting.parse(value, request);
  } catch (const UsageError& error) {
    throw UsageError(std::string(name) + ": " + error.what());
  }
}

std::string list_settings(const Request& request) {
  std::string lines;
  for (const RequestSetting* setting : chat_settings()) {
    constexpr size_t kColumn = 20;
    std::string line = chat_name(*setting);
    line.resize(kColumn, ' ');
    lines += line + setting->show(request) + "\n";
  }
  return lines;
}

nlohmann::ordered_json settings_to_json(const Request& request) {
  auto json = nlohmann::ordered_json::object();
  for (const RequestSetting* setting : chat_settings()) {
    const std::string value = setting->show(request);
    json[chat_name(*setting)] =
        value == setting->absent ? nlohmann::ordered_json() : nlohmann::ordered_json::parse(value);
  }
  return json;
}

void settings_from_json(Request& request, const nlohmann::json& json, std::string_view where) {
  const size_t n_settings = chat_settings().size();
  if (!json.is_object() || json.size() != n_settings) {
    throw Error(std::string(where) + ": \"settings\" is not an object of " +
                std::to_string(n_settings) + " numbers");
  }
  const JsonView settings(json, std::string(where) + ": a setting is wrong");
  Request changed;
  for (const RequestSetting* setting : chat_settings()) {
    const std::string name = chat_name(*setting);
    if (const auto value = settings.find(name)) {
      setting->read(*value, changed);
    } else if (setting->absent.empty() || !settings.has(name)) {
      settings.fail(in_quotes(name) + " is missing");
    }
  }
  for (const RequestSetting* setting : chat_settings()) setting->copy(changed, request);
}

}  // namespace faststream::cli
