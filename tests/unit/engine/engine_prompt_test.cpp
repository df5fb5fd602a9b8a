// Prompts that the engine refuses.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "unit/engine/engine_model.h"
#include "unit/support/file_helpers.h"

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

TEST_F(EnginePrompt, HasSpecialTokensForTheirSpellingsOnlyWhereAsked) {
  using Ids = std::vector<int32_t>;
  const Ids ids = engine_.tokenize("ll</s>ll", true);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1);
  EXPECT_EQ(engine_.tokenize("<s>ll", true), engine_.tokenize("ll"));
  const Ids plain = engine_.tokenize("ll</s>ll");
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 2), 0);
  const std::vector<Message> messages{{.role = "user", .content = "ll</s>ll"}};
  const Ids chat = engine_.tokenize(messages, true);
  EXPECT_EQ(std::count(chat.begin(), chat.end(), 2), 1);
  EXPECT_EQ(engine_.submit({.prompt = "ll</s>ll", .max_tokens = 0, .parse_special = true})
                .get()
                .prompt_tokens,
            std::ssize(ids));
}

TEST_F(EnginePrompt, SaysWhatHelpsWhereItDoesNotFit) {
  EXPECT_TRUE(says(refusal(std::string(140, 'l')), "larger --context (the model's is 1000)"));
  Engine whole(engine_model(), {.device = "cpu", .threads = 1});
  const std::string error =
      error_of([&] { (void)whole.submit({.prompt = std::vector<int32_t>(1001, 5)}); });
  EXPECT_TRUE(says(error, "shorten the prompt, since the model has no more"));
}

TEST_F(EnginePrompt, HasATokenWhereItIsAListOfThem) {
  EXPECT_TRUE(says(refusal(std::vector<int32_t>()), "empty list of tokens", "at least one"));
}

TEST_F(EnginePrompt, IsRefusedBeforeItIsSplitWhereItCannotFitTheContext) {
  const std::string text(1 << 20, 'l');
  EXPECT_TRUE(says(refusal(text), "more tokens than the context, which has 64", "shorten"));
  EXPECT_TRUE(says(refusal(std::vector<Message>{{.role = "user", .content = text}}),
                   "more tokens than the context, which has 64", "shorten"));
}

}  // namespace
}  // namespace faststream
