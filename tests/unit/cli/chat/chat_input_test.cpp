#include "cli/chat/chat_input.h"

#include <gtest/gtest.h>

#include <vector>

namespace faststream::cli {
namespace {

// What lines make, each input as "command|text", the command "-" for a message.
std::vector<std::string> inputs(const std::vector<std::string>& lines) {
  InputAssembler assembler;
  std::vector<std::string> all;
  const auto keep = [&](const std::optional<ChatInput>& input) {
    if (input) all.push_back(input->command.value_or("-") + "|" + input->text);
  };
  for (const std::string& line : lines) keep(assembler.add(line));
  keep(assembler.finish());
  EXPECT_FALSE(assembler.unfinished());
  return all;
}

using Texts = std::vector<std::string>;

TEST(ChatInput, IsAMessageALine) {
  EXPECT_EQ(inputs({"Hello", "  two words "}), (Texts{"-|Hello", "-|  two words "}));
}

TEST(ChatInput, PassesOverBlankLines) {
  EXPECT_EQ(inputs({"", "  ", "\t", "a", ""}), Texts{"-|a"});
  EXPECT_EQ(inputs({"\"\"\"", " ", "", "\"\"\""}), Texts{});
  EXPECT_EQ(inputs({"\\", ""}), Texts{});
}

TEST(ChatInput, IsACommandAfterASlash) {
  EXPECT_EQ(inputs({"/help", "/set  top-k   5 ", "/system a\tb", "/", "/ x"}),
            (Texts{"help|", "set|top-k   5", "system|a\tb", "|", "|x"}));
}

TEST(ChatInput, IsAMessageAfterTwoSlashes) {
  EXPECT_EQ(inputs({"//help", "///", " /help"}), (Texts{"-|/help", "-|//", "-| /help"}));
}

TEST(ChatInput, GoesOnAfterABackslash) {
  EXPECT_EQ(inputs({"one\\", "two\\", "three", "four"}), (Texts{"-|one\ntwo\nthree", "-|four"}));
  EXPECT_EQ(inputs({"/system Be brief.\\", "Be kind."}), Texts{"system|Be brief.\nBe kind."});
  EXPECT_EQ(inputs({"a\\", "\"\"\"", "b"}), (Texts{"-|a\n\"\"\"", "-|b"}));
}

TEST(ChatInput, IsABlockBetweenTripleQuotes) {
  EXPECT_EQ(inputs({"\"\"\"", "/no command", "", "a\\", "\"\"\" not yet", "\"\"\"  ", "next"}),
            (Texts{"-|/no command\n\na\\\n\"\"\" not yet", "-|next"}));
}

TEST(ChatInput, EndsWithTheLines) {
  EXPECT_EQ(inputs({"\"\"\"", "a", "b"}), Texts{"-|a\nb"});
  EXPECT_EQ(inputs({"a\\"}), Texts{"-|a"});
  EXPECT_EQ(inputs({}), Texts{});
}

TEST(ChatInput, ForgetsWhatIsUnfinished) {
  InputAssembler assembler;
  EXPECT_FALSE(assembler.add("\"\"\""));
  EXPECT_FALSE(assembler.add("lost"));
  EXPECT_TRUE(assembler.unfinished());
  assembler.clear();
  EXPECT_FALSE(assembler.unfinished());
  EXPECT_EQ(assembler.add("kept")->text, "kept");
}

TEST(ChatInput, CanBeTypedAgain) {
  for (const char* text : {"Hello", "//slash", "/set top-k 5", "/help"}) {
    EXPECT_EQ(InputAssembler().add(text)->typed(), text);
  }
  EXPECT_EQ(InputAssembler().add("a\nb")->typed(), "a\nb");  // a line edited as a whole
}

}  // namespace
}  // namespace faststream::cli
