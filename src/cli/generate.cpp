#include "cli/generate.h"

#include <optional>
#include <utility>

#include "program/interrupt.h"
#include "support/progress.h"

namespace faststream::cli {

Result generate(Engine& engine, Request request,
                const std::function<bool(std::string_view)>& on_text) {
  std::optional<ProgressBar> bar;  // gone before the text begins
  bar.emplace("prompt", ProgressBar::Unit::tokens, true);
  return engine.generate(
      std::move(request),
      [&](std::string_view text) {
        if (text.empty()) return !interrupted();
        bar.reset();
        return on_text(text) && !interrupted();
      },
      [&](const PromptProgress& prompt) {
        if (bar)
          bar->update(static_cast<uint64_t>(prompt.done), static_cast<uint64_t>(prompt.total));
      });
}

}  // namespace faststream::cli
