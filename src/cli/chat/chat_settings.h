// What /set changes: how a chat's answers are generated.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampling.h"

namespace faststream {

struct ChatSettings {
  int64_t max_tokens = -1;  ///< of an answer; -1: no limit
  SamplingParams sampling = {};
};

/// A setting's name in a chat and its option on the command line.
struct SettingName {
  std::string_view name;    ///< "top-k"
  std::string_view option;  ///< "--top-k"
};
const std::vector<SettingName>& setting_names();

/// A setting as change_setting() takes it. Throws UsageError for an unknown name.
std::string show_setting(const ChatSettings& settings, std::string_view name);

/// Sets one from text: a number, "random" for the seed, "unlimited" for max-tokens. Throws
/// UsageError, with `settings` as before, for an unknown name or a value that is out of range.
void change_setting(ChatSettings& settings, std::string_view name, std::string_view value);

/// All settings as lines "name  value".
std::string list_settings(const ChatSettings& settings);

/// An object of all settings; null for "random" and "unlimited".
nlohmann::ordered_json settings_to_json(const ChatSettings& settings);
/// Sets all of them. Throws Error, starting with `where` and with `settings` as before, when one is
/// missing, unknown or out of range.
void settings_from_json(ChatSettings& settings, const nlohmann::json& json, std::string_view where);

}  // namespace faststream
