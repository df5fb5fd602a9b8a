// A client's connection: requests one after the other, each answered whole or as a stream.
#pragma once

#include <atomic>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/access_log.h"
#include "server/http_message.h"
#include "server/io_thread.h"
#include "server/stream.h"

namespace faststream::server {

class Connection;

/// What connections have in common.
struct ConnectionContext {
  HttpLimits limits;
  /// Answers a request: by the connection's members, at once or later. Called by its thread.
  std::function<void(const std::shared_ptr<Connection>& connection, HttpRequest request)> handle;
  /// Told of each request that was answered or given up. May be empty.
  std::function<void(const AccessRecord& record)> log;
  std::atomic<size_t> n_connections = 0;  ///< from when they are made
  std::atomic<size_t> n_requests = 0;     ///< being read or answered
  std::atomic<size_t> body_bytes = 0;     ///< of all requests that are there
  std::atomic<bool> stopping = false;     ///< a connection ends after the request that it has
};

/// Belongs to its IoThread, which alone calls its members once it is made.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  /// `peer`: the client's address, for the log. `context` and `thread` must outlive it.
  Connection(ConnectionContext& context, IoThread& thread, std::unique_ptr<Stream> stream,
             std::string peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  void start();
  [[nodiscard]] IoThread& thread() const { return thread_; }

  // For a request that is being answered; else nothing happens.
  // ------------------------------------

  /// Answers it.
  void respond(const HttpResponse& response);
  /// Answers it with a body that comes in pieces; HttpResponse::body is its first.
  void begin_stream(const HttpResponse& response);
  /// Drops a client that lets too much wait.
  void send(std::string_view piece);
  void end_stream();
  /// Whether begin_stream() was called.
  [[nodiscard]] bool is_streaming() const { return streaming_; }
  [[nodiscard]] bool server_is_stopping() const { return context_.stopping; }
  /// Called once, if the client goes away before it has its answer; at once where it has gone.
  void on_gone(std::function<void()> gone);
  /// Called once, at that time or by expire(), if the request is not answered by then.
  void on_timeout(Clock::time_point when, std::function<void()> timeout);
  /// Headers that its answer has besides, as HttpResponse::headers.
  void set_headers(std::vector<std::pair<std::string_view, std::string>> headers) {
    headers_ = std::move(headers);
  }
  /// What the log says of it.
  [[nodiscard]] AccessRecord& record() { return record_; }

  // For the thread.
  // ---------------------------------------------------------------------------------

  /// Ends what takes too long.
  void check_deadline(Clock::time_point now);
  /// Ends its request as if its time were over.
  void expire();
  /// Closes it now if it has no request, else after it.
  void stop();
  /// Closes it now.
  void close();

 private:
  enum class State {
    made,  // the thread does not know of it yet
    beginning,
    reading,    // a request, or waiting for one
    answering,  // a request that is read
    lingering,  // everything is sent; waiting for the client to close
    closed,
  };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void read();
  void on_read(const boost::system::error_code& error, size_t n);
  void parse();
  size_t put(boost::system::error_code& error);
  void begin_request();
  bool check_headers();
  void count_body();
  void dispatch();
  void refuse(int status, std::string_view message);
  void refuse(const boost::system::error_code& error);
  void queue_head(const HttpResponse& response, std::optional<size_t> length);
  void flush();
  void on_written(const boost::system::error_code& error, size_t n);
  void finish();
  void next_request();
  void linger();
  void end_request(bool answered);

  ConnectionContext& context_;
  IoThread& thread_;
  std::unique_ptr<Stream> stream_;
  std::string peer_;
  State state_ = State::made;
  Clock::time_point deadline_ = {};  // of reading and lingering
  Clock::time_point since_ = {};     // of reading: when it began to wait for a request

  // The request.
  std::vector<char> chunk_;  // what is read into
  std::string unparsed_;
  bool is_reading_ = false;  // stream_ has chunk_
  std::unique_ptr<Parser> parser_;
  bool headers_checked_ = false;
  HttpRequest request_;  // but for its body, once they are
  size_t counted_body_ = 0;
  Clock::time_point headers_end_ = {};

  // Its answer.
  unsigned version_ = 11;
  bool is_head_ = false;  // the method: no body is sent
  bool keep_alive_ = false;
  bool streaming_ = false;
  bool chunked_ = false;
  bool finished_ = false;  // all is queued
  std::vector<std::pair<std::string_view, std::string>> headers_;
  std::function<void()> gone_;
  std::function<void()> timeout_;
  Clock::time_point timeout_at_ = {};
  AccessRecord record_;
  Clock::time_point started_ = {};

  std::string unsent_;   // not yet in sending_
  std::string sending_;  // what stream_ has, from sent_ on
  size_t sent_ = 0;
  bool is_writing_ = false;
  Clock::time_point write_deadline_ = {};
};

}  // namespace faststream::server
