#include "text/jinja/text_methods.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "support/utf8.h"
#include "text/jinja/arguments.h"
#include "text/jinja/characters.h"
#include "text/jinja/failure.h"
#include "text/jinja/methods.h"
#include "text/jinja/text_case.h"

namespace faststream::jinja {
namespace {

std::vector<Text> split_at_spaces(Runtime& runtime, const Text& text, int64_t most,
                                  bool from_right) {
  runtime.spend_steps(text.size() / 8);
  std::vector<Text> parts;
  std::string_view rest = from_right ? strip_right(text.view()) : strip_left(text.view());
  while (!rest.empty()) {
    const bool last = most >= 0 && static_cast<int64_t>(parts.size()) == most;
    if (last) {
      parts.push_back(text.part(rest));
      break;
    }
    if (from_right) {
      size_t begin = rest.size();
      while (begin > 0) {
        const size_t before = start_of_character(rest, begin);
        if (is_space(code_point(rest.substr(before)))) break;
        begin = before;
      }
      parts.push_back(text.part(rest.substr(begin)));
      rest = strip_right(rest.substr(0, begin));
    } else {
      size_t end = 0;
      while (end < rest.size() && !is_space(code_point(rest.substr(end)))) {
        end += character_size(rest.substr(end));
      }
      parts.push_back(text.part(rest.substr(0, end)));
      rest = strip_left(rest.substr(end));
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> split_at(Runtime& runtime, const Text& text, std::string_view separator,
                           int64_t most, bool from_right) {
  if (separator.empty()) throw Failure("a text cannot be split at an empty separator");
  runtime.spend_search(text.size(), separator.size());
  std::vector<Text> parts;
  std::string_view rest = text.view();
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = from_right ? rest.rfind(separator) : rest.find(separator);
    if (at == std::string_view::npos) break;
    runtime.spend_bytes(sizeof(Text));
    const std::string_view before = rest.substr(0, at);
    const std::string_view after = rest.substr(at + separator.size());
    parts.push_back(text.part(from_right ? after : before));
    rest = from_right ? before : after;
  }
  parts.push_back(text.part(rest));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(Runtime& runtime, const Text& text, Arguments arguments, bool from_right) {
  const ArgumentReader given(from_right ? "rsplit" : "split", std::move(arguments),
                             {"sep", "maxsplit"});
  const int64_t most = given.integer(1, -1);
  const std::vector<Text> parts =
      given.get(0).is_none() ? split_at_spaces(runtime, text, most, from_right)
                             : split_at(runtime, text, given.text(0).view(), most, from_right);
  std::vector<Value> items;
  for (const Text& part : parts) items.push_back(runtime.text(part));
  return runtime.list(std::move(items));
}

Value partition(Runtime& runtime, const Text& text, Arguments arguments, bool from_right) {
  const ArgumentReader given("partition", std::move(arguments), {"sep"});
  const std::string& separator = given.text(0).bytes();
  if (separator.empty()) throw Failure("a text cannot be split at an empty separator");
  runtime.spend_search(text.size(), separator.size());
  const size_t at = from_right ? text.view().rfind(separator) : text.view().find(separator);
  if (at == std::string::npos) {
    const Value none = runtime.text("");
    return runtime.tuple(from_right ? std::vector<Value>{none, none, runtime.text(text)}
                                    : std::vector<Value>{runtime.text(text), none, none});
  }
  return runtime.tuple({runtime.text(text.substr(0, at)),
                        runtime.text(text.substr(at, separator.size())),
                        runtime.text(text.substr(at + separator.size()))});
}

// The part of `text` that optional bounds in characters, arguments `first` and after, leave.
std::string_view bounded(Runtime& runtime, const Text& text, const ArgumentReader& given,
                         size_t first) {
  runtime.spend_steps(text.size() / 16);
  if (given.get(first).is_none() && given.get(first + 1).is_none()) return text.view();
  const auto n = static_cast<int64_t>(count_characters(text.view()));
  const auto offset = [&](size_t index, int64_t otherwise) {
    int64_t place = given.get(index).is_none() ? otherwise : given.integer(index);
    if (place < 0) place = std::max<int64_t>(place + n, 0);
    return character_offset(text.view(), static_cast<size_t>(std::min(place, n)));
  };
  const size_t begin = offset(first, 0);
  const size_t end = offset(first + 1, n);
  return text.view().substr(begin, end < begin ? 0 : end - begin);
}

Value has_edge(Runtime& runtime, const Text& text, Arguments arguments, bool at_start) {
  const ArgumentReader given(at_start ? "startswith" : "endswith", std::move(arguments),
                             {"prefix", "start", "end"});
  const std::string_view part = bounded(runtime, text, given, 1);
  const auto fits = [&](const Value& edge) {
    if (!edge.is_text()) throw Failure("startswith and endswith look for a str or a tuple of them");
    return at_start ? part.starts_with(edge.text()->view()) : part.ends_with(edge.text()->view());
  };
  const List* several = given.at(0).list();
  if (several == nullptr || several->type != List::Type::tuple) return Value(fits(given.at(0)));
  return Value(std::any_of(several->items.begin(), several->items.end(), fits));
}

Value find_text(Runtime& runtime, const Text& text, Arguments arguments, bool from_right) {
  const ArgumentReader given("find", std::move(arguments), {"sub", "start", "end"});
  const std::string_view part = bounded(runtime, text, given, 1);
  const std::string_view wanted = given.text(0).view();
  runtime.spend_search(part.size(), wanted.size());
  const size_t at = from_right ? part.rfind(wanted) : part.find(wanted);
  if (at != std::string_view::npos) {
    const auto offset = static_cast<size_t>(part.data() - text.view().data()) + at;
    return Value(static_cast<int64_t>(count_characters(text.view().substr(0, offset))));
  }
  return Value(int64_t{-1});
}

Value count_text(Runtime& runtime, const Text& text, Arguments arguments) {
  const ArgumentReader given("count", std::move(arguments), {"sub", "start", "end"});
  std::string_view part = bounded(runtime, text, given, 1);
  const std::string_view wanted = given.text(0).view();
  if (wanted.empty()) return Value(static_cast<int64_t>(count_characters(part)) + 1);
  runtime.spend_search(part.size(), wanted.size());
  int64_t n = 0;
  for (size_t at = part.find(wanted); at != std::string_view::npos; at = part.find(wanted)) {
    part.remove_prefix(at + wanted.size());
    ++n;
  }
  return Value(n);
}

Value strip_method(Runtime& runtime, const Text& text, Arguments arguments, bool left, bool right) {
  const ArgumentReader given("strip", std::move(arguments), {"chars"});
  const Text* chars = given.get(0).is_none() ? nullptr : &given.text(0);
  runtime.spend_steps(text.size() / 16);
  return runtime.text(strip(text, chars, left, right));
}

Value remove_edge(Runtime& runtime, const Text& text, Arguments arguments, bool at_start) {
  const ArgumentReader given("removeprefix", std::move(arguments), {"prefix"});
  const std::string_view edge = given.text(0).view();
  if (at_start ? !text.view().starts_with(edge) : !text.view().ends_with(edge)) {
    return runtime.text(text);
  }
  return runtime.text(text.substr(at_start ? edge.size() : 0, text.size() - edge.size()));
}

Value replace_method(Runtime& runtime, const Text& text, Arguments arguments) {
  const ArgumentReader given("replace", std::move(arguments), {"old", "new", "count"});
  return replace_text(runtime, text, given.text(0), given.text(1), given.integer(2, -1));
}

Value join_method(Runtime& runtime, const Text& separator, Arguments arguments) {
  const ArgumentReader given("join", std::move(arguments), {"iterable"});
  Text joined;
  bool first = true;
  for (const Value& item : elements(runtime, given.at(0))) {
    if (!item.is_text()) {
      throw Failure("join needs texts, but one element is a " + std::string(item.type_name()));
    }
    runtime.spend_bytes(separator.size() + item.text()->size());
    if (!first) joined.append(separator);
    joined.append(*item.text());
    first = false;
  }
  return runtime.text(std::move(joined));
}

Value lines_method(Runtime& runtime, const Text& text, Arguments arguments) {
  const ArgumentReader given("splitlines", std::move(arguments), {"keepends"});
  std::vector<Value> lines;
  for (Text& line : split_lines(text, given.flag(0, false))) {
    lines.push_back(runtime.text(std::move(line)));
  }
  return runtime.list(std::move(lines));
}

template <Text (*change)(const Text&)>
Value changed(Runtime& runtime, const Text& text, Arguments arguments) {
  const ArgumentReader none("this method", std::move(arguments), {});
  runtime.spend_steps(text.size() / 8);
  return runtime.text(change(text));
}

// Whether there are characters, all of them digits.
Value only_digits(Runtime& runtime, const Text& text, Arguments arguments) {
  const ArgumentReader none("isdigit", std::move(arguments), {});
  runtime.spend_steps(text.size() / 8);
  std::string_view rest = text.view();
  while (!rest.empty() && is_digit(code_point(rest))) rest.remove_prefix(character_size(rest));
  return Value(!text.empty() && rest.empty());
}

}  // namespace

Text map_characters(const Text& text, const std::function<std::string(std::string_view)>& change) {
  Text mapped;
  size_t at = 0;
  const auto map_to = [&](size_t end, Origin origin) {
    std::string changed;
    while (at < end) {
      const size_t size = character_size(text.view().substr(at));
      changed += change(text.view().substr(at, size));
      at += size;
    }
    mapped.append(changed, origin);
  };
  if (text.runs().empty()) map_to(text.size(), kFromTemplate);
  for (const Text::Run& run : text.runs()) map_to(run.end, run.origin);
  return mapped;
}

Text strip(const Text& text, const Text* chars, bool left, bool right) {
  std::string_view rest = text.view();
  if (chars == nullptr) {
    if (left) rest = strip_left(rest);
    if (right) rest = strip_right(rest);
    return text.part(rest);
  }
  const auto in_set = [&](std::string_view character) {
    return chars->view().find(character) != std::string_view::npos;
  };
  while (left && !rest.empty() && in_set(rest.substr(0, character_size(rest)))) {
    rest.remove_prefix(character_size(rest));
  }
  while (right && !rest.empty()) {
    const size_t last = start_of_character(rest, rest.size());
    if (!in_set(rest.substr(last))) break;
    rest.remove_suffix(rest.size() - last);
  }
  return text.part(rest);
}

Text replace(const Text& text, std::string_view old, const Text& with, int64_t most) {
  Text out;
  size_t at = 0;
  for (int64_t n = 0; most < 0 || n < most; ++n) {
    if (old.empty()) {  // before each character, and at the end
      out.append(with);
      if (at == text.size()) return out;
      const size_t size = character_size(text.view().substr(at));
      out.append(text, at, size);
      at += size;
      continue;
    }
    const size_t found = text.view().find(old, at);
    if (found == std::string_view::npos) break;
    out.append(text, at, found - at);
    out.append(with);
    at = found + old.size();
  }
  out.append(text, at, text.size() - at);
  return out;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  constexpr std::array<std::string_view, 11> kEnds = {
      "\r\n", "\n",   "\r",       "\v",           "\f",          "\x1C",
      "\x1D", "\x1E", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"};
  std::vector<Text> lines;
  const std::string_view all = text.view();
  size_t begin = 0;
  for (size_t at = 0; at < all.size();) {
    const auto* const end = std::find_if(kEnds.begin(), kEnds.end(), [&](std::string_view ending) {
      return all.substr(at).starts_with(ending);
    });
    if (end == kEnds.end()) {
      ++at;
      continue;
    }
    lines.push_back(text.substr(begin, at - begin + (keep_ends ? end->size() : 0)));
    begin = at += end->size();
  }
  if (begin < all.size()) lines.push_back(text.substr(begin));
  return lines;
}

Text escape_html(const Text& text) {
  return map_characters(text, [](std::string_view character) -> std::string {
    constexpr std::string_view kMarks = "&<>'\"";
    constexpr std::array<std::string_view, 5> kEscapes = {"&amp;", "&lt;", "&gt;", "&#39;",
                                                          "&#34;"};
    const size_t mark = character.size() == 1 ? kMarks.find(character) : std::string_view::npos;
    return std::string(mark == std::string_view::npos ? character : kEscapes[mark]);
  });
}

Value replace_text(Runtime& runtime, const Text& text, const Text& old, const Text& with,
                   int64_t most) {
  // Each replacement makes the text longer by as much at most.
  runtime.spend_search(text.size(), old.size());
  size_t n = old.empty() ? text.size() + 1 : 0;
  for (size_t at = 0; !old.empty() && (at = text.view().find(old.view(), at)) != std::string::npos;
       at += old.size()) {
    ++n;
  }
  if (most >= 0) n = std::min(n, static_cast<size_t>(most));
  runtime.spend_bytes(n * (with.size() + (with.runs().empty() ? 0 : sizeof(Text::Run))));
  return runtime.text(replace(text, old.view(), with, most));
}

TextMethod find_text_method(std::string_view name) {
  static const std::unordered_map<std::string_view, TextMethod> known_methods = {
      {"capitalize", &changed<&capitalize>},
      {"count", &count_text},
      {"endswith",
       [](Runtime& r, const Text& t, Arguments a) { return has_edge(r, t, std::move(a), false); }},
      {"find",
       [](Runtime& r, const Text& t, Arguments a) { return find_text(r, t, std::move(a), false); }},
      {"format",
       [](Runtime& r, const Text& t, Arguments a) { return r.text(format_braces(r, t, a)); }},
      {"isdigit", &only_digits},
      {"join", &join_method},
      {"lower", &changed<&lower>},
      {"lstrip", [](Runtime& r, const Text& t,
                    Arguments a) { return strip_method(r, t, std::move(a), true, false); }},
      {"partition",
       [](Runtime& r, const Text& t, Arguments a) { return partition(r, t, std::move(a), false); }},
      {"removeprefix", [](Runtime& r, const Text& t,
                          Arguments a) { return remove_edge(r, t, std::move(a), true); }},
      {"removesuffix", [](Runtime& r, const Text& t,
                          Arguments a) { return remove_edge(r, t, std::move(a), false); }},
      {"replace", &replace_method},
      {"rfind",
       [](Runtime& r, const Text& t, Arguments a) { return find_text(r, t, std::move(a), true); }},
      {"rpartition",
       [](Runtime& r, const Text& t, Arguments a) { return partition(r, t, std::move(a), true); }},
      {"rsplit",
       [](Runtime& r, const Text& t, Arguments a) { return split(r, t, std::move(a), true); }},
      {"rstrip", [](Runtime& r, const Text& t,
                    Arguments a) { return strip_method(r, t, std::move(a), false, true); }},
      {"split",
       [](Runtime& r, const Text& t, Arguments a) { return split(r, t, std::move(a), false); }},
      {"splitlines", &lines_method},
      {"startswith",
       [](Runtime& r, const Text& t, Arguments a) { return has_edge(r, t, std::move(a), true); }},
      {"strip", [](Runtime& r, const Text& t,
                   Arguments a) { return strip_method(r, t, std::move(a), true, true); }},
      {"title", &changed<&title>},
      {"upper", &changed<&upper>}};
  const auto found = known_methods.find(name);
  return found == known_methods.end() ? nullptr : found->second;
}

}  // namespace faststream::jinja
