#include "cli/run_command.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/batch/batch_command.h"
#include "cli/chat/chat_command.h"
#include "cli/devices_command.h"
#include "cli/embed/embed_command.h"
#include "cli/engine_stats.h"
#include "cli/generate.h"
#include "cli/perplexity_command.h"
#include "cli/setting_options.h"
#include "cli/terminal_text.h"
#include "program/input.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "support/error.h"
#include "support/progress.h"

namespace faststream::cli {
namespace {

// A final newline is the editor's or the shell's, not the prompt's.
std::string read_prompt(const RunOptions& options) {
  if (options.prompt) return *options.prompt;
  if (!options.prompt_file && isatty(STDIN_FILENO) != 0) {
    throw UsageError("there is no prompt; give one with -p TEXT, -f FILE or on standard input");
  }
  std::string text =
      options.prompt_file ? read_text_file(*options.prompt_file, "--file") : read_standard_input();
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// What can be known without the model.
void validate_before_loading(const RunOptions& options) {
  constexpr int64_t kAny = std::numeric_limits<int32_t>::max();
  validate(options.request, kAny, kAny);
}

// What --chat asks once: of -p or -f, and what comes in a pipe.
std::optional<std::string> read_question(const RunOptions& options) {
  if (!options.prompt && !options.prompt_file) return std::nullopt;
  std::string question = read_prompt(options);
  if (options.prompt_file == "-" || isatty(STDIN_FILENO) != 0) return question;
  std::string input = read_standard_input();
  if (input.ends_with('\n')) input.pop_back();
  if (!question.empty() && !input.empty()) question += "\n\n";
  return question + input;
}

void tell_of_plain_layers(const std::string& format, const EngineInfo& info) {
  if (format.empty() || info.kv_in_eight == info.kv_layers) return;
  print_notice("--kv " + format + ": " + std::to_string(info.kv_in_eight) + " of " +
               std::to_string(info.kv_layers) +
               " layers keep keys and values so; those of the others, with windows, latents or "
               "sinks, stay as they are\n");
}

LoadedEngine load(const RunOptions& options) {
  EngineOptions engine = options.engine;
  const bool is_batch = !options.batch.input.empty();
  if (!is_batch) {
    engine.slots = options.request.search.beams;
    engine.slots_for_search = !asks_for_draws(options.given);
    engine.chunk = 0;
  }
  engine.ends_together = is_batch;
  engine.check_interrupted = check_interrupted;
  std::optional<ProgressBar> bar;
  bar.emplace("loading", ProgressBar::Unit::bytes, true);
  engine.load_progress = [&](size_t done, size_t total) {
    check_interrupted();
    bar->update(done, total);
  };
  Engine loaded(options.model, engine);
  bar.reset();
  if (engine.device == "auto" && !options.stats) {
    std::fprintf(stderr, "device: %s\n", loaded.info().device.c_str());
  }
  tell_of_plain_layers(engine.kv, loaded.info());
  const Request recommended = recommended_request(loaded.info());
  Request prototype = options.request;
  recommend(recommended, options.given, prototype);
  // A batch's lines may say something else.
  if (!is_batch) print_notice(idle_options(options.given, prototype));
  return {
      .engine = std::move(loaded), .prototype = std::move(prototype), .recommended = recommended};
}

void embed(const RunOptions& options) {
  EmbedTask task{.model = options.model,
                 .text = std::nullopt,
                 .input = options.batch.input,
                 .output = options.batch.output,
                 .options = options.embed,
                 .embedder = {.device = options.engine.device,
                              .threads = options.engine.threads,
                              .context = options.engine.context},
                 .stats = options.stats};
  if (options.prompt || options.prompt_file) {
    if (!task.input.empty()) throw UsageError("--batch and -p or -f do not go together");
    task.text = read_prompt(options);
  } else if (task.input.empty()) {
    if (isatty(STDIN_FILENO) != 0) {
      throw UsageError("there is no text; give one with -p, lines with --batch or standard input");
    }
    task.input = "-";
  }
  embed_command(task);
}

// As a JSON array, in pieces: a signal ends it between two of them.
void print_tokens(const std::vector<int32_t>& tokens) {
  constexpr size_t kPieceBytes = 1 << 16;
  std::string piece = "[";
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) piece += ',';
    piece += std::to_string(tokens[i]);
    if (piece.size() < kPieceBytes) continue;
    check_interrupted();
    print(piece);
    piece.clear();
  }
  check_interrupted();
  print(piece + "]\n");
}

std::string rate(size_t tokens, double seconds) {
  char text[96];
  std::snprintf(text, sizeof text, "%zu in %.3f s, %.1f tokens/s", tokens, seconds,
                seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
  return text;
}

void print_stats(const Engine& engine, const Result& result, bool has_score) {
  // The first generated token comes out of the prompt's pass.
  const size_t generated = result.outputs.front().tokens.size();
  const size_t steps = generated == 0 ? 0 : generated - 1;
  print_device(engine.info());
  const auto prompted = static_cast<size_t>(result.prompt_tokens);
  std::fprintf(stderr, "prompt:     %zu tokens, %s\n", prompted,
               rate(prompted, result.prompt_seconds).c_str());
  std::fprintf(stderr, "generation: %zu tokens, %s\n", generated,
               rate(steps, result.generation_seconds).c_str());
  print_steps(engine.stats());
  print_memory(engine.info());
  if (has_score) {
    std::fprintf(stderr, "score:      %.6f\n", result.outputs.front().score);
  } else {
    std::fprintf(stderr, "seed:       %llu\n", static_cast<unsigned long long>(result.seed));
  }
}

// A text that was cut reads like one that has ended.
void tell_full_context(const EngineInfo& info, const Result& result) {
  if (result.outputs.front().finish_reason != FinishReason::context) return;
  print_notice("the text ends here because the context of " + std::to_string(info.context) +
               " tokens is full" +
               (info.context < info.max_context ? "; a larger --context has room for more\n"
                                                : ", and " + info.context_end + "\n"));
}

}  // namespace

void run_command(const RunOptions& options) {
  catch_interrupts();
  print_notice(options.notices);
  if (options.list_devices) return devices_command(options.json);
  validate_before_loading(options);
  if (!options.perplexity_file.empty()) {
    perplexity_command({.model = options.model,
                        .text_file = options.perplexity_file,
                        .against = options.against,
                        .json = options.json,
                        .engine = options.engine});
    return;
  }
  if (options.embed.enabled || options.embed.query) {
    embed(options);
    return;
  }
  if (!options.batch.input.empty()) {
    BatchOptions batch = options.batch;
    batch.stats = options.stats;
    batch_command(
        batch, [&] { return batch_origin(options.model, options.engine, options.request); },
        options.request, [&] { return load(options); });
    return;
  }
  if (options.chat.enabled) {
    chat_command(options.chat,
                 {.model = options.model,
                  .chat_template = options.engine.chat_template,
                  .given = options.given,
                  .question = read_question(options),
                  .stats = options.stats},
                 [&] { return load(options); });
    return;
  }
  const std::string prompt = read_prompt(options);
  if (options.tokenize) {
    print_tokens(tokenize(options.model, prompt, options.request.parse_special, check_interrupted));
    return;
  }

  auto [engine, request, recommended] = load(options);
  request.prompt = prompt;

  const auto write = text_output(false);
  if (options.echo) write(prompt);
  const bool has_score = request.search.beams > 1;
  const Result result = generate(engine, std::move(request), [&](std::string_view text) {
    write(text);
    return true;
  });
  write("\n");
  tell_full_context(engine.info(), result);
  if (options.stats) print_stats(engine, result, has_score);
  check_interrupted();
}

}  // namespace faststream::cli
