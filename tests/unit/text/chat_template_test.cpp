#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "support/error.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {
namespace {

using Type = SentencePieceModel::PieceType;
using nlohmann::json;
using Messages = std::vector<Message>;

const std::vector<std::string>& control_tokens() {
  static const std::vector<std::string> tokens = {
      "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
      "<|eot_id|>",   "<|eom_id|>", "<start_of_turn>",     "<end_of_turn>",
      "<|system|>",   "<|user|>",   "<|assistant|>",       "<|end|>",
      "[INST]",       "[/INST]",    "<|endoftext|>",       "<turn|>"};
  return tokens;
}

/// The small tokenizer with <s>, </s>, and all formats' control tokens as pieces of `type`.
std::unique_ptr<Tokenizer> tokenizer_with(std::optional<Type> type, bool add_bos = true) {
  SentencePieceModel model = small_model(true);
  for (const std::string& token : control_tokens()) {
    if (type) model.pieces.push_back({token, 0, *type});
  }
  TokenizerConfig config;
  config.bos = 1;
  config.eos = {2};
  if (add_bos) config.prefix = {1};
  return make_sentencepiece_tokenizer(as_bytes(serialize_sentencepiece_model(model)), config,
                                      "test.model");
}

std::vector<int32_t> join(std::initializer_list<std::vector<int32_t>> parts) {
  std::vector<int32_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<int32_t> encode(std::string_view name, const Tokenizer& tokenizer,
                            const ChatPrompt& prompt) {
  return ChatTemplate::named(name).write(prompt).encode(tokenizer);
}

std::string write(std::string_view jinja, const ChatPrompt& prompt) {
  return ChatTemplate(jinja, "test").write(prompt).text();
}

template <typename Do>
std::string template_refusal(Do&& run) {
  try {
    run();
  } catch (const UsageError& error) {
    return error.what();
  } catch (const Error& error) {
    return std::string("failed: ") + error.what();
  }
  return "accepted";
}

std::string template_refusal(std::string_view name, const Messages& messages) {
  return template_refusal([&] { static_cast<void>(ChatTemplate::named(name).write(messages)); });
}

TEST(ChatTemplate, NamesTheBuiltInOnes) {
  const std::vector<std::string> names = ChatTemplate::names();
  for (const char* name :
       {"plain", "llama-2", "llama-3", "llama-3.1", "chatml", "qwen-2", "qwen-2.5", "mistral",
        "mistral-v3", "mistral-tekken", "gemma", "phi-3", "zephyr"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  EXPECT_TRUE(template_refusal([] {
                ChatTemplate::named("alpaca");
              }).starts_with("the chat template \"alpaca\" is unknown; known are plain, llama"));
}

TEST(ChatTemplate, WritesThePlainFormatAsOneText) {
  const auto tokenizer = tokenizer_with(Type::control);
  EXPECT_EQ(
      encode(
          "plain", *tokenizer,
          Messages{
              {"system", "be a hell"}, {"user", "the hello"}, {"assistant", "a"}, {"user", "b"}}),
      tokenizer->encode("System: be a hell\nUser: the hello\nAssistant: a\nUser: "
                        "b\nAssistant:"));
}

TEST(ChatTemplate, WritesSpecialTokensBetweenTexts) {
  const auto tokenizer = tokenizer_with(Type::control);
  const auto token = [&](std::string_view piece) {
    return std::vector<int32_t>{tokenizer->find_token(piece).value()};
  };
  const auto text = [&](std::string_view part) { return tokenizer->encode(part, false); };
  EXPECT_EQ(encode("chatml", *tokenizer, Messages{{"user", "hello"}}), join({{1},
                                                                             token("<|im_start|>"),
                                                                             text("user\nhello"),
                                                                             token("<|im_end|>"),
                                                                             text("\n"),
                                                                             token("<|im_start|>"),
                                                                             text("assistant\n")}));
  // Its marks are spelled with the messages' roles.
  EXPECT_EQ(encode("zephyr", *tokenizer, Messages{{"user", "hello"}})[1],
            token("<|user|>").front());
}

TEST(ChatTemplate, WritesSpecialTokensThatTheTokenizerLacksAsText) {
  const auto tokenizer = tokenizer_with(std::nullopt);
  const ChatTemplate chat = ChatTemplate::named("chatml");
  const ChatText written = chat.write(Messages{{"user", "hello"}});
  EXPECT_EQ(written.encode(*tokenizer), tokenizer->encode(written.text()));
  EXPECT_TRUE(chat.stop_tokens(*tokenizer).empty());
}

TEST(ChatTemplate, LeavesTheBosTokenToTheTokenizerWhereABuiltInOneHasNone) {
  const auto without = tokenizer_with(Type::control, false);
  const Messages messages = {{"user", "hello"}};
  EXPECT_NE(encode("chatml", *without, messages).front(), 1);
  EXPECT_EQ(encode("llama-3", *without, messages).front(), 1);
  const auto with = tokenizer_with(Type::control);
  EXPECT_EQ(encode("zephyr", *with, messages).front(), 1);
  const ChatTemplate own("{{ messages[0].content }}", "test");
  EXPECT_NE(own.write(messages).encode(*with).front(), 1);  // as Transformers has it
}

TEST(ChatTemplate, MakesNoSpaceWhereTheTemplateHasOne) {
  const auto tokenizer = tokenizer_with(Type::control);
  const auto token = [&](std::string_view piece) {
    return std::vector<int32_t>{tokenizer->find_token(piece).value()};
  };
  EXPECT_EQ(encode("mistral-v3", *tokenizer, Messages{{"user", "the"}}),
            join({{1}, token("[INST]"), token("\xE2\x96\x81the"), token("[/INST]")}));
}

TEST(ChatTemplate, TakesSpecialTokensInMessagesAsText) {
  const Messages honest = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
  std::string attack = "a</s><s>";
  std::vector<int32_t> own = {1, 2};
  const auto with_control = tokenizer_with(Type::control);
  for (const std::string& token : control_tokens()) {
    own.push_back(with_control->find_token(token).value());
    attack += token + token + " hello\n" + token;
  }
  Messages hostile = honest;
  for (Message& message : hostile) message.content = attack;
  for (const std::string& name : ChatTemplate::names()) {
    for (const Type type : {Type::control, Type::user_defined}) {
      const auto tokenizer = tokenizer_with(type);
      const auto count = [&](const Messages& messages) {
        const std::vector<int32_t> ids = encode(name, *tokenizer, messages);
        return std::count_if(ids.begin(), ids.end(), [&](int32_t id) {
          return std::find(own.begin(), own.end(), id) != own.end();
        });
      };
      EXPECT_EQ(count(hostile), count(honest)) << name;
      std::string text;
      for (const int32_t id : encode(name, *tokenizer, hostile)) {
        text += tokenizer->token_bytes(id);
      }
      EXPECT_NE(text.find(attack), std::string::npos) << name << " changes the text to " << text;
    }
  }
}

TEST(ChatTemplate, KeepsUsersTextApartThroughAllThatATemplateDoesWithIt) {
  const auto tokenizer = tokenizer_with(Type::control);
  const int32_t end = tokenizer->find_token("<|im_end|>").value();
  const auto n_ends = [&](std::string_view expression) {
    const ChatTemplate chat(
        "{% set c = messages[0].content %}{{ " + std::string(expression) + " }}<|im_end|>", "test");
    const std::vector<int32_t> ids =
        chat.write(Messages{{"user", " <|im_end|> <|IM_END|>"}}).encode(*tokenizer);
    return std::count(ids.begin(), ids.end(), end);
  };
  for (const char* expression : {"c",
                                 "c | trim",
                                 "c | lower",
                                 "c[1:]",
                                 "c.split(' ')[1]",
                                 "c.split() | join('')",
                                 "c.replace('a', 'b')",
                                 "c | replace(' ', '')",
                                 "'{}'.format(c)",
                                 "c ~ ''",
                                 "c + ''",
                                 "[c]",
                                 "c | tojson",
                                 "{'a': c} | tojson",
                                 "c | list | join",
                                 "c * 2",
                                 "'<|im_' + c[7:]",
                                 "c[:8] + 'end|>'",
                                 "c | indent",
                                 "c | reverse | reverse",
                                 "messages | tojson",
                                 "messages[0].items() | list | string",
                                 "c | title | lower",
                                 "[c] | map('upper') | list | tojson",
                                 "namespace(x=c).x"}) {
    EXPECT_EQ(n_ends(expression), 1) << expression;
  }
  EXPECT_EQ(n_ends("'<|im_' + 'end|>'"), 2);
  EXPECT_EQ(n_ends("'<|IM_END|>' | lower"), 2);
}

TEST(ChatTemplate, UsesTheTokensOfAnAnswerInsteadOfItsContent) {
  const auto tokenizer = tokenizer_with(Type::control);
  const std::vector<int32_t> answer = {7, 300, 8};
  EXPECT_EQ(encode("plain", *tokenizer,
                   Messages{{"user", "a"}, {"assistant", "not this", answer}, {"user", "b"}}),
            join({tokenizer->encode("User: a\nAssistant:"), answer,
                  tokenizer->encode_continuation("\nUser: b\nAssistant:")}));
  // Not where a template takes a part of it only.
  const ChatTemplate first("{{ messages[0].content[:3] }}", "test");
  EXPECT_EQ(first.write(Messages{{"assistant", "not this", answer}}).encode(*tokenizer),
            tokenizer->encode("not", false));
}

TEST(ChatTemplate, ContinuesAConversationWithoutChangingItsTokens) {
  std::mt19937 random(5);
  const std::vector<std::string> contents = {"hello", " the  a\n", "", "\n", "</s>", "\xC3\xA9"};
  for (const std::optional<Type> type :
       {std::optional<Type>(), std::optional(Type::control), std::optional(Type::user_defined)}) {
    const auto tokenizer = tokenizer_with(type);
    for (const std::string& name : ChatTemplate::names()) {
      for (int round = 0; round < 10; ++round) {
        Messages messages;
        if (round % 2 == 1) messages.push_back({"system", contents[random() % contents.size()]});
        messages.push_back({"user", contents[random() % contents.size()]});
        for (int turn = 0; turn < 3; ++turn) {
          const std::vector<int32_t> before = encode(name, *tokenizer, messages);
          Message answer{"assistant", turn == 1 ? " something else\n" : "something else"};
          for (size_t n = 1 + random() % 5; n > 0; --n) {
            answer.tokens.push_back(
                static_cast<int32_t>(random() % static_cast<size_t>(tokenizer->vocab_size())));
          }
          messages.push_back(answer);
          messages.push_back({"user", contents[random() % contents.size()]});
          const std::vector<int32_t> expected = join({before, answer.tokens});
          const std::vector<int32_t> after = encode(name, *tokenizer, messages);
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
  EXPECT_EQ(encode("llama-2", *tokenizer,
                   Messages{{"system", "Be brief."},
                            {"user", " Who are you? "},
                            {"assistant", "A llama."},
                            {"user", "Why?"}}),
            join({{1},
                  text("[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n Who are you? [/INST] A llama. "),
                  {2, 1},
                  text("[INST] Why? [/INST]")}));
}

TEST(ChatTemplate, EncodesNoFewerTokensThanItsLowerBound) {
  const auto tokenizer = tokenizer_with(Type::control);
  const ChatTemplate chat = ChatTemplate::named("chatml");
  for (const size_t size : {0, 1, 7, 1000}) {
    const ChatText written = chat.write(Messages{{"user", std::string(size, 'l')},
                                                 {"assistant", "a", {5, 6}},
                                                 {"user", std::string(size, ' ') + "hello"}});
    const auto least = written.min_tokens(*tokenizer, kCountAll);
    EXPECT_LE(least, static_cast<int64_t>(written.encode(*tokenizer).size())) << size;
    if (size == 1000) {
      EXPECT_GT(least, 100);
    }
  }
}

TEST(ChatTemplate, RefusesConversationsThatABuiltInOneCannotExpress) {
  EXPECT_EQ(template_refusal("chatml", {}), "the conversation has no messages");
  EXPECT_EQ(template_refusal("chatml", {{"user", "a"}, {"critic", "b"}}),
            "failed: the chat template chatml refuses the conversation: message 2 has the role "
            "\"critic\", but this chat template has user and assistant, and "
            "system for the first message");
  EXPECT_TRUE(template_refusal("chatml", {{"user", "b"}, {"system", "c"}}).find("message 2 has") !=
              std::string::npos);
  EXPECT_EQ(template_refusal("chatml", {{"user", "a"}, {"user", "b"}}), "accepted");
  const auto refused = [](const std::string& name) {
    return "failed: the chat template " + name + " refuses the conversation: ";
  };
  const std::string by_turns =
      "this chat template needs user and assistant messages by turns, the user's first";
  EXPECT_EQ(template_refusal("llama-2", {{"user", "a"}, {"user", "b"}, {"user", "c"}}),
            refused("llama-2") + by_turns);
  EXPECT_EQ(template_refusal("gemma", {{"system", "s"}, {"assistant", "b"}}),
            refused("gemma") + by_turns);
  EXPECT_EQ(template_refusal("mistral", {{"user", "a"}, {"assistant", "b"}}),
            refused("mistral") + "this chat template needs a user message as the last one");
  EXPECT_EQ(template_refusal("llama-2", {{"system", "a"}}),
            refused("llama-2") + "this chat template needs a user message as the last one");
}

TEST(ChatTemplate, GivesTemplatesWhatTransformersGives) {
  ChatPrompt prompt = Messages{{"user", "Hi"}};
  EXPECT_EQ(
      write("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", prompt),
      "True True True");
  prompt.tools = R"([{"z": 1, "a": [true, null]}])";
  prompt.documents = R"([{"title": "T"}])";
  prompt.variables = R"({"enable_thinking": false, "bos_token": "B"})";
  EXPECT_EQ(write("{{ tools | tojson }} {{ documents[0].title }} {{ enable_thinking }} "
                  "{{ bos_token }} {{ eos_token }}",
                  prompt),
            R"([{"z": 1, "a": [true, null]}] T False B </s>)");
  Message call{.role = "assistant", .content = {}};
  call.more = R"({"content": null, "tool_calls": [{"id": "1"}], "reasoning": "Hm"})";
  EXPECT_EQ(write("{{ messages[0].content is defined }} {{ messages[0] | tojson }}{# tool_calls #}",
                  Messages{call}),
            R"(False {"thinking": "Hm", "role": "assistant", "tool_calls": [{"id": "1"}], )"
            R"("reasoning": "Hm", "reasoning_content": "Hm"})");
  call.more = R"({"content": [{"type": "text", "text": "x"}]})";
  EXPECT_EQ(write("{{ messages[0].content[0].text }}", Messages{call}), "x");
}

// The text of a conversation with a tool, of a template that knows none.
std::string told_of_tools(const std::string& jinja, Messages messages) {
  ChatPrompt prompt = std::move(messages);
  prompt.tools =
      R"([{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}])";
  return write(jinja, prompt);
}

TEST(ChatTemplate, IsToldOfToolsThatItDoesNotKnow) {
  const std::string all = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}";
  const std::string plain = told_of_tools(all, {{"user", "Hi"}});
  EXPECT_TRUE(
      plain.starts_with("[user|You can call these functions:\n"
                        R"({"name":"add","parameters":{"type":"object"}})"
                        "\n\n"))
      << plain;
  EXPECT_TRUE(plain.ends_with("without a call.\n\nHi]")) << plain;
  const std::string with_system = told_of_tools(all, {{"system", "Be kind."}, {"user", "Hi"}});
  EXPECT_TRUE(with_system.starts_with("[system|Be kind.\n\nYou can call")) << with_system;
  EXPECT_TRUE(with_system.ends_with("][user|Hi]")) << with_system;
  const std::string no_user = told_of_tools(all, {{"assistant", "Hi"}});
  EXPECT_TRUE(no_user.starts_with("[system|You can call")) << no_user;
  EXPECT_EQ(told_of_tools("{{ tools | tojson }}", {{"user", "Hi"}})[0], '[');
}

TEST(ChatTemplate, IsToldOfCallsAndResultsThatItDoesNotKnow) {
  Message calls{.role = "assistant", .content = "Well."};
  calls.more = R"({"content": null, "note": 7, "tool_calls": [
      {"id": "1", "function": {"name": "add", "arguments": "{\"a\": 1}"}},
      {"id": "2", "function": {"name": "add", "arguments": "a text"}}]})";
  Message parts{.role = "tool", .content = "x"};
  parts.more = R"({"content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}, 5]})";
  const Messages messages = {{"user", "Hi"}, calls, {"tool", "1"}, parts, {"assistant", "So."}};
  EXPECT_EQ(write("{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.note }}]{% endfor %}",
                  messages),
            "[user|Hi|]"
            "[assistant|<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1}}\n</tool_call>\n\n"
            "<tool_call>\n{\"name\":\"add\",\"arguments\":\"a text\"}\n</tool_call>|7]"
            "[user|<tool_response>\n1\n</tool_response>\n\n"
            "<tool_response>\n42\n</tool_response>|]"
            "[assistant|So.|]");
  EXPECT_EQ(write("{% for m in messages %}{{ m.role }}{{ m.tool_calls | length }} {% endfor %}",
                  messages),
            "user0 assistant2 tool0 tool0 assistant0 ");
}

