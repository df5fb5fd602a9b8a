#include "server/connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <cstdio>
#include <ctime>
#include <utility>

#include "server/errors.h"

namespace faststream::server {
namespace {

namespace http = boost::beast::http;

constexpr size_t kChunkBytes = 4 << 10;       // of an idle connection
constexpr size_t kBodyChunkBytes = 16 << 10;  // while a body comes
constexpr size_t kReadAheadBytes = 64 << 10;  // of requests behind the one that is answered
constexpr size_t kKeptBytes = 16 << 10;       // of buffers, between requests
constexpr size_t kBodyBytesPerSecond = 16 << 10;
constexpr std::chrono::milliseconds kLinger(2000);
constexpr std::chrono::milliseconds kShortIdle(1000);  // when connections run out

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text.data();
}

std::string to_text(boost::beast::string_view view) { return {view.data(), view.size()}; }

// What is asked for, without the query.
std::string path_of(const http::request_header<>& message) {
  std::string target = to_text(message.target());
  constexpr std::string_view kScheme = "http://";
  if (target.starts_with(kScheme)) {  // as proxies are asked
    target.erase(0, std::min(target.find('/', kScheme.size()), target.size()));
  }
  return target.substr(0, target.find('?'));
}

}  // namespace

std::string_view reason_phrase(int status) {
  const boost::beast::string_view text =
      http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  return {text.data(), text.size()};
}

Connection::Connection(ConnectionContext& context, IoThread& thread, std::unique_ptr<Stream> stream,
                       std::string peer)
    : context_(context), thread_(thread), stream_(std::move(stream)), peer_(std::move(peer)) {
  ++context_.n_connections;
}

Connection::~Connection() {
  close();
  --context_.n_connections;
}

void Connection::start() {
  state_ = State::beginning;
  thread_.connections().insert(this);
  deadline_ = Clock::now() + context_.limits.headers;
  stream_->begin([self = shared_from_this()](const boost::system::error_code& error, size_t) {
    if (self->state_ == State::closed) return;
    if (error) return self->close();
    self->next_request();
  });
}

// Reading.
// -------------------------------------------------------------------------------------------

void Connection::read() {
  if (is_reading_ || state_ == State::closed) return;
  const bool in_body = state_ == State::reading && headers_checked_;
  chunk_.resize(in_body ? kBodyChunkBytes : kChunkBytes);
  if (!in_body) chunk_.shrink_to_fit();
  is_reading_ = true;
  stream_->read_some(chunk_, [self = shared_from_this()](const boost::system::error_code& error,
                                                         size_t n) { self->on_read(error, n); });
}

void Connection::on_read(const boost::system::error_code& error, size_t n) {
  is_reading_ = false;
  if (state_ == State::closed) return;
  if (error) return close();  // a client that sends nothing more is taken for one that has gone
  if (state_ == State::lingering) return read();
  try {
    unparsed_.append(chunk_.data(), n);
    if (state_ == State::reading) parse();
  } catch (const std::exception&) {  // no memory
    return close();
  }
  // While a request is answered, to see its client go.
  if (state_ != State::answering || unparsed_.size() < kReadAheadBytes) read();
}

void Connection::begin_request() {
  parser_ = std::make_unique<Parser>();
  parser_->eager(false);  // fields behind a body are none of the headers that are checked
  parser_->header_limit(static_cast<std::uint32_t>(context_.limits.header_bytes));
  parser_->body_limit(context_.limits.body_bytes);
  headers_checked_ = is_head_ = false;
  started_ = Clock::now();
  deadline_ = started_ + context_.limits.headers;
  record_ = {};
  record_.peer = peer_;
  ++context_.n_requests;
}

void Connection::parse() {
  while (state_ == State::reading && !unparsed_.empty()) {
    if (!parser_) {
      const size_t begin = unparsed_.find_first_not_of("\r\n");
      unparsed_.erase(0, begin);
      if (unparsed_.empty()) return;
      begin_request();
    }
    boost::system::error_code error;
    const size_t n = put(error);
    unparsed_.erase(0, n);
    const bool wants_more = error == http::error::need_more;
    if (parser_->is_header_done() && !headers_checked_ && !check_headers()) return;
    if (error && !wants_more) return refuse(error);
    count_body();
    if (state_ != State::reading) return;
    if (parser_->is_done()) return dispatch();
    if (wants_more || n == 0) return;
  }
}

// Gives the parser what came, and returns the bytes it took.
size_t Connection::put(boost::system::error_code& error) {
  try {
    return parser_->put(boost::asio::buffer(unparsed_), error);
  } catch (const std::length_error&) {  // a field behind the body, where Beast has no limit
    error = http::error::header_limit;
    return 0;
  }
}

