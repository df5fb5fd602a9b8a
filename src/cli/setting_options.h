// The options of a request's numbers (engine/request_settings.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"

namespace CLI {
class App;
}

namespace faststream::cli {

/// Adds those options that are in this group of the help to `app`, bound to `request`.
void add_setting_options(CLI::App& app, std::string_view group, Request& request);

/// Gives `request` what `recommended` has of the settings whose options are not among those `given`
/// ("--top-k"). Options that say how to draw say that there shall be draws: then no beam search is
/// taken from `recommended`.
void recommend(const Request& recommended, std::span<const std::string> given, Request& request);

/// Whether options say how to draw.
bool asks_for_draws(std::span<const std::string> given);

/// What to say of the given options that have no effect on what `request` asks for: lines.
std::string idle_options(std::span<const std::string> given, const Request& request);

}  // namespace faststream::cli
