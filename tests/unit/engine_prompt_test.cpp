// Prompts that the engine refuses.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine_model.h"
#include "file_helpers.h"

namespace faststream {
namespace {

class EnginePrompt : public testing::Test {
 protected:
  std::string refusal(Prompt prompt) {
    return error_of(
        [&] { engine_.submit({.prompt = std::move(prompt), .max_tokens = 1}, Callbacks{}); });
  }
  Engine engine_{engine_model(),
                 {.device = "cpu", .threads = 1, .context = 64, .chat_template = "plain"}};
};

TEST_F(EnginePrompt, IsCountedWhereItIsALittleLongerThanTheContext) {
  // Each "ll" is a token, and so are the begin of the sequence and the space before the text.
  EXPECT_TRUE(says(refusal(std::string(140, 'l')), "the prompt has 72 tokens", "only 64"));
  EXPECT_TRUE(says(refusal(std::vector<int32_t>(65, 5)), "the prompt has 65 tokens", "only 64"));
}

TEST_F(EnginePrompt, HasATokenWhereItIsAListOfThem) {
  EXPECT_TRUE(says(refusal(std::vector<int32_t>()), "empty list of tokens", "at least one"));
}

TEST_F(EnginePrompt, IsRefusedBeforeItIsSplitWhereItCannotFitTheContext) {
  const std::string text(6 << 20, 'l');
  EXPECT_TRUE(says(refusal(text), "the prompt has at least 1048576 tokens", "only 64", "shorten"));
  EXPECT_TRUE(says(refusal(std::vector<Message>{{.role = "user", .content = text}}),
                   "the prompt has at least 10485", "only 64", "shorten"));
}

}  // namespace
}  // namespace faststream
