#include "cli/batch/batch_memory.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

namespace faststream::cli {
namespace {

// Vectors and texts that grow have room for twice what is in them, and the heap has its own share.
constexpr size_t kSampleBytes = 2048;        // of the engine's objects for one sample
constexpr size_t kTokenBytes = 4 * 2 * 2;    // in the sequence and in the output
constexpr size_t kTextBytesOfToken = 6 * 2;  // in the mean
constexpr size_t kEditBytes = 128;           // of a bias or a penalty of one token
constexpr size_t kStopBytes = 9;             // of a byte of a stop string, with its automaton

size_t bytes_of_logprobs(size_t n_top) {
  constexpr size_t kHeapShare = 16;
  return 2 * sizeof(PositionLogprobs) +
         (n_top == 0 ? 0 : kHeapShare + 2 * n_top * sizeof(TokenLogprob));
}

struct PromptSize {
  size_t bytes = 0;
  size_t tokens = 0;  // at most; templates aside
};

PromptSize size_of(const Prompt& prompt) {
  if (const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt)) {
    return {.bytes = tokens->size() * sizeof(int32_t), .tokens = tokens->size()};
  }
  size_t bytes = 0;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    bytes = text->size();
  } else {
    const auto& chat = std::get<ChatPrompt>(prompt);
    bytes = chat.tools.size() + chat.documents.size() + chat.variables.size();
    for (const Message& message : chat.messages) {
      bytes += sizeof message + message.role.size() + message.content.size() + message.more.size();
    }
  }
  return {.bytes = bytes, .tokens = bytes};
}

}  // namespace

size_t samples_of(const Request& request) {
  return static_cast<size_t>(std::max({request.n, request.best_of, request.search.beams, 1}));
}

size_t bytes_in_work(const Request& request, int64_t context) {
  const PromptSize prompt = size_of(request.prompt);
  const auto most = static_cast<size_t>(std::max<int64_t>(context, 0));
  const size_t prompt_tokens = std::min(prompt.tokens, most);
  const size_t new_tokens =
      request.max_tokens < 0 ? most : std::min(static_cast<size_t>(request.max_tokens), most);

  const SamplingParams& sampling = request.sampling;
  const bool is_edited = sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
                         sampling.frequency_penalty != 0 || sampling.no_repeat_ngram != 0;
  const bool has_logprobs = request.logprobs >= 0 || request.best_of > request.n;
  const size_t n_top = static_cast<size_t>(std::max(request.logprobs, 0));
  const size_t per_token = kTokenBytes + kTextBytesOfToken +
                           (has_logprobs ? bytes_of_logprobs(n_top) : 0) +
                           (is_edited ? kEditBytes : 0);
  size_t per_sample = kSampleBytes + prompt_tokens * (kTokenBytes + (is_edited ? kEditBytes : 0)) +
                      new_tokens * per_token + sampling.logit_bias.size() * kEditBytes;
  for (const std::string& stop : request.stop) per_sample += stop.size() * kStopBytes;
  // Of a beam search there are as many finished texts, and as many more while beams fork.
  const size_t n_texts = samples_of(request) * (request.search.beams > 1 ? 3 : 1);
  return prompt.bytes + n_texts * per_sample;
}

size_t bytes_of(const Result& result) {
  size_t bytes = sizeof result;
  for (const Output& output : result.outputs) {
    bytes += sizeof output + output.text.capacity() + output.tokens.capacity() * sizeof(int32_t);
    if (output.logprobs.empty()) continue;
    bytes += output.logprobs.size() * bytes_of_logprobs(output.logprobs.front().top.size());
  }
  return bytes;
}

}  // namespace faststream::cli
