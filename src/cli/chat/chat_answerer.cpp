#include "cli/chat/chat_answerer.h"

#include <utility>

#include "program/interrupt.h"

namespace faststream {

int64_t EngineAnswerer::context() const { return engine_->info().context; }

int64_t EngineAnswerer::count_tokens(std::span<const Message> messages) const {
  return static_cast<int64_t>(engine_->tokenize(messages).size());
}

Result EngineAnswerer::answer(Request request,
                              const std::function<void(std::string_view)>& on_text) {
  return engine_->generate(std::move(request), [&](std::string_view text) {
    if (!text.empty()) on_text(text);
    return !interrupted();
  });
}

}  // namespace faststream
