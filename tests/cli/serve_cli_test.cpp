// faststream-serve as its clients see it: what it answers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "cli/http_client.h"
#include "cli/tiny_adapters.h"

namespace faststream {
namespace {

using nlohmann::json;

// One server for the tests that only ask.
const Server& server() {
  static const Server shared;
  return shared;
}

constexpr const char* kQuestion =
    R"({"model":"demo","temperature":0,"max_tokens":16,)"
    R"("messages":[{"role":"user","content":"What is 128 plus 345?"}])";

std::string question(const std::string& members = "") { return kQuestion + members + "}"; }
std::string completion(const std::string& members) { return R"({"model":"demo",)" + members + "}"; }

HttpAnswer chat(const std::string& body) { return server().post("/v1/chat/completions", body); }
HttpAnswer complete(const std::string& members) {
  return server().post("/v1/completions", completion(members));
}

// The objects of an answer that streams.
std::vector<json> events_of(const HttpAnswer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_TRUE(answer.head.find("text/event-stream") != std::string::npos) << answer.head;
  std::vector<json> events;
  std::string last;
  for (size_t at = answer.body.find("data: "); at != std::string::npos;
       at = answer.body.find("data: ", at)) {
    const size_t end = answer.body.find("\n\n", at);
    last = answer.body.substr(at + 6, end - at - 6);
    if (last != "[DONE]") events.push_back(json::parse(last));
    at = end;
  }
  return events;
}

// "PARAM: the message" of an error of this status.
std::string refusal(const HttpAnswer& answer, int status = 400) {
  EXPECT_EQ(answer.status, status) << answer.body;
  const json error = answer.json().at("error");
  const json& param = error.at("param");
  return (param.is_null() ? "" : param.get<std::string>()) + ": " +
         error.at("message").get<std::string>();
}

std::string param_of(const HttpAnswer& answer, int status = 400) {
  const std::string text = refusal(answer, status);
  return text.substr(0, text.find(": "));
}

TEST(Serve, AnswersChatsAsOpenAi) {
  const HttpAnswer answer = chat(question());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json body = answer.json();
  EXPECT_EQ(body.at("object"), "chat.completion");
  EXPECT_EQ(body.at("model"), "demo");
  EXPECT_TRUE(body.at("id").get<std::string>().starts_with("chatcmpl-"));
  const json& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "473");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  const json& usage = body.at("usage");
  EXPECT_EQ(usage.at("total_tokens"),
            usage.at("prompt_tokens").get<int>() + usage.at("completion_tokens").get<int>());
}

TEST(Serve, StreamsWhatItAnswersWhole) {
  const std::vector<json> events =
      events_of(chat(question(R"(,"stream":true,"stream_options":{"include_usage":true})")));
  std::string text;
  ASSERT_GE(events.size(), 4U);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i].at("object"), "chat.completion.chunk");
    EXPECT_EQ(events[i].at("usage"), nullptr);
    text += events[i].at("choices").at(0).at("delta").value("content", "");
  }
  EXPECT_EQ(text, "473");
  EXPECT_EQ(events.front().at("choices").at(0).at("delta").at("role"), "assistant");
  EXPECT_EQ(events[events.size() - 2].at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(events.back().at("choices"), json::array());
  EXPECT_GT(events.back().at("usage").at("completion_tokens"), 0);
}

TEST(Serve, GivesTheTextsOfABatch) {
  const std::string body = completion(
      R"("prompt":"User: Tell me a story.\nAssistant:","max_tokens":24,"seed":5,"n":2,"top_k":30)");
  const json answer = server().post("/v1/completions", body).json();
  const auto input = scratch_folder() / "serve-batch.jsonl";
  std::ofstream(input) << R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":)"
                       << body << "}\n";
  const ProgramResult batch = run_program(
      {"faststream-run", "-m", faststream::demo_model(), "--device", "cpu", "--batch", input});
  ASSERT_EQ(batch.exit_code, 0) << batch.err;
  const json record = json::parse(batch.out);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(answer.at("choices").at(i).at("text"), record.at("choices").at(i).at("text"));
  }
}

