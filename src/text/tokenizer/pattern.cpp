#include "text/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/printable.h"
#include "support/releaser.h"
#include "text/tokenizer/unicode.h"

namespace faststream {
namespace {

constexpr size_t kMatchLimit = 1'000'000;  // backtracking steps of a match at most
constexpr size_t kStepsPerByte = 16;       // and more of them
// A step may look at all of the text, without being counted again: so a call of PCRE2, which
// nothing interrupts, has few steps and few places to begin at, unless it is known to need more.
constexpr size_t kFewSteps = 64;
constexpr size_t kMostWork = size_t{1} << 30;          // bytes that a call looks at, some 0.2 s
constexpr size_t kWorkOfCall = size_t{1} << 15;        // as a budget counts it
constexpr uint32_t kHeapLimit = 64 << 10;              // KiB, where there is no JIT
constexpr size_t kJitStack = size_t{16} << 20;         // bytes
constexpr size_t kLongestPattern = size_t{256} << 10;  // bytes

using CodePointer = std::unique_ptr<pcre2_code, Releaser<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Releaser<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Releaser<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Releaser<pcre2_jit_stack_free>>;

/// What matching needs besides the pattern; one for a thread, whatever the pattern.
struct Matcher {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack{pcre2_jit_stack_create(size_t{32} << 10, kJitStack, nullptr)};

  Matcher() {
    if (!data || !context || !stack) throw std::bad_alloc();
    pcre2_set_heap_limit(context.get(), kHeapLimit);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// What a match calls in each pass of a group that is repeated: such passes are not all steps.
struct Passes {
  TokenizerBudget& budget;
  size_t bytes;  // that each counts as: of a long text it may look at many
  std::exception_ptr refusal = {};

  static int count(pcre2_callout_block* /*block*/, void* data) {
    auto& passes = *static_cast<Passes*>(data);
    try {
      passes.budget.take(passes.bytes);
      return 0;
    } catch (...) {  // which must not go through PCRE2
      passes.refusal = std::current_exception();
      return PCRE2_ERROR_CALLOUT;
    }
  }
};
constexpr std::string_view kPass = "(?C1)";

// Where the first character at or after a byte begins.
size_t character_begin(std::string_view text, size_t at) {
  while (at < text.size() && (text[at] & 0xC0) == 0x80) ++at;
  return at;
}

}  // namespace

struct Pattern::Code {
  CodePointer pcre2;
  bool jit = false;
};

Pattern::Pattern(std::string_view oniguruma, std::string_view where) {
  const std::string text = pcre2_from_oniguruma(oniguruma, where);
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_compile_context, Releaser<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  CodePointer compiled(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK |
                                         PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
                                     &error, &at, context.get()));
  if (!compiled) {
    throw Error(std::string(where) + ": the pattern " + in_quotes(oniguruma) +
                " cannot be used: " + message_of(error));
  }
  const bool jit = pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE) == 0;
  code_ = std::make_shared<const Code>(Code{.pcre2 = std::move(compiled), .jit = jit});
}

void Pattern::find_all(std::string_view text, TokenizerBudget& budget,
                       const OnMatch& on_match) const {
  thread_local const Matcher matcher;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(matcher.data.get());
  size_t from = 0;
  const size_t most_steps = kMatchLimit + std::min<size_t>(kStepsPerByte * text.size(), 1U << 30);
  size_t n_steps = kFewSteps;
  Passes passes{.budget = budget, .bytes = text.size() / 64};
  const auto match = [&](size_t last_begin) {  // `on_match` may use the context meanwhile
    pcre2_set_callout(matcher.context.get(), Passes::count, &passes);
    pcre2_set_match_limit(matcher.context.get(), static_cast<uint32_t>(n_steps));
    pcre2_set_offset_limit(matcher.context.get(), last_begin);
    return code_->jit ? pcre2_jit_match(code_->pcre2.get(), subject, text.size(), from, 0,
                                        matcher.data.get(), matcher.context.get())
                      : pcre2_match(code_->pcre2.get(), subject, text.size(), from,
                                    PCRE2_NO_UTF_CHECK, matcher.data.get(), matcher.context.get());
  };
  size_t last_end = std::string_view::npos;
  while (from <= text.size()) {
    budget.spend();
    const size_t n_begins = std::max<size_t>(1, kMostWork / n_steps / (text.size() + 1));
    const int found = match(from + n_begins - 1);
    if (found == PCRE2_ERROR_MATCHLIMIT && n_steps < most_steps) {  // a run of spaces, for one
      budget.look();
      n_steps = std::min(2 * n_steps, most_steps);
      continue;
    }
    n_steps = kFewSteps;
    if (passes.refusal) std::rethrow_exception(passes.refusal);
    if (found == PCRE2_ERROR_NOMATCH) {
      if (text.size() - from < n_begins) return;
      budget.take(kWorkOfCall);
      from = character_begin(text, from + n_begins);
      continue;
    }
    if (found < 0) {
      throw Error("the tokenizer's pattern takes too long on this text (" + message_of(found) +
                  "); shorten the text");
    }
    const size_t begin = range[0];
    const size_t end = range[1];
    if (begin == end && end == last_end) {  // no empty match right after another
      if (from == text.size()) return;
      from += character_at(text, from).size;
      continue;
    }
    from = last_end = end;
    on_match(begin, end);
  }
}

namespace {

/// Walks an Oniguruma pattern and writes PCRE2's.
class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string translate() {
    if (in_.size() > kLongestPattern) refuse("more than 256 kB");
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  // Inside of a class; \w of Oniguruma also has marks, \s not U+180E.
  static constexpr std::string_view kSpace =
      R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  static constexpr std::string_view kNoSpace =
      R"(\x{0}-\x{8}\x{E}-\x{1F}!-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
  static constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
  static constexpr std::string_view kHex = "0-9A-Fa-f";
  static constexpr std::string_view kAny = R"([\x{0}-\x{10FFFF}])";

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(where_ + ": the pattern " + in_quotes(in_) + " has " + what +
                ", which is not supported");
  }

