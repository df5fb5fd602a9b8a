// The server without sockets: what a client sends goes to a connection of the server's, and what
// comes back is checked to be HTTP and JSON, as far as a client has to understand it.
#pragma once

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api.h"
#include "server/connection.h"
#include "unit/engine/engine_model.h"

namespace faststream::server {

inline void require(bool holds) {
  if (!holds) std::abort();
}

/// What a client sends, in pieces.
struct SentBytes {
  std::vector<std::string_view> pieces;
  bool waits = true;  ///< for answers; else it goes away once all is sent
};

/// What became of it.
struct ServedBytes {
  std::string answers;
  std::vector<AccessRecord> records;  ///< of the requests, in their order
};

/// A client's end of a connection.
class MemoryStream final : public Stream {
 public:
  /// `gone` is set once the connection is no more.
  MemoryStream(IoThread& thread, const SentBytes& sent, ServedBytes& served,
               std::promise<void>& gone)
      : thread_(thread), sent_(sent), served_(served), gone_(gone) {}
  MemoryStream(const MemoryStream&) = delete;
  MemoryStream& operator=(const MemoryStream&) = delete;
  ~MemoryStream() override { gone_.set_value(); }

  void begin(Handler handler) override { handler({}, 0); }
  void read_some(std::span<char> into, Handler handler) override {
    require(!reader_);
    into_ = into;
    reader_ = std::move(handler);
    give();
  }
  void write_some(std::string_view from, Handler handler) override {
    require(!from.empty());
    const size_t n = std::min(from.size(), kMostWritten);
    served_.answers += from.substr(0, n);
    call(std::move(handler), {}, n);
  }
  void end_sending() override {}
  void close() override {
    if (reader_) call(std::exchange(reader_, nullptr), boost::asio::error::operation_aborted, 0);
  }

  /// A request is being answered from now on.
  void begin_answer() { is_answering_ = true; }
  /// It has been; the next one may begin at once.
  void end_answer() {
    is_answering_ = false;
    if (reader_) boost::asio::post(thread_.context(), [this] { give(); });
  }

 private:
  static constexpr size_t kMostWritten = 700;

  void call(Handler handler, const boost::system::error_code& error, size_t n) {
    boost::asio::post(thread_.context(),
                      [handler = std::move(handler), error, n] { handler(error, n); });
  }
  // Gives who reads the next bytes, or the end.
  void give() {
    if (!reader_) return;
    while (next_ < sent_.pieces.size() && rest().empty()) {
      ++next_;
      taken_ = 0;
    }
    const bool ends = next_ == sent_.pieces.size();
    if (ends && is_answering_ && sent_.waits) return;
    size_t n = 0;
    if (!ends) {
      n = std::min(rest().size(), into_.size());
      std::memcpy(into_.data(), rest().data(), n);
      taken_ += n;
    }
    call(std::exchange(reader_, nullptr),
         ends ? boost::asio::error::eof : boost::system::error_code(), n);
  }
  [[nodiscard]] std::string_view rest() const { return sent_.pieces[next_].substr(taken_); }

  IoThread& thread_;
  const SentBytes& sent_;
  ServedBytes& served_;
  std::promise<void>& gone_;
  size_t next_ = 0;   // piece
  size_t taken_ = 0;  // of it
  std::span<char> into_;
  Handler reader_;
  bool is_answering_ = false;
};

inline constexpr const char* kFuzzKey = "secret";
inline constexpr const char* kFuzzOrigin = "https://chat.example";

/// A model that writes text, "text", one that gives vectors, "vectors", and one that scores pairs,
/// "scores", all tiny and of random weights.
inline std::vector<std::unique_ptr<ServedModel>> fuzz_models() {
  std::vector<std::unique_ptr<ServedModel>> models;
  const auto add = [&](const char* name) -> ServedModel& {
    models.push_back(std::make_unique<ServedModel>());
    models.back()->name = name;
    return *models.back();
  };
  ServedModel& text = add("text");
  text.engine = std::make_unique<Engine>(
      engine_model(),
      EngineOptions{
          .device = "cpu", .threads = 1, .context = 48, .slots = 4, .chat_template = "chatml"});
  text.defaults = recommended_request(text.engine->info());
  text.most_sequences = 100;
  for (const bool scores : {false, true}) {
    ServedModel& encoder = add(scores ? "scores" : "vectors");
    ModelConfig config = engine_shape(WeightFormat::f32);
    config.output = {.norm = config.output.norm, .none = true};
    config.pooling = {.mode = Pooling::last, .scores = scores};
    if (scores) config.pooling->dense = {{.size = 1}};
    encoder.embedder =
        std::make_unique<EmbedQueue>(Embedder(engine_model_of(config, encoder.name),
                                              {.device = "cpu", .threads = 1, .context = 48}),
                                     100);
  }
  return models;
}

/// A server of these models. With keys, requests need kFuzzKey, and pages of kFuzzOrigin may ask.
class MemoryServer {
 public:
  MemoryServer(std::vector<std::unique_ptr<ServedModel>>& models, bool has_keys)
      : api_(models,
             has_keys ? ApiOptions{.keys = {"another", kFuzzKey}, .origins = {kFuzzOrigin}}
                      : ApiOptions{},
             context_) {
    context_.limits.header_bytes = 600;
    context_.limits.body_bytes = 1500;
    context_.handle = [this](const std::shared_ptr<Connection>& connection, HttpRequest request) {
      stream_->begin_answer();
      api_.handle(connection, std::move(request));
    };
    context_.log = [this](const AccessRecord& record) {
      served_->records.push_back(record);
      stream_->end_answer();
    };
  }

