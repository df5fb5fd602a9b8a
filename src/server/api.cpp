#include "server/api.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/chat_page.h"
#include "server/generation_call.h"
#include "server/metrics.h"
#include "support/printable.h"
#include "support/random_seed.h"
#include "support/split_mix.h"

namespace faststream::server {
namespace {

using nlohmann::ordered_json;

constexpr size_t kLargeBody = 32 << 10;  // which another thread reads
constexpr int kWorkers = 2;

// Takes the same time wherever they differ.
bool is_equal(std::string_view key, std::string_view given) {
  unsigned difference = key.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char of_key = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(of_key) ^ static_cast<unsigned char>(given[i]);
  }
  return difference == 0;
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> all) {
  return std::ranges::find(all, text) != all.end();
}

// Whether a page's own server is this machine by a number or "localhost", not by a name, behind
// which anybody may put this machine's address.
bool is_numeric_or_local(std::string_view host) {
  if (host.starts_with('[')) return true;
  host = host.substr(0, host.find(':'));
  if (host == "localhost") return true;
  return !host.empty() && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

// What a part of a path stands for (RFC 3986, 2.1); a sign of per cent that begins nothing, itself.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  while (!text.empty()) {
    unsigned char byte = 0;
    const char* digits = text.data() + 1;
    const bool is_coded = text.starts_with('%') && text.size() >= 3 &&
                          std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    decoded += is_coded ? static_cast<char>(byte) : text.front();
    text.remove_prefix(is_coded ? 3 : 1);
  }
  return decoded;
}

HttpResponse json_response(const ordered_json& value) {
  return {.status = 200,
          .content_type = "application/json",
          .body = api::json_text(value),
          .headers = {}};
}

ApiError not_found(const HttpRequest& request) {
  return {.status = 404,
          .message = "there is no " + in_quotes(request.path) + " here; see docs/server.md",
          .param = {},
          .code = "unknown_url"};
}

}  // namespace

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> all = {
      {"GET", "/", &Api::page, false},
      {"GET", "/health", &Api::health, false},
      {"GET", "/v1/models", &Api::models, false},
      {"GET", "/metrics", &Api::metrics, false},
      {"POST", "/v1/chat/completions", &Api::chat, true},
      {"POST", "/v1/completions", &Api::completions, true},
      {"POST", "/v1/responses", &Api::responses, true},
      {"POST", "/v1/embeddings", &Api::embeddings, true},
      {"POST", "/v1/rerank", &Api::rerank, true},
      {"POST", "/v2/rerank", &Api::rerank, true},
      {"POST", "/rerank", &Api::rerank, true},
      {"POST", "/tokenize", &Api::tokenize, true},
      {"POST", "/detokenize", &Api::detokenize, true},
  };
  return all;
}

Api::Api(std::vector<std::unique_ptr<ServedModel>>& models, const ApiOptions& options,
         const ConnectionContext& context)
    : models_(models),
      options_(options),
      context_(context),
      run_id_(random_seed()),
      workers_(kWorkers) {}

Api::~Api() { workers_.join(); }

// Asking.
// --------------------------------------------------------------------------------------------

bool Api::has_key(const HttpRequest& request) const {
  if (options_.keys.empty()) return true;
  constexpr std::string_view kScheme = "Bearer ";  // in letters of any case (RFC 9110)
  std::string_view given = request.authorization;
  if (strncasecmp(request.authorization.c_str(), kScheme.data(), kScheme.size()) != 0) return false;
  given.remove_prefix(std::min(given.find_first_not_of(' ', kScheme.size()), given.size()));
  bool found = false;
  for (const std::string& key : options_.keys) found = is_equal(key, given) || found;
  return found;
}

// A browser says on which page a script runs that asks. A page of another server must not use the
// models of a server that it cannot reach by itself.
bool Api::may_ask(const HttpRequest& request) const {
  if (request.origin.empty()) return true;
  for (const std::string& origin : options_.origins) {
    if (origin == "*" || origin == request.origin) return true;
  }
  const size_t scheme = request.origin.find("://");
  if (scheme == std::string::npos) return false;
  const std::string_view host = std::string_view(request.origin).substr(scheme + 3);
  return host == request.host && is_numeric_or_local(host);
}

