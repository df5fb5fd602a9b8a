#include "text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include "support/utf8.h"

namespace faststream {
namespace {

utf8proc_category_t category(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_between(uint32_t code, uint32_t first, uint32_t last) {
  return code >= first && code <= last;
}

bool combines(uint32_t code) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class != 0;
}

void append_decomposed(std::vector<utf8proc_int32_t>& codes, uint32_t code,
                       utf8proc_option_t options) {
  constexpr size_t kLongest = 32;  // U+FDFA becomes 18
  std::array<utf8proc_int32_t, kLongest> parts{};
  int last_boundary_class = 0;
  const utf8proc_ssize_t n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts.data(),
                              utf8proc_ssize_t{kLongest}, options, &last_boundary_class);
  if (n < 0 || n > utf8proc_ssize_t{kLongest}) {
    codes.push_back(static_cast<utf8proc_int32_t>(code));
    return;
  }
  codes.insert(codes.end(), parts.begin(), parts.begin() + n);
}

// UAX #15, D109: combining marks after a starter by their class, each class in the order given.
// utf8proc sorts in quadratic time.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto is_mark_code = [](utf8proc_int32_t code) {
    return combines(static_cast<uint32_t>(code));
  };
  for (auto first = codes.begin();;) {
    first = std::find_if(first, codes.end(), is_mark_code);
    if (first == codes.end()) return;
    const auto last = std::find_if_not(first, codes.end(), is_mark_code);
    std::stable_sort(first, last, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return utf8proc_get_property(a)->combining_class < utf8proc_get_property(b)->combining_class;
    });
    first = last;
  }
}

}  // namespace

bool is_ascii(std::string_view text) {
  unsigned char all = 0;
  for (const char c : text) all |= static_cast<unsigned char>(c);
  return all < 0x80;
}

bool is_whitespace(uint32_t code) {
  if (code < 0x80) return code == ' ' || is_between(code, 0x09, 0x0D);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || is_between(code, 0x2000, 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_numeric(uint32_t code) {
  if (code < 0x80) return is_between(code, '0', '9');
  const utf8proc_category_t c = category(code);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(uint32_t code) {
  if (code < 0x80) {
    return is_between(code, '!', '/') || is_between(code, ':', '@') || is_between(code, '[', '`') ||
           is_between(code, '{', '~');
  }
  const utf8proc_category_t c = category(code);
  return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(uint32_t code) {
  const utf8proc_category_t c = category(code);
  return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(uint32_t code) { return category(code) == UTF8PROC_CATEGORY_MN; }

bool is_other(uint32_t code) {
  if (code < 0x80) return code < 0x20 || code == 0x7F;
  const utf8proc_category_t c = category(code);
  return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

bool is_word(uint32_t code) {
  if (code < 0x80) {
    return is_between(code | 0x20U, 'a', 'z') || is_between(code, '0', '9') || code == '_';
  }
  const utf8proc_category_t c = category(code);
  // Of what is alphabetic, letters in circles and squares are symbols.
  return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) || is_mark(code) ||
         c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_PC ||
         code == 0x200C || code == 0x200D || is_between(code, 0x24B6, 0x24E9) ||
         is_between(code, 0x1F130, 0x1F149) || is_between(code, 0x1F150, 0x1F169) ||
         is_between(code, 0x1F170, 0x1F189);
}

void append_lower_case(std::string& text, uint32_t code) {
  if (code == 0x130) {  // the only one whose lower case is two characters (SpecialCasing.txt)
    text += "i\xCC\x87";
    return;
  }
  append_utf8(text, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

std::string normal_form(std::string_view text, NormalForm form) {
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::string result;
  result.reserve(text.size());
  std::vector<utf8proc_int32_t> codes;
  for (size_t at = 0; at < text.size();) {
    // ASCII stays as it is, but its last character can combine with what follows.
    size_t end = at;
    while (end < text.size() && static_cast<unsigned char>(text[end]) < 0x80) ++end;
    const size_t kept = end == text.size() || end == at ? end : end - 1;
    result += text.substr(at, kept - at);
    at = kept;
    if (at == text.size()) break;
    codes.clear();
    do {
      const Character c = character_at(text, at);
      append_decomposed(codes, c.code, options);
      at += c.size;
    } while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80);
    order_marks(codes);
    auto n = static_cast<utf8proc_ssize_t>(codes.size());
    if (compose) {
      n = utf8proc_normalize_utf32(
          codes.data(), n, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      if (n < 0) throw std::bad_alloc();
    }
    for (utf8proc_ssize_t i = 0; i < n; ++i) {
      append_utf8(result, static_cast<uint32_t>(codes[static_cast<size_t>(i)]));
    }
  }
  return result;
}

}  // namespace faststream
