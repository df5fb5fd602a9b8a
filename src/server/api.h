// The routes of the server: who may ask, what is asked, which model answers.
#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai_answer.h"
#include "server/connection.h"
#include "server/exchange.h"
#include "server/generation_task.h"
#include "server/served_model.h"

namespace faststream::server {

struct ApiOptions {
  std::vector<std::string> keys;     ///< of which a client must have one; none: all are served
  std::vector<std::string> origins;  ///< of pages whose scripts may ask; "*": any
  std::chrono::milliseconds request_timeout{0};  ///< 0: none
};

class Api {
 public:
  /// `models` must outlive it, and `context`, of which /metrics tells.
  Api(std::vector<std::unique_ptr<ServedModel>>& models, const ApiOptions& options,
      const ConnectionContext& context);
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;
  /// Waits for what other threads do for it.
  ~Api();

  /// Answers a request; called by the connection's thread.
  void handle(const std::shared_ptr<Connection>& connection, HttpRequest request);

 private:
  using Shared = std::shared_ptr<Exchange>;
  struct Route {
    std::string_view method;
    std::string_view path;
    void (Api::*answer)(const Shared& exchange, const HttpRequest& request);
    bool is_heavy;  // takes time in proportion to the body
  };
  static const std::vector<Route>& routes();

  [[nodiscard]] bool has_key(const HttpRequest& request) const;
  [[nodiscard]] bool may_ask(const HttpRequest& request) const;
  void set_cors(Connection& connection, const HttpRequest& request) const;
  void run(const Route& route, const Shared& exchange, HttpRequest request);
  [[nodiscard]] std::string next_id(std::string_view prefix);
  ServedModel& find_model(std::string_view name, bool writes_text) const;

  void health(const Shared& exchange, const HttpRequest& request);
  void models(const Shared& exchange, const HttpRequest& request);
  void metrics(const Shared& exchange, const HttpRequest& request);
  void page(const Shared& exchange, const HttpRequest& request);
  void chat(const Shared& exchange, const HttpRequest& request);
  void completions(const Shared& exchange, const HttpRequest& request);
  void responses(const Shared& exchange, const HttpRequest& request);
  void tokenize(const Shared& exchange, const HttpRequest& request);
  void detokenize(const Shared& exchange, const HttpRequest& request);
  void embeddings(const Shared& exchange, const HttpRequest& request);
  void rerank(const Shared& exchange, const HttpRequest& request);
  void generate(const Shared& exchange, const HttpRequest& request, api::AnswerForm form);

  std::vector<std::unique_ptr<ServedModel>>& models_;
  ApiOptions options_;
  const ConnectionContext& context_;
  uint64_t run_id_;
  std::atomic<uint64_t> n_ids_ = 0;
  boost::asio::thread_pool workers_;  // last: they use all others
};

}  // namespace faststream::server
