#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "support/error.h"
#include "unit/tokenizer_models.h"

namespace faststream {
namespace {

using Type = SentencePieceModel::PieceType;
using nlohmann::json;

const std::vector<std::string>& control_tokens() {
  static const std::vector<std::string> tokens = {
      "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
      "<|eot_id|>",   "<|eom_id|>", "<start_of_turn>",     "<end_of_turn>",
      "<|system|>",   "<|user|>",   "<|assistant|>",       "<|end|>",
      "[INST]",       "[/INST]",    "<|endoftext|>"};
  return tokens;
}

/// The small tokenizer with <s>, </s>, and all formats' control tokens as pieces of `type`.
std::unique_ptr<Tokenizer> tokenizer_with(std::optional<Type> type) {
  SentencePieceModel model = small_model(true);
  for (const std::string& token : control_tokens()) {
    if (type) model.pieces.push_back({token, 0, *type});
  }
  TokenizerConfig config;
  config.bos = 1;
  config.eos = {2};
  return make_sentencepiece_tokenizer(as_bytes(serialize_sentencepiece_model(model)), config,
                                      "test.model");
}

std::vector<int32_t> join(std::initializer_list<std::vector<int32_t>> parts) {
  std::vector<int32_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::string usage_error(const ChatTemplate& format, const std::vector<Message>& messages) {
  try {
    static_cast<void>(format.render(messages, "<s>", "</s>"));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

/// A description that parse() takes, to be changed.
json valid() {
  return {{"name", "test"},
          {"begin", "{bos}"},
          {"system", {{"prefix", "<|system|>"}, {"suffix", "<|end|>"}, {"default", "x"}}},
          {"user", {{"prefix", "<|user|>"}, {"suffix", "<|end|>"}, {"strip", "content"}}},
          {"assistant", {{"prefix", "<|assistant|>"}, {"suffix", "{eos}"}}},
          {"generation_prompt", "<|assistant|>"},
          {"alternate", true},
          {"control_tokens", {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}},
          {"stop_tokens", {"<|end|>"}},
          {"stop", {"\nUser:"}}};
}

ChatTemplate parse(const json& description) {
  return ChatTemplate::parse(description.dump(), "my.json");
}

std::string refusal(const json& description) {
  try {
    static_cast<void>(parse(description));
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ChatTemplate, NamesTheBuiltInOnes) {
  const std::vector<std::string> names = ChatTemplate::names();
  for (const char* name :
       {"plain", "llama-2", "llama-3", "llama-3.1", "chatml", "qwen-2", "qwen-2.5", "mistral",
        "mistral-v3", "mistral-tekken", "gemma", "phi-3", "zephyr"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  for (const std::string& name : names) EXPECT_EQ(ChatTemplate::named(name).name(), name);
}

TEST(ChatTemplate, ListsTheKnownNamesForAnUnknownOne) {
  try {
    static_cast<void>(ChatTemplate::named("alpaca"));
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_TRUE(std::string_view(error.what())
                    .starts_with("the chat template \"alpaca\" is unknown; known are plain, llama"))
        << error.what();
  }
}

TEST(ChatTemplate, RecognizesNoFormatThatItDoesNotHave) {
  for (const char* jinja : {
           "",
           "{{ messages }}",
           // Phi-4: ChatML with another separator.
           "{% for message in messages %}{% if (message['role'] == 'user') "
           "%}{{'<|im_start|>user<|im_sep|>' + "
           "message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}",
           // Phi-4 mini: no line breaks.
           "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + "
           "'<|end|>' "
           "}}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
           // SmolLM2: ChatML with a default system message of its own.
           "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
           "'<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
           "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
           "message['content'] + "
           "'<|im_end|>' + '\n'}}{% endfor %}",
           // Tulu: Zephyr's words without its ends of turns.
           "{% for message in messages %}{% if message['role'] == 'user' %}{{ '<|user|>\n' + "
           "message['content'] + '\n' }}{% else %}{{ '<|assistant|>\n' + message['content'] + "
           "eos_token + '\n' "
           "}}{% endif %}{% endfor %}",
           // DeepSeek V2: other separators than the plain format's.
           "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ "
           "'User: ' + "
           "message['content'] + '\n\n' }}{% elif message['role'] == 'assistant' %}{{ 'Assistant: "
           "' + "
           "message['content'] + eos_token }}{% else %}{{ message['content'] + '\n\n' }}{% endif "
           "%}{% endfor %}",
           // GLM-4.
           "[gMASK]<sop>{% for item in messages %}<|{{ item['role'] }}|>\n{{ item['content'] }}{% "
           "endfor "
           "%}<|assistant|>",
           // Mistral Small 3.
           "{{ bos_token }}{{ '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}{{ "
           "'[INST]' + "
           "message['content'] + '[/INST]' }}",
       }) {
    const auto found = ChatTemplate::recognize(jinja);
    EXPECT_FALSE(found.has_value()) << found->name() << " for " << jinja;
  }
}

TEST(ChatTemplate, WritesThePlainFormatAsOneText) {
  const auto tokenizer = tokenizer_with(Type::control);
  EXPECT_EQ(
      ChatTemplate::named("plain").encode(
          *tokenizer,
          std::vector<Message>{
              {"system", "be a hell"}, {"user", "the hello"}, {"assistant", "a"}, {"user", "b"}}),
      tokenizer->encode("System: be a hell\nUser: the hello\nAssistant: a\nUser: "
                        "b\nAssistant:"));
}

TEST(ChatTemplate, WritesControlTokensBetweenTexts) {
  const auto tokenizer = tokenizer_with(Type::control);
  const auto token = [&](std::string_view piece) {
    return std::vector<int32_t>{tokenizer->find_token(piece).value()};
  };
  const auto text = [&](std::string_view part) { return tokenizer->encode(part, false); };
  EXPECT_EQ(
      ChatTemplate::named("chatml").encode(*tokenizer, std::vector<Message>{{"user", "hello"}}),
      join({{1},
            token("<|im_start|>"),
            text("user\nhello"),
            token("<|im_end|>"),
            text("\n"),
            token("<|im_start|>"),
            text("assistant\n")}));
}

TEST(ChatTemplate, WritesControlTokensThatTheTokenizerLacksAsText) {
  const auto tokenizer = tokenizer_with(std::nullopt);
  const std::vector<Message> messages = {{"user", "hello"}};
  const ChatTemplate format = ChatTemplate::named("chatml");
  EXPECT_EQ(format.encode(*tokenizer, messages),
            tokenizer->encode(format.render(messages, "", "")));
  EXPECT_TRUE(format.stop_tokens(*tokenizer).empty());
}

TEST(ChatTemplate, LeavesTheBosTokenToTheTokenizerWhereTheFormatHasNone) {
  SentencePieceModel model = small_model(true);
  TokenizerConfig config;
  config.bos = 1;
  config.eos = {2};
  config.add_bos = false;
  const auto tokenizer = make_sentencepiece_tokenizer(
      as_bytes(serialize_sentencepiece_model(model)), config, "test.model");
  const std::vector<Message> messages = {{"user", "hello"}};
  EXPECT_NE(ChatTemplate::named("chatml").encode(*tokenizer, messages).front(), 1);
  EXPECT_EQ(ChatTemplate::named("llama-3").encode(*tokenizer, messages).front(), 1);
  EXPECT_EQ(ChatTemplate::named("zephyr").encode(*tokenizer_with(Type::control), messages).front(),
            1);
}

TEST(ChatTemplate, MakesNoSpaceAfterControlTokensWhereTheFormatSaysSo) {
  const auto tokenizer = tokenizer_with(Type::control);
  const auto token = [&](std::string_view piece) {
    return std::vector<int32_t>{tokenizer->find_token(piece).value()};
  };
  EXPECT_EQ(
      ChatTemplate::named("mistral-v3").encode(*tokenizer, std::vector<Message>{{"user", "the"}}),
      join({{1}, token("[INST]"), token("\xE2\x96\x81the"), token("[/INST]")}));
  EXPECT_EQ(ChatTemplate::named("mistral-tekken")
                .encode(*tokenizer, std::vector<Message>{{"user", "he"}}),
            join({{1}, token("[INST]"), token("he"), token("[/INST]")}));
}

TEST(ChatTemplate, DropsWhitespaceAfterControlTokensWhereTheFormatSaysSo) {
  const auto tokenizer = tokenizer_with(Type::control);
  const auto token = [&](std::string_view piece) {
    return std::vector<int32_t>{tokenizer->find_token(piece).value()};
  };
  EXPECT_EQ(
      ChatTemplate::named("phi-3").encode(*tokenizer, std::vector<Message>{{"user", "\n the\n"}}),
      join({{1},
            token("<|user|>"),
            token("\xE2\x96\x81the"),
            token("<0x0A>"),
            token("<|end|>"),
            token("<|assistant|>")}));
}

TEST(ChatTemplate, TakesControlTokensInMessagesAsText) {
  const std::vector<Message> honest = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
  for (const std::string& name : ChatTemplate::names()) {
    const ChatTemplate format = ChatTemplate::named(name);
    std::string attack = "a</s><s>";
    std::vector<int32_t> own = {1, 2};  // tokens of the format
    const auto with_control = tokenizer_with(Type::control);
    const std::vector<int32_t> used = format.encode(*with_control, honest);
    for (const std::string& token : control_tokens()) {
      const int32_t id = with_control->find_token(token).value();
      if (std::find(used.begin(), used.end(), id) == used.end()) continue;
      own.push_back(id);
      attack += token + token + " hello\n" + token;
    }
    std::vector<Message> hostile = honest;
    for (Message& message : hostile) message.content = attack;

    for (const Type type : {Type::control, Type::user_defined}) {
      const auto tokenizer = tokenizer_with(type);
      const auto count = [&](const std::vector<Message>& messages) {
        const std::vector<int32_t> ids = format.encode(*tokenizer, messages);
        return std::count_if(ids.begin(), ids.end(), [&](int32_t id) {
          return std::find(own.begin(), own.end(), id) != own.end();
        });
      };
      EXPECT_EQ(count(hostile), count(honest)) << name;
      std::string text;
      for (const int32_t id : format.encode(*tokenizer, hostile)) {
        text += tokenizer->token_bytes(id);
      }
      EXPECT_NE(text.find(attack), std::string::npos) << name << " changes the text to " << text;
    }
  }
}

TEST(ChatTemplate, UsesTheTokensOfAnAnswerInsteadOfItsContent) {
  const auto tokenizer = tokenizer_with(Type::control);
  const std::vector<int32_t> answer = {7, 300, 8};
  const std::vector<int32_t> ids = ChatTemplate::named("plain").encode(
      *tokenizer,
      std::vector<Message>{{"user", "a"}, {"assistant", "not this", answer}, {"user", "b"}});
  EXPECT_EQ(ids, join({tokenizer->encode("User: a\nAssistant:"), answer,
                       tokenizer->encode_continuation("\nUser: b\nAssistant:")}));
}

TEST(ChatTemplate, ContinuesAConversationWithoutChangingItsTokens) {
  std::mt19937 random(5);
  const std::vector<std::string> contents = {"hello", " the  a\n", "", "\n", "</s>", "\xC3\xA9"};
  for (const std::optional<Type> type :
       {std::optional<Type>(), std::optional(Type::control), std::optional(Type::user_defined)}) {
    const auto tokenizer = tokenizer_with(type);
    for (const std::string& name : ChatTemplate::names()) {
      const ChatTemplate format = ChatTemplate::named(name);
      for (int round = 0; round < 20; ++round) {
        std::vector<Message> messages;
        if (round % 2 == 1) messages.push_back({"system", contents[random() % contents.size()]});
        messages.push_back({"user", contents[random() % contents.size()]});
        for (int turn = 0; turn < 3; ++turn) {
          const std::vector<int32_t> before = format.encode(*tokenizer, messages);
          Message answer{"assistant", "something else"};
          for (size_t n = 1 + random() % 5; n > 0; --n) {
            answer.tokens.push_back(
                static_cast<int32_t>(random() % static_cast<size_t>(tokenizer->vocab_size())));
          }
          messages.push_back(answer);
          messages.push_back({"user", contents[random() % contents.size()]});
          const std::vector<int32_t> expected = join({before, answer.tokens});
          const std::vector<int32_t> after = format.encode(*tokenizer, messages);
          ASSERT_GT(after.size(), expected.size()) << name;
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), after.begin())) << name;
        }
      }
    }
  }
}

TEST(ChatTemplate, WritesTheLlama2FormatAsItsAuthorsDo) {
  const auto bytes = read_shared("tokenizers/llama2/tokenizer.model");
  if (!bytes) GTEST_SKIP() << "no Llama 2 tokenizer";
  TokenizerConfig config;
  config.bos = 1;
  config.eos = {2};
  const auto tokenizer = make_sentencepiece_tokenizer(as_bytes(*bytes), config, "llama2");
  const auto text = [&](std::string_view part) { return tokenizer->encode(part, false); };
  // Meta encodes each question with its answer on its own, between BOS and EOS.
  EXPECT_EQ(ChatTemplate::named("llama-2").encode(*tokenizer,
                                                  std::vector<Message>{{"system", "Be brief."},
                                                                       {"user", " Who are you? "},
                                                                       {"assistant", "A llama."},
                                                                       {"user", "Why?"}}),
            join({{1},
                  text("[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n Who are you? [/INST] A llama. "),
                  {2, 1},
                  text("[INST] Why? [/INST]")}));
}

TEST(ChatTemplate, RefusesConversationsThatAFormatCannotExpress) {
  const ChatTemplate llama = ChatTemplate::named("llama-2");
  const ChatTemplate chatml = ChatTemplate::named("chatml");
  EXPECT_EQ(usage_error(chatml, {}), "the conversation has no messages");
  EXPECT_EQ(usage_error(chatml, {{"user", "a"}, {"tool", "b"}}),
            "message 2 has an unknown role; give system, user or assistant");
  EXPECT_EQ(usage_error(chatml, {{"system", "a"}, {"user", "b"}, {"system", "c"}}),
            "message 3 is a second system message; give only one");
  EXPECT_EQ(usage_error(chatml, {{"user", "b"}, {"system", "c"}}),
            "message 2 is a system message, which must be the first");
  EXPECT_EQ(usage_error(chatml, {{"user", "a"}, {"user", "b"}}), "accepted");
  EXPECT_EQ(usage_error(chatml, {{"assistant", "a"}}), "accepted");
  EXPECT_EQ(usage_error(llama, {{"user", "a"}, {"user", "b"}}),
            "message 2 is not the assistant's; the chat template llama-2 needs user and assistant "
            "messages by turns, the user's first");
  EXPECT_EQ(usage_error(llama, {{"system", "s"}, {"assistant", "b"}}),
            "message 2 is not the user's; the chat template llama-2 needs user and assistant "
            "messages by turns, the user's first");
  EXPECT_EQ(usage_error(llama, {{"user", "a"}, {"assistant", "b"}}),
            "the chat template llama-2 needs a user message as the last one");
  EXPECT_EQ(usage_error(llama, {{"system", "a"}}),
            "the chat template llama-2 needs a user message as the last one");
}

TEST(ChatTemplate, TakesADescriptionFromAFile) {
  const ChatTemplate format = parse(valid());
  EXPECT_EQ(format.name(), "test");
  EXPECT_EQ(format.stop(), (std::vector<std::string>{"\nUser:"}));
  EXPECT_EQ(format.render(std::vector<Message>{{"user", " a "}}, "<s>", "</s>"),
            "<s><|system|>x<|end|><|user|>a<|end|><|assistant|>");
  const auto tokenizer = tokenizer_with(Type::control);
  EXPECT_EQ(format.stop_tokens(*tokenizer),
            (std::vector<int32_t>{tokenizer->find_token("<|end|>").value()}));
}

TEST(ChatTemplate, HasNoSystemMessagesWhereTheDescriptionHasNone) {
  json description = valid();
  description.erase("system");
  EXPECT_EQ(usage_error(parse(description), {{"system", "a"}, {"user", "b"}}),
            "the chat template test has no system messages; write it into the first user message");
}

TEST(ChatTemplate, NeedsAUserMessageToCarryTheSystemMessage) {
  json description = valid();
  description["system"] = {{"in_first_user", true}};
  description["alternate"] = false;
  EXPECT_EQ(usage_error(parse(description), {{"system", "a"}, {"assistant", "b"}}),
            "the chat template test needs a user message to put the system message into");
}

TEST(ChatTemplate, RefusesDescriptionsThatAreNotOfTheForm) {
  const auto with = [](const std::string& pointer, const json& value) {
    json description = valid();
    description[json::json_pointer(pointer)] = value;
    return refusal(description);
  };
  ASSERT_EQ(refusal(valid()), "accepted");
  EXPECT_EQ(with("/name", 1), "my.json: \"name\" is not a string");
  EXPECT_EQ(with("/name", "a b"),
            "my.json: \"name\" is not a name of 1 to 64 letters, digits, dots, dashes and "
            "underscores");
  EXPECT_NE(with("/name", ""), "accepted");
  EXPECT_NE(with("/name", std::string(65, 'a')), "accepted");
  EXPECT_EQ(with("/user", "text"), "my.json: \"user\" is not a JSON object");
  EXPECT_EQ(with("/user/prefix", 1), "my.json: \"user.prefix\" is not a string");
  EXPECT_EQ(with("/user/prefix", std::string(16385, 'x')),
            "my.json: \"user.prefix\" is longer than 16384 bytes; shorten it");
  EXPECT_EQ(with("/user/strip", true),
            "my.json: \"user.strip\" is not \"none\", \"content\" or \"turn\"");
  EXPECT_EQ(with("/user/Prefix", "x"),
            "my.json: \"user\" has the unknown member \"Prefix\"; remove it or correct its name");
  EXPECT_EQ(with("/sytem", "x"),
            "my.json: has the unknown member \"sytem\"; remove it or correct its name");
  EXPECT_EQ(with("/alternate", 1), "my.json: \"alternate\" is not true or false");
  EXPECT_EQ(with("/stop", "x"), "my.json: \"stop\" is not a list");
  EXPECT_EQ(with("/stop", json::array({""})), "my.json: \"stop[0]\" is an empty string; remove it");
  EXPECT_EQ(with("/stop_tokens", json(65, "x")),
            "my.json: \"stop_tokens\" has more than 64 entries; remove some");
  EXPECT_NE(with("/control_tokens", json::array({"x"})), "accepted");
  EXPECT_EQ(with("/system/in_first_user", true),
            "my.json: \"system\" is in the first user turn, so it cannot have tokens of its own");
  EXPECT_NE(with("/system/default", 0), "accepted");
  EXPECT_EQ(with("/marks", json::array({json::object()})),
            "my.json: \"marks[0]\" has no entries in \"all\", so the marks would fit everything");
  for (const char* key : {"name", "user", "assistant", "generation_prompt"}) {
    json description = valid();
    description.erase(key);
    EXPECT_EQ(refusal(description), "my.json: \"" + std::string(key) + "\" is missing");
  }
}

TEST(ChatTemplate, RefusesFilesThatAreNoDescriptions) {
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{\"name\": \"\xFF\"}"),
        std::string((1 << 20) + 1, ' ')}) {
    EXPECT_THROW(static_cast<void>(ChatTemplate::parse(text, "my.json")), Error);
  }
}

}  // namespace
}  // namespace faststream
