// Conversations that the command line names.
#pragma once

#include <string>

#include "engine/request.h"

namespace faststream::cli {

/// The conversation in a file, as api/conversation.h has it and without other members. Throws
/// Error, naming the file.
ChatPrompt read_conversation_file(const std::string& path);

/// Adds a variable for chat templates, "NAME=VALUE" with a value in JSON or else a text, to an
/// object in JSON, which may be empty. Throws UsageError for other forms.
void add_template_variable(std::string& variables, const std::string& definition);

}  // namespace faststream::cli