TEST(Serve, StreamsSeveralSamplesWithLogprobs) {
  const std::string members =
      R"("prompt":["Once","Twice"],"n":2,"max_tokens":6,"seed":3,"logprobs":2)";
  const json whole = complete(members).json();
  std::vector<std::string> texts(4);
  std::vector<size_t> n_tokens(4);
  for (const json& event : events_of(complete(members + R"(,"stream":true)"))) {
    const json& choice = event.at("choices").at(0);
    const size_t index = choice.at("index");
    texts.at(index) += choice.at("text").get<std::string>();
    if (choice.at("logprobs").is_object()) {
      n_tokens.at(index) += choice.at("logprobs").at("tokens").size();
      EXPECT_LE(choice.at("logprobs").at("top_logprobs").at(0).size(), 3U);  // with the chosen
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(whole.at("choices").at(i).at("text"), texts[i]) << i;
    EXPECT_EQ(whole.at("choices").at(i).at("logprobs").at("tokens").size(), n_tokens[i]) << i;
  }
}

// What lm-evaluation-harness asks for.
TEST(Serve, EchoesPromptsWithTheirLogprobs) {
  const json text =
      complete(R"("prompt":"Once upon a time","echo":true,"logprobs":1,"max_tokens":1,"seed":4)")
          .json()
          .at("choices")
          .at(0);
  EXPECT_TRUE(text.at("text").get<std::string>().starts_with("Once upon a time"));
  const json& of_text = text.at("logprobs");
  EXPECT_EQ(of_text.at("token_logprobs").at(0), nullptr);
  EXPECT_EQ(of_text.at("top_logprobs").at(0), nullptr);
  EXPECT_EQ(of_text.at("tokens").at(2), " upon");
  EXPECT_EQ(of_text.at("text_offset").at(2), 4);
  EXPECT_EQ(of_text.at("tokens").size(), 6U);  // <s>, a generated one

  const json ids = server().post("/tokenize", R"({"prompt":"Once upon a time"})").json();
  const json both = complete(R"("prompt":[[1,5,6],)" + ids.at("tokens").dump() +
                             R"(],"echo":true,"logprobs":0,"max_tokens":0)")
                        .json();
  EXPECT_EQ(both.at("usage").at("prompt_tokens"), 8);
  EXPECT_EQ(both.at("choices").at(0).at("logprobs").at("tokens").size(), 3U);
  const json& of_ids = both.at("choices").at(1).at("logprobs");
  EXPECT_EQ(both.at("choices").at(1).at("text"), " Once upon a time");
  EXPECT_EQ(of_ids.at("text_offset").at(2), 5);
  for (size_t i = 1; i < of_ids.at("tokens").size(); ++i) {
    EXPECT_NEAR(of_ids.at("token_logprobs").at(i).get<double>(),
                of_text.at("token_logprobs").at(i).get<double>(), 1e-4);
  }
  EXPECT_EQ(complete(R"("prompt":[5,6],"echo":true,"max_tokens":0)")
                .json()
                .at("choices")
                .at(0)
                .at("logprobs"),
            nullptr);
}

TEST(Serve, RefusesPromptsThatAreNoTokens) {
  for (const char* prompt :
       {"[-1]", "[1.5]", "[1,2,1e30]", "[true]", "[null]", "[[1],[-5]]", "[[1,2],[]]", "[[[1]]]",
        "[]", "[2147483648]", "[99999999999999999999999]", "[4096]", R"([1,"a"])", R"([[1],{}])"}) {
    const std::string members = R"("echo":true,"logprobs":1,"prompt":)" + std::string(prompt);
    EXPECT_TRUE(param_of(complete(members)).starts_with("prompt")) << prompt;
  }
  EXPECT_EQ(param_of(complete(R"("prompt":"x","echo":1)")), "echo");
  EXPECT_EQ(param_of(complete(R"("prompt":"x","echo":true,"stream":true)")), "echo");
  EXPECT_EQ(param_of(chat(question(R"(,"echo":true)"))), "echo");
  std::string ids = "1";
  for (int i = 0; i < 500'000; ++i) ids += ",5";
  EXPECT_EQ(param_of(complete(R"("logprobs":20,"echo":true,"prompt":[)" + ids + "]")), "logprobs");
  EXPECT_EQ(param_of(complete(R"("logprobs":1,"echo":true,"prompt":[)" + ids + "]")), "prompt");
}

TEST(Serve, AnswersResponses) {
  const std::string body =
      R"({"model":"demo","input":"What is 128 plus 345?","temperature":0,"max_output_tokens":16)";
  const json answer = server().post("/v1/responses", body + "}").json();
  EXPECT_EQ(answer.at("status"), "completed");
  EXPECT_EQ(answer.at("output").at(0).at("content").at(0).at("text"), "473");
  EXPECT_EQ(server().post("/v1/responses", body + R"(,"parallel_tool_calls":null})").status, 200);
  EXPECT_EQ(param_of(server().post("/v1/responses", body + R"(,"parallel_tool_calls":5})")),
            "parallel_tool_calls");
  const std::vector<json> events =
      events_of(server().post("/v1/responses", body + R"(,"stream":true})"));
  EXPECT_EQ(events.front().at("type"), "response.created");
  EXPECT_EQ(events.back().at("type"), "response.completed");
  std::string text;
  int64_t number = 0;
  for (const json& event : events) {
    EXPECT_EQ(event.at("sequence_number"), number++);
    if (event.at("type") == "response.output_text.delta") text += event.at("delta");
  }
  EXPECT_EQ(text, "473");
}

TEST(Serve, CallsAToolWhereThatIsDemanded) {
  const auto ask = [](const std::string& choice, const std::string& more = "") {
    return chat(
        R"({"temperature":0,"messages":[{"role":"user","content":"Hello"}],"tools":[)"
        R"({"type":"function","function":{"name":"add","parameters":{"type":"object","properties":)"
        R"({"a":{"$ref":"#/$defs/digit"}},"required":["a"],"additionalProperties":false,)"
        R"("$defs":{"digit":{"type":"integer","minimum":0,"maximum":9}}}}},)"
        R"({"type":"function","function":{"name":"stop"}}],"tool_choice":)" +
        choice + more + "}");
  };
  for (const char* choice : {R"({"type":"function","function":{"name":"add"}})",
                             R"({"type":"function","name":"add"})"}) {
    const json answer = ask(choice).json();
    const json& made = answer.at("choices").at(0);
    EXPECT_EQ(made.at("finish_reason"), "tool_calls") << answer;
    const json& function = made.at("message").at("tool_calls").at(0).at("function");
    EXPECT_EQ(function.at("name"), "add");
    EXPECT_LE(json::parse(function.at("arguments").get<std::string>()).at("a"), 9);
  }
  const json any = ask(R"("required","max_tokens":300)").json();
  const std::string reason = any.at("choices").at(0).at("finish_reason");
  EXPECT_TRUE(reason == "tool_calls" || reason == "length") << any;
  EXPECT_EQ(param_of(ask(R"({"type":"function","function":{"name":"fly"}})")), "tool_choice");
  EXPECT_EQ(param_of(ask("7")), "tool_choice");
  EXPECT_EQ(param_of(ask(R"("required")", R"(,"regex":"a")")), "tool_choice");
}

// By a chat template that knows nothing of them.
TEST(Serve, TellsTheModelOfCallsAndWhatTheyGave) {
  const HttpAnswer answer = chat(
      R"({"max_tokens":4,"tools":[{"type":"function","function":{"name":"add"}}],"messages":[)"
      R"({"role":"user","content":"2 and 3?"},{"role":"assistant","content":null,"tool_calls":[)"
      R"({"id":"c","type":"function","function":{"name":"add","arguments":"{\"a\":2}"}}]},)"
      R"({"role":"tool","tool_call_id":"c","content":"5"}]})");
  EXPECT_EQ(answer.status, 200) << answer.body;
}

