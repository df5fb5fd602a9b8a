// What /set changes: how a chat's answers are generated. These are the settings of a request
// (engine/request_settings.h) that are for chats, with names such as "top-k".
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "engine/request_settings.h"

namespace faststream::cli {

/// All of them.
const std::vector<const RequestSetting*>& chat_settings();

/// What a chat calls a setting: its key with dashes.
std::string chat_name(const RequestSetting& setting);

/// The one of that name. Throws UsageError, naming all, when there is none.
const RequestSetting& find_chat_setting(std::string_view name);

/// Sets one from text: a number, "random" for the seed, "unlimited" for max-tokens. Throws
/// UsageError, with `request` as before, for an unknown name or a value that is out of range.
void change_setting(Request& request, std::string_view name, std::string_view value);

/// All settings as lines "name  value".
std::string list_settings(const Request& request);

/// An object of all settings; null for "random" and "unlimited".
nlohmann::ordered_json settings_to_json(const Request& request);
/// Sets all of them. Throws Error, starting with `where` and with `request` as before, when one is
/// missing, unknown or out of range.
void settings_from_json(Request& request, const nlohmann::json& json, std::string_view where);

}  // namespace faststream::cli
