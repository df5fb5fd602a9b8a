#include "server/serve_command.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/adapter_file.h"
#include "engine/load_weights.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "program/input.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "server/api.h"
#include "server/http_server.h"
#include "server/served_model.h"
#include "support/error.h"
#include "support/machine.h"
#include "support/printable.h"
#include "support/progress.h"

namespace faststream::server {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll(20);
constexpr std::chrono::seconds kLastWords(2);  // for answers that were cut
constexpr std::chrono::seconds kRest(1);  // without a request, after which memory is given back

struct NamedFile {
  std::string name;
  std::string file;
};

// "NAME=FILE", or a file, whose name may have "=" in it too.
NamedFile named_model(const std::string& given) {
  const size_t equals = given.find('=');
  std::error_code ignored;
  if (equals != std::string::npos && equals > 0 && given.find('/') > equals &&
      !fs::exists(given, ignored)) {
    if (equals + 1 == given.size()) {
      throw UsageError("-m " + printable(given) + " names no file; give NAME=FILE");
    }
    return {.name = given.substr(0, equals), .file = given.substr(equals + 1)};
  }
  return {.name = fs::path(given).stem().string(), .file = given};
}

std::vector<std::string> read_keys(const std::string& path) {
  std::vector<std::string> keys;
  if (path.empty()) return keys;
  const std::string text = read_text_file(path, "--api-key-file");
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string key = text.substr(begin, end - begin);
    constexpr std::string_view kSpace = " \t\r";
    key.erase(0, key.find_first_not_of(kSpace));
    key.erase(key.find_last_not_of(kSpace) + 1);
    if (!key.empty()) keys.push_back(std::move(key));
    begin = end + 1;
  }
  if (keys.empty()) throw Error("--api-key-file " + path + " has no key; write one a line");
  return keys;
}

struct OpenModel {
  NamedFile what;
  bool writes_text = true;
  size_t bytes = 0;  // of weights
  uint64_t weights_checksum = 0;
  std::vector<AdapterOption> adapters = {};  // that are made for it
};

OpenModel look_at(const std::string& given) {
  OpenModel model{.what = named_model(given)};
  const ModelFile file = ModelFile::open(model.what.file);
  const ModelConfig config = read_config(file);
  model.writes_text = !config.output.none;
  model.weights_checksum = file.weights_checksum();
  std::error_code ignored;
  model.bytes = static_cast<size_t>(fs::file_size(model.what.file, ignored));
  return model;
}

// Gives each adapter to the model that it was made for; one that is for none to the first that
// writes text, which says so.
void share_adapters(const std::vector<AdapterOption>& adapters, std::vector<OpenModel>& models) {
  for (const AdapterOption& adapter : adapters) {
    for (const OpenModel& model : models) {
      if (model.what.name != adapter.name) continue;
      throw UsageError("a model and an adapter have the name " + in_quotes(adapter.name) +
                       "; give one of them another");
    }
    const auto is_for = [&](const OpenModel& model) {
      std::error_code ignored;
      return fs::is_regular_file(adapter.path, ignored) &&
             is_adapter_for(ModelFile::open(adapter.path), model.weights_checksum);
    };
    auto found = std::ranges::find_if(models, is_for);
    if (found == models.end()) found = std::ranges::find_if(models, &OpenModel::writes_text);
    if (found == models.end()) {
      throw UsageError("--adapter " + printable(adapter.name) + ": none of the models writes text");
    }
    found->adapters.push_back(adapter);
  }
}

// What one of the models may take: its weights, and of what all of them leave its part.
void share_memory(const std::vector<OpenModel>& models, size_t index, EngineOptions& engine) {
  size_t weights = 0;
  for (const OpenModel& model : models) weights += model.bytes;
  if (engine.memory > 0) {
    if (engine.memory <= weights) {
      throw UsageError("--memory " + format_bytes(engine.memory) + " is less than the weights, " +
                       format_bytes(weights) + "; give more");
    }
    engine.memory = models[index].bytes + (engine.memory - weights) / models.size();
  } else {
    engine.memory_part = 1.0 / static_cast<double>(models.size() - index);
  }
}