TEST(Serve, AnswersResponsesByASchema) {
  const auto ask = [](const std::string& format) {
    return server().post(
        "/v1/responses",
        R"({"model":"demo","input":"Yes?","temperature":0,"text":{"format":)" + format + "}}");
  };
  const std::string format = R"({"type":"json_schema","name":"b","schema":{"type":"boolean"}})";
  const json answer = ask(format).json();
  const json& text = answer.at("output").at(0).at("content").at(0).at("text");
  EXPECT_TRUE(json::parse(text.get<std::string>()).is_boolean()) << answer;
  EXPECT_EQ(answer.at("text").at("format"), json::parse(format));
  EXPECT_EQ(ask(R"({"type":"text"})").status, 200);
  EXPECT_EQ(param_of(ask(R"({"type":"xml"})")), "text.format.type");
  EXPECT_EQ(param_of(ask(R"({"type":"json_schema"})")), "text.format.schema");
  EXPECT_EQ(param_of(ask("[]")), "text.format");
}

TEST(Serve, TurnsTextIntoTokensAndBack) {
  const json tokens =
      server().post("/tokenize", R"({"model":"demo","prompt":"Once upon a time"})").json();
  EXPECT_EQ(tokens.at("count"), tokens.at("tokens").size());
  const json text =
      server().post("/detokenize", json({{"tokens", tokens.at("tokens")}}).dump()).json();
  EXPECT_NE(text.at("prompt").get<std::string>().find("upon a time"), std::string::npos);
  EXPECT_EQ(param_of(server().post("/detokenize", R"({"tokens":[99999999]})")), "tokens[0]");
  EXPECT_EQ(param_of(server().post("/detokenize", R"({"tokens":[-1]})")), "tokens[0]");
}