// What Beast lets pass, and this server does not need to understand. False: refused.
bool Connection::check_headers() {
  headers_checked_ = true;
  const auto& message = parser_->get();
  record_.method = to_text(message.method_string());
  record_.path = path_of(message);
  is_head_ = record_.method == "HEAD";
  version_ = message.version();
  const auto refuse_as = [&](const char* what) {
    refuse(400, what);
    return false;
  };
  if (version_ != 10 && version_ != 11) return refuse_as("the version of HTTP is not 1.0 or 1.1");
  if (message.count(http::field::content_length) > 1) {
    return refuse_as("the request has two lengths; give Content-Length once");
  }
  const boost::beast::string_view length = message[http::field::content_length];
  if (length.find_first_not_of("0123456789") != boost::beast::string_view::npos) {
    return refuse_as("the Content-Length is no number");
  }
  const auto encoding = message.find(http::field::transfer_encoding);
  if (encoding != message.end()) {
    if (version_ != 11)
      return refuse_as(
          "a request of version 1.0 has no Transfer-Encoding; give its length, or send it as 1.1");
    const bool known = message.count(http::field::transfer_encoding) == 1 &&
                       boost::beast::iequals(encoding->value(), "chunked");
    if (!known)
      return refuse_as("the Transfer-Encoding is not \"chunked\", which is all there can be");
    if (message.count(http::field::content_length) > 0) {
      return refuse_as("the request has Content-Length and Transfer-Encoding; give one of them");
    }
  }
  const boost::beast::string_view coding = message[http::field::content_encoding];
  if (!coding.empty() && !boost::beast::iequals(coding, "identity")) {
    refuse(415, "the body is compressed; send it as it is, without Content-Encoding");
    return false;
  }
  const size_t hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && version_ == 11)) {
    return refuse_as("the request has no Host, or two; give one");
  }
  request_ = {.method = record_.method,
              .path = record_.path,
              .body = {},
              .authorization = to_text(message[http::field::authorization]),
              .origin = to_text(message[http::field::origin]),
              .request_headers = to_text(message[http::field::access_control_request_headers]),
              .host = to_text(message[http::field::host])};
  keep_alive_ = parser_->keep_alive();
  parser_->eager(true);
  headers_end_ = Clock::now();
  deadline_ = headers_end_ + context_.limits.body;
  if (!parser_->is_done() && version_ == 11 &&
      boost::beast::iequals(message[http::field::expect], "100-continue")) {
    unsent_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  return true;
}

// Bodies that come are bounded all together.
void Connection::count_body() {
  const size_t bytes = parser_->get().body().size();
  context_.body_bytes += bytes - counted_body_;
  counted_body_ = bytes;
  const auto earned = std::chrono::seconds(bytes / kBodyBytesPerSecond);
  if (headers_checked_) deadline_ = headers_end_ + context_.limits.body + earned;
  if (context_.body_bytes > context_.limits.bodies_bytes) {
    refuse(503, "too many large requests are being read; try again later");
  }
}

void Connection::dispatch() {
  state_ = State::answering;
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  try {
    context_.handle(shared_from_this(), std::exchange(request_, {}));
  } catch (const std::exception&) {  // no memory: all else is answered there
    respond(
        error_response({.status = 500, .message = "the request cannot be answered; try again"}));
  }
}

// Answers what is no sound request, and closes.
void Connection::refuse(int status, std::string_view message) {
  state_ = State::answering;
  keep_alive_ = false;
  parser_.reset();
  unparsed_.clear();
  respond(error_response({.status = status, .message = std::string(message)}));
}

void Connection::refuse(const boost::system::error_code& error) {
  if (error == http::error::header_limit) {
    return refuse(431, "the request's headers are longer than " +
                           std::to_string(context_.limits.header_bytes) + " bytes; shorten them");
  }
  if (error == http::error::body_limit) {
    return refuse(413, "the request's body is longer than " +
                           std::to_string(context_.limits.body_bytes) +
                           " bytes; shorten it, or start the server with a larger --max-body");
  }
  refuse(400, "the request is no sound HTTP");
}

// Answering.
// -----------------------------------------------------------------------------------------

void Connection::on_gone(std::function<void()> gone) {
  if (state_ == State::closed) return gone();
  gone_ = std::move(gone);
}

void Connection::expire() {
  if (timeout_) std::exchange(timeout_, nullptr)();
}

void Connection::on_timeout(Clock::time_point when, std::function<void()> timeout) {
  timeout_ = std::move(timeout);
  timeout_at_ = when;
}

void Connection::queue_head(const HttpResponse& response, std::optional<size_t> length) {
  if (context_.stopping) keep_alive_ = false;
  record_.status = response.status;
  // A client of HTTP/1.0 is told the version that it knows chunks are not of.
  chunked_ = !length && version_ == 11;
  if (!length && !chunked_) keep_alive_ = false;
  std::string& head = unsent_;
  head += "HTTP/1.1 " + std::to_string(response.status) + " ";
  head += reason_phrase(response.status);
  head += "\r\nServer: faststream\r\nDate: " + date_text();
  if (response.status != 204) head += "\r\nContent-Type: " + std::string(response.content_type);
  if (length && response.status != 204) head += "\r\nContent-Length: " + std::to_string(*length);
  if (chunked_) head += "\r\nTransfer-Encoding: chunked";
  if (!length) head += "\r\nCache-Control: no-store\r\nX-Accel-Buffering: no";
  head += "\r\nX-Content-Type-Options: nosniff";
  for (const auto* headers : {&response.headers, &std::as_const(headers_)}) {
    for (const auto& [name, value] : *headers) {
      head += "\r\n";
      head += name;
      head += ": " + value;
    }
  }
  if (!keep_alive_) {
    head += "\r\nConnection: close";
  } else if (version_ == 10) {
    head += "\r\nConnection: keep-alive";
  }
  head += "\r\n\r\n";
}

