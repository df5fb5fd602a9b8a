// Which chat template a model uses.
#pragma once

#include <optional>
#include <string>

#include "model_file/model_file.h"
#include "text/chat_template.h"

namespace faststream {

/// The template `asked` for (a built-in name, or else a file), or if that is empty the one in the
/// model file, if it has one. Throws Error when `asked` is neither a name nor a file, or when the
/// template cannot be parsed.
std::optional<ChatTemplate> find_chat_template(const std::string& asked, const ModelFile& file);

/// One sentence: that find_chat_template() found none, and what to do.
std::string unknown_chat_template(const ModelFile& file);

}  // namespace faststream