// A converted encoder of tests/golden/encoders.
std::string served_encoder(const std::string& name) {
  const auto made = scratch_folder() / ("serve-" + name + ".bin");
  const ProgramResult result =
      run_program({"faststream-convert",
                   std::string(std::getenv("FASTSTREAM_TEST_DATA")) + "/golden/encoders/" + name,
                   "-o", made, "--force", "--quiet"});
  if (result.exit_code != 0) throw std::runtime_error(result.err);
  return made;
}

TEST(Serve, GivesVectorsAndRankings) {
  const Server encoders({"-m", "vectors=" + served_encoder("bert"), "-m",
                         "ranks=" + served_encoder("bert_rank"), "-m",
                         "labels=" + served_encoder("t5_rank")});
  const auto embed = [&](const std::string& members) {
    return encoders.post("/v1/embeddings", R"({"model":"vectors",)" + members + "}");
  };
  const json one = embed(R"("input":["A cat.","A dog runs."])").json();
  EXPECT_EQ(one.at("data").size(), 2U);
  const std::vector<float> vector = one.at("data").at(1).at("embedding");
  const std::string base64 = embed(R"("input":"A dog runs.","encoding_format":"base64")")
                                 .json()
                                 .at("data")
                                 .at(0)
                                 .at("embedding");
  EXPECT_EQ(base64.size(), (vector.size() * sizeof(float) + 2) / 3 * 4);
  EXPECT_EQ(param_of(embed(R"("input":[])")), "input");
  EXPECT_EQ(param_of(embed(R"("input":[1,2])")), "input[0]");
  const std::string first = R"("input":"A dog runs.","dimensions":)";
  const std::vector<float> part = embed(first + "3").json().at("data").at(0).at("embedding");
  ASSERT_EQ(part.size(), 3U);
  const float length = std::hypot(vector[0], vector[1], vector[2]);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(part[i], vector[i] / length, 1e-6) << i;
  const std::string size = std::to_string(vector.size());
  const std::vector<float> whole = embed(first + size).json().at("data").at(0).at("embedding");
  ASSERT_EQ(whole.size(), vector.size());  // that of a text alone
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], vector[i], 1e-5) << i;
  for (const std::string bad : {"0", "-1", "2.5", "1e3", "\"3\"", "[]"}) {
    EXPECT_EQ(param_of(embed(first + bad)), "dimensions") << bad;
  }
  EXPECT_EQ(refusal(embed(first + "99999")),
            "dimensions: \"dimensions\" is not a whole number from 1 to " + size);
  EXPECT_EQ(param_of(embed(R"("input":"x","encoding_format":"hex")")), "encoding_format");
  EXPECT_EQ(param_of(encoders.post("/v1/embeddings", R"({"model":"demo","input":"x"})")), "model");
  EXPECT_EQ(param_of(encoders.post("/v1/completions", R"({"model":"ranks","prompt":"x"})")),
            "model");

  const json ranking =
      encoders
          .post("/v1/rerank", R"({"model":"ranks","query":"How tall?","top_n":2,)"
                              R"("documents":["Short.",{"text":"Tall."},"So tall!"],)"
                              R"("return_documents":true})")
          .json();
  ASSERT_EQ(ranking.at("results").size(), 2U) << ranking;
  EXPECT_GE(ranking.at("results").at(0).at("relevance_score"),
            ranking.at("results").at(1).at("relevance_score"));
  EXPECT_TRUE(ranking.at("results").at(0).at("document").at("text").is_string());
  EXPECT_EQ(param_of(encoders.post("/v1/rerank", R"({"model":"ranks","documents":["x"]})")),
            "query");
  const std::string of_labels =
      refusal(encoders.post("/v1/rerank", R"({"model":"labels","query":"x","documents":["x"]})"));
  EXPECT_NE(of_labels.find("several scores"), std::string::npos) << of_labels;
}

