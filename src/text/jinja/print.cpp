// str(), repr() and json.dumps().
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/jinja/characters.h"
#include "text/jinja/failure.h"
#include "text/jinja/library.h"

namespace faststream::jinja {
namespace {

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  const double size = std::abs(value);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                    scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer.data(), result.ptr);
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string escape(const char* format, unsigned code) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), format, code);
  return text.data();
}

Text repr_text(const Text& text) {
  const bool has_single = text.view().find('\'') != std::string_view::npos;
  const bool has_double = text.view().find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  Text shown((text.is_markup() ? "Markup(" : "") + std::string(1, quote));
  size_t begin = 0;  // of what is shown as it is
  const auto flush = [&](size_t end) { shown.append(text, begin, end - begin); };
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.view().substr(at);
    const size_t size = character_size(rest);
    const char32_t code = code_point(rest);
    std::string escaped;
    if (code == '\n') {
      escaped = "\\n";
    } else if (code == '\r') {
      escaped = "\\r";
    } else if (code == '\t') {
      escaped = "\\t";
    } else if (code == '\\' || code == static_cast<unsigned char>(quote)) {
      escaped = {'\\', static_cast<char>(code)};
    } else if (!is_printable(code)) {
      escaped = escape(code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
    }
    if (!escaped.empty()) {
      flush(at);
      shown.append(escaped, text.origin_at(at));
      begin = at + size;
    }
    at += size;
  }
  flush(text.size());
  shown.append(std::string(1, quote) + (text.is_markup() ? ")" : ""));
  return shown;
}

void repr_into(Runtime& runtime, const Value& value, Text& out);

void repr_items(Runtime& runtime, const List& list, std::string_view open, std::string_view close,
                Text& out) {
  out.append(open);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ");
    repr_into(runtime, list.items[i], out);
  }
  if (list.type == List::Type::tuple && list.items.size() == 1) out.append(",");
  out.append(close);
}

void repr_list(Runtime& runtime, const List& list, Text& out) {
  switch (list.type) {
    case List::Type::list:
      return repr_items(runtime, list, "[", "]", out);
    case List::Type::tuple:
      return repr_items(runtime, list, "(", ")", out);
    case List::Type::keys:
      return repr_items(runtime, list, "dict_keys([", "])", out);
    case List::Type::values:
      return repr_items(runtime, list, "dict_values([", "])", out);
    case List::Type::items:
      return repr_items(runtime, list, "dict_items([", "])", out);
    case List::Type::generator:
      return out.append("<generator>");
    case List::Type::range: {
      const auto& [start, stop, step] = list.range;
      out.append("range(" + std::to_string(start) + ", " + std::to_string(stop));
      if (step != 1) out.append(", " + std::to_string(step));
      return out.append(")");
    }
  }
}

void repr_dict(Runtime& runtime, const Dict& dict, Text& out) {
  out.append("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) out.append(", ");
    first = false;
    repr_into(runtime, key, out);
    out.append(": ");
    repr_into(runtime, value, out);
  }
  out.append("}");
}

std::string scalar_text(const Value& value) {
  if (value.is_none()) return "None";
  if (value.is_bool()) return truth(value) ? "True" : "False";
  return value.is_integer() ? std::to_string(value.integer()) : real_text(value.real());
}

void repr_into(Runtime& runtime, const Value& value, Text& out) {
  runtime.spend_steps(1);
  const size_t size = out.size();
  if (value.is_undefined()) {
    out.append("Undefined");
  } else if (const Text* text = value.text()) {
    runtime.spend_bytes(text->size());
    out.append(repr_text(*text));
  } else if (const List* list = value.list()) {
    repr_list(runtime, *list, out);
  } else if (const Dict* dict = value.dict()) {
    repr_dict(runtime, *dict, out);
  } else if (const Object* object = value.object()) {
    out.append(object->repr(runtime));
  } else {
    out.append(scalar_text(value));
  }
  if (value.weight() == 1) runtime.spend_bytes(out.size() - size);
}

// JSON.
// --------------------------------------------------------------------------------------------