  [[nodiscard]] bool looking_at(std::string_view text) const {
    return in_.substr(at_).starts_with(text);
  }
  char next() {
    if (at_ == in_.size()) refuse("no end");
    return in_[at_++];
  }

  void step() {
    const char c = in_[at_];
    if (c == '(') return open_group();
    if (c == ')') {
      ++at_;
      out_ += ')';
      atom_ = {};
      if (!groups_.empty()) {
        atom_ = groups_.back();
        groups_.pop_back();
      }
      return;
    }
    if (c == '{' && interval()) return;
    if (c == '*' || c == '+') count_passes();
    if (c == '*' || c == '+' || c == '?') {  // with ? or + after it as in PCRE2
      out_ += c;
      ++at_;
      if (looking_at("?") || looking_at("+")) out_ += in_[at_++];
      return;
    }
    if (c == '|') {
      out_ += c;
      ++at_;
      return;
    }
    atom_ = {.begin = out_.size()};
    if (c == '[') {
      ++at_;
      out_ += char_class(0);
    } else if (c == '\\') {
      ++at_;
      escape();
    } else if (c == '$') {  // Oniguruma: not after a newline that ends the text
      ++at_;
      out_ += R"((?:(?=\n)|(?<!\n)\z))";
    } else {
      out_ += c;
      ++at_;
    }
  }

  // Of what is repeated, if that is a group.
  void count_passes() {
    if (atom_.body == 0) return;
    out_.insert(atom_.body, kPass);
    atom_.body = 0;
  }

  void open_group() {
    groups_.push_back({.begin = out_.size()});
    begin_group();
    if (!groups_.empty()) groups_.back().body = out_.size();
  }

  void begin_group() {
    ++at_;
    out_ += '(';
    if (!looking_at("?")) {
      if (looking_at("*")) refuse("a verb or callout");
      return;
    }
    for (const std::string_view plain : {"?:", "?=", "?!", "?>", "?<=", "?<!"}) {
      if (!looking_at(plain)) continue;
      out_ += plain;
      at_ += plain.size();
      return;
    }
    if (looking_at("?<")) {  // a name
      const size_t end = in_.find('>', at_);
      if (end == std::string_view::npos) refuse("a group without an end");
      out_ += in_.substr(at_, end + 1 - at_);
      at_ = end + 1;
      return;
    }
    out_ += '?';
    ++at_;
    for (char c = next(); c != ':'; c = next()) {
      if (c == ')' && groups_.size() == 1 &&
          groups_.front().begin == 0) {  // for all of the pattern
        groups_.pop_back();
        out_ += ')';
        return;
      }
      if (c != 'i' && c != 'm' && c != '-') refuse("options other than (?i) and (?m:)");
      out_ += c == 'm' ? 's' : c;  // Ruby's m lets . match newlines
    }
    out_ += ':';
  }

  // {n}, {n,m}, {,m}; a + after it repeats the whole, and is not possessive.
  bool interval() {
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) return false;
    std::string_view bounds = in_.substr(at_ + 1, end - at_ - 1);
    if (bounds.empty() || bounds == "," ||
        bounds.find_first_not_of("0123456789,") != std::string_view::npos) {
      return false;
    }
    count_passes();
    out_ += bounds.front() == ',' ? "{0" : "{";
    out_ += bounds;
    out_ += '}';
    at_ = end + 1;
    if (looking_at("+")) {
      out_.insert(atom_.begin, "(?:");
      out_ += ")+";
      ++at_;
    } else if (looking_at("?")) {
      if (bounds.find(',') == std::string_view::npos) refuse("a lazy {n}?");
      out_ += '?';
      ++at_;
    }
    return true;
  }

  static std::string in_class(std::string_view members) { return "[" + std::string(members) + "]"; }
  static std::string not_in_class(std::string_view members) {
    return "[^" + std::string(members) + "]";
  }