TEST(Serve, SaysWhyAModelWithSparseAttentionTakesNoLongerTexts) {
  const auto model = scratch_folder() / "serve-sparse.bin";
  convert_golden("families/deepseek_v32", model);
  const Server serving({"-m", "sparse=" + model.string()});
  const HttpAnswer answer = serving.post(
      "/v1/completions", json({{"model", "sparse"}, {"prompt", std::string(500, 'a')}}).dump());
  const std::string message = refusal(answer);
  EXPECT_NE(message.find("prompt: the prompt has"), std::string::npos) << message;
  EXPECT_NE(message.find("this version does not know the sparse attention that the model has for "
                         "longer texts"),
            std::string::npos)
      << message;
  EXPECT_EQ(answer.json().at("error").at("code"), "context_length_exceeded");
}

TEST(Serve, ListsItsModels) {
  EXPECT_EQ(server().get("/v1/models").json().at("data").at(0).at("id"), "demo");
  EXPECT_EQ(server().get("/v1/models/demo").json().at("object"), "model");
  EXPECT_EQ(server().get("/v1/models/d%65mo").json().at("object"), "model");
  EXPECT_EQ(param_of(server().get("/v1/models/other%"), 404), "model");
  EXPECT_EQ(param_of(chat(R"({"model":"other","messages":[{"role":"user","content":"x"}]})"), 404),
            "model");
  EXPECT_EQ(server().get("/health").json().at("status"), "ok");
}

TEST(Serve, AnswersByASchema) {
  const json answer =
      chat(R"({"temperature":0,"max_tokens":100,"messages":[{"role":"user","content":"A cat?"}],)"
           R"("response_format":{"type":"json_schema","json_schema":{"name":"cat","schema":)"
           R"({"type":"object","properties":{"legs":{"type":"integer","minimum":0,"maximum":9},)"
           R"("tame":{"type":"boolean"}},"required":["legs","tame"],)"
           R"("additionalProperties":false}}}})")
          .json();
  const json& choice = answer.at("choices").at(0);
  const json cat = json::parse(choice.at("message").at("content").get<std::string>());
  EXPECT_LE(cat.at("legs"), 9) << answer;
  EXPECT_TRUE(cat.at("tame").is_boolean()) << answer;
  EXPECT_EQ(choice.at("finish_reason"), "stop");
}

