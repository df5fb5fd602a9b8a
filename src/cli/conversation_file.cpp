#include "cli/conversation_file.h"

#include <nlohmann/json.hpp>

#include "api/conversation.h"
#include "program/input.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "text/chat_variables.h"

namespace faststream::cli {

using nlohmann::ordered_json;

ChatPrompt read_conversation_file(const std::string& path) {
  const std::string text = read_text_file(path, "--messages");
  const std::string where = path == "-" ? "standard input" : path;
  const ordered_json object =
      parse_ordered_json(text, where, R"(give {"messages": [{"role": ..., "content": ...}, ...]})");
  if (!object.is_object()) {
    throw Error(where + ": is not a JSON object; give {\"messages\": [...]}");
  }
  for (const auto& [name, value] : object.items()) {
    if (!api::is_conversation_member(name)) {
      throw Error(where + ": has the unknown member " + in_quotes(name) +
                  "; a conversation has messages, tools, documents and chat_template_kwargs");
    }
  }
  try {
    return api::read_conversation(object);
  } catch (const Error& error) {
    throw Error(where + ": " + error.what());
  }
}

void add_template_variable(std::string& variables, const std::string& definition) {
  const size_t equals = definition.find('=');
  if (equals == 0 || equals == std::string::npos) {
    throw UsageError("--template-arg " + definition +
                     " is not NAME=VALUE, such as enable_thinking=false");
  }
  if (is_own_variable(definition.substr(0, equals))) {
    throw UsageError("--template-arg " + definition.substr(0, equals) +
                     " is set from the conversation and cannot be given; --messages, --tools and "
                     "--documents can");
  }
  ordered_json object = variables.empty() ? ordered_json::object() : ordered_json::parse(variables);
  const std::string value = definition.substr(equals + 1);
  object[definition.substr(0, equals)] = ordered_json::accept(value)
                                             ? parse_ordered_json(value, "--template-arg")
                                             : ordered_json(value);
  variables = object.dump();
}

}  // namespace faststream::cli
