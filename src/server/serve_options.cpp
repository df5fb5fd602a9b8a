#include "server/serve_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <system_error>

#include "program/device_options.h"
#include "program/option_values.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::server {
namespace {

// Accepts what a browser sends as an origin, or "*".
CLI::Validator page_origin() {
  const auto check = [](const std::string& text) {
    const size_t scheme = text.find("://");
    const bool is_origin = scheme != std::string::npos && scheme > 0 && scheme + 3 < text.size() &&
                           text.find_first_of("/?# ", scheme + 3) == std::string::npos;
    return std::string(text == "*" || is_origin
                           ? ""
                           : text +
                                 " is no origin; give one as https://chat.example, without a "
                                 "path, or \"*\"");
  };
  return CLI::Validator(check, "", "");
}

constexpr const char* kNetwork = "Network";
constexpr const char* kLimits = "Limits";

CLI::Option* add_bytes(CLI::App& app, const std::string& name, size_t& bytes,
                       const std::string& help, const char* group) {
  const auto parse = [&bytes, name](const CLI::results_t& texts) {
    try {
      bytes = parse_bytes(texts.front(), name);
    } catch (const UsageError& error) {
      throw CLI::ValidationError(error.what());
    }
    return true;
  };
  return app.add_option(name, parse, help)->group(group)->type_name("BYTES");
}

void add_network_options(CLI::App& app, ServeOptions& options) {
  Listening& listening = options.listening;
  auto* host = app.add_option("--host", listening.host,
                              "Address to listen on; 0.0.0.0 is all of this machine's, so give "
                              "--api-key-file then")
                   ->group(kNetwork)
                   ->type_name("ADDRESS")
                   ->check(some_text())
                   ->capture_default_str();
  auto* port = app.add_option("--port", listening.port, "Port; 0 is any that is free")
                   ->group(kNetwork)
                   ->type_name("N")
                   ->check(whole_number(0, 65535))
                   ->capture_default_str();
  app.add_option("--unix-socket", listening.socket,
                 "Listen on a Unix socket of this name in place of host and port")
      ->group(kNetwork)
      ->type_name("FILE")
      ->check(named_file())
      ->excludes(host)
      ->excludes(port);
  auto* certificate =
      app.add_option("--tls-cert", listening.tls_certificate,
                     "Certificate and its issuers' in PEM; connections are then in TLS [plain]")
          ->group(kNetwork)
          ->type_name("FILE")
          ->check(named_file());
  auto* key = app.add_option("--tls-key", listening.tls_key, "The certificate's private key in PEM")
                  ->group(kNetwork)
                  ->type_name("FILE")
                  ->check(named_file())
                  ->needs(certificate);
  certificate->needs(key);
  app.add_option("--api-key-file", options.api_key_file,
                 "File of keys, one a line; a request must have one of them as its bearer token "
                 "[none is asked for]")
      ->group(kNetwork)
      ->type_name("FILE")
      ->check(named_file());
  app.add_option("--cors", options.origins,
                 "Let scripts of pages of ORIGIN ask, such as https://chat.example, or of all with "
                 "\"*\" (repeatable) [pages of this server on localhost alone]")
      ->group(kNetwork)
      ->type_name("ORIGIN")
      ->check(page_origin())
      ->allow_extra_args(false);
  app.add_option("--http-threads", options.threads,
                 "Threads for connections [as many as processors, up to 4]")
      ->group(kNetwork)
      ->type_name("N")
      ->check(whole_number(1, 64));
  app.add_option("--log", options.log,
                 "A line for each request to standard error: text, json or none")
      ->group(kNetwork)
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"text", "json", "none"}))
      ->capture_default_str();
}

