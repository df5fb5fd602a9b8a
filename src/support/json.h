// JSON from outside.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace faststream {

/// Parses one JSON object. Throws Error, starting with `where`, when `text` is not JSON, not an
/// object, not UTF-8, or nested more than 64 deep: copying and printing a value recurse, and a
/// hostile file must not choose how far. `advice` ends the sentence for what is not JSON.
nlohmann::json parse_json_object(
    std::string_view text, std::string_view where,
    std::string_view advice = "the file is damaged or of another kind");

}  // namespace faststream