TEST(Serve, RefusesWhatMakesNoSenseAndNamesIt) {
  const auto of_chat = [](const std::string& members) { return param_of(chat(question(members))); };
  EXPECT_EQ(of_chat(R"(,"top_p":1.5)"), "top_p");
  EXPECT_EQ(of_chat(R"(,"n":0)"), "n");
  EXPECT_EQ(of_chat(R"(,"n":99999999999999999999)"), "n");
  EXPECT_EQ(of_chat(R"(,"seed":-1)"), "seed");
  EXPECT_EQ(of_chat(R"(,"logit_bias":{"-1":5})"), "logit_bias");
  EXPECT_EQ(of_chat(R"(,"logit_bias":{"5":500})"), "logit_bias");
  EXPECT_EQ(of_chat(R"(,"stop":[""])"), "stop");
  EXPECT_EQ(of_chat(R"(,"stop_tokens":[1000000])"), "stop_tokens");
  EXPECT_EQ(of_chat(R"(,"response_format":{"type":"xml"})"), "response_format");
  EXPECT_EQ(of_chat(R"(,"stream":"yes")"), "stream");
  EXPECT_EQ(of_chat(R"(,"stream_options":{"include_usage":true})"), "stream_options");
  EXPECT_EQ(of_chat(R"(,"prompt":"x")"), "prompt");
  EXPECT_EQ(of_chat(R"(,"beams":9999)"), "beams");
  EXPECT_EQ(of_chat(R"(,"nonsense":1)"), "nonsense");
  EXPECT_EQ(param_of(chat(R"({"model":"demo","messages":[]})")), "messages");
  EXPECT_EQ(param_of(chat(R"({"model":"demo"})")), "messages");
  EXPECT_EQ(param_of(chat(R"({"model":"demo","messages":[{"role":"wizard","content":"x"}]})")),
            "messages[0].role");
  EXPECT_EQ(param_of(chat(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})")),
            "messages[0].content[0]");
  EXPECT_EQ(of_chat(R"(,"tools":[{"type":"function","function":{}}])"), "tools[0].function.name");
  EXPECT_EQ(of_chat(R"(,"tools":[{"type":"function","function":{"name":"f","parameters":"x"}}])"),
            "tools[0].function.parameters");
  EXPECT_EQ(of_chat(R"(,"tools":[5])"), "tools[0]");
  EXPECT_EQ(param_of(server().post("/tokenize", R"({"prompt":"x","content":"y"})")), "content");
  const auto of_response = [](const std::string& members) {
    return param_of(server().post("/v1/responses", R"({"input":"x",)" + members + "}"));
  };
  EXPECT_EQ(of_response(R"("max_output_tokens":-7)"), "max_output_tokens");
  EXPECT_EQ(of_response(R"("tools":[{"type":"function"}])"), "tools[0].name");
  EXPECT_EQ(of_response(R"("tools":[{"type":"function","name":"f","parameters":7}])"),
            "tools[0].parameters");
  EXPECT_EQ(of_response(R"("stream":true,"stream_options":7)"), "stream_options");
  EXPECT_EQ(param_of(complete(R"("prompt":"x","source_lang":"de")")), "source_lang");
  EXPECT_EQ(param_of(complete(R"("prompt":"x","target_lang":"de")")), "target_lang");
  EXPECT_EQ(param_of(complete(R"("prompt":"x","speculate":"mtp")")), "speculate");
  EXPECT_EQ(param_of(complete(R"("prompt":[])")), "prompt");
  EXPECT_EQ(param_of(complete(R"("prompt":[["a"]])")), "prompt[0]");
  EXPECT_EQ(param_of(complete(R"("prompt":[-5])")), "prompt[0]");
  EXPECT_EQ(param_of(complete(R"("prompt":"x","stream":true,"best_of":2)")), "best_of");
  std::string prompts = R"("a")";
  for (int i = 0; i < 1000; ++i) prompts += R"(,"a")";  // which could never run and wait
  EXPECT_EQ(param_of(complete("\"prompt\":[" + prompts + "]")), "prompt");
}

TEST(Serve, RefusesAPromptLongerThanTheContext) {
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "word ";
  const HttpAnswer answer =
      chat(R"({"model":"demo","messages":[{"role":"user","content":")" + words + R"("}]})");
  EXPECT_EQ(param_of(answer), "messages");
  EXPECT_EQ(answer.json().at("error").at("code"), "context_length_exceeded");
}

TEST(Serve, RefusesBodiesThatAreNoJson) {
  for (const std::string body : {"", "{", "[]", "null", "{}}", "\xff", "{\"a\":1,\"a\":2}"}) {
    EXPECT_EQ(chat(body).status, 400) << body;
  }
  const HttpAnswer deep = chat(std::string(100000, '['));
  EXPECT_EQ(deep.status, 400);
  EXPECT_EQ(refusal(deep).find(": the body"), 0U) << deep.body;  // of no member
}

TEST(Serve, KnowsItsRoutesAndMethods) {
  EXPECT_EQ(server().get("/nothing").status, 404);
  EXPECT_EQ(server().get("http://localhost/health").status, 200);
  EXPECT_EQ(server().get("http://localhost").status, 404);
  EXPECT_EQ(server().get("/v1/chat/completions").status, 405);
  EXPECT_NE(server().get("/v1/chat/completions").head.find("\r\nAllow: POST"), std::string::npos);
  const HttpAnswer head =
      server().ask("HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  const HttpAnswer refused = server().ask("HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.body, "");
}

