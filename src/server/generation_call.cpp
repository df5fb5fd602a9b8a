#include "server/generation_call.h"

#include <algorithm>
#include <utility>

namespace faststream::server {
namespace {

constexpr std::string_view kEvents = "text/event-stream; charset=utf-8";

int64_t sequences_of(const Request& request) {
  return request.search.beams > 1 ? request.search.beams : std::max(request.n, request.best_of);
}

// What an answer repeats of a prompt that is no conversation.
std::string text_of(const Prompt& prompt, const Engine& engine) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  return engine.detokenize(std::get<std::vector<int32_t>>(prompt));
}

}  // namespace

GenerationCall::GenerationCall(std::shared_ptr<Exchange> exchange, GenerationTask task,
                               std::string id, std::chrono::milliseconds timeout)
    : exchange_(std::move(exchange)),
      task_(std::move(task)),
      model_(*task_.model),
      timeout_(timeout),
      n_each_(static_cast<size_t>(task_.requests.front().n)),
      n_logprobs_(task_.head.n_choices),
      outputs_(task_.requests.size()),
      n_unfinished_(task_.requests.size()) {
  task_.head.id = std::move(id);
  Engine& engine = *model_.engine;
  writer_ = api::make_answer_writer(
      task_.head,
      {.text_of = [&engine](std::span<const int32_t> tokens) { return engine.detokenize(tokens); },
       .bytes_of = [&engine](int32_t token) { return engine.token_bytes(token); }});
  for (const Request& request : task_.requests) {
    if (task_.echo) echoes_.push_back(text_of(request.prompt, engine));
  }
}

void GenerationCall::submit() {
  int64_t n_sequences = 0;
  for (const Request& request : task_.requests) n_sequences += sequences_of(request);
  if (!model_.could_admit(n_sequences)) {
    throw RequestError({.status = 400,
                        .message = "the request has " + std::to_string(n_sequences) +
                                   " sequences, and the server takes " +
                                   std::to_string(model_.most_sequences) +
                                   " at once; send fewer, or start it with a larger --max-queue",
                        .param = task_.requests.size() > 1 ? "prompt" : "n"});
  }
  if (!model_.admit(n_sequences)) {
    throw RequestError({.status = 429,
                        .message = "too many requests wait; try again later",
                        .param = {},
                        .code = "queue_full"});
  }
  exchange_->post(
      [self = shared_from_this()](Connection& connection) { self->prepare(connection); });
  std::vector<RequestId> ids;
  try {
    for (size_t i = 0; i < task_.requests.size(); ++i) {
      n_sequences -= sequences_of(task_.requests[i]);
      const int64_t own = sequences_of(task_.requests[i]);
      try {
        ids.push_back(model_.engine->submit(std::move(task_.requests[i]), callbacks_of(i)));
      } catch (...) {
        model_.n_sequences -= own;
        throw;
      }
    }
  } catch (...) {
    model_.n_sequences -= n_sequences;
    exchange_->post([self = shared_from_this()](Connection&) { self->done_ = true; });
    for (const RequestId id : ids) model_.engine->cancel(id);
    throw;
  }
  exchange_->post([self = shared_from_this(), ids = std::move(ids)](Connection&) mutable {
    self->on_submitted(std::move(ids));
  });
}

// The engine's thread.
// -------------------------------------------------------------------------------

Callbacks GenerationCall::callbacks_of(size_t request) {
  Callbacks callbacks;
  if (task_.stream) {
    callbacks.on_delta = [self = shared_from_this(), request](const Delta& delta) {
      self->pass_on(request, delta);
    };
  }
  const int64_t own = sequences_of(task_.requests[request]);
  callbacks.on_finish = [self = shared_from_this(), request, own](Result result,
                                                                  const std::string& error) {
    self->model_.n_sequences -= own;
    self->model_.metrics.add(result, !error.empty());
    self->exchange_->post(
        [self, request, result = std::move(result), error](Connection& connection) mutable {
          self->on_result(connection, request, std::move(result), error);
        });
  };
  return callbacks;
}

