#include "cli/batch/batch_line.h"

#include <gtest/gtest.h>

#include <set>

#include "unit/support/file_helpers.h"

namespace faststream::cli {
namespace {

Request run_defaults() {
  Request defaults;
  defaults.sampling.seed = 7;
  defaults.max_tokens = 99;
  defaults.sampling.temperature = 0.5F;
  defaults.stop = {"END"};
  return defaults;
}

BatchLine parse(std::string_view text, BatchFormat format = BatchFormat::json) {
  return parse_batch_line(text, 12, format, run_defaults());
}

Request request_of(std::string_view text) {
  const BatchLine line = parse(text);
  EXPECT_EQ(line.error, "") << text;
  return line.request;
}

// A line of ours with a prompt and `members`.
Request with(const std::string& members) { return request_of(R"({"prompt":"x",)" + members + "}"); }
std::string error_with(const std::string& members) {
  return parse(R"({"prompt":"x",)" + members + "}").error;
}

// A line of OpenAI's with a prompt and `members` of the body.
std::string openai(const std::string& members) {
  return R"({"custom_id":"c","method":"POST","url":"/v1/completions","body":{"prompt":"x",)" +
         members + "}}";
}

// What a sound line says without an effect.
std::vector<std::string> idle(const std::string& text) {
  const BatchLine line = parse(text);
  EXPECT_EQ(line.error, "") << text;
  return line.idle;
}

std::string prompt_text(const Request& request) { return std::get<std::string>(request.prompt); }

BatchFormat format_of(std::string_view line) { return recognize_batch_format(line, "in.txt"); }
std::string format_error(std::string_view line) {
  return error_of([&] { (void)format_of(line); });
}

TEST(BatchFormat, IsOfTheFirstLine) {
  for (const char* text : {"Once upon a time", "[INST] Hi [/INST]", "[1] A list", "[]x", "\"{\""}) {
    EXPECT_EQ(format_of(text), BatchFormat::text) << text;
  }
  EXPECT_EQ(format_of(R"({"prompt":"x"})"), BatchFormat::json);
  EXPECT_EQ(format_of(" \t{}"), BatchFormat::json);
}

TEST(BatchFormat, OfADamagedJsonLineIsJsonSoThatItIsNoPrompt) {
  EXPECT_EQ(format_of(R"({"prompt":"x)"), BatchFormat::json);
}

TEST(BatchFormat, IsNoneOfAJsonArray) {
  for (const char* text : {"[", " [ \r", R"([{"prompt":"x"},)", R"([{"prompt":"x"}])", "[]",
                           R"([ "a", "b"])", R"(["a",)", "[1,2]"}) {
    EXPECT_TRUE(says(format_error(text), "in.txt is a JSON array", "JSON lines")) << text;
  }
}

TEST(BatchFormat, IsNoneOfJsonOverSeveralLines) {
  for (const char* text : {"{", "{ \r", R"({"prompt":)", R"({"prompt":"x",)", R"({"messages":[)",
                           R"({"messages":[{"role":"user","content":"x"},)"}) {
    EXPECT_TRUE(says(format_error(text), "in.txt has JSON that does not end", "JSON lines"))
        << text;
  }
}

TEST(BatchFormat, IsNoneOfUtf16) {
  for (const std::string_view text :
       {std::string_view("\xFF\xFEh\0i\0", 6), std::string_view("\xFE\xFF\0h\0i", 6),
        std::string_view("h\0i\0", 4), std::string_view("{\0}\0", 4)}) {
    EXPECT_TRUE(says(format_error(text), "in.txt is UTF-16", "UTF-8"));
  }
}

TEST(BatchLine, MayBeginTheInputWithAByteOrderMark) {
  EXPECT_EQ(without_byte_order_mark("\xEF\xBB\xBFx", 1), "x");
  EXPECT_EQ(without_byte_order_mark("\xEF\xBB\xBFx", 2), "\xEF\xBB\xBFx");
  EXPECT_EQ(without_byte_order_mark("x", 1), "x");
}

TEST(BatchLine, ThatNeedsMoreMemoryThanThereIsIsAnError) {
  EXPECT_TRUE(says(line_error([] { throw std::bad_alloc(); }), "more memory than there is"));
  EXPECT_EQ(line_error([] { throw Error("no"); }), "no");
  EXPECT_EQ(line_error([] {}), "");
  EXPECT_THROW(line_error([] { throw std::runtime_error("a fault"); }), std::runtime_error);
}

TEST(BatchLine, IsBlankWithoutACharacterThatIsSeen) {
  EXPECT_TRUE(is_blank(""));
  EXPECT_TRUE(is_blank(" \t\r"));
  EXPECT_FALSE(is_blank(" x"));
}

TEST(BatchLine, OfTextIsThePromptAsItIs) {
  const BatchLine line = parse("  {a \"b\\n\" \r", BatchFormat::text);
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(prompt_text(line.request), "  {a \"b\\n\" ");
  EXPECT_EQ(line.id, 12);
  EXPECT_EQ(line.request.max_tokens, 99);
}

TEST(BatchLine, TakesWhatItDoesNotSayFromTheDefaults) {
  const Request request = request_of(R"({"prompt":"x"})");
  EXPECT_EQ(request.max_tokens, 99);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(request.sampling.seed, line_seed(7, 12));
}

TEST(BatchLine, HasEveryKeyOfARequest) {
  EXPECT_EQ(with(R"("max_tokens":5)").max_tokens, 5);
  EXPECT_EQ(with(R"("temperature":0)").sampling.temperature, 0);
  EXPECT_EQ(with(R"("temperature":1.5)").sampling.temperature, 1.5F);
  EXPECT_EQ(with(R"("top_k":3)").sampling.top_k, 3);
  EXPECT_EQ(with(R"("top_p":0.25)").sampling.top_p, 0.25F);
  EXPECT_EQ(with(R"("min_p":0.125)").sampling.min_p, 0.125F);
  EXPECT_EQ(with(R"("repetition_penalty":1.25)").sampling.repetition_penalty, 1.25F);
  EXPECT_EQ(with(R"("presence_penalty":-1)").sampling.presence_penalty, -1);
  EXPECT_EQ(with(R"("frequency_penalty":0.5)").sampling.frequency_penalty, 0.5F);
  EXPECT_EQ(with(R"("seed":18446744073709551615)").sampling.seed, UINT64_MAX);
  EXPECT_EQ(with(R"("stop":"a")").stop, std::vector<std::string>{"a"});
  EXPECT_EQ(with(R"("stop":["a","b"])").stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(with(R"("stop":[])").stop, std::vector<std::string>{});
  EXPECT_EQ(with(R"("stop_tokens":[2,13])").stop_tokens, (std::vector<int32_t>{2, 13}));
  EXPECT_TRUE(with(R"("ignore_eos":true)").ignore_eos);
  EXPECT_TRUE(with(R"("special":true)").show_special);
  EXPECT_TRUE(with(R"("parse_special":true)").parse_special);
  EXPECT_EQ(with(R"("min_tokens":5)").min_tokens, 5);
  EXPECT_EQ(with(R"("no_repeat_ngram":3)").sampling.no_repeat_ngram, 3);
  EXPECT_EQ(with(R"("beams":4)").search.beams, 4);
  const auto search = [](const std::string& members) {
    return with(R"("beams":4,)" + members).search;
  };
  EXPECT_EQ(search(R"("length_penalty":-0.5)").length_penalty, -0.5F);
  EXPECT_EQ(search(R"("early_stopping":true)").early_stopping, EarlyStopping::yes);
  EXPECT_EQ(search(R"("early_stopping":false)").early_stopping, EarlyStopping::no);
  EXPECT_EQ(search(R"("early_stopping":"never")").early_stopping, EarlyStopping::never);
  EXPECT_EQ(search(R"("beam_groups":2)").groups, 2);
  EXPECT_EQ(search(R"("diversity_penalty":0.5)").diversity_penalty, 0.5F);
  EXPECT_EQ(with(R"("n":4)").n, 4);
  EXPECT_EQ(with(R"("n":2,"best_of":4)").best_of, 4);
  EXPECT_EQ(with(R"("logprobs":0)").logprobs, 0);
  EXPECT_EQ(with(R"("priority":-3)").priority, -3);
  const std::vector<LogitBias> biases =
      with(R"("logit_bias":{"5":-100,"17":2.5})").sampling.logit_bias;
  ASSERT_EQ(biases.size(), 2U);
  EXPECT_EQ(biases[0].token, 17);
  EXPECT_EQ(biases[0].bias, 2.5F);
  EXPECT_EQ(biases[1].token, 5);
  EXPECT_EQ(biases[1].bias, -100);
}

TEST(BatchLine, NotesWhatHasNoEffectAndIsNoError) {
  const auto told = [](const std::string& members) {
    return idle(R"({"prompt":"x",)" + members + "}");
  };
  const std::vector<std::string> none;
  EXPECT_EQ(
      told(R"("beams":4,"temperature":0,"top_k":5)"),
      (std::vector<std::string>{"\"temperature\" has no effect with beams, which draw nothing",
                                "\"top_k\" has no effect with beams, which draw nothing"}));
  const std::string greedy = " has no effect at temperature 0, which draws nothing";
  EXPECT_EQ(
      told(R"("temperature":0,"top_k":5,"top_p":0.5,"min_p":0.1,"seed":3,"best_of":2)"),
      (std::vector<std::string>{"\"top_k\"" + greedy, "\"top_p\"" + greedy, "\"min_p\"" + greedy,
                                "\"seed\"" + greedy, "\"best_of\"" + greedy}));
  EXPECT_EQ(told(R"("temperature":0,"n":2,"repetition_penalty":1.5)"), none);
  EXPECT_EQ(told(R"("max_tokens":4,"min_tokens":5)"),
            std::vector<std::string>{
                "\"min_tokens\" has no effect beyond the limit of tokens, which is lower"});
  EXPECT_EQ(told(R"("max_tokens":5,"min_tokens":5)"), none);
  EXPECT_EQ(told(R"("min_tokens":5)"), none);
  for (const char* member :
       {R"("length_penalty":2)", R"("early_stopping":true)", R"("beam_groups":2)"}) {
    ASSERT_EQ(told(member).size(), 1U) << member;
    EXPECT_TRUE(says(told(member)[0], "has no effect without beams")) << member;
  }
  EXPECT_TRUE(says(told(R"("beams":4,"diversity_penalty":1)").at(0), "without groups"));
  EXPECT_EQ(told(R"("beams":4,"beam_groups":2,"diversity_penalty":1)"), none);
  // What holds anyway is not worth a word.
  EXPECT_EQ(told(R"("length_penalty":1.0,"early_stopping":false,"beam_groups":1,"beams":1)"), none);
}

TEST(BatchLine, TakesNullAsNotSaid) {
  const Request request = with(R"("max_tokens":null,"stop":null,"messages":null,"id":null)");
  EXPECT_EQ(request.max_tokens, 99);
  EXPECT_EQ(request.stop, std::vector<std::string>{"END"});
}

TEST(BatchLine, HasAPromptOfTextTokensOrMessages) {
  EXPECT_EQ(prompt_text(request_of(R"({"prompt":"Hé\n"})")), "Hé\n");
  EXPECT_EQ(std::get<std::vector<int32_t>>(request_of(R"({"prompt":[1,22]})").prompt),
            (std::vector<int32_t>{1, 22}));
  const auto messages =
      std::get<ChatPrompt>(request_of(R"({"messages":[{"role":"system","content":"Be brief."},
                                 {"role":"user","content":[{"type":"text","text":"a"},
                                                           {"type":"text","text":"b"}]}]})")
                               .prompt)
          .messages;
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[0].content, "Be brief.");
  EXPECT_EQ(messages[1].content, "ab");
}

TEST(BatchLine, HasTheIdThatItSaysOrItsNumber) {
  EXPECT_EQ(parse(R"({"id":"q-1","prompt":"x"})").id, "q-1");
  EXPECT_EQ(parse(R"({"id":-4,"prompt":"x"})").id, -4);
  EXPECT_EQ(parse(R"({"prompt":"x"})").id, 12);
  EXPECT_EQ(parse(openai(R"("n":1)")).id, "c");
}

TEST(BatchLine, KeepsItsIdWhenItIsWrong) {
  EXPECT_EQ(parse(R"({"id":"q","prompt":5})").id, "q");
  EXPECT_EQ(parse(R"({"custom_id":"q","body":{"prompt":5}})").id, "q");
  EXPECT_EQ(parse("{").id, 12);
}

TEST(BatchLine, SaysWhatIsWrong) {
  EXPECT_TRUE(says(parse("{\"prompt\":").error, "JSON", "byte 11"));
  EXPECT_TRUE(says(parse("a prompt").error, "JSON"));
  EXPECT_TRUE(says(parse("[1]").error, "object"));
  EXPECT_TRUE(says(parse("{\"prompt\":\"\xFF\"}").error, "JSON"));
  EXPECT_TRUE(says(parse(R"({"prompt":)" + std::string(70, '[')).error, "64"));
  EXPECT_TRUE(says(parse(R"({"max_tokens":5})").error, "neither"));
  EXPECT_TRUE(says(parse(R"({"prompt":null})").error, "neither"));
  EXPECT_TRUE(says(parse(R"({"prompt":"x","messages":[]})").error, "both"));
  EXPECT_TRUE(says(parse(R"({"prompt":1})").error, "\"prompt\"", "text"));
  EXPECT_TRUE(says(parse(R"({"prompt":["x"]})").error, "\"prompt[0]\"", "whole number"));
  EXPECT_TRUE(says(parse(R"({"prompt":[-1]})").error, "\"prompt[0]\"", "from 0"));
  EXPECT_TRUE(says(error_with(R"("tempratur":1)"), "unknown key \"tempratur\""));
  EXPECT_TRUE(says(error_with('"' + std::string(1000, 'x') + "\":1"), "xxx...\""));
  EXPECT_TRUE(says(error_with(R"("id":1.5)"), "\"id\""));
}

TEST(BatchLine, RefusesValuesOfTheWrongKind) {
  for (const char* key : {"max_tokens", "min_tokens", "top_k", "seed", "n", "best_of", "logprobs",
                          "priority", "no_repeat_ngram", "beams", "beam_groups"}) {
    for (const char* value : {"\"1\"", "1.0", "-99999999999", "99999999999999999999", "[]"}) {
      EXPECT_TRUE(says(error_with('"' + std::string(key) + "\":" + value), key, "whole number"))
          << value;
    }
  }
  for (const char* key : {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                          "frequency_penalty", "length_penalty", "diversity_penalty"}) {
    for (const char* value : {"\"1\"", "true"}) {
      EXPECT_TRUE(says(error_with('"' + std::string(key) + "\":" + value), key, "number")) << value;
    }
    for (const char* value : {"1e39", "-1e300"}) {
      EXPECT_TRUE(says(error_with('"' + std::string(key) + "\":" + value), key, "range")) << value;
    }
  }
  EXPECT_TRUE(says(error_with(R"("n":0)"), "\"n\"", "from 1 to 128"));
  EXPECT_TRUE(says(error_with(R"("logprobs":21)"), "\"logprobs\"", "from 0 to 20"));
  EXPECT_TRUE(says(error_with(R"("temperature":-1)"),
                   "\"temperature\" is not a number from 0 to "
                   "100"));
  EXPECT_EQ(parse("x").error, "the line: not valid JSON (at byte 1); give one JSON object a line");
  EXPECT_TRUE(says(error_with(R"("beams":0)"), "\"beams\"", "from 1"));
  EXPECT_TRUE(says(error_with(R"("early_stopping":"now")"), "\"early_stopping\"", "never"));
  EXPECT_TRUE(says(error_with(R"("early_stopping":1)"), "\"early_stopping\"", "never"));
  EXPECT_TRUE(says(error_with(R"("ignore_eos":1)"), "\"ignore_eos\"", "true or false"));
  EXPECT_TRUE(says(error_with(R"("stop":["a",1])"), "\"stop[1]\"", "string"));
  EXPECT_TRUE(says(error_with(R"("stop_tokens":5)"), "\"stop_tokens\"", "list"));
  EXPECT_TRUE(says(error_with(R"("stop_tokens":[3000000000])"), "\"stop_tokens[0]\"", "number"));
  EXPECT_TRUE(says(error_with(R"("logit_bias":[1])"), "\"logit_bias\"", "object"));
  EXPECT_TRUE(says(error_with(R"("logit_bias":{"5x":1})"), "\"logit_bias\"", "\"5x\""));
  EXPECT_TRUE(says(error_with(R"("logit_bias":{"5":"1"})"), "\"logit_bias.5\"", "number"));
}

TEST(BatchLine, RefusesMessagesThatAreNot) {
  const auto error = [](const std::string& messages) {
    return parse(R"({"messages":)" + messages + "}").error;
  };
  EXPECT_TRUE(says(error("\"x\""), "\"messages\" is not a list"));
  EXPECT_TRUE(says(error("[]"), "list of messages"));
  EXPECT_TRUE(says(error("[1]"), "\"messages[0]\"", "object"));
  EXPECT_TRUE(says(error(R"([{"content":"x"}])"), "\"messages[0].role\"", "missing"));
  for (const char* empty : {R"([{"role":"user"}])", R"([{"role":"user","content":null}])",
                            R"([{"role":"tool","name":"x"}])", R"([{"role":"assistant"}])"}) {
    EXPECT_TRUE(says(error(empty), "\"messages[0].content\"", "missing")) << empty;
  }
  EXPECT_TRUE(says(error(R"([{"role":"user","content":[{"type":"image_url","image_url":""}]}])"),
                   "messages[0].content[0]", "is not text"));
}

// As clients repeat it, with all members that it may have.
TEST(BatchLine, TakesAnAnswerWithoutContentAsEmpty) {
  const auto prompt = std::get<ChatPrompt>(
      request_of(R"({"messages":[{"role":"assistant","content":null,"tool_calls":null},
                                 {"role":"assistant","content":null,"tool_calls":[]}]})")
          .prompt);
  EXPECT_EQ(prompt.messages[0].more, R"({"tool_calls":null})");
  EXPECT_EQ(prompt.messages[1].more, R"({"tool_calls":[]})");
}

