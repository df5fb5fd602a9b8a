#include "server/generation_task.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "api/request_body.h"
#include "api/response_answer.h"
#include "server/served_model.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream::server {
namespace {

using api::AnswerForm;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMostPrompts = 2048;
constexpr size_t kMostCopiedBytes = 64 << 20;
constexpr size_t kMostEchoedLogprobs = 4 << 20;
constexpr std::array<std::string_view, 7> kRoles = {"system", "developer", "user",   "assistant",
                                                    "tool",   "function",  "ipython"};

// The prompts of a body of /v1/completions that has several; what is left is one.
std::vector<json> take_prompts(json& options) {
  const auto prompt = options.find("prompt");
  if (prompt == options.end() || !prompt->is_array()) return {};
  if (prompt->empty()) throw Error("\"prompt\" is an empty list; give a text or token ids");
  if (!prompt->front().is_string() && !prompt->front().is_array()) return {};
  if (prompt->size() > kMostPrompts) {
    throw Error("\"prompt\" has more than " + std::to_string(kMostPrompts) +
                " prompts; send them in several requests");
  }
  std::vector<json> prompts = std::move(prompt->get_ref<json::array_t&>());
  *prompt = prompts.front();
  return prompts;
}

// Whether a body of /v1/completions wants its prompts in the answers.
bool take_echo(json& options) {
  if (!options.contains("echo")) return false;
  const bool echo = JsonView(options, "").get<bool>("echo", false);
  options.erase("echo");
  return echo;
}

Prompt read_prompt(const json& value, size_t index) {
  const JsonView view(value, "");
  try {
    if (value.is_string()) return value.get<std::string>();
    return view.integers<int32_t>(0, std::numeric_limits<int32_t>::max());
  } catch (const Error&) {
    throw Error("\"prompt[" + std::to_string(index) + "]\" is not a text or a list of token ids");
  }
}

// Whether the answer is to come in pieces, and what of its end.
void read_stream_options(const JsonView& options, GenerationTask& task) {
  task.stream = options.get<bool>("stream", false);
  const auto of_stream = options.find("stream_options");
  if (!of_stream) return;
  if (!of_stream->value().is_object()) of_stream->fail("is not an object");
  of_stream->allow_only({"include_usage", "include_obfuscation"});
  task.head.usage_at_end = of_stream->get<bool>("include_usage", false);
  if (!task.stream) throw Error("\"stream_options\" needs \"stream\": true");
}

void check_roles(const Request& request) {
  const auto* conversation = std::get_if<ChatPrompt>(&request.prompt);
  if (conversation == nullptr) return;
  size_t index = 0;
  for (const Message& message : conversation->messages) {
    if (std::ranges::find(kRoles, message.role) == kRoles.end()) {
      throw Error("\"messages[" + std::to_string(index) + "].role\" is " + in_quotes(message.role) +
                  "; give system, developer, user, assistant or tool");
    }
    ++index;
  }
}

// Tools are functions, in OpenAI's form or without "type" around them.
void check_tools(const ordered_json& body) {
  if (!has_value(body, "tools")) return;
  size_t index = 0;
  for (const ordered_json& tool : body.at("tools")) {
    const std::string name = "tools[" + std::to_string(index++) + "]";
    const bool wrapped = tool.is_object() && tool.contains("function");
    const ordered_json& function = wrapped ? tool.at("function") : tool;
    const auto require = [&](bool holds, const char* member, const char* what) {
      if (!holds) throw Error(in_quotes(name + (wrapped ? ".function" : "") + member) + what);
    };
    require(function.is_object(), "", " is not an object");
    require(has_value(function, "name") && function.at("name").is_string(), ".name",
            " is not a text");
    require(!has_value(function, "parameters") || function.at("parameters").is_object(),
            ".parameters", " is not an object");
  }
}

// Each prompt has its own copy of what else a request says.
void check_copies(const Request& request, size_t n_prompts) {
  size_t bytes = request.sampling.logit_bias.size() * sizeof(LogitBias) +
                 request.stop_tokens.size() * sizeof(int32_t);
  for (const std::string& stop : request.stop) bytes += stop.size();
  if (bytes * n_prompts <= kMostCopiedBytes) return;
  throw Error(
      "\"prompt\" has too many prompts for so long lists beside it; send them in several "
      "requests");
}

void check_streamable(const Request& request, bool echo) {
  if (echo) throw Error("\"echo\" does not go with \"stream\": true; leave one out");
  if (request.best_of > request.n) {
    throw Error(
        "\"best_of\" above n does not go with \"stream\": which samples are returned is "
        "known at the end");
  }
}

// Those of generated tokens take time to make; those of prompts come by the thousand at once.
void check_echoed_logprobs(const std::vector<Request>& requests) {
  size_t n_tokens = 0;
  for (const Request& request : requests) {
    const auto* text = std::get_if<std::string>(&request.prompt);
    n_tokens += text != nullptr ? text->size() / 2  // of a token two bytes, or more
                                : std::get<std::vector<int32_t>>(request.prompt).size();
  }
  const auto n_each = static_cast<size_t>(requests.front().prompt_logprobs + 1) *
                      static_cast<size_t>(requests.front().n);
  if (n_tokens * n_each <= kMostEchoedLogprobs) return;
  throw Error(
      "\"logprobs\" of so long prompts are too many for one answer; send them in several requests");
}

// What the routes call the prompt.
void check_prompt_member(const json& options, const ordered_json& object, AnswerForm form) {
  const bool chat = form != AnswerForm::completion;
  if (chat && options.contains("prompt")) {
    throw Error("unknown key \"prompt\"; give \"messages\" here, or send it to /v1/completions");
  }
  if (!chat && object.contains("messages")) {
    throw Error("unknown key \"messages\"; send it to /v1/chat/completions");
  }
  if (chat && !has_value(object, "messages")) {
    throw Error("\"messages\" is missing; give a list of messages");
  }
  if (!chat && !has_value(options, "prompt")) throw Error("\"prompt\" is missing; give a text");
}

// The body of a chat that a response's stands for, as text again.
std::string chat_text_of_response(std::string_view body, GenerationTask& task) {
  ordered_json object = parse_ordered_json(body, kBody, kBodyAdvice, RepeatedMembers::are_errors);
  if (!object.is_object()) throw Error("the body is JSON, but not an object as it must be");
  task.head.request = api::json_text(api::repeated_members(object));
  return api::json_text(api::chat_body_of_response(std::move(object)));
}

}  // namespace

