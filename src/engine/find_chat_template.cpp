#include "engine/find_chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/error.h"
#include "support/mapped_file.h"
#include "support/name_list.h"
#include "support/printable.h"
#include "support/utf8.h"

namespace faststream {
namespace {

std::string known_names() {
  std::string list;
  for (const std::string& name : ChatTemplate::names()) add_name(list, name);
  return list;
}

}  // namespace

std::optional<ChatTemplate> find_chat_template(const std::string& asked, const ModelFile& file) {
  const nlohmann::json& header = file.header();
  const auto spellings = header.find("special_tokens");
  const nlohmann::json* special_tokens = spellings == header.end() ? nullptr : &*spellings;
  if (!asked.empty()) {
    const std::vector<std::string> names = ChatTemplate::names();
    if (std::find(names.begin(), names.end(), asked) != names.end()) {
      return ChatTemplate::named(asked, special_tokens);
    }
    if (!std::filesystem::exists(asked)) {
      throw UsageError("--chat-template " + asked +
                       " is neither a file nor one of the built-in templates, " + known_names());
    }
    const MappedFile source(asked);
    std::string_view text(reinterpret_cast<const char*>(source.bytes().data()),
                          source.bytes().size());
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    if (!is_valid_utf8(text)) {
      throw Error("--chat-template " + asked +
                  " is not UTF-8 text; convert it, with iconv for example");
    }
    return ChatTemplate(text, printable(asked), {}, special_tokens);
  }
  const auto own = header.find("chat_template");
  if (own == header.end()) return std::nullopt;
  try {
    return ChatTemplate::from_json(*own, "the chat template", special_tokens);
  } catch (const Error& error) {
    throw Error(file.name() + ": " + error.what() +
                "; give another with --chat-template NAME|FILE (built in: " + known_names() + ")");
  }
}

std::string unknown_chat_template(const ModelFile& file) {
  return file.name() +
         ": it has no chat template; give one with --chat-template NAME|FILE (built in: " +
         known_names() + ")";
}

}  // namespace faststream
