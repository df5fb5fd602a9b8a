// What is in values: attributes, elements, calls.
#include <charconv>

#include "support/printable.h"
#include "text/jinja/characters.h"
#include "text/jinja/failure.h"
#include "text/jinja/library.h"

namespace faststream::jinja {
namespace {

std::string described(const Value& value) {
  return value.is_none() ? "None" : "a " + std::string(value.type_name());
}

Value no_attribute(const Value& object, std::string_view name) {
  return Value::undefined(described(object) + " has no attribute " + in_quotes(name));
}

Value element(const std::vector<Value>& items, const Value& object, int64_t index) {
  const auto n = static_cast<int64_t>(items.size());
  const int64_t place = index < 0 ? index + n : index;
  if (place >= 0 && place < n) return items[static_cast<size_t>(place)];
  return Value::undefined(described(object) + " has no element " + std::to_string(index));
}

Value character(Runtime& runtime, const Value& object, int64_t index) {
  const Text& text = *object.text();
  runtime.spend_steps(text.size() / 16);
  const int64_t place =
      index < 0 ? index + static_cast<int64_t>(count_characters(text.view())) : index;
  if (place >= 0) {
    const size_t at = character_offset(text.view(), static_cast<size_t>(place));
    if (at < text.size()) {
      return runtime.text(text.substr(at, character_size(text.view().substr(at))));
    }
  }
  return Value::undefined("a str has no element " + std::to_string(index));
}

}  // namespace

Text Object::repr(Runtime& /*runtime*/) const { return Text("<" + std::string(type_name()) + ">"); }

std::optional<Value> Object::attribute(Runtime& /*runtime*/, std::string_view /*name*/) {
  return std::nullopt;
}

Value Object::call(Runtime& /*runtime*/, Arguments /*arguments*/) {
  throw Failure("a " + std::string(type_name()) + " cannot be called");
}

Text Namespace::repr(Runtime& runtime) const {
  const Runtime::Depth depth(runtime);
  Text text("<Namespace ");
  text.append(to_repr(runtime, Value(members_)));
  text.append(">");
  return text;
}

std::optional<Value> Namespace::attribute(Runtime& /*runtime*/, std::string_view name) {
  const Value* found = members_.find(name);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

void Namespace::set(std::string_view name, Value value) {
  if (name.starts_with('_')) {
    throw Failure("a namespace's attribute cannot begin with an underscore: " + in_quotes(name));
  }
  members_.set(Value(name), std::move(value));
}

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_undefined()) throw Failure(object.reason());
  if (Object* host = object.object()) {
    if (auto value = host->attribute(runtime, name)) return *std::move(value);
  } else if (auto method = find_method(runtime, object, name)) {
    return *std::move(method);
  }
  if (const Dict* dict = object.dict()) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return no_attribute(object, name);
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  if (object.is_undefined()) throw Failure(object.reason());
  if (const Dict* dict = object.dict()) {
    runtime.spend_steps(key.is_text() ? key.weight() : dict->weight());
    if (const Value* found = dict->find(key)) return *found;
  }
  if (key.is_integer()) {
    const List* list = object.list();
    if (list != nullptr && list->is_sequence()) return element(list->items, object, key.integer());
    if (object.is_text()) return character(runtime, object, key.integer());
  }
  if (const Text* name = key.text()) {
    if (Object* host = object.object()) {
      if (auto value = host->attribute(runtime, name->view())) return *std::move(value);
    } else if (auto method = find_method(runtime, object, name->view())) {
      return *std::move(method);
    }
    return no_attribute(object, name->view());
  }
  return Value::undefined(described(object) + " has no element " +
                          printable(to_repr(runtime, key).view().substr(0, 64)));
}

std::vector<Value> elements(Runtime& runtime, const Value& value) {
  std::vector<Value> items;
  if (const List* list = value.list()) {
    runtime.spend_bytes(list->items.size() * sizeof(Value));
    return list->take();
  }
  if (const Dict* dict = value.dict()) {
    runtime.spend_bytes(dict->size() * sizeof(Value));
    for (const auto& [key, mapped] : dict->entries()) items.push_back(key);
  } else if (const Text* text = value.text()) {
    for (size_t at = 0, size = 0; at < text->size(); at += size) {
      size = character_size(text->view().substr(at));
      items.push_back(runtime.text(text->substr(at, size)));
    }
  } else if (!value.is_undefined()) {
    throw Failure(described(value) + " has no elements to go through");
  }
  return items;
}

int64_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.text()) return static_cast<int64_t>(count_characters(text->view()));
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->size());
  const List* list = value.list();
  if (list == nullptr || list->type == List::Type::generator) {
    throw Failure(described(value) + " has no length");
  }
  return static_cast<int64_t>(list->items.size());
}

Value call(Runtime& runtime, const Value& callee, Arguments arguments) {
  if (callee.is_undefined()) throw Failure(callee.reason());
  if (Object* host = callee.object()) return host->call(runtime, std::move(arguments));
  throw Failure(described(callee) + " cannot be called");
}

}  // namespace faststream::jinja
