#include "engine/request.h"

#include <span>
#include <string>

#include "backend/backend.h"
#include "support/error.h"

namespace faststream {
namespace {

constexpr int32_t kMaxSamples = 128;
constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::eos:
      return "eos";
    case FinishReason::stop_string:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::context:
      return "context";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "?";
}

void validate(const Request& request, int64_t vocab, int64_t prompt_vocab) {
  validate(request.sampling, vocab);
  validate(request.search);
  if (request.min_tokens < 0) throw UsageError("min_tokens must be 0 or more");
  if (request.max_tokens < -1) throw UsageError("max_tokens must be 0 or more, or -1 for no limit");
  if (request.n < 1 || request.n > kMaxSamples) {
    throw UsageError("n, the number of samples, must be from 1 to " + std::to_string(kMaxSamples));
  }
  if (request.best_of != 0 && (request.best_of < request.n || request.best_of > kMaxSamples)) {
    throw UsageError("best_of must be from n to " + std::to_string(kMaxSamples));
  }
  if (request.search.beams > 1 && request.n > request.search.beams) {
    throw UsageError("a search with " + std::to_string(request.search.beams) +
                     " beams cannot return " + std::to_string(request.n) +
                     " texts; give a smaller n or more beams");
  }
  if (request.search.beams > 1 && request.best_of != 0) {
    throw UsageError("best_of is for samples, not for beams; leave it out");
  }
  if (request.logprobs < -1 || request.logprobs > kMaxLogprobs) {
    throw UsageError("logprobs must be from 0 to " + std::to_string(kMaxLogprobs) +
                     ", or -1 for none");
  }
  if (request.stop.size() > kMaxStops || request.stop_tokens.size() > kMaxStops) {
    throw UsageError("a request can have at most " + std::to_string(kMaxStops) +
                     " stop strings and as many stop tokens");
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      throw UsageError("a stop string must have from 1 to " + std::to_string(kMaxStopBytes) +
                       " bytes");
    }
  }
  const auto check_tokens = [](std::span<const int32_t> tokens, int64_t n, const char* what) {
    for (const int32_t token : tokens) {
      if (token >= 0 && token < n) continue;
      throw UsageError(std::string(what) + " " + std::to_string(token) +
                       " is none of the model's tokens, 0 to " + std::to_string(n - 1));
    }
  };
  check_tokens(request.stop_tokens, vocab, "the stop token");
  if (const auto* tokens = std::get_if<std::vector<int32_t>>(&request.prompt)) {
    check_tokens(*tokens, prompt_vocab, "the prompt's token");
  }
}

}  // namespace faststream
