// Options of beam searches.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/request.h"

namespace CLI {
class App;
}

namespace faststream {

/// Adds the options to `app`, bound to `request`.
void add_beam_options(CLI::App& app, Request& request);

/// What the command line and what lines of batches call a setting.
struct SettingSpelling {
  std::string_view option;
  std::string_view key;
};

/// The settings that have no effect with so many beams: those of draws with several, as beams draw
/// nothing, and those of searches with one.
std::span<const SettingSpelling> settings_without_effect(int32_t beams);

/// Throws UsageError when one of the options that are given ("--seed") has no effect with so many
/// beams. Not for batches, whose lines may say something else.
void check_beam_options(std::span<const std::string> given, int32_t beams);

}  // namespace faststream