TEST(BatchLine, HasToolsDocumentsAndVariablesInTheirOwnOrder) {
  const auto prompt =
      std::get<ChatPrompt>(request_of(R"({"messages":[{"role":"user","content":"x","name":"y"},
                                 {"role":"assistant","content":null,"tool_calls":[{"z":1,"a":2}]}],
                     "tools":[{"z":1,"a":2}],"documents":[{"title":"t"}],
                     "chat_template_kwargs":{"q":1,"b":false}})")
                               .prompt);
  ASSERT_EQ(prompt.messages.size(), 2U);
  EXPECT_EQ(prompt.messages[0].more, R"({"name":"y"})");
  EXPECT_EQ(prompt.messages[1].more, R"({"content":null,"tool_calls":[{"z":1,"a":2}]})");
  EXPECT_EQ(prompt.tools, R"([{"z":1,"a":2}])");
  EXPECT_EQ(prompt.documents, R"([{"title":"t"}])");
  EXPECT_EQ(prompt.variables, R"({"q":1,"b":false})");
  EXPECT_TRUE(idle(R"({"prompt":"x","tools":[]})").empty());
  EXPECT_EQ(idle(R"({"prompt":"x","tools":[{"z":1}]})"),
            std::vector<std::string>{"\"tools\" has no effect without \"messages\""});
  EXPECT_TRUE(says(parse(R"({"messages":[{"role":"user","content":"x"}],"tools":{}})").error,
                   "\"tools\"", "not a list"));
}

