// Answers that must call a tool.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "engine/request.h"

namespace faststream::api {

/// What OpenAI's "tool_choice" demands: nothing where it is null, "auto" or "none"; else that the
/// answer is a call, {"name": ..., "arguments": {...}}, of one of `tools` (ChatPrompt's), or of
/// the one that is named, with arguments by its schema. parse_tool_calls() finds such a call
/// whatever form the model was taught. Throws Error, naming the member.
std::optional<OutputRule> read_tool_choice(const nlohmann::json& choice, std::string_view tools);

}  // namespace faststream::api
