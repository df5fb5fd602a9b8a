// The description of a model, for people.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/config.h"

namespace faststream::convert {

/// Lines of a label and a text that say what a valid description computes: its sizes, each kind of
/// layer with the layers that are of it, the rotations, the output.
std::vector<std::pair<std::string, std::string>> describe(const ModelConfig& config);

}  // namespace faststream::convert
