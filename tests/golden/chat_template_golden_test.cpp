// Chat templates against what Transformers makes of the checkpoints' own (make_chat_golden.py).
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
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

std::string jinja(const std::string& name) {
  std::ifstream file(golden_root() / "chat_templates" / (name + ".jinja"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ChatTemplateGolden, RecognizesEachPublishedTemplate) {
  for (const auto& entry : golden().at("templates")) {
    const std::string name = entry.at("name");
    const auto found = ChatTemplate::recognize(jinja(name));
    ASSERT_TRUE(found.has_value()) << name;
    EXPECT_EQ(found->name(), entry.at("format")) << name;
  }
}

TEST(ChatTemplateGolden, HasEveryBuiltInFormat) {
  for (const std::string& name : ChatTemplate::names()) {
    const auto& entries = golden().at("templates");
    EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
      return entry.at("format") == name && !entry.at("texts").empty();
    })) << name;
  }
}

TEST(ChatTemplateGolden, WritesConversationsAsTransformersDoes) {
  for (const auto& entry : golden().at("templates")) {
    const ChatTemplate format = ChatTemplate::named(entry.at("format").get<std::string>());
    for (const auto& [index, text] : entry.at("texts").items()) {
      std::vector<Message> messages;
      for (const auto& message : golden().at("conversations").at(std::stoul(index))) {
        messages.push_back({message.at("role"), message.at("content")});
      }
      EXPECT_EQ(format.render(messages, "<s>", "</s>"), text.get<std::string>())
          << entry.at("name") << ", conversation " << index;
    }
  }
}

}  // namespace
}  // namespace faststream
