#include "text/chat_template.h"
#include "support/error.h"
namespace faststream {
ChatTemplate ChatTemplate::parse(std::string_view, std::string_view) { throw Error("none"); }
ChatTemplate ChatTemplate::named(std::string_view) { throw Error("none"); }
std::optional<ChatTemplate> ChatTemplate::recognize(std::string_view) { return {}; }
std::vector<std::string> ChatTemplate::names() { return {}; }
std::vector<int32_t> ChatTemplate::encode(const Tokenizer&, std::span<const Message>) const { return {}; }
std::vector<int32_t> ChatTemplate::stop_tokens(const Tokenizer&) const { return {}; }
}
