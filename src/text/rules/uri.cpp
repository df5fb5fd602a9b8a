#include "text/rules/uri.h"

#include <algorithm>
#include <cctype>
#include <optional>

namespace faststream::rules {
namespace {

// The parts of a URI without fragment, each with the marks that belong to it (appendix B).
struct Uri {
  std::string_view scheme;                    // with its colon
  std::optional<std::string_view> authority;  // with its slashes
  std::string_view path;
  std::optional<std::string_view> query;  // with its question mark

  explicit Uri(std::string_view text) {
    const size_t colon = text.find_first_of(":/?");
    if (colon != std::string_view::npos && colon > 0 && text[colon] == ':') {
      scheme = text.substr(0, colon + 1);
      text.remove_prefix(colon + 1);
    }
    if (text.starts_with("//")) {
      const size_t end = std::min(text.find_first_of("/?", 2), text.size());
      authority = text.substr(0, end);
      text.remove_prefix(end);
    }
    const size_t mark = text.find('?');
    path = text.substr(0, mark);
    if (mark != std::string_view::npos) query = text.substr(mark);
  }
};

// Section 5.2.4.
std::string without_dots(std::string_view path) {
  std::string result;
  while (!path.empty()) {
    if (path.starts_with("../")) {
      path.remove_prefix(3);
    } else if (path.starts_with("./") || path.starts_with("/./")) {
      path.remove_prefix(2);
    } else if (path == "/.") {
      path = "/";
    } else if (path.starts_with("/../") || path == "/..") {
      path = path == "/.." ? "/" : path.substr(3);
      result.erase(std::min(result.rfind('/'), result.size()));
    } else if (path == "." || path == "..") {
      path = {};
    } else {
      const size_t end = std::min(path.find('/', 1), path.size());
      result += path.substr(0, end);
      path.remove_prefix(end);
    }
  }
  return result;
}

}  // namespace

std::string resolve_uri(std::string_view base, std::string_view reference) {
  const Uri from(base);
  const Uri to(reference);
  std::string result(to.scheme.empty() ? from.scheme : to.scheme);
  const bool has_authority = !to.scheme.empty() || to.authority.has_value();
  const auto authority = has_authority ? to.authority : from.authority;
  result += authority.value_or("");
  if (has_authority || to.path.starts_with('/')) {
    result += without_dots(to.path);
  } else if (to.path.empty()) {
    result += from.path;
    return result.append(to.query ? *to.query : from.query.value_or(""));
  } else if (from.authority && from.path.empty()) {
    result += without_dots("/" + std::string(to.path));
  } else {
    const std::string_view folder = from.path.substr(0, from.path.rfind('/') + 1);
    result += without_dots(std::string(folder) + std::string(to.path));
  }
  return result.append(to.query.value_or(""));
}

std::string decode_percent(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_hex = [&](size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] == '%' && is_hex(i + 1) && is_hex(i + 2)) {
      decoded += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace faststream::rules