void Api::set_cors(Connection& connection, const HttpRequest& request) const {
  if (request.origin.empty() || options_.origins.empty()) return;
  connection.set_headers({{"Access-Control-Allow-Origin", request.origin},
                          {"Access-Control-Expose-Headers", "Retry-After"},
                          {"Vary", "Origin"}});
}

void Api::handle(const std::shared_ptr<Connection>& connection, HttpRequest request) {
  if (!may_ask(request)) {
    return connection->respond(error_response(
        {.status = 403,
         .message = "pages of this origin may not ask; start the server with --cors for them",
         .param = {},
         .code = "origin_not_allowed"}));
  }
  set_cors(*connection, request);
  if (request.method == "OPTIONS" && !request.origin.empty() && !options_.origins.empty()) {
    return connection->respond({.status = 204,
                                .body = {},
                                .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                                            {"Access-Control-Allow-Headers",
                                             "Authorization, Content-Type, X-Stainless-*, *"},
                                            {"Access-Control-Max-Age", "86400"}}});
  }
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  const bool one_model = request.path.starts_with("/v1/models/");
  const std::string_view path = one_model ? "/v1/models" : std::string_view(request.path);
  std::string allowed;
  const Route* found = nullptr;
  for (const Route& route : routes()) {
    if (route.path != path) continue;
    if (route.method == method) found = &route;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  if (allowed.empty()) return connection->respond(error_response(not_found(request)));
  if (found == nullptr) {
    HttpResponse response =
        error_response({.status = 405, .message = in_quotes(request.path) + " takes " + allowed});
    response.headers.emplace_back("Allow", allowed);
    return connection->respond(response);
  }
  if (!is_one_of(path, {"/", "/health"}) && !has_key(request)) {
    return connection->respond(error_response(
        {.status = 401,
         .message = "the request has none of the server's keys; send \"Authorization: Bearer KEY\"",
         .param = {},
         .code = "invalid_api_key"}));
  }
  run(*found, std::make_shared<Exchange>(connection), std::move(request));
}

// Answers, by another thread where it takes time.
void Api::run(const Route& route, const Shared& exchange, HttpRequest request) {
  const auto work = [this, &route](const Shared& asked, const HttpRequest& what) {
    try {
      (this->*route.answer)(asked, what);
    } catch (const RequestError& error) {
      asked->fail(error.error());
    } catch (const Error& error) {
      const bool chat = what.path == "/v1/chat/completions";
      const bool response = what.path == "/v1/responses" || what.path == "/v1/embeddings";
      asked->fail(error_of_request(error.what(), chat       ? "messages"
                                                 : response ? "input"
                                                            : "prompt"));
    } catch (const std::bad_alloc&) {
      asked->fail(
          {.status = 503, .message = "there is not enough memory; make the request smaller"});
    } catch (const std::exception&) {
      asked->fail({.status = 500, .message = "the request cannot be answered; try again"});
    }
  };
  if (!route.is_heavy || request.body.size() < kLargeBody) return work(exchange, request);
  boost::asio::post(workers_,
                    [work, exchange, request = std::move(request)] { work(exchange, request); });
}

std::string Api::next_id(std::string_view prefix) {
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "%016" PRIx64, split_mix(run_id_, ++n_ids_));
  return std::string(prefix) + digits.data();
}

// An empty name is the first model's of that kind.
ServedModel& Api::find_model(std::string_view name, bool writes_text) const {
  for (const auto& model : models_) {
    const bool fits = (model->engine != nullptr) == writes_text;
    if (name.empty() ? fits : model->has_name(name)) {
      if (fits) return *model;
      throw RequestError({.status = 400,
                          .message = "the model " + in_quotes(name) +
                                     (writes_text ? " writes no text; ask it for embeddings or "
                                                    "rankings, or give another"
                                                  : " gives no vectors; give an encoder's name"),
                          .param = "model",
                          .code = "model_not_supported"});
    }
  }
  throw RequestError({.status = 404,
                      .message = name.empty() ? "no model of this server can do this"
                                              : "there is no model " + in_quotes(name) +
                                                    " here; /v1/models lists those that are",
                      .param = "model",
                      .code = "model_not_found"});
}

