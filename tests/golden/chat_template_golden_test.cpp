// Built-in chat templates against what Transformers makes of the checkpoints' own
// (make_chat_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "golden/golden_data.h"
#include "text/chat_template.h"

namespace faststream {
namespace {

const nlohmann::json& golden() {
  static const nlohmann::json file = [] {
    std::ifstream stream(golden_root() / "chat_templates.json");
    return nlohmann::json::parse(stream);
  }();
  return file;
}

TEST(ChatTemplateGolden, HasEveryBuiltInTemplate) {
  for (const std::string& name : ChatTemplate::names()) {
    const auto& entries = golden().at("templates");
    EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
      return entry.at("format") == name && !entry.at("texts").empty();
    })) << name;
  }
}

TEST(ChatTemplateGolden, WritesConversationsAsTransformersDoes) {
  for (const auto& entry : golden().at("templates")) {
    const ChatTemplate chat = ChatTemplate::named(entry.at("format").get<std::string>());
    for (const auto& [index, text] : entry.at("texts").items()) {
      std::vector<Message> messages;
      for (const auto& message : golden().at("conversations").at(std::stoul(index))) {
        messages.push_back({message.at("role"), message.at("content")});
      }
      EXPECT_EQ(chat.write(messages).text(), text.get<std::string>())
          << entry.at("name") << ", conversation " << index;
    }
  }
}

}  // namespace
}  // namespace faststream
