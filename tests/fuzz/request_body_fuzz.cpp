// Bodies of requests to the server, of every route that writes text: whatever the bytes, a task or
// a sentence that is an error in JSON.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "api/openai_answer.h"
#include "fuzz/fuzz_target.h"
#include "server/generation_task.h"
#include "server/served_model.h"
#include "support/error.h"

namespace {

using faststream::api::AnswerForm;

faststream::server::ServedModel& model() {
  static faststream::server::ServedModel model;
  model.name = "model";
  return model;
}

// Any text as the answer, in pieces: what is shown is JSON.
void answer(const faststream::server::GenerationTask& task, std::string_view text) {
  faststream::Output output;
  output.text = text;
  const auto no_tokens = [](auto) { return std::string(); };
  const auto writer =
      faststream::api::make_answer_writer(task.head, {.text_of = no_tokens, .bytes_of = no_tokens});
  std::string events = writer->begin();
  for (size_t at = 0; at < text.size(); at += 5) events += writer->piece(0, text.substr(at, 5), {});
  events += writer->finish(0, output) + writer->end({});
  for (size_t at = events.find("data: {"); at != std::string::npos;
       at = events.find("data: {", at)) {
    const size_t end = events.find("\n\n", at);
    if (end == std::string::npos) std::abort();
    if (!nlohmann::json::accept(events.substr(at + 6, end - at - 6))) std::abort();
    at = end;
  }
  const std::vector<faststream::Output> all(task.head.n_choices, output);
  const auto whole =
      faststream::api::make_answer_writer(task.head, {.text_of = no_tokens, .bytes_of = no_tokens});
  if (!nlohmann::json::accept(whole->whole(all, {}))) std::abort();
}

void read(std::string_view body, AnswerForm form) {
  try {
    auto task = faststream::server::read_generation_task(
        body, form, [](std::string_view) -> faststream::server::ServedModel& { return model(); });
    if (task.requests.empty() || task.head.n_choices < task.requests.size()) std::abort();
    task.head.id = "id-1";
    if (task.head.n_choices <= 64) answer(task, body.substr(0, 2000));
  } catch (const faststream::Error& error) {
    const std::string json = faststream::server::error_json(
        faststream::server::error_of_request(error.what(), "messages"));
    if (nlohmann::json::parse(json).at("error").at("message").empty()) std::abort();
  }
}

}  // namespace

FUZZ_TARGET(request_body) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const AnswerForm form : {AnswerForm::chat, AnswerForm::completion, AnswerForm::response}) {
    read(body, form);
  }
}
