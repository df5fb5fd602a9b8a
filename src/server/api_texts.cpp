// The routes that turn texts into numbers and back.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "api/conversation.h"
#include "api/request_body.h"
#include "server/api.h"
#include "support/base64.h"
#include "support/json.h"

namespace faststream::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMostTexts = 2048;

// The shortest digits that give the same float.
void append_number(std::string& text, float value) {
  if (!std::isfinite(value)) {  // which JSON has not
    text += "null";
    return;
  }
  std::array<char, 32> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  text.append(digits.data(), result.ptr);
}

// One text or several.
std::vector<std::string> read_texts(const JsonView& input, const char* what) {
  if (input.value().is_string()) return {input.as<std::string>()};
  if (!input.value().is_array()) input.fail(std::string("is not ") + what);
  std::vector<std::string> texts;
  for (const JsonView& element : input.elements()) {
    if (element.value().is_number() || element.value().is_array()) {
      element.fail("is no text; token ids are not taken here");
    }
    const bool wrapped = element.value().is_object();
    texts.push_back(wrapped ? element.get<std::string>("text") : element.as<std::string>());
  }
  if (texts.empty()) input.fail("is empty; give a text");
  if (texts.size() > kMostTexts) {
    input.fail("has more than " + std::to_string(kMostTexts) +
               " texts; send them in several requests");
  }
  return texts;
}

// Has the texts of an encoder's task worked at. `answer` makes the response of the vectors, in the
// connection's thread.
void embed(const std::shared_ptr<Exchange>& exchange, ServedModel& model,
           std::optional<std::string> query, std::vector<std::string> texts,
           std::function<HttpResponse(const std::vector<TextVector>&)> answer,
           std::chrono::milliseconds timeout) {
  const auto unwanted = std::make_shared<std::atomic<bool>>(false);
  exchange->post([unwanted, timeout, &model](Connection& connection) {
    connection.record().model = model.name;
    connection.on_gone([unwanted] { *unwanted = true; });
    const auto when = timeout.count() == 0 ? Connection::Clock::time_point::max()
                                           : Connection::Clock::now() + timeout;
    connection.on_timeout(when, [unwanted, &connection] {
      *unwanted = true;
      connection.respond(error_response(timeout_error(connection.server_is_stopping())));
    });
  });
  const auto done = [exchange, unwanted, &model, answer = std::move(answer)](
                        std::vector<TextVector> vectors, const std::string& error) {
    int64_t n_tokens = 0;
    for (const TextVector& vector : vectors) n_tokens += vector.tokens;
    model.metrics.prompt_tokens += static_cast<uint64_t>(n_tokens);
    ++(error.empty() ? model.metrics.stopped : model.metrics.failed);
    exchange->post([=, vectors = std::move(vectors)](Connection& connection) {
      if (*unwanted) return;
      if (!error.empty()) {
        connection.record().failure = error;
        return connection.respond(error_response(
            {.status = 500, .message = "the texts cannot be computed; give fewer, or try again"}));
      }
      connection.record().prompt_tokens = n_tokens;
      connection.respond(answer(vectors));
    });
  };
  if (model.embedder->add({std::move(query), std::move(texts), done, unwanted})) return;
  ++model.metrics.rejected;
  throw RequestError({.status = 429,
                      .message = "too many requests wait; try again later",
                      .param = {},
                      .code = "queue_full"});
}

int64_t tokens_of(const std::vector<TextVector>& vectors) {
  int64_t n_tokens = 0;
  for (const TextVector& vector : vectors) n_tokens += vector.tokens;
  return n_tokens;
}

// The first elements of a vector, made of length 1 again: what is left of one that a model was
// trained to give in parts (Matryoshka, arXiv:2205.13147). Whole vectors stay as they are.
std::vector<float> shortened(std::vector<float> values, size_t n) {
  if (n >= values.size()) return values;
  values.resize(n);
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  const double length = std::max(std::sqrt(squares), 1e-12);
  for (float& value : values) value = static_cast<float>(value / length);
  return values;
}

// The list of numbers, or their bytes in base64.
std::string vector_json(const std::vector<float>& values, bool as_base64) {
  if (as_base64) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return api::json_quoted(encode_base64(bytes));
  }
  std::string text = "[";
  for (const float value : values) {
    if (text.size() > 1) text += ',';
    append_number(text, value);
  }
  return text + "]";
}

}  // namespace

void Api::tokenize(const Shared& exchange, const HttpRequest& request) {
  api::RequestObject object(request.body, kBody, kBodyAdvice);
  const JsonView options(object.options(), "");
  options.allow_only({"model", "prompt", "parse_special"});
  const ServedModel& model = find_model(options.get<std::string>("model", ""), true);
  const Engine& engine = *model.engine;
  const bool parse_special = options.get<bool>("parse_special", false);
  const bool has_messages = object.object().contains("messages");
  const auto prompt = options.find("prompt");
  if (has_messages == prompt.has_value()) {
    throw Error("\"prompt\" or \"messages\" must be given, one of them");
  }
  if (has_messages) require_chat(model);
  const std::vector<int32_t> tokens =
      has_messages ? engine.tokenize(api::read_conversation(object.object()), parse_special)
                   : engine.tokenize(prompt->as<std::string>(), parse_special);
  std::string body = "{\"tokens\":[";
  for (size_t i = 0; i < tokens.size(); ++i) {
    body += (i == 0 ? "" : ",") + std::to_string(tokens[i]);
  }
  body += "],\"count\":" + std::to_string(tokens.size()) +
          ",\"max_model_len\":" + std::to_string(engine.info().context) + "}";
  exchange->respond(
      {.status = 200, .content_type = "application/json", .body = std::move(body), .headers = {}});
}

