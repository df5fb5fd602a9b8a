#include "engine/request.h"

#include <span>
#include <string>

#include "backend/backend.h"
#include "engine/request_settings.h"
#include "support/error.h"

namespace faststream {
namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::eos:
      return "eos";
    case FinishReason::stop_string:
    case FinishReason::stop_token:
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
  for (const RequestSetting& setting : request_settings()) setting.check(request);
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > kMaxLogprobs) {
    throw UsageError("prompt_logprobs is not -1, 0 or up to " + std::to_string(kMaxLogprobs));
  }
  validate(request.sampling.logit_bias, vocab);
  validate(request.search);
  if (request.search.beams == 1 && request.best_of != 0 && request.best_of < request.n) {
    throw UsageError("best_of, the samples to draw, must be n, the samples to return, or more");
  }
  if (request.search.beams > 1 && request.n > request.search.beams) {
    throw UsageError("a search with " + std::to_string(request.search.beams) +
                     " beams cannot return " + std::to_string(request.n) +
                     " texts; give a smaller n or more beams");
  }
  if (request.rule && request.search.beams > 1) {
    throw UsageError("a beam search cannot follow a rule of output; give one beam");
  }
  if (request.rule && request.sampling.no_repeat_ngram > 0) {
    throw UsageError("no_repeat_ngram may forbid what a rule of output asks for; leave one out");
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
