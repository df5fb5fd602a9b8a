// A Jinja template, as chat templates are written: the language of Jinja2 3.1 as Transformers sets
// it up. It reaches nothing but what it is given, and ends after a bounded time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/jinja/runtime.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace faststream::jinja {

struct Tree;

/// Immutable; any number of threads may render it at once.
class Template {
 public:
  /// Throws Error, "WHERE, line N: ...", for what is no template, and for one of more than 1 MB.
  Template(std::string_view source, std::string_view where);

  /// What it prints. `now` is strftime_now()'s. Throws Error: "WHERE refuses the conversation: ..."
  /// with the template's own words where it calls raise_exception(), "WHERE, line N: ..." where it
  /// fails or goes past limits on steps, time, memory and depth; all of them are reached within a
  /// second.
  [[nodiscard]] Text render(const Dict& variables, const LocalTime& now) const;

  /// Whether the source has this name or text anywhere.
  [[nodiscard]] bool mentions(std::string_view text) const;

 private:
  std::string source_;
  std::string where_;
  std::shared_ptr<const Tree> tree_;
};

}  // namespace faststream::jinja