void Api::detokenize(const Shared& exchange, const HttpRequest& request) {
  const json object = parse_json_object(request.body, kBody, kBodyAdvice);
  const JsonView options(object, "");
  options.allow_only({"model", "tokens"});
  const Engine& engine = *find_model(options.get<std::string>("model", ""), true).engine;
  const std::vector<int32_t> tokens =
      options.member("tokens").integers<int32_t>(0, static_cast<int32_t>(engine.info().vocab - 1));
  exchange->respond({.status = 200,
                     .content_type = "application/json",
                     .body = "{\"prompt\":" + api::json_quoted(engine.detokenize(tokens)) + "}",
                     .headers = {}});
}

void Api::embeddings(const Shared& exchange, const HttpRequest& request) {
  const json object = parse_json_object(request.body, kBody, kBodyAdvice);
  const JsonView options(object, "");
  options.allow_only({"model", "input", "encoding_format", "dimensions", "user"});
  ServedModel& model = find_model(options.get<std::string>("model", ""), false);
  const EmbedderInfo& info = model.embedder->info();
  if (info.scores) {
    throw RequestError({.status = 400,
                        .message = "the model scores texts and gives no vectors; ask for a ranking",
                        .param = "model",
                        .code = "model_not_supported"});
  }
  const std::string format = options.get<std::string>("encoding_format", "float");
  if (format != "float" && format != "base64") {
    options.member("encoding_format").fail("is not float or base64");
  }
  auto n_elements = static_cast<size_t>(info.vector_size);
  if (const auto dimensions = options.find("dimensions")) {
    n_elements = static_cast<size_t>(dimensions->as<int64_t>(1, info.vector_size));
  }
  std::vector<std::string> texts = read_texts(options.member("input"), "a text or a list of texts");
  const auto answer = [name = model.name, n_elements,
                       as_base64 = format == "base64"](const std::vector<TextVector>& vectors) {
    std::string body = "{\"object\":\"list\",\"data\":[";
    for (size_t i = 0; i < vectors.size(); ++i) {
      if (vectors[i].values.empty()) {
        return error_response(
            {.status = 400,
             .message = "\"input[" + std::to_string(i) + "]\" has no tokens; leave it out",
             .param = "input[" + std::to_string(i) + "]"});
      }
      body += (i == 0 ? "" : ",") + std::string("{\"object\":\"embedding\",\"index\":") +
              std::to_string(i) +
              ",\"embedding\":" + vector_json(shortened(vectors[i].values, n_elements), as_base64) +
              "}";
    }
    const std::string n_tokens = std::to_string(tokens_of(vectors));
    body += "],\"model\":" + api::json_quoted(name) + ",\"usage\":{\"prompt_tokens\":" + n_tokens +
            ",\"total_tokens\":" + n_tokens + "}}";
    return HttpResponse{.status = 200, .body = std::move(body)};
  };
  embed(exchange, model, std::nullopt, std::move(texts), answer, options_.request_timeout);
}

// Jina's and Cohere's forms in one.
void Api::rerank(const Shared& exchange, const HttpRequest& request) {
  const json object = parse_json_object(request.body, kBody, kBodyAdvice);
  const JsonView options(object, "");
  options.allow_only({"model", "query", "documents", "top_n", "return_documents",
                      "max_chunks_per_doc", "max_tokens_per_doc", "priority"});
  ServedModel& model = find_model(options.get<std::string>("model", ""), false);
  const EmbedderInfo& info = model.embedder->info();
  if (!info.scores || !info.pairs || info.vector_size != 1) {
    throw RequestError(
        {.status = 400,
         .message = info.scores && info.pairs
                        ? "the model gives each pair several scores, of which none is the rank; "
                          "faststream-run --rank prints them"
                        : "the model scores no pairs of texts; give a cross-encoder's name",
         .param = "model",
         .code = "model_not_supported"});
  }
  std::string query = options.get<std::string>("query");
  std::vector<std::string> texts = read_texts(options.member("documents"), "a list of texts");
  size_t top = texts.size();
  if (const auto n = options.find("top_n")) {
    top = std::min(top, static_cast<size_t>(n->as<int64_t>(1, 1 << 30)));
  }
  const bool with_texts = options.get<bool>("return_documents", false);
  std::vector<std::string> shown = with_texts ? texts : std::vector<std::string>();
  const auto answer = [name = model.name, id = next_id("rerank-"), top,
                       shown = std::move(shown)](const std::vector<TextVector>& scores) {
    std::vector<size_t> order;
    for (size_t i = 0; i < scores.size(); ++i) order.push_back(i);
    const auto score = [&](size_t i) {
      return scores[i].values.empty() ? -std::numeric_limits<float>::infinity()
                                      : scores[i].values.front();
    };
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return score(a) > score(b); });
    order.resize(top);
    std::string list;
    for (const size_t i : order) {
      list += (list.empty() ? "{\"index\":" : ",{\"index\":") + std::to_string(i) +
              ",\"relevance_score\":";
      append_number(list, score(i));
      if (!shown.empty()) list += ",\"document\":{\"text\":" + api::json_quoted(shown[i]) + "}";
      list += '}';
    }
    const std::string n_tokens = std::to_string(tokens_of(scores));
    return HttpResponse{.status = 200,
                        .body = "{\"id\":" + api::json_quoted(id) +
                                ",\"model\":" + api::json_quoted(name) + ",\"results\":[" + list +
                                "],\"usage\":{\"prompt_tokens\":" + n_tokens +
                                ",\"total_tokens\":" + n_tokens +
                                "},\"meta\":{\"tokens\":{\"input_tokens\":" + n_tokens + "}}}"};
  };
  embed(exchange, model, std::move(query), std::move(texts), answer, options_.request_timeout);
}

}  // namespace faststream::server
