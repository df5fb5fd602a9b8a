#include "cli/chat/chat_answerer.h"

#include <utility>

#include "cli/generate.h"

namespace faststream {

int64_t EngineAnswerer::context() const { return engine_->info().context; }

int64_t EngineAnswerer::count_tokens(const ChatPrompt& prompt) const {
  return static_cast<int64_t>(engine_->tokenize(prompt).size());
}

Result EngineAnswerer::answer(Request request,
                              const std::function<bool(std::string_view)>& on_text) {
  return generate(*engine_, std::move(request), on_text);
}

}  // namespace faststream
