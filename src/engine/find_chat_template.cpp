#include "engine/find_chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/error.h"
#include "support/mapped_file.h"

namespace faststream {
namespace {

std::string known_names() {
  std::string list;
  for (const std::string& name : ChatTemplate::names()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

}  // namespace

std::optional<ChatTemplate> find_chat_template(const std::string& asked, const ModelFile& file) {
  if (!asked.empty()) {
    const std::vector<std::string> names = ChatTemplate::names();
    if (std::find(names.begin(), names.end(), asked) != names.end()) {
      return ChatTemplate::named(asked);
    }
    if (!std::filesystem::exists(asked)) {
      throw UsageError("--chat-template " + asked +
                       " is neither a file nor one of the built-in templates, " + known_names());
    }
    const MappedFile description(asked);
    const auto bytes = description.bytes();
    return ChatTemplate::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, asked);
  }
  const auto jinja = file.header().find("chat_template");
  if (jinja == file.header().end() || !jinja->is_string()) return std::nullopt;
  return ChatTemplate::recognize(jinja->get_ref<const std::string&>());
}

std::string unknown_chat_template(const ModelFile& file) {
  return file.name() +
         (file.header().contains("chat_template") ? ": its chat template is none that is known here"
                                                  : ": it has no chat template") +
         "; give one with --chat-template NAME|FILE (built in: " + known_names() + ")";
}

}  // namespace faststream