TEST(Serve, ShowsAPageThatTakesNothingFromElsewhere) {
  const HttpAnswer page = server().get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.head.find("Content-Security-Policy: default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.body.find("NONCE"), std::string::npos);
  for (const char* elsewhere : {"src=\"http", "href=\"http", "@import", "url("}) {
    EXPECT_EQ(page.body.find(elsewhere), std::string::npos) << elsewhere;
  }
}

TEST(Serve, CountsWhatItDoes) {
  const double before = server().metric("generation_tokens_total");
  ASSERT_EQ(chat(question()).status, 200);
  EXPECT_GT(server().metric("generation_tokens_total"), before);
  EXPECT_EQ(server().metric("num_requests_running"), 0);
  EXPECT_GT(server().metric("time_to_first_token_seconds_count"), 0);
}

TEST(Serve, LetsNoPageOfAnotherServerAsk) {
  const auto ask = [](const std::string& origin, const std::string& host = "localhost:8080") {
    return server()
        .ask("GET /v1/models HTTP/1.1\r\nHost: " + host +
             "\r\nConnection: close\r\nOrigin: " + origin + "\r\n\r\n")
        .status;
  };
  EXPECT_EQ(ask("http://localhost:8080"), 200);
  EXPECT_EQ(ask("http://127.0.0.1:8080", "127.0.0.1:8080"), 200);
  EXPECT_EQ(ask("https://evil.example"), 403);
  EXPECT_EQ(ask("http://evil.example:8080", "evil.example:8080"), 403);
  EXPECT_EQ(ask("null"), 403);
}

TEST(Serve, AsksForKeysAndTellsPages) {
  const auto keys = scratch_folder() / "keys.txt";
  std::ofstream(keys) << "first\n\n second \r\n";
  Server keyed({"--api-key-file", keys, "--cors", "https://chat.example", "--log", "json"});
  EXPECT_EQ(keyed.get("/health").status, 200);
  EXPECT_EQ(keyed.get("/v1/models").status, 401);
  for (const char* wrong : {"Bearer firs", "Bearer firstfirst", "Bearer ", "Basic first"}) {
    EXPECT_EQ(keyed.get("/v1/models", std::string("Authorization: ") + wrong + "\r\n").status, 401);
  }
  const HttpAnswer answer =
      keyed.get("/v1/models", "Authorization: Bearer second\r\nOrigin: https://chat.example\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(keyed.get("/v1/models", "Authorization: bearer  first\r\n").status, 200);
  EXPECT_NE(answer.head.find("\r\nAccess-Control-Allow-Origin: https://chat.example"),
            std::string::npos);
  const HttpAnswer before = keyed.ask(
      "OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://chat.example\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_EQ(before.status, 204);
  const json line = json::parse(keyed.wait_for_log("{\"time\""));
  EXPECT_EQ(line.at("path"), "/health");
  EXPECT_EQ(line.at("status"), 200);
}

TEST(Serve, ListensOnAUnixSocketAndReplacesOneThatIsLeft) {
  const std::string path = scratch_folder() / "socket";
  for (int i = 0; i < 2; ++i) {
    const Server on_socket({"--unix-socket", path}, false);
    HttpClient client(path);
    client.send("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(parse_answer(client.receive_all()).status, 200);
    const ProgramResult second = run_program({"faststream-serve", "-m", faststream::demo_model(),
                                              "--device", "cpu", "--unix-socket", path});
    EXPECT_EQ(second.exit_code, 1);
    EXPECT_NE(second.err.find("exists already"), std::string::npos) << second.err;
  }  // killed: the socket stays
}

TEST(Serve, EndsWhenASignalSaysSo) {
  Server ending({"--grace", "20"});
  HttpClient client(ending.port());
  client.send(Server::request("/v1/chat/completions",
                              question(R"(,"stream":true,"max_completion_tokens":16)")));
  client.receive_until("data: ");
  EXPECT_EQ(ending.end(), 0);
  const HttpAnswer answer = parse_answer(client.receive_all());
  EXPECT_NE(answer.body.find("[DONE]"), std::string::npos) << answer.body;
}

TEST(Serve, EndsRequestsThatHaveNoGrace) {
  Server ending({"--grace", "0.1"});
  HttpClient client(ending.port());
  client.send(Server::request(
      "/v1/completions", completion(R"("prompt":"x","stream":true,"ignore_eos":true,"n":100)")));
  client.receive_until("data: ");
  EXPECT_EQ(ending.end(), 0);
  EXPECT_NE(client.receive_all().find("the server ends"), std::string::npos);
}

TEST(Serve, AnswersAndEndsWhileNobodyReadsWhatItSays) {
  const std::string socket = (scratch_folder() / "unread").string();
  const std::string fifo = (scratch_folder() / "unread.log").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const Descriptor unread(fifo, O_RDWR);
  const Descriptor filler(fifo, O_WRONLY | O_NONBLOCK);
  const Descriptor nothing("/dev/null", O_RDWR);
  const pid_t pid = start_program({"faststream-serve", "-m", "demo=" + faststream::demo_model(),
                                   "--device", "cpu", "--unix-socket", socket},
                                  nothing.fd(), nothing.fd(), unread.fd());
  std::string said;
  while (said.find("ready at ") == std::string::npos) {
    char byte = 0;
    ASSERT_EQ(::read(unread.fd(), &byte, 1), 1);
    said += byte;
  }
  const std::string much(4096, '\n');
  while (::write(filler.fd(), much.data(), much.size()) > 0) {
  }
  for (int i = 0; i < 2; ++i) {
    HttpClient client(socket);
    client.send("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(parse_answer(client.receive_all()).status, 200);
  }
  ::kill(pid, SIGTERM);
  EXPECT_EQ(wait_for_program(pid), 0);
}

TEST(Serve, SaysWhatIsWrongWithItsOptions) {
  const auto fails = [](std::vector<std::string> options, int code, const std::string& words) {
    options.insert(options.begin(), "faststream-serve");
    const ProgramResult result = run_program(options);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  };
  fails({}, 2, "--model");
  fails({"-m", "nothing.bin"}, 1, "nothing.bin");
  fails({"-m", "name="}, 2, "-m name=");
  fails({"-m", faststream::demo_model(), "--port", "70000"}, 2, "--port");
  fails({"-m", faststream::demo_model(), "--max-body", "12Q"}, 2, "--max-body");
  fails({"-m", faststream::demo_model(), "--request-timeout", "nan"}, 2, "--request-timeout");
  fails({"-m", faststream::demo_model(), "--cors", "chat.example"}, 2, "--cors");
  fails({"-m", faststream::demo_model(), "-m", "x=" + faststream::demo_model(), "-m",
         "x=" + faststream::demo_model()},
        2, "\"x\"");
  fails({"-m", faststream::demo_model(), "--host", "256.1.1.1"}, 1, "--host");
  fails({"-m", faststream::demo_model(), "--port", std::to_string(server().port())}, 1,
        "another --host or");
  fails({"-m", faststream::demo_model(), "--memory", "1K", "--device", "cpu"}, 2, "--memory");
}

TEST(Serve, AnswersWithTheAdapterThatIsAskedFor) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "model");
  convert::write_hf_folder(folder / "model", convert::tiny_config(),
                           convert::tiny_tensors(DType::f32));
  const std::string model = folder / "tiny.bin";
  ASSERT_EQ(run_program({"faststream-convert", folder / "model", "-o", model, "-q"}).exit_code, 0);
  convert::write_adapters(folder, model);
  // Beside the demo, for which they are not made.
  const Server serving({"-m", model, "--adapter", "one=" + std::string(folder / "one.bin"),
                        "--adapter", "two=" + std::string(folder / "two.bin")});

  std::map<std::string, json> models;
  const json list = serving.get("/v1/models").json();
  for (const json& each : list.at("data")) models[each.at("id")] = each;
  EXPECT_EQ(models.size(), 4U);
  EXPECT_EQ(models.at("one").at("parent"), "tiny");
  EXPECT_FALSE(models.at("tiny").contains("parent"));
  EXPECT_EQ(serving.get("/v1/models/two").json().at("id"), "two");

  const auto answer = [&](const std::string& members) {
    return serving
        .post(
            "/v1/completions",
            R"({"prompt":"abc","max_tokens":20,"temperature":0,"ignore_eos":true,)" + members + "}")
        .json();
  };
  const auto text = [&](const std::string& members) {
    return answer(members).at("choices").at(0).at("text").get<std::string>();
  };
  const std::string one = text(R"("model":"one")");
  const std::string two = text(R"("model":"two")");
  const std::string plain = text(R"("model":"tiny")");
  EXPECT_NE(one, two);
  EXPECT_NE(one, plain);
  EXPECT_EQ(answer(R"("model":"two")").at("model"), "two");
  EXPECT_EQ(text(R"("model":"tiny","adapter":"one")"), one);
  EXPECT_EQ(text(R"("model":"one","adapter":"")"), plain);
  const HttpAnswer unknown =
      serving.post("/v1/completions", R"({"model":"tiny","prompt":"abc","adapter":"three"})");
  EXPECT_TRUE(says(refusal(unknown), "adapter: ", "\"three\"", "one, two"));
}

}  // namespace
}  // namespace faststream