void add_limit_options(CLI::App& app, ServeOptions& options) {
  app.add_option("--max-queue", options.max_queue,
                 "Sequences, or texts for an encoder, that wait for each model; beyond them "
                 "requests get status 429")
      ->group(kLimits)
      ->type_name("N")
      ->check(whole_number(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--request-timeout", options.request_timeout,
                 "Seconds after which a request is given up [none]")
      ->group(kLimits)
      ->type_name("SECONDS")
      ->check(number(0.001, 1e6));
  app.add_option("--grace", options.grace,
                 "Seconds that requests have to end after SIGTERM or Ctrl-C")
      ->group(kLimits)
      ->type_name("SECONDS")
      ->check(number(0, 1e6))
      ->capture_default_str();
  app.add_option("--max-connections", options.limits.connections, "Open connections at most")
      ->group(kLimits)
      ->type_name("N")
      ->check(whole_number<size_t>(1, 1'000'000))
      ->capture_default_str();
  add_bytes(app, "--max-body", options.limits.body_bytes,
            "The longest body of a request, such as 500K [16M]", kLimits);
}

void add_model_options(CLI::App& app, EngineOptions& engine) {
  add_device_options(app, engine);
  add_bytes(app, "--memory", engine.memory,
            "Memory for weights and KV caches of all models, such as 12G [what is free]",
            kDeviceGroup);
  app.add_option("--chat-template", engine.chat_template,
                 "Format of conversations: a built-in name or a file (Jinja) [each model's own]")
      ->group(kDeviceGroup)
      ->type_name("NAME|FILE")
      ->check(named_file());
}

}  // namespace

size_t parse_bytes(const std::string& text, const std::string& option) {
  size_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, number);
  int shift = 0;
  if (status == std::errc() && stop + 1 == end) {
    shift = *stop == 'K' ? 10 : *stop == 'M' ? 20 : *stop == 'G' ? 30 : 0;
  }
  const bool ends = stop == end || shift > 0;
  if (status != std::errc() || !ends || number == 0 ||
      number > (std::numeric_limits<size_t>::max() >> 1 >> shift)) {
    throw UsageError(option + " " + printable(text) +
                     " is no number of bytes, such as 500M or 12G");
  }
  return number << shift;
}

LogFormat log_format(const std::string& name) {
  if (name == "none") return LogFormat::none;
  return name == "json" ? LogFormat::json : LogFormat::text;
}

void add_serve_options(CLI::App& app, ServeOptions& options) {
  app.description(
      "Serves language models from single files to programs that speak OpenAI's HTTP "
      "interface, and a chat page to people.");
  app.set_version_flag("--version", std::string("faststream ") + FASTSTREAM_VERSION);
  app.add_option("-m,--model", options.models,
                 "Model file made by faststream-convert; its name is NAME, or the file's without "
                 "its ending (repeatable)")
      ->required()
      ->type_name("[NAME=]FILE")
      ->check(named_file())
      ->allow_extra_args(false);
  add_network_options(app, options);
  add_limit_options(app, options);
  add_model_options(app, options.engine);
  app.footer(R"(
Routes: POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/rerank,
/tokenize and /detokenize; GET /v1/models, /health, /metrics (Prometheus) and / (a chat page).
Standard error gets a line once the server is ready, and one for each request.
SIGTERM and Ctrl-C end it: requests that run have --grace seconds, a second signal ends them.
Exit codes: 0 ended so, 1 failed, 2 wrong usage, 130 interrupted before it was ready.

Examples:
  faststream-serve -m llama.bin
  faststream-serve -m llama.bin -m small=qwen.bin -m minilm.bin --port 9000
  faststream-serve -m llama.bin --host 0.0.0.0 --api-key-file keys.txt --request-timeout 600
  faststream-serve -m llama.bin --adapter bot=bot.bin --adapter poet=poet.bin
  faststream-serve -m llama.bin --unix-socket /run/faststream/socket --log json
  curl http://127.0.0.1:8080/v1/chat/completions -H "Content-Type: application/json" \
    -d '{"model": "llama", "messages": [{"role": "user", "content": "Hello!"}], "stream": true}')");
}

}  // namespace faststream::server
