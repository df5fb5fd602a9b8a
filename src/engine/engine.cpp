#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "engine/loaded_model.h"

namespace faststream {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

struct Engine::Impl : LoadedModel {
  Impl(const std::filesystem::path& model, const EngineOptions& options)
      : LoadedModel(model, options, 1) {}

  // Processes all but the logits of a prompt, then draws the first token. False if cancelled.
  bool prefill(Sequence& sequence, std::span<const int32_t> prompt,
               const std::function<bool(std::string_view)>& on_text) {
    while (!prompt.empty()) {
      const auto chunk = prompt.first(std::min<size_t>(prompt.size(), kMaxStepTokens));
      prompt = prompt.subspan(chunk.size());
      const auto logits = prompt.empty() ? Chunk::Logits::last : Chunk::Logits::none;
      runner->step({{{.sequence = &sequence, .tokens = chunk, .logits = logits}}});
      if (!on_text("")) return false;
    }
    return true;
  }

  int32_t draw(const SamplingParams& params, const Sequence& sequence) {
    return runner->sample({{sampling_row(params, sequence)}}).front();
  }
};

Engine::Engine(const std::filesystem::path& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

const EngineInfo& Engine::info() const { return impl_->info; }

std::vector<int32_t> Engine::tokenize(std::string_view text) const {
  return impl_->tokenizer->encode(text);
}

GenerateResult Engine::generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                                const std::function<bool(std::string_view)>& on_text) {
  Impl& impl = *impl_;
  validate(options.sampling);
  if (prompt.empty()) {
    throw Error(
        "the prompt is empty, and the model has no begin-of-sequence token to start from; "
        "give some text");
  }
  if (static_cast<int64_t>(prompt.size()) > impl.info.context) {
    throw Error("the prompt has " + std::to_string(prompt.size()) +
                " tokens, but the context only " + std::to_string(impl.info.context) +
                "; shorten the prompt or give a larger --context");
  }
  GenerateResult result;
  if (options.max_tokens == 0) return result;

  const auto start = Clock::now();
  Sequence sequence;
  // Pages go back even if a step or the callback throws.
  const auto give_back = [&](Sequence* s) { impl.runner->release(*s); };
  const std::unique_ptr<Sequence, decltype(give_back)> holder(&sequence, give_back);

  const bool begins_text =
      prompt.size() == 1 && impl.tokenizer->config().bos == std::optional<int32_t>(prompt.front());
  Detokenizer detokenizer(*impl.tokenizer, begins_text);

  if (!impl.prefill(sequence, prompt, on_text)) {
    result.finish_reason = FinishReason::cancelled;
    result.prompt_seconds = seconds_since(start);
    return result;
  }
  int32_t token = impl.draw(options.sampling, sequence);
  result.prompt_seconds = seconds_since(start);

  const auto first_token = Clock::now();
  for (;;) {
    result.tokens.push_back(token);
    if (impl.tokenizer->is_eos(token) && !options.ignore_eos) {
      result.finish_reason = FinishReason::eos;
      break;
    }
    if (!on_text(detokenizer.push(token))) {
      result.finish_reason = FinishReason::cancelled;
      break;
    }
    if (static_cast<int64_t>(result.tokens.size()) == options.max_tokens) {
      result.finish_reason = FinishReason::length;
      break;
    }
    if (sequence.n_cached == impl.info.context) {
      result.finish_reason = FinishReason::context;
      break;
    }
    impl.runner->step({{{.sequence = &sequence, .tokens = {&token, 1}}}});
    token = impl.draw(options.sampling, sequence);
  }
  if (const std::string rest = detokenizer.finish(); !rest.empty()) on_text(rest);
  result.generation_seconds = seconds_since(first_token);
  return result;
}

std::vector<int32_t> tokenize(const std::filesystem::path& model, std::string_view text) {
  const ModelFile file = ModelFile::open(model);
  return make_tokenizer(file, read_config(file).vocab)->encode(text);
}

}  // namespace faststream