  /// Serves one client until its connection is no more.
  ServedBytes serve(const SentBytes& sent) {
    ServedBytes served;
    std::promise<void> gone;
    thread_.post([&] {
      auto stream = std::make_unique<MemoryStream>(thread_, sent, served, gone);
      stream_ = stream.get();
      served_ = &served;
      std::make_shared<Connection>(context_, thread_, std::move(stream), "memory")->start();
    });
    gone.get_future().wait();
    require(context_.n_connections == 0 && context_.n_requests == 0 && context_.body_bytes == 0);
    return served;
  }

 private:
  // The thread's, of the client that is served:
  MemoryStream* stream_ = nullptr;
  ServedBytes* served_ = nullptr;

  ConnectionContext context_;
  Api api_;
  IoThread thread_;
};

/// Takes what is before `end` from `text`, and it.
inline std::string_view take_until(std::string_view& text, std::string_view end) {
  const size_t at = text.find(end);
  require(at != std::string_view::npos);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return part;
}

/// Joins the chunks of a body and takes them from `text`.
inline std::string take_chunks(std::string_view& text) {
  std::string body;
  for (;;) {
    const std::string digits(take_until(text, "\r\n"));
    size_t used = 0;
    const size_t size = std::stoul(digits, &used, 16);
    require(used == digits.size() && text.size() >= size + 2);
    body += text.substr(0, size);
    require(text.substr(size, 2) == "\r\n");
    text.remove_prefix(size + 2);
    if (size == 0) return body;
  }
}

/// The value of a header; nothing where there is none.
inline std::optional<std::string_view> header_of(std::string_view head, std::string_view name) {
  std::optional<std::string_view> found;
  for (std::string_view rest = head; !rest.empty();) {
    const std::string_view line = take_until(rest, "\r\n");
    const size_t colon = line.find(": ");
    require(colon != std::string_view::npos && line.find_first_of("\r\n") == line.npos);
    if (line.substr(0, colon) != name) continue;
    require(!found);
    found = line.substr(colon + 2);
  }
  return found;
}

inline void check_events(std::string_view events) {
  while (!events.empty()) {
    std::string_view event = take_until(events, "\n\n");
    if (event.starts_with("event: ")) take_until(event, "\n");
    require(event.starts_with("data: "));
    event.remove_prefix(6);
    require(event == "[DONE]" || nlohmann::json::accept(event));
  }
}

/// Aborts unless the answers are whole ones to these requests, but for the last, which may be cut.
inline void check_answers(const ServedBytes& served) {
  std::string_view rest = served.answers;
  for (const AccessRecord& record : served.records) {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    while (rest.starts_with(kContinue)) rest.remove_prefix(kContinue.size());
    if (record.cut) return require(&record == &served.records.back());
    require(rest.starts_with("HTTP/1.1 " + std::to_string(record.status) + " "));
    take_until(rest, "\r\n");
    const std::string_view head = rest.substr(0, rest.find("\r\n\r\n") + 2);
    rest.remove_prefix(head.size() + 2);
    const auto length = header_of(head, "Content-Length");
    const bool chunked = header_of(head, "Transfer-Encoding") == "chunked";
    require(!(length && chunked));
    std::string body;
    if (record.method == "HEAD" || record.status == 204) {
    } else if (length) {
      const size_t size = std::stoul(std::string(*length));
      require(rest.size() >= size);
      body = rest.substr(0, size);
      rest.remove_prefix(size);
    } else if (chunked) {
      body = take_chunks(rest);
    } else {
      require(header_of(head, "Connection") == "close");
      body = std::exchange(rest, {});
    }
    const std::string_view type = header_of(head, "Content-Type").value_or("");
    if (type == "application/json" && !body.empty()) require(nlohmann::json::accept(body));
    if (type.starts_with("text/event-stream")) check_events(body);
  }
  require(rest.empty());
}

}  // namespace faststream::server