// Answering.
// -----------------------------------------------------------------------------------------

void Api::health(const Shared& exchange, const HttpRequest& /*request*/) {
  if (context_.stopping) return exchange->fail(timeout_error(true));
  exchange->respond(json_response({{"status", "ok"}}));
}

void Api::page(const Shared& exchange, const HttpRequest& /*request*/) {
  const std::string nonce = next_id("");
  exchange->respond({.status = 200,
                     .content_type = "text/html; charset=utf-8",
                     .body = chat_page(nonce),
                     .headers = {{"Content-Security-Policy", chat_page_policy(nonce)},
                                 {"Referrer-Policy", "no-referrer"}}});
}

void Api::models(const Shared& exchange, const HttpRequest& request) {
  constexpr std::string_view kOne = "/v1/models/";
  const bool is_one = request.path.starts_with(kOne);
  const std::optional<std::string> asked =
      is_one ? std::optional(percent_decoded(request.path.substr(kOne.size()))) : std::nullopt;
  ordered_json list = ordered_json::array();
  for (const auto& model : models_) {
    ordered_json entry = {{"id", model->name},
                          {"object", "model"},
                          {"created", model->created},
                          {"owned_by", "faststream"}};
    entry["max_model_len"] =
        model->engine ? model->engine->info().context : model->embedder->info().context;
    entry["capabilities"] = ordered_json::array();
    const auto can = [&](const char* what) { entry["capabilities"].push_back(what); };
    if (model->engine) can("completions");
    if (model->engine && model->engine->can_chat()) can("chat");
    if (model->embedder) can(model->embedder->info().scores ? "rerank" : "embeddings");
    list.push_back(entry);
    if (!model->engine) continue;
    for (const std::string& adapter : model->engine->info().adapters) {
      entry["id"] = adapter;
      entry["parent"] = model->name;
      list.push_back(entry);
    }
  }
  for (const ordered_json& entry : list) {
    if (asked == entry.at("id").get<std::string>()) return exchange->respond(json_response(entry));
  }
  if (asked) (void)find_model(*asked, true);
  exchange->respond(json_response({{"object", "list"}, {"data", std::move(list)}}));
}

void Api::metrics(const Shared& exchange, const HttpRequest& /*request*/) {
  std::vector<MetricsOf> all;
  for (const auto& model : models_) {
    MetricsOf& of = all.emplace_back();
    of.model = model->name;
    of.metrics = &model->metrics;
    if (model->engine) {
      of.stats = model->engine->stats();
      of.kv_tokens = model->engine->info().kv_tokens;
    } else {
      of.waiting = static_cast<int64_t>(model->embedder->n_waiting());
    }
  }
  exchange->respond({.status = 200,
                     .content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = metrics_text(all, context_.n_connections),
                     .headers = {}});
}

void Api::chat(const Shared& exchange, const HttpRequest& request) {
  generate(exchange, request, api::AnswerForm::chat);
}

void Api::completions(const Shared& exchange, const HttpRequest& request) {
  generate(exchange, request, api::AnswerForm::completion);
}

void Api::responses(const Shared& exchange, const HttpRequest& request) {
  generate(exchange, request, api::AnswerForm::response);
}

void Api::generate(const Shared& exchange, const HttpRequest& request, api::AnswerForm form) {
  GenerationTask task = read_generation_task(
      request.body, form,
      [this](std::string_view name) -> ServedModel& { return find_model(name, true); });
  const std::string_view prefix = form == api::AnswerForm::chat         ? "chatcmpl-"
                                  : form == api::AnswerForm::completion ? "cmpl-"
                                                                        : "resp_";
  std::make_shared<GenerationCall>(exchange, std::move(task), next_id(prefix),
                                   options_.request_timeout)
      ->submit();
}

}  // namespace faststream::server
