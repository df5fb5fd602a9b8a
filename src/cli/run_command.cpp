#include "cli/run_command.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "cli/interrupt.h"
#include "support/error.h"
#include "support/progress.h"

namespace faststream {
namespace {

constexpr size_t kMaxPromptBytes = 256 << 20;

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    check_interrupted();
    throw Error(std::string("standard output cannot be written: ") + std::strerror(errno));
  }
}

std::string read_all(int fd, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    check_interrupted();
    if (n < 0) throw Error(name + " cannot be read: " + std::strerror(errno));
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxPromptBytes) {
      throw Error(name + " is longer than 256 MB; give a shorter prompt");
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string read_prompt(const RunOptions& options) {
  if (options.prompt) return *options.prompt;
  if (!options.prompt_file) {
    if (isatty(STDIN_FILENO) != 0) {
      throw UsageError("there is no prompt; give one with -p TEXT, -f FILE or on standard input");
    }
    return read_all(STDIN_FILENO, "standard input");
  }
  const std::string& path = *options.prompt_file;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) throw Error("--file " + path + " cannot be opened: " + std::strerror(errno));
  return read_all(fileno(file.get()), "--file " + path);
}

Engine load(const RunOptions& options) {
  EngineOptions engine = options.engine;
  std::unique_ptr<ProgressBar> bar;
  engine.load_progress = [&](size_t done, size_t total) {
    check_interrupted();
    if (!bar) bar = std::make_unique<ProgressBar>("loading", total, true);
    bar->update(done);
  };
  return Engine(options.model, engine);
}

std::string rate(size_t tokens, double seconds) {
  char text[96];
  std::snprintf(text, sizeof text, "%zu tokens in %.3f s, %.1f tokens/s", tokens, seconds,
                seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
  return text;
}

void print_stats(const EngineInfo& info, size_t prompt_tokens, const GenerateResult& result,
                 uint64_t seed) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  // The first generated token comes out of the prompt's pass.
  const size_t steps = result.tokens.empty() ? 0 : result.tokens.size() - 1;
  std::fprintf(stderr, "device:     %s\n", info.device.c_str());
  std::fprintf(stderr, "load:       %.3f s\n", info.load_seconds);
  std::fprintf(stderr, "prompt:     %s\n", rate(prompt_tokens, result.prompt_seconds).c_str());
  std::fprintf(stderr, "generation: %s\n", rate(steps, result.generation_seconds).c_str());
  std::fprintf(stderr, "memory:     weights %s, KV cache %s (context %lld), process peak %s\n",
               format_bytes(info.weight_bytes).c_str(), format_bytes(info.kv_bytes).c_str(),
               static_cast<long long>(info.context),
               format_bytes(static_cast<uint64_t>(usage.ru_maxrss) * 1024).c_str());
  std::fprintf(stderr, "seed:       %llu\n", static_cast<unsigned long long>(seed));
}

}  // namespace

void run_command(const RunOptions& options) {
  catch_interrupts();
  validate(options.generate.sampling);
  const std::string prompt = read_prompt(options);
  if (options.tokenize) {
    print(nlohmann::json(tokenize(options.model, prompt)).dump() + "\n");
    return;
  }

  Engine engine = load(options);
  if (options.engine.device == "auto" && !options.stats) {
    std::fprintf(stderr, "device: %s\n", engine.info().device.c_str());
  }
  GenerateOptions generate = options.generate;
  generate.sampling.seed = options.seed ? *options.seed : std::random_device()();
  const std::vector<int32_t> tokens = engine.tokenize(prompt);

  if (options.echo) print(prompt);
  const GenerateResult result = engine.generate(tokens, generate, [](std::string_view text) {
    if (!text.empty()) print(text);
    return !interrupted();
  });
  print("\n");
  if (options.stats) print_stats(engine.info(), tokens.size(), result, generate.sampling.seed);
  check_interrupted();
}

}  // namespace faststream