TEST(BatchLine, OfOpenAiHasItsKeys) {
  EXPECT_EQ(request_of(openai(R"("max_tokens":5)")).max_tokens, 5);
  EXPECT_EQ(request_of(openai(R"("max_completion_tokens":6)")).max_tokens, 6);
  EXPECT_EQ(request_of(openai(R"("logprobs":3)")).logprobs, 3);
  EXPECT_EQ(request_of(openai(R"("logprobs":true)")).logprobs, 0);
  EXPECT_EQ(request_of(openai(R"("logprobs":true,"top_logprobs":4)")).logprobs, 4);
  EXPECT_EQ(request_of(openai(R"("logprobs":false)")).logprobs, -1);
  EXPECT_EQ(request_of(openai(R"("stop":"a","seed":4,"top_k":2)")).sampling.top_k, 2);
  EXPECT_EQ(prompt_text(request_of(openai(R"("model":"gpt","user":"me")"))), "x");
}

TEST(BatchLine, OfOpenAiMayNameWhatThereIsNotWithoutAskingForIt) {
  EXPECT_EQ(parse(openai(R"("stream":false,"echo":false,"suffix":null,
                            "response_format":{"type":"text"},"tool_choice":"none")"))
                .error,
            "");
  EXPECT_TRUE(idle(openai(R"("stream":true,"top_logprobs":0,"n":1,"best_of":1)")).empty());
  EXPECT_EQ(idle(openai(R"("reasoning_effort":"low")")),
            std::vector<std::string>{"\"reasoning_effort\" has no effect"});
  EXPECT_TRUE(
      says(parse(openai(R"("tool_choice":"required")")).error, "\"tool_choice\"", "\"tools\""));
  EXPECT_TRUE(says(parse(openai(R"("temprature":1)")).error, "unknown key"));
}

TEST(BatchLine, ReadsRulesOfOutput) {
  const Request schema = request_of(openai(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,
         "schema":{"type":"object","properties":{"z":{},"a":{}}}}})"));
  ASSERT_TRUE(schema.rule);
  EXPECT_EQ(schema.rule->kind, OutputRule::Kind::json_schema);
  EXPECT_EQ(schema.rule->text, R"({"type":"object","properties":{"z":{},"a":{}}})");
  const Request regex = request_of(R"({"prompt":"x","regex":"a+"})");
  ASSERT_TRUE(regex.rule);
  EXPECT_EQ(regex.rule->kind, OutputRule::Kind::regex);
  EXPECT_EQ(regex.rule->text, "a+");
  EXPECT_FALSE(request_of(openai(R"("response_format":{"type":"text"})")).rule);
  EXPECT_TRUE(says(parse(R"({"prompt":"x","regex":"a","grammar":"b"})").error, "more than one"));
  EXPECT_TRUE(says(parse(openai(R"("response_format":{"type":"xml"})")).error, "\"type\""));
  EXPECT_TRUE(says(parse(openai(R"("response_format":3)")).error, "not an object"));
}

