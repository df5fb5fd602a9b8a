// Chat templates against what Transformers makes of the checkpoints' own (make_chat_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

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

// The marks of all built-in formats.
std::set<std::string> all_marks() {
  std::ifstream stream(golden_root().parent_path().parent_path() / "src/text/chat_templates.json");
  std::set<std::string> marks;
  const nlohmann::json formats = nlohmann::json::parse(stream);
  for (const auto& format : formats.at("templates")) {
    for (const auto& rule : format.at("marks")) {
      for (const auto& [kind, list] : rule.items()) marks.insert(list.begin(), list.end());
    }
  }
  return marks;
}

// If not: make_chat_golden.py has to look for the new marks in the published templates.
TEST(ChatTemplateGolden, KnowsAllMarks) {
  EXPECT_EQ(golden().at("marks").get<std::set<std::string>>(), all_marks());
}

TEST(ChatTemplateGolden, RecognizesEachPublishedTemplate) {
  for (const auto& entry : golden().at("templates")) {
    const std::string name = entry.at("name");
    std::string text;  // as good as the template: it contains the same marks
    for (const auto& mark : entry.at("marks")) text += mark.get<std::string>() + "\n\n";
    for (const std::string& mark : all_marks()) {
      const auto& marks = entry.at("marks");
      const bool has = std::find(marks.begin(), marks.end(), mark) != marks.end();
      ASSERT_EQ(text.find(mark) != std::string::npos, has) << name << ": " << mark;
    }
    const auto found = ChatTemplate::recognize(text);
    ASSERT_TRUE(found.has_value()) << name;
    EXPECT_EQ(found->name(), entry.at("format").get<std::string>()) << name;
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
