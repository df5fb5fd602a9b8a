#include "cli/run_modes.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "support/error.h"

namespace faststream {
namespace {

// Bits, for sets.
enum Mode : uint8_t {
  kPrompt = 1,
  kTokenize = 2,
  kPerplexity = 4,
  kBatch = 8,
  kChat = 16,
  kEmbed = 32,
  kRank = 64
};

constexpr uint8_t kGenerating = kPrompt | kBatch | kChat;
constexpr uint8_t kEncoding = kEmbed | kRank;
constexpr uint8_t kComputing = kGenerating | kPerplexity | kEncoding;

struct ModeOption {
  Mode mode;
  std::string_view option;
};

// Without any of these a prompt is continued. An option of a mode before may be that mode's own.
constexpr std::array<ModeOption, 6> kModeOptions = {{{kEmbed, "--embed"},
                                                     {kRank, "--rank"},
                                                     {kTokenize, "--tokenize"},
                                                     {kPerplexity, "--perplexity"},
                                                     {kBatch, "--batch"},
                                                     {kChat, "--chat"}}};

struct OptionUse {
  std::string_view option;
  uint8_t modes;  // that look at it
};

constexpr OptionUse kOptionUses[] = {
    {"--model", kComputing | kTokenize},
    {"--prompt", kPrompt | kTokenize | kChat | kEncoding},
    {"--file", kPrompt | kTokenize | kChat | kEncoding},
    {"--parse-special", kGenerating | kTokenize},
    {"--tokenize", kTokenize},
    {"--perplexity", kPerplexity},
    {"--against", kPerplexity},
    {"--tokens", kGenerating},
    {"--min-tokens", kGenerating},
    {"--temp", kGenerating},
    {"--top-k", kGenerating},
    {"--top-p", kGenerating},
    {"--min-p", kGenerating},
    {"--repetition-penalty", kGenerating},
    {"--presence-penalty", kGenerating},
    {"--frequency-penalty", kGenerating},
    {"--no-repeat-ngram", kGenerating},
    {"--logit-bias", kGenerating},
    {"--stop", kGenerating},
    {"--seed", kGenerating},
    {"--ignore-eos", kGenerating},
    {"--beams", kGenerating},
    {"--length-penalty", kGenerating},
    {"--early-stopping", kGenerating},
    {"--beam-groups", kGenerating},
    {"--diversity-penalty", kGenerating},
    {"--source-lang", kPrompt | kBatch},
    {"--target-lang", kPrompt | kBatch},
    {"--device", kComputing},
    {"--threads", kComputing},
    {"--context", kComputing},
    {"--kv-tokens", kGenerating | kPerplexity},
    {"--slots", kBatch},
    {"--chunk", kBatch},
    {"--echo", kPrompt},
    {"--special", kGenerating},
    {"--stats", kPrompt | kChat | kEncoding},
    {"--batch", kBatch | kEncoding},
    {"--output", kBatch | kEncoding},
    {"--resume", kBatch},
    {"--unordered", kBatch},
    {"--strict", kBatch},
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

// Those that look at an option. Throws std::logic_error where there are none.
uint8_t modes_of(std::string_view option) {
  const auto* use = std::ranges::find(kOptionUses, option, &OptionUse::option);
  if (use == std::end(kOptionUses)) {
    throw std::logic_error(std::string(option) + " is used by no mode");
  }
  return use->modes;
}

}  // namespace

void check_modes(const CLI::App& app) {
  const auto given = [&app](std::string_view option) { return app.count(std::string(option)) > 0; };
  Mode mode = kPrompt;
  std::string mode_option;
  for (const ModeOption& asked : kModeOptions) {
    if (!given(asked.option)) continue;
    if (mode != kPrompt && (modes_of(asked.option) & mode) != 0) continue;
    if (mode != kPrompt) {
      throw UsageError(mode_option + " and " + std::string(asked.option) +
                       " do not go together; leave one of them out");
    }
    mode = asked.mode;
    mode_option = asked.option;
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = "--" + option->get_lnames().at(0);
    const uint8_t modes = modes_of(name);
    if ((modes & mode) != 0) continue;
    if (mode == kPrompt) throw UsageError(name + " needs " + mode_options(modes));
    throw UsageError(name + " has no effect with " + mode_option + "; leave one of them out");
  }
}

}  // namespace faststream
