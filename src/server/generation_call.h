// A request that an engine answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/openai_answer.h"
#include "engine/engine.h"
#include "server/exchange.h"
#include "server/generation_task.h"
#include "server/served_model.h"

namespace faststream::server {

/// Submits a task's requests and writes their answers to the connection: the engine's thread posts
/// what it has to the connection's, and waits only where that falls far behind. A client that goes
/// away, or a time that is over, cancels them.
class GenerationCall : public std::enable_shared_from_this<GenerationCall> {
 public:
  /// `timeout`: how long it may take; 0: any time.
  GenerationCall(std::shared_ptr<Exchange> exchange, GenerationTask task, std::string id,
                 std::chrono::milliseconds timeout);

  /// Any thread. Throws Error when a request makes no sense to the engine: nothing is answered
  /// then.
  void submit();

 private:
  // The engine's thread.
  Callbacks callbacks_of(size_t request);
  void pass_on(size_t request, const Delta& delta);

  // The connection's.
  void prepare(Connection& connection);
  void on_submitted(std::vector<RequestId> ids);
  void on_piece(Connection& connection, size_t choice, const std::string& text,
                std::span<const PositionLogprobs> logprobs);
  void on_result(Connection& connection, size_t request, Result result, const std::string& error);
  void answer(Connection& connection);
  void fail(Connection& connection, const ApiError& error);
  void begin(Connection& connection);
  void cancel();

  std::shared_ptr<Exchange> exchange_;
  GenerationTask task_;
  ServedModel& model_;
  std::chrono::milliseconds timeout_;
  size_t n_each_;  // choices of a request
  std::unique_ptr<api::AnswerWriter> writer_;

  std::vector<std::string> echoes_;  // of requests, where answers begin with their prompts
  std::vector<size_t> n_logprobs_;   // passed on, by choice; the engine's thread

  // The connection's thread:
  std::vector<RequestId> ids_;
  std::vector<std::vector<Output>> outputs_;  // by request
  api::AnswerUsage usage_;
  size_t n_unfinished_;
  bool cancelled_ = false;
  bool done_ = false;  // answered, or of no use any more
};

}  // namespace faststream::server