std::unique_ptr<ServedModel> load(const OpenModel& open, EngineOptions engine, int32_t max_queue) {
  auto model = std::make_unique<ServedModel>();
  model->name = open.what.name;
  model->created = std::time(nullptr);
  std::optional<ProgressBar> bar;
  bar.emplace("loading " + printable(model->name), ProgressBar::Unit::bytes, true);
  const auto progress = [&bar](size_t done, size_t total) {
    check_interrupted();
    bar->update(done, total);
  };
  std::string device;
  if (open.writes_text) {
    engine.slots_for_search = true;
    engine.adapters = open.adapters;
    engine.load_progress = progress;
    model->engine = std::make_unique<Engine>(open.what.file, engine);
    const EngineInfo& info = model->engine->info();
    model->defaults = recommended_request(info);
    model->most_sequences = int64_t{info.slots} + max_queue;
    device = info.device;
  } else {
    Embedder embedder(open.what.file, {.device = engine.device,
                                       .threads = engine.threads,
                                       .context = engine.context,
                                       .load_progress = progress});
    device = embedder.info().device;
    model->embedder = std::make_unique<EmbedQueue>(std::move(embedder),
                                                   static_cast<size_t>(std::max(max_queue, 1)));
  }
  bar.reset();
  print_notice(model->name + " on " + device + "\n");
  return model;
}

// Until a signal comes; the second one ends the grace, too.
class Signals {
 public:
  Signals() : signals_(context_, SIGINT, SIGTERM) { wait(); }

  // How many came, after a wait for the next, or for so long.
  int wait_for(std::chrono::milliseconds time) {
    const int before = count_;
    const auto end = Clock::now() + time;
    context_.restart();
    while (count_ == before && Clock::now() < end) context_.run_one_until(end);
    return count_;
  }

 private:
  void wait() {
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      ++count_;
      wait();
    });
  }

  boost::asio::io_context context_;
  boost::asio::signal_set signals_;
  int count_ = 0;
};

// Serves until a signal comes. What many requests took stays in this process when it is free again,
// among what little is not: the system gets it back once there are none for a while.
void wait_for_end(const ConnectionContext& context, const std::atomic<size_t>& n_ended,
                  Signals& signals) {
  size_t n_before = 0, n_given_back = 0;  // requests that had ended by then
  while (signals.wait_for(kRest) == 0) {
    const size_t n_now = n_ended;
    if (context.n_requests == 0 && n_now == n_before && n_now != n_given_back) {
      malloc_trim(0);
      n_given_back = n_now;
    }
    n_before = n_now;
  }
}

// Lets requests end that run, as long as there is grace.
void end_gracefully(HttpServer& server, const ConnectionContext& context, double grace,
                    Signals& signals, AccessLog& log) {
  server.stop_accepting();
  const size_t n_requests = context.n_requests;
  log.say("ending" + (n_requests == 0 ? std::string()
                                      : "; " + std::to_string(n_requests) +
                                            " requests run, another signal ends them"));
  const auto wait_until = [&](Clock::time_point end, int n_signals) {
    while (context.n_requests > 0 && Clock::now() < end) {
      if (signals.wait_for(kPoll) > n_signals) return;
    }
  };
  const auto seconds = std::chrono::duration<double>(grace);
  wait_until(Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds), 1);
  server.expire_requests();
  wait_until(Clock::now() + kLastWords, 2);
}

}  // namespace

void serve_command(const ServeOptions& options) {
  std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  end_at_interrupts();
  const std::vector<std::string> keys = read_keys(options.api_key_file);
  std::vector<OpenModel> open;
  for (const std::string& given : options.models) {
    OpenModel model = look_at(given);
    for (const OpenModel& other : open) {
      if (other.what.name != model.what.name) continue;
      throw UsageError("two models have the name " + in_quotes(model.what.name) +
                       "; give one another with -m NAME=FILE");
    }
    open.push_back(std::move(model));
  }
  share_adapters(options.engine.adapters, open);

  ConnectionContext context;
  context.limits = options.limits;
  AccessLog log(log_format(options.log));
  std::atomic<size_t> n_ended = 0;
  context.log = [&](const AccessRecord& record) {
    ++n_ended;
    log.add(record);
  };
  const int threads = options.threads > 0 ? options.threads : std::clamp(available_threads(), 1, 4);
  // Before models are loaded, which takes time: the port may be taken. Whoever asks meanwhile
  // waits.
  HttpServer server(options.listening, threads, context);

  std::vector<std::unique_ptr<ServedModel>> models;
  for (size_t i = 0; i < open.size(); ++i) {
    EngineOptions engine = options.engine;
    share_memory(open, i, engine);
    models.push_back(load(open[i], std::move(engine), options.max_queue));
  }
  const auto timeout = std::chrono::duration<double>(options.request_timeout);
  {
    Api api(models,
            {.keys = keys,
             .origins = options.origins,
             .request_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout)},
            context);
    context.handle = [&api](const std::shared_ptr<Connection>& connection, HttpRequest request) {
      api.handle(connection, std::move(request));
    };
    Signals signals;
    log.say("ready at " + printable(server.address()));
    server.start();
    wait_for_end(context, n_ended, signals);
    end_gracefully(server, context, options.grace, signals, log);
    server.close_connections();
  }
  models.clear();
}

}  // namespace faststream::server