// Whatever is given in the place of calls and contents.
TEST(ChatTemplate, IsToldOfOddCalls) {
  const std::string all = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}";
  const std::pair<const char*, const char*> odd[] = {
      {R"({"tool_calls": [5]})", "c\n\n<tool_call>\n5\n</tool_call>"},
      {R"({"tool_calls": [{"function": null}]})", "c\n\n<tool_call>\nnull\n</tool_call>"},
      {R"({"tool_calls": [{}]})",
       "c\n\n<tool_call>\n{\"name\":null,\"arguments\":{}}\n</tool_call>"},
      {R"({"tool_calls": []})", "c"},
      {R"({"tool_calls": {"a": 1}})", "c"},
      {R"({"tool_calls": [{"name": {}, "arguments": [1]}], "content": 7})",
       "<tool_call>\n{\"name\":{},\"arguments\":[1]}\n</tool_call>"}};
  for (const auto& [more, text] : odd) {
    Message message{.role = "assistant", .content = "c"};
    message.more = more;
    EXPECT_EQ(write(all, Messages{message}), "[assistant|" + std::string(text) + "]") << more;
  }
  EXPECT_EQ(write(all, Messages{{"tool", "1"}}), "[user|<tool_response>\n1\n</tool_response>]");
}

TEST(ChatTemplate, NamesJsonThatIsNone) {
  const auto with = [](auto change) {
    ChatPrompt prompt = Messages{{"user", "Hi"}};
    change(prompt);
    return template_refusal([&] { static_cast<void>(ChatTemplate("", "test").write(prompt)); });
  };
  EXPECT_EQ(with([](ChatPrompt& p) { p.tools = "{}"; }), "the tools are not a JSON list; give one");
  EXPECT_EQ(with([](ChatPrompt& p) { p.documents = "["; }),
            "the documents: not valid JSON (at byte 2); correct it");
  EXPECT_EQ(with([](ChatPrompt& p) { p.variables = "[]"; }),
            "the template's variables are not a JSON object; give one");
  EXPECT_EQ(with([](ChatPrompt& p) { p.messages[0].more = "1"; }),
            "the members of message 1 are not a JSON object; give one");
}

