#include "text/jinja/template.h"

#include "support/error.h"
#include "support/printable.h"
#include "text/jinja/failure.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace faststream::jinja {
namespace {

constexpr size_t kLargestTemplate = 1 << 20;

std::string at_line(const std::string& where, int line, const char* what) {
  return where + ", line " + std::to_string(line) + ": " + what;
}

// Of all texts in a value.
size_t text_bytes(const Value& value) {
  size_t bytes = 16;
  if (const Text* text = value.text()) bytes += text->size();
  if (const List* list = value.list()) {
    for (const Value& item : list->items) bytes += text_bytes(item);
  }
  if (const Dict* dict = value.dict()) {
    for (const auto& [key, item] : dict->entries()) bytes += text_bytes(key) + text_bytes(item);
  }
  return bytes;
}

}  // namespace

Template::Template(std::string_view source, std::string_view where)
    : source_(source), where_(where) {
  if (source.size() > kLargestTemplate) {
    throw Error(where_ + ": is larger than 1 MB, so it is no chat template");
  }
  int line = 1;
  try {
    tree_ = std::make_shared<const Tree>(Parser(source_, line).parse());
  } catch (const Failure& failure) {
    throw Error(at_line(where_, line, failure.what()));
  }
}

Text Template::render(const Dict& variables, const LocalTime& now) const {
  size_t input_bytes = 0;
  for (const auto& [name, value] : variables.entries()) input_bytes += text_bytes(value);
  int line = 1;
  try {
    Runtime runtime(now, input_bytes);
    return Interpreter(*tree_, runtime, line).render(variables);
  } catch (const Failure& failure) {
    throw Error(at_line(where_, line, failure.what()));
  } catch (const Refusal& refusal) {
    throw Error(where_ + " refuses the conversation: " + printable(refusal.what()));
  }
}

bool Template::mentions(std::string_view text) const {
  return source_.find(text) != std::string::npos;
}

}  // namespace faststream::jinja