void Connection::respond(const HttpResponse& response) {
  if (state_ != State::answering || finished_ || streaming_) return;
  queue_head(response, response.body.size());
  if (!is_head_) unsent_ += response.body;
  record_.bytes += response.body.size();
  finish();
}

void Connection::begin_stream(const HttpResponse& response) {
  if (state_ != State::answering || finished_ || streaming_) return;
  streaming_ = true;
  queue_head(response, std::nullopt);
  send(response.body);
}

void Connection::send(std::string_view piece) {
  if (state_ != State::answering || finished_ || !streaming_ || piece.empty()) return;
  record_.bytes += piece.size();
  if (chunked_) {
    std::array<char, 24> size{};
    std::snprintf(size.data(), size.size(), "%zx\r\n", piece.size());
    unsent_ += size.data();
    unsent_ += piece;
    unsent_ += "\r\n";
  } else {
    unsent_ += piece;
  }
  if (is_writing_ && unsent_.size() > context_.limits.unsent_bytes) return close();
  flush();
}

void Connection::end_stream() {
  if (state_ != State::answering || finished_ || !streaming_) return;
  if (chunked_) unsent_ += "0\r\n\r\n";
  finish();
}

void Connection::finish() {
  finished_ = true;
  gone_ = nullptr;
  timeout_ = nullptr;
  flush();
}

void Connection::flush() {
  if (is_writing_ || state_ == State::closed) return;
  if (sent_ == sending_.size()) {
    sent_ = 0;
    sending_.clear();
    sending_.swap(unsent_);
    if (sending_.empty()) return;
    write_deadline_ = Clock::now() + context_.limits.unread;
  }
  is_writing_ = true;
  stream_->write_some(std::string_view(sending_).substr(sent_),
                      [self = shared_from_this()](const boost::system::error_code& error,
                                                  size_t n) { self->on_written(error, n); });
}

void Connection::on_written(const boost::system::error_code& error, size_t n) {
  is_writing_ = false;
  if (state_ == State::closed) return;
  if (error) return close();
  sent_ += n;
  write_deadline_ = Clock::now() + context_.limits.unread;
  if (sent_ < sending_.size() || !unsent_.empty()) return flush();
  if (state_ != State::answering || !finished_) return;
  end_request(true);
  if (keep_alive_ && !context_.stopping) {
    next_request();
  } else {
    linger();
  }
}

// Of a request, what lasts until it is answered or given up.
void Connection::end_request(bool answered) {
  context_.body_bytes -= std::exchange(counted_body_, 0);
  --context_.n_requests;
  record_.cut = record_.cut || !answered;
  record_.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  if (context_.log) context_.log(record_);
}

void Connection::next_request() {
  state_ = State::reading;
  headers_checked_ = false;
  finished_ = streaming_ = chunked_ = false;
  headers_.clear();
  sending_.clear();
  sent_ = 0;
  if (sending_.capacity() > kKeptBytes) sending_ = {};
  if (unsent_.capacity() > kKeptBytes) unsent_ = {};
  if (unparsed_.empty() && unparsed_.capacity() > kKeptBytes) unparsed_ = {};
  since_ = Clock::now();
  deadline_ = since_ + context_.limits.idle;
  if (!unparsed_.empty()) parse();
  read();
}

// Closing while bytes come would have the system tell the client of an error, and it might never
// see the answer.
void Connection::linger() {
  state_ = State::lingering;
  deadline_ = Clock::now() + kLinger;
  stream_->end_sending();
  read();
}

void Connection::check_deadline(Clock::time_point now) {
  const auto self = shared_from_this();
  if (is_writing_ && now > write_deadline_) return close();
  switch (state_) {
    case State::answering:
      if (now > timeout_at_) expire();
      return;
    case State::reading: {
      const bool scarce =
          context_.n_connections > context_.limits.connections - context_.limits.connections / 8;
      const bool spare = !parser_ && scarce && now > since_ + kShortIdle;
      if (now <= deadline_ && !spare) return;
      if (!parser_) return close();
      return refuse(408, "the request did not come in time; send it at once");
    }
    case State::beginning:
    case State::lingering:
      if (now > deadline_) close();
      return;
    case State::made:
    case State::closed:
      return;
  }
}

void Connection::stop() {
  if (state_ == State::beginning || (state_ == State::reading && !parser_)) close();
}

void Connection::close() {
  if (state_ == State::closed) return;
  const bool has_request = state_ == State::answering || (state_ == State::reading && parser_);
  if (state_ != State::made) thread_.connections().erase(this);
  state_ = State::closed;
  stream_->close();
  if (has_request) end_request(false);
  timeout_ = nullptr;
  if (gone_) std::exchange(gone_, nullptr)();
}

}  // namespace faststream::server
