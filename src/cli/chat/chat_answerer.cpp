#include "cli/chat/chat_answerer.h"

#include <utility>

#include "cli/generate.h"

namespace faststream::cli {

int64_t EngineAnswerer::context() const { return engine_->info().context; }

int64_t EngineAnswerer::max_context() const { return engine_->info().max_context; }

std::string EngineAnswerer::context_end() const { return engine_->info().context_end; }

std::vector<std::string> EngineAnswerer::adapters() const { return engine_->info().adapters; }

int64_t EngineAnswerer::count_tokens(const ChatPrompt& prompt) const {
  return static_cast<int64_t>(engine_->tokenize(prompt, parse_special_).size());
}

std::string EngineAnswerer::text_of(std::span<const int32_t> tokens) const {
  return engine_->detokenize(tokens);
}

Result EngineAnswerer::answer(Request request,
                              const std::function<bool(std::string_view)>& on_text) {
  return generate(*engine_, std::move(request), on_text);
}

}  // namespace faststream::cli
