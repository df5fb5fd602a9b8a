// A request that other threads work on.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "server/connection.h"
#include "server/errors.h"

namespace faststream::server {

/// Of a request whose time is over, or that the server's end ends.
inline ApiError timeout_error(bool server_is_stopping) {
  if (server_is_stopping) return {.status = 503, .message = "the server ends; try again later"};
  return {.status = 504,
          .message = "the answer took longer than the server allows; ask for less, or try again",
          .param = {},
          .code = "timeout"};
}

/// Holds a connection for them. Whoever lets go of it last, the connection itself is touched, and
/// ends, in its own thread.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() {
    IoThread& thread = connection_->thread();
    thread.post([connection = std::move(connection_)] {});
  }

  /// Has `work` done with the connection, in its thread. Any thread may call it.
  void post(std::function<void(Connection& connection)> work) {
    connection_->thread().post(on_connection(std::move(work)));
  }
  /// The same for an engine's thread, which waits while connections do not keep up with it.
  void post_when_room(std::function<void(Connection& connection)> work) {
    connection_->thread().post_when_room(on_connection(std::move(work)));
  }
  /// Answers; any thread may call them.
  void respond(HttpResponse response) {
    post(
        [response = std::move(response)](Connection& connection) { connection.respond(response); });
  }
  void fail(const ApiError& error) { respond(error_response(error)); }

 private:
  std::function<void()> on_connection(std::function<void(Connection& connection)> work) const {
    return [connection = connection_, work = std::move(work)] { work(*connection); };
  }

  std::shared_ptr<Connection> connection_;
};

}  // namespace faststream::server