Text json_text(const Text& text, bool ensure_ascii) {
  Text shown("\"");
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.view().substr(at);
    const auto byte = static_cast<unsigned char>(rest[0]);
    size_t size = 1;
    std::string escaped;
    constexpr std::string_view kNamed = "\"\\\n\r\t\f\b";
    constexpr std::string_view kNames = "\"\\nrtfb";
    if (const size_t name = kNamed.find(rest[0]); name != std::string_view::npos) {
      escaped = {'\\', kNames[name]};
    } else if (byte < 0x20 || (byte == 0x7F && ensure_ascii)) {
      escaped = escape("\\u%04x", byte);
    } else if (byte >= 0x80 && ensure_ascii) {
      size = character_size(rest);
      const char32_t code = code_point(rest);
      if (code < 0x10000) {
        escaped = escape("\\u%04x", code);
      } else {
        escaped = escape("\\u%04x", 0xD800 + ((code - 0x10000) >> 10U)) +
                  escape("\\u%04x", 0xDC00 + ((code - 0x10000) & 0x3FFU));
      }
    }
    if (!escaped.empty()) {
      shown.append(text, begin, at - begin);
      shown.append(escaped, text.origin_at(at));
      begin = at + size;
    }
    at += size;
  }
  shown.append(text, begin, text.size() - begin);
  shown.append("\"");
  return shown;
}

std::string json_number(const Value& value) {
  if (value.is_bool()) return truth(value) ? "true" : "false";
  if (value.is_integer()) return std::to_string(value.integer());
  if (std::isnan(value.real())) return "NaN";
  if (std::isinf(value.real())) return value.real() > 0 ? "Infinity" : "-Infinity";
  return real_text(value.real());
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void write(const Value& value) {
    runtime_.spend_steps(1);
    const List* list = value.list();
    if (list != nullptr && (list->type == List::Type::list || list->type == List::Type::tuple)) {
      return write_list(*list);
    }
    if (const Dict* dict = value.dict()) return write_dict(*dict);
    const size_t size = out_.size();
    if (value.is_none()) {
      out_.append("null");
    } else if (value.is_number()) {
      out_.append(json_number(value));
    } else if (const Text* text = value.text()) {
      out_.append(json_text(*text, style_.ensure_ascii));
    } else {
      throw Failure("tojson cannot write a value of type " + std::string(value.type_name()));
    }
    runtime_.spend_bytes(out_.size() - size);
  }

  Text take() { return std::move(out_); }

 private:
  void write_list(const List& list) {
    open("[", list.items.empty());
    for (size_t i = 0; i < list.items.size(); ++i) {
      separate(i == 0);
      write(list.items[i]);
    }
    close("]", list.items.empty());
  }

  void write_dict(const Dict& dict) {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
        return compare(a->first, b->first, "<").value_or(0) < 0;
      });
    }
    open("{", entries.empty());
    for (const Dict::Entry* entry : entries) {
      separate(entry == entries.front());
      write_key(entry->first);
      out_.append(style_.key_separator);
      write(entry->second);
    }
    close("}", entries.empty());
  }

  void write_key(const Value& key) {
    if (key.is_text()) return write(key);
    if (key.is_none()) return out_.append("\"null\"");
    if (!key.is_number()) {
      throw Failure("tojson cannot write a key of type " + std::string(key.type_name()));
    }
    out_.append('"' + json_number(key) + '"');
  }

  void open(std::string_view bracket, bool is_empty) {
    out_.append(bracket);
    if (is_empty) return;
    ++level_;
    new_line();
  }
  void separate(bool is_first) {
    if (is_first) return;
    out_.append(style_.item_separator);
    new_line();
  }
  void close(std::string_view bracket, bool is_empty) {
    if (!is_empty) {
      --level_;
      new_line();
    }
    out_.append(bracket);
  }
  void new_line() {
    if (!style_.indent) return;
    runtime_.spend_bytes(style_.indent->size() * level_ + 1);
    out_.append("\n");
    for (size_t i = 0; i < level_; ++i) out_.append(*style_.indent);
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  Text out_;
  size_t level_ = 0;
};

}  // namespace

Text to_repr(Runtime& runtime, const Value& value) {
  Text out;
  repr_into(runtime, value, out);
  return out;
}

Text to_text(Runtime& runtime, const Value& value) {
  if (const Text* text = value.text()) {
    runtime.spend_steps(text->size() / 64);
    return *text;
  }
  if (value.is_undefined()) return {};
  return to_repr(runtime, value);
}

Text to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.write(value);
  return writer.take();
}

}  // namespace faststream::jinja