void GenerationCall::pass_on(size_t request, const Delta& delta) {
  const auto sample = static_cast<size_t>(delta.sample);
  if (sample >= n_each_) return;
  const size_t choice = request * n_each_ + sample;
  const size_t told = std::min(n_logprobs_[choice], delta.logprobs.size());
  const std::span<const PositionLogprobs> fresh = delta.logprobs.subspan(told);
  n_logprobs_[choice] = delta.logprobs.size();
  if (delta.text.empty() && fresh.empty()) return;
  exchange_->post_when_room(
      [self = shared_from_this(), choice, text = std::string(delta.text),
       logprobs = std::vector(fresh.begin(), fresh.end())](Connection& connection) {
        self->on_piece(connection, choice, text, logprobs);
      });
}

// The connection's thread.
// ---------------------------------------------------------------------------

void GenerationCall::prepare(Connection& connection) {
  connection.record().model = model_.name;
  const auto weak = weak_from_this();  // the connection is kept by this
  connection.on_gone([weak] {
    if (const auto self = weak.lock()) {
      self->done_ = true;
      self->cancel();
    }
  });
  const auto when = timeout_.count() == 0 ? Connection::Clock::time_point::max()
                                          : Connection::Clock::now() + timeout_;
  connection.on_timeout(when, [weak, &connection] {
    const auto self = weak.lock();
    if (!self || self->done_) return;
    self->cancel();
    self->fail(connection, timeout_error(connection.server_is_stopping()));
  });
}

void GenerationCall::on_submitted(std::vector<RequestId> ids) {
  ids_ = std::move(ids);
  if (cancelled_) cancel();
}

void GenerationCall::cancel() {
  cancelled_ = true;
  for (const RequestId id : ids_) model_.engine->cancel(id);
}

void GenerationCall::begin(Connection& connection) {
  if (connection.is_streaming()) return;
  connection.begin_stream(
      {.status = 200, .content_type = kEvents, .body = writer_->begin(), .headers = {}});
}

void GenerationCall::on_piece(Connection& connection, size_t choice, const std::string& text,
                              std::span<const PositionLogprobs> logprobs) {
  if (done_) return;
  begin(connection);
  connection.send(writer_->piece(choice, text, logprobs));
}

void GenerationCall::on_result(Connection& connection, size_t request, Result result,
                               const std::string& error) {
  AccessRecord& record = connection.record();
  for (const Output& output : result.outputs) {
    usage_.completion_tokens += static_cast<int64_t>(output.tokens.size());
  }
  usage_.prompt_tokens += result.prompt_tokens;
  usage_.cached_tokens += std::min(result.cached_tokens, result.prompt_tokens);
  if (!done_) {
    record.prompt_tokens = usage_.prompt_tokens;
    record.completion_tokens = usage_.completion_tokens;
  }
  if (done_) return;
  if (!error.empty()) {
    record.failure = error;
    cancel();
    return fail(connection,
                {.status = 500, .message = "the device could not answer the request; try again"});
  }
  const bool cut = std::ranges::any_of(result.outputs, [](const Output& output) {
    return output.finish_reason == FinishReason::cancelled;
  });
  if (cut || result.outputs.empty()) {
    cancel();
    return fail(connection, timeout_error(true));
  }
  if (task_.echo) api::begin_with_prompt(result, echoes_[request]);
  if (task_.stream) {
    begin(connection);
    for (size_t i = 0; i < result.outputs.size(); ++i) {
      connection.send(writer_->finish(request * n_each_ + i, result.outputs[i]));
    }
  }
  outputs_[request] = std::move(result.outputs);
  if (--n_unfinished_ == 0) answer(connection);
}

void GenerationCall::answer(Connection& connection) {
  done_ = true;
  if (task_.stream) {
    connection.send(writer_->end(usage_));
    return connection.end_stream();
  }
  std::vector<Output> all;
  for (std::vector<Output>& outputs : outputs_) {
    std::ranges::move(outputs, std::back_inserter(all));
  }
  connection.respond({.status = 200,
                      .content_type = "application/json",
                      .body = writer_->whole(all, usage_),
                      .headers = {}});
}

void GenerationCall::fail(Connection& connection, const ApiError& error) {
  done_ = true;
  if (!connection.is_streaming()) return connection.respond(error_response(error));
  connection.record().cut = true;
  connection.send("data: " + error_json(error) + "\n\n");
  connection.end_stream();
}

}  // namespace faststream::server
