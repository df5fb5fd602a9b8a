#include "cli/run_modes.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/request_settings.h"
#include "support/error.h"

namespace faststream::cli {
namespace {

// Bits, for sets.
enum Mode : uint8_t {
  kPrompt = 1,
  kTokenize = 2,
  kPerplexity = 4,
  kBatch = 8,
  kChat = 16,
  kEmbed = 32,
  kRank = 64,
  kDevices = 128
};

constexpr uint8_t kGenerating = kPrompt | kBatch | kChat;
constexpr uint8_t kEncoding = kEmbed | kRank;
constexpr uint8_t kComputing = kGenerating | kPerplexity | kEncoding;

struct ModeOption {
  Mode mode;
  std::string_view option;
};

// Without any of these a prompt is continued. An option of a mode before may be that mode's own.
constexpr std::array<ModeOption, 7> kModeOptions = {{{kDevices, "--list-devices"},
                                                     {kEmbed, "--embed"},
                                                     {kRank, "--rank"},
                                                     {kTokenize, "--tokenize"},
                                                     {kPerplexity, "--perplexity"},
                                                     {kBatch, "--batch"},
                                                     {kChat, "--chat"}}};

// What becomes of an option that the mode does not look at.
enum class Idle {
  refused,  // it asks for something that would not be done
  told      // it says how to do what is not done here: the user is told, and all else is done
};

struct OptionUse {
  std::string_view option;
  uint8_t modes;  // that look at it
  Idle idle = Idle::refused;
};

// The options of request_settings() that are not here are for what generates, and say how.
constexpr OptionUse kOptionUses[] = {
    {"--model", kComputing | kTokenize},
    {"--adapter", kGenerating | kPerplexity},
    {"--prompt", kPrompt | kTokenize | kChat | kEncoding},
    {"--file", kPrompt | kTokenize | kChat | kEncoding},
    {"--parse-special", kGenerating | kTokenize, Idle::told},
    {"--tokenize", kTokenize},
    {"--perplexity", kPerplexity},
    {"--against", kPerplexity},
    {"--list-devices", kDevices},
    {"--json", kPerplexity | kDevices},
    {"--logit-bias", kGenerating, Idle::told},
    {"--stop", kGenerating, Idle::told},
    {"--json-schema", kGenerating},
    {"--regex", kGenerating},
    {"--grammar", kGenerating},
    {"--ignore-eos", kGenerating, Idle::told},
    {"--source-lang", kPrompt | kBatch},
    {"--target-lang", kPrompt | kBatch},
    {"--device", kComputing, Idle::told},
    {"--gpus", kComputing, Idle::told},
    {"--replicas", kBatch, Idle::told},
    {"--pipeline", kGenerating | kPerplexity, Idle::told},
    {"--exact-sums", kGenerating | kPerplexity, Idle::told},
    {"--threads", kComputing, Idle::told},
    {"--context", kComputing, Idle::told},
    {"--kv-tokens", kGenerating | kPerplexity, Idle::told},
    {"--kv", kGenerating | kPerplexity, Idle::told},
    {"--slots", kBatch, Idle::told},
    {"--chunk", kBatch, Idle::told},
    {"--speculate", kGenerating, Idle::told},
    {"--echo", kPrompt, Idle::told},
    {"--special", kGenerating, Idle::told},
    {"--stats", kPrompt | kChat | kBatch | kEncoding, Idle::told},
    {"--batch", kBatch | kEncoding},
    {"--output", kBatch | kEncoding},
    {"--resume", kBatch},
    {"--part", kBatch},
    {"--unordered", kBatch, Idle::told},
    {"--strict", kBatch, Idle::told},
    {"--logprobs", kBatch},
    {"--embed", kEmbed},
    {"--rank", kRank},
    {"--format", kEncoding},
    {"--chat", kChat},
    {"--system", kChat},
    {"--session", kChat},
    {"--messages", kChat},
    {"--tools", kChat},
    {"--documents", kChat},
    {"--template-arg", kChat},
    {"--show-prompt", kChat},
    {"--chat-template", kBatch | kChat},
};

// "--batch or --chat"
std::string mode_options(uint8_t modes) {
  std::string list;
  for (const ModeOption& each : kModeOptions) {
    if ((each.mode & modes) != 0) list += (list.empty() ? "" : " or ") + std::string(each.option);
  }
  return list;
}

// Throws std::logic_error where there is none.
OptionUse use_of(std::string_view option) {
  const auto* use = std::ranges::find(kOptionUses, option, &OptionUse::option);
  if (use != std::end(kOptionUses)) return *use;
  if (find_setting_of_option(option) != nullptr) {
    return {.option = option, .modes = kGenerating, .idle = Idle::told};
  }
  throw std::logic_error(std::string(option) + " is used by no mode");
}

}  // namespace

std::string check_modes(const CLI::App& app) {
  const auto given = [&app](std::string_view option) { return app.count(std::string(option)) > 0; };
  Mode mode = kPrompt;
  std::string mode_option;
  for (const ModeOption& asked : kModeOptions) {
    if (!given(asked.option)) continue;
    if (mode != kPrompt && (use_of(asked.option).modes & mode) != 0) continue;
    if (mode != kPrompt) {
      throw UsageError(mode_option + " and " + std::string(asked.option) +
                       " do not go together; leave one of them out");
    }
    mode = asked.mode;
    mode_option = asked.option;
  }
  std::string notices;
  for (const CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr() || option == app.get_version_ptr()) continue;
    const std::string name = "--" + option->get_lnames().at(0);
    const OptionUse use = use_of(name);  // of all, lest one be forgotten
    if (option->count() == 0 || (use.modes & mode) != 0) continue;
    if (use.idle == Idle::told) {
      notices += name + " has no effect " +
                 (mode == kPrompt ? "without " + mode_options(use.modes) : "with " + mode_option) +
                 "\n";
    } else if (mode == kPrompt) {
      throw UsageError(name + " needs " + mode_options(use.modes));
    } else {
      throw UsageError(name + " does not go together with " + mode_option +
                       "; leave one of them out");
    }
  }
  return notices;
}

}  // namespace faststream::cli