  void escape() {
    const char c = next();
    switch (c) {
      case 's':
        out_ += in_class(kSpace);
        return;
      case 'S':
        out_ += not_in_class(kSpace);
        return;
      case 'w':
        out_ += in_class(kWord);
        return;
      case 'W':
        out_ += not_in_class(kWord);
        return;
      case 'h':
        out_ += in_class(kHex);
        return;
      case 'H':
        out_ += not_in_class(kHex);
        return;
      case 'b':
      case 'B': {
        const std::string word = in_class(kWord);
        out_ += c == 'b'
                    ? "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))"
                    : "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
        return;
      }
      case 'A':
      case 'z':
      case 'Z':
      case 'd':
      case 'D':
      case 'R':
      case 'X':
        out_ += '\\';
        out_ += c;
        return;
      default:
        if (c >= '1' && c <= '9') {
          out_ += '\\';
          out_ += c;
          return;
        }
        out_ += literal(c);
    }
  }

  // An escape that stands for the same in and outside of a class; `c` is what follows the \.
  std::string literal(char c) {
    const auto hex = [&](size_t digits) {
      const std::string_view number = in_.substr(at_, digits);
      if (number.size() != digits ||
          number.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
        refuse(std::string("\\") + c + " without its number");
      }
      at_ += digits;
      return R"(\x{)" + std::string(number) + "}";
    };
    switch (c) {
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        return std::string("\\") + c;
      case 'v':
        return R"(\x{B})";
      case 'u':
        return hex(4);
      case 'x':
        if (!looking_at("{")) {
          std::string one = hex(2);
          if (one[3] >= '8') refuse("a byte that is no character");
          return one;
        }
        [[fallthrough]];
      case 'p':
      case 'P': {
        const size_t end = in_.find('}', at_);
        if (!looking_at("{") || end == std::string_view::npos) {
          refuse(std::string("\\") + c + " without its {}");
        }
        const std::string body(in_.substr(at_, end + 1 - at_));
        at_ = end + 1;
        return std::string("\\") + c + body;
      }
      default:
        break;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) return std::string(1, c);  // the first byte of a character
    if (is_word(byte)) refuse(std::string("\\") + c);
    return std::string("\\") + c;
  }

  // After the [. What is returned matches one character.
  std::string char_class(int depth) {
    constexpr int kDeepest = 16;
    if (depth > kDeepest) refuse("classes nested deep");
    const bool negated = looking_at("^");
    if (negated) ++at_;
    std::string all;      // the parts between && so far
    std::string members;  // of this part
    std::string nested;   // classes in this part, as alternatives
    bool first = true;
    const auto part = [&] {
      std::string set = members.empty() ? "" : in_class(members);
      if (!nested.empty()) set = "(?:" + set + (set.empty() ? "" : "|") + nested + ")";
      if (set.empty()) refuse("an empty class");
      members.clear();
      nested.clear();
      return set;
    };
    for (;; first = false) {
      const char c = next();
      if (c == ']' && !first) break;
      if (c == '[' && looking_at(":")) {
        const size_t end = in_.find(":]", at_);
        if (end == std::string_view::npos) refuse("a [: without its :]");
        members += in_.substr(at_ - 1, end + 3 - at_);
        at_ = end + 2;
      } else if (c == '[') {
        nested += (nested.empty() ? "" : "|") + char_class(depth + 1);
      } else if (c == '&' && looking_at("&")) {
        ++at_;
        all += "(?=" + part() + ")";
      } else if (c == '\\' && (looking_at("W") || looking_at("H"))) {
        nested += (nested.empty() ? "" : "|") + not_in_class(next() == 'W' ? kWord : kHex);
      } else if (c == '\\') {
        members += class_escape();
      } else if (c == ']') {
        members += "\\]";
      } else {
        members += c;
      }
    }
    const bool plain = all.empty() && nested.empty();
    if (plain && negated && !members.empty()) return not_in_class(members);
    const std::string set = all + part();
    if (negated) return "(?:(?!" + set + ")" + std::string(kAny) + ")";
    return plain ? set : "(?:" + set + ")";
  }

  std::string class_escape() {
    const char c = next();
    switch (c) {
      case 's':
        return std::string(kSpace);
      case 'S':
        return std::string(kNoSpace);
      case 'w':
        return std::string(kWord);
      case 'h':
        return std::string(kHex);
      case 'd':
      case 'D':
        return std::string("\\") + c;
      case 'b':
        return R"(\x{8})";
      default:
        return literal(c);
    }
  }

  std::string_view in_;
  std::string where_;
  size_t at_ = 0;
  std::string out_;
  // What can be repeated: where it begins in out_, and of a group what is in it; else 0.
  struct Atom {
    size_t begin = 0;
    size_t body = 0;
  };
  Atom atom_;                 // the last one
  std::vector<Atom> groups_;  // the open ones
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view oniguruma, std::string_view where) {
  return Translator(oniguruma, where).translate();
}

}  // namespace faststream