TEST(BatchLine, OfOpenAiSaysWhatIsWrong) {
  EXPECT_TRUE(says(parse(R"({"body":{"prompt":"x"}})").error, "\"custom_id\""));
  EXPECT_TRUE(says(parse(R"({"custom_id":"c"})").error, "\"body\""));
  EXPECT_TRUE(says(parse(R"({"custom_id":"c","body":[]})").error, "\"body\""));
  EXPECT_TRUE(says(parse(R"({"custom_id":1.5,"body":{}})").error, "\"custom_id\""));
  EXPECT_TRUE(
      says(parse(R"({"custom_id":"c","body":{"prompt":"x"},"topk":1})").error, "unknown key"));
  EXPECT_TRUE(says(parse(openai(R"("top_logprobs":4)")).error, "\"logprobs\": true"));
  EXPECT_EQ(parse(openai(R"("max_tokens":1,"max_completion_tokens":1)")).error, "");
  EXPECT_TRUE(says(parse(openai(R"("max_tokens":1,"max_completion_tokens":2)")).error, "differ"));
}

TEST(BatchLine, OfBothFormatsSaysWhichKeysDoNotGoTogether) {
  const auto error = [](const char* line) { return parse(line).error; };
  EXPECT_EQ(error(R"({"custom_id":"c","body":{"prompt":"x"},"prompt":"y"})"),
            "\"prompt\" does not go with OpenAI's \"custom_id\"; put it into \"body\"");
  EXPECT_EQ(error(R"({"body":{"prompt":"x"},"max_tokens":4})"),
            "\"max_tokens\" does not go with OpenAI's \"body\"; put it into \"body\"");
  for (const char* key : {"messages", "prompt", "temperature", "model", "tool_choice", "stop",
                          "verbosity", "max_completion_tokens"}) {
    const std::string line = "{\"custom_id\":\"c\",\"" + std::string(key) + "\":1}";
    EXPECT_EQ(error(line.c_str()), "\"" + std::string(key) +
                                       "\" does not go with OpenAI's \"custom_id\"; put it into "
                                       "\"body\", or call \"custom_id\" \"id\"");
  }
  EXPECT_EQ(error(R"({"id":1,"custom_id":"c","body":{"prompt":"x"}})"),
            "\"id\" does not go with OpenAI's \"custom_id\"; leave one of them out");
  EXPECT_EQ(error(R"({"id":1,"body":{"prompt":"x"}})"),
            "\"id\" does not go with OpenAI's \"body\"; call it \"custom_id\"");
}

