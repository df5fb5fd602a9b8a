#include "cli/setting_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "engine/request_settings.h"
#include "support/error.h"

namespace faststream::cli {
namespace {

bool is_among(std::span<const std::string> given, std::string_view option) {
  return std::ranges::find(given, option) != given.end();
}

void add_setting_option(CLI::App& app, const RequestSetting& setting, Request& request) {
  const SettingOption& option = setting.option;
  const auto parse = [&setting, &request](const CLI::results_t& texts) {
    try {
      setting.parse(texts.front(), request);
    } catch (const UsageError& error) {
      throw CLI::ValidationError(std::string(setting.option.name), error.what());
    }
    return true;
  };
  std::string names(option.name);
  if (!option.aliases.empty()) names = std::string(option.aliases) + "," + names;
  CLI::Option* added = app.add_option(names, parse, std::string(option.help))
                           ->group(std::string(option.group))
                           ->type_name(std::string(option.value));
  // Where there is no number, the help says in words what that means.
  if (setting.absent.empty()) added->default_str(setting.show({}));
}

}  // namespace

void add_setting_options(CLI::App& app, std::string_view group, Request& request) {
  for (const RequestSetting& setting : request_settings()) {
    if (!setting.option.name.empty() && setting.option.group == group) {
      add_setting_option(app, setting, request);
    }
  }
}

void recommend(const Request& recommended, std::span<const std::string> given, Request& request) {
  for (const RequestSetting& setting : request_settings()) {
    if (setting.key == "beams" && asks_for_draws(given)) continue;
    if (!is_among(given, setting.option.name)) setting.copy(recommended, request);
  }
}

bool asks_for_draws(std::span<const std::string> given) {
  return std::ranges::any_of(request_settings(), [&](const RequestSetting& setting) {
    const bool draws = setting.use == SettingUse::samples || setting.use == SettingUse::draws;
    return draws && is_among(given, setting.option.name);
  });
}

std::string idle_options(std::span<const std::string> given, const Request& request) {
  std::string lines;
  for (const std::string& option : given) {
    const RequestSetting* setting = find_setting_of_option(option);
    if (setting == nullptr) continue;
    const std::string_view why = setting->idleness(request);
    if (!why.empty()) lines += option + " " + std::string(why) + "\n";
  }
  return lines;
}

}  // namespace faststream::cli