void require_chat(const ServedModel& model) {
  if (!model.engine || model.engine->can_chat()) return;
  throw RequestError({.status = 400,
                      .message =
                          "the model has no chat template; ask for completions, or start the "
                          "server with --chat-template",
                      .param = "model",
                      .code = "model_not_supported"});
}

GenerationTask read_generation_task(std::string_view body, AnswerForm form,
                                    const FindModel& find_model) {
  GenerationTask task;
  task.head.form = form;
  task.head.created = std::time(nullptr);
  std::string chat;
  if (form == AnswerForm::response) {
    chat = chat_text_of_response(body, task);
    body = chat;
  }
  api::RequestObject object(body, kBody, kBodyAdvice);
  const JsonView options(object.options(), "");
  const auto asked = options.get<std::string>("model", "");
  task.model = &find_model(asked);
  task.head.model = asked.empty() ? task.model->name : asked;
  check_prompt_member(object.options(), object.object(), form);
  read_stream_options(options, task);
  const std::vector<json> prompts = take_prompts(object.options());

  if (form == AnswerForm::completion) task.echo = take_echo(object.options());

  api::ParsedRequest parsed{.request = task.model->defaults};
  parsed.request.adapter = task.model->adapter_of(asked);
  api::read_openai_request(options, object.object(), parsed);
  Request& request = parsed.request;
  check_roles(request);
  check_tools(object.object());
  if (task.stream) check_streamable(request, task.echo);
  if (task.echo) request.prompt_logprobs = request.logprobs;
  if (form == AnswerForm::response && request.n != 1) {
    throw Error("\"n\" is not supported; leave it out");
  }
  if (const auto* conversation = std::get_if<ChatPrompt>(&request.prompt)) {
    require_chat(*task.model);
    task.head.has_tools = !conversation->tools.empty();
  }
  task.head.logprobs = request.logprobs >= 0;
  task.head.show_special = request.show_special;
  if (prompts.empty()) {
    task.requests.push_back(std::move(request));
  } else {
    check_copies(request, prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      request.prompt = read_prompt(prompts[i], i);
      task.requests.push_back(request);
    }
  }
  if (task.echo) check_echoed_logprobs(task.requests);
  task.head.n_choices = task.requests.size() * static_cast<size_t>(task.requests.front().n);
  return task;
}

ApiError error_of_request(std::string_view message, std::string_view prompt) {
  // What an engine says of a request and does not put in quotation marks.
  constexpr std::pair<std::string_view, std::string_view> kAbout[] = {
      {"a stop string", "stop"},
      {"at most 64 stop", "stop"},
      {"the stop token", "stop_tokens"},
      {"beams", "beams"},
      {" bias", "logit_bias"},
      {"language of the source", "source_lang"},
      {"language of the answer", "target_lang"},
      {"speculate is ", "speculate"},
  };
  ApiError error{.status = 400, .message = std::string(message)};
  const bool about_prompt = message.starts_with("the prompt") || message.starts_with("a context");
  if (!about_prompt) error.param = parameter_of(message);
  for (const auto& [words, param] : kAbout) {
    if (!about_prompt && error.param.empty() && message.find(words) != std::string_view::npos) {
      error.param = param;
    }
  }
  const bool about_body = message.starts_with(kBody);
  if ((about_prompt || error.param.empty()) && !about_body) error.param = prompt;
  if (about_prompt && message.find("context") != std::string_view::npos) {
    error.code = "context_length_exceeded";
  }
  return error;
}

}  // namespace faststream::server