TEST(BatchLine, OfOneFormatMayHaveTheKeysOfTheOtherWithoutAValue) {
  const auto line_of = [](const char* text) {
    BatchLine line = parse(text);
    EXPECT_EQ(line.error, "") << text;
    return line;
  };
  const BatchLine own =
      line_of(R"({"id":"a","prompt":"x","custom_id":null,"method":null,"url":null,"body":null})");
  EXPECT_EQ(own.id, "a");
  EXPECT_EQ(std::get<std::string>(own.request.prompt), "x");
  const BatchLine openai =
      line_of(R"({"custom_id":"c","body":{"prompt":"y"},"id":null,"prompt":null,"messages":null})");
  EXPECT_EQ(openai.id, "c");
  EXPECT_EQ(std::get<std::string>(openai.request.prompt), "y");

  const auto error = [](const char* text) { return parse(text).error; };
  EXPECT_TRUE(says(error(R"({"custom_id":null,"body":{"prompt":"x"}})"), "\"custom_id\""));
  EXPECT_TRUE(says(error(R"({"custom_id":"c","body":null})"), "\"body\" is missing"));
  EXPECT_TRUE(says(error(R"({"prompt":"x","url":"/v1","body":null})"), "unknown key \"url\""));
  EXPECT_TRUE(says(error(R"({"custom_id":"c","body":{"prompt":"x"},"topk":null})"), "unknown key"));
}

TEST(LineSeed, IsSplitMix64BelowTwoToThe53) {
  // The generator's first outputs from 1234567, as its authors' program prints them.
  EXPECT_EQ(line_seed(1234567, 1), 6457827717110365317U >> 11);
  EXPECT_EQ(line_seed(1234567, 2), 3203168211198807973U >> 11);
  std::set<uint64_t> seeds;
  for (uint64_t line = 0; line < 10'000; ++line) seeds.insert(line_seed(3, line));
  EXPECT_EQ(seeds.size(), 10'000U);
  EXPECT_LT(*seeds.rbegin(), uint64_t{1} << 53);
}

}  // namespace
}  // namespace faststream::cli