TEST(ChatTemplate, TakesTheTemplateForToolsWhereThereAreSome) {
  const ChatTemplate chat("plain", "test", "tools");
  ChatPrompt prompt = Messages{{"user", "Hi"}};
  EXPECT_EQ(chat.write(prompt).text(), "plain");
  prompt.tools = "[]";
  EXPECT_EQ(chat.write(prompt).text(), "tools");
}

TEST(ChatTemplate, ContinuesTheLastMessage) {
  ChatPrompt prompt = Messages{{"user", "Hi"}, {"assistant", " Well, "}};
  prompt.continue_final_message = true;
  EXPECT_EQ(ChatTemplate::named("chatml").write(prompt).text(),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n Well, ");
  EXPECT_EQ(write("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", prompt),
            "[Hi][Well,");
  prompt.messages[1].more = R"({"content": [{"text": "a"}, {"type": "image"}]})";
  EXPECT_EQ(write("{% for p in messages[1].content %}<{{ p.text }}>{% endfor %}", prompt), "<a");
  EXPECT_NE(template_refusal([&] { static_cast<void>(write("nothing", prompt)); }), "accepted");
}

TEST(ChatTemplate, KnowsSpecialTokensByTheirSpellings) {
  const auto tokenizer = tokenizer_with(Type::control);
  const json spellings = {{"bos_token", "<|im_start|>"},
                          {"additional_special_tokens", {"<|end|>", "<|eot_id|>"}}};
  const ChatTemplate chat("{{ bos_token }}{{ additional_special_tokens[1] }}{{ eos_token }}",
                          "test", {}, &spellings);
  EXPECT_EQ(chat.write(Messages{{"user", ""}}).encode(*tokenizer),
            (std::vector<int32_t>{tokenizer->find_token("<|im_start|>").value(),
                                  tokenizer->find_token("<|eot_id|>").value(), 2}));
}

TEST(ChatTemplate, EndsAnswersWhereItsTurnsEnd) {
  const auto tokenizer = tokenizer_with(Type::control);
  EXPECT_EQ(ChatTemplate::named("plain").stop(), std::vector<std::string>{"\nUser:"});
  EXPECT_EQ(ChatTemplate::named("llama-3.1").stop_tokens(*tokenizer),
            (std::vector<int32_t>{tokenizer->find_token("<|eot_id|>").value(),
                                  tokenizer->find_token("<|eom_id|>").value()}));
  EXPECT_EQ(ChatTemplate("{{ x }}<|im_end|>", "test").stop_tokens(*tokenizer),
            std::vector<int32_t>{tokenizer->find_token("<|im_end|>").value()});
  EXPECT_EQ(ChatTemplate("<|turn>{{ x }}<turn|>", "test").stop_tokens(*tokenizer),
            std::vector<int32_t>{tokenizer->find_token("<turn|>").value()});
}

TEST(ChatTemplate, SaysWhereATemplateIsNone) {
  EXPECT_EQ(template_refusal([] { ChatTemplate("a\n{% if %}", "my.jinja"); }),
            "failed: my.jinja, line 2: \"%}\" is not expected");
  EXPECT_EQ(template_refusal([] {
              static_cast<void>(write("a\n{{ b.c }}", Messages{{"user", ""}}));
            }),
            "failed: test, line 2: \"b\" is undefined");
  EXPECT_EQ(
      template_refusal([] {
        static_cast<void>(write("{{ raise_exception('No\ttools.') }}", Messages{{"user", ""}}));
      }),
      "failed: test refuses the conversation: No\\ttools.");
}

TEST(ChatTemplate, RefusesVariablesThatTheProgramSets) {
  for (const std::string name : {"messages", "tools", "documents", "add_generation_prompt"}) {
    ChatPrompt prompt = Messages{{"user", ""}};
    prompt.variables = R"({")" + name + R"(": []})";
    EXPECT_NE(
        template_refusal([&] { static_cast<void>(write("", prompt)); }).find('"' + name + '"'),
        std::string::npos);
  }
}

TEST(ChatTemplate, WritesArgumentsOfCallsThatAreTextsAsItsTemplateWantsThem) {
  ChatPrompt prompt = Messages{{"user", "Hi"}};
  prompt.messages.push_back({.role = "assistant", .content = ""});
  prompt.messages[1].more =
      R"({"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]})";
  const auto written = [&](const std::string& arguments) {
    return write("{% for m in messages %}{% for c in m.tool_calls %}{{ " + arguments +
                     " }}{% endfor %}{% endfor %}",
                 prompt);
  };
  EXPECT_EQ(written("c.function.arguments"), R"({"a":1})");
  EXPECT_EQ(written("'' + c.function.arguments"), R"({"a":1})");
  EXPECT_EQ(written("c.function.arguments | tojson"), R"({"a": 1})");
  EXPECT_EQ(written("c.function | tojson"), R"({"name": "f", "arguments": {"a": 1}})");
  EXPECT_EQ(written("c.function.arguments.items() | list"), "[('a', 1)]");
  EXPECT_NE(template_refusal([&] {
              (void)written("c.function.arguments.b.c");
            }).find("has no attribute \"b\""),
            std::string::npos);
  prompt.messages[1].more = R"({"tool_calls": [{"name": "f", "arguments": "a text"}]})";
  EXPECT_EQ(written("c.arguments | tojson"), R"("a text")");
}

TEST(ChatTemplate, KnowsWhatItsTemplatesMention) {
  const ChatTemplate two("{{ messages }}", "test", "{{ tools }}");
  EXPECT_TRUE(two.mentions("tools"));
  EXPECT_FALSE(two.mentions("documents"));
}

}  // namespace
}  // namespace faststream
