#include "text/rules/json_formats.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "text/rules/regex.h"

namespace faststream::rules {
namespace {

using Text = std::string;

Text two_digits(int number) {
  const Text digits = std::to_string(number);
  return digits.size() == 1 ? "0" + digits : digits;
}

// Of dates and times: RFC 3339; durations: its appendix A.
Text date() {
  return "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
         "02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|"
         "([02468][048]|[13579][26])00)-02-29)";
}

// A leap second is the last one of a day in UTC. Of offsets those of whole and half hours are told.
Text leap_second() {
  const Text fraction = ":60(\\.[0-9]+)?";
  Text times = "23:59" + fraction + "[Zz]";
  for (int hour = 0; hour < 24; ++hour) {
    const Text before = two_digits(23 - hour);
    times += "|" + two_digits(hour) + ":29" + fraction + "(\\+" + two_digits(hour) + ":30|-" +
             before + ":30)";
    times += "|" + two_digits(hour) + ":59" + fraction + "(\\+" + two_digits((hour + 1) % 24) +
             ":00|-" + before + ":00)";
  }
  return times;
}
Text time() {
  return "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?"
         "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])|" +
         leap_second() + ")";
}
Text duration() {
  const Text seconds = "[0-9]+S";
  const Text minutes = "[0-9]+M(" + seconds + ")?";
  const Text of_day = "T([0-9]+H(" + minutes + ")?|" + minutes + "|" + seconds + ")";
  const Text months = "[0-9]+M([0-9]+D)?";
  return "P([0-9]+W|([0-9]+Y(" + months + ")?|" + months + "|[0-9]+D)(" + of_day + ")?|" + of_day +
         ")";
}

// RFC 1123, 2673 and 4291.
Text hostname() {
  const Text label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return label + "(\\." + label + ")*";
}
Text ipv4() {
  const Text byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  return byte + "(\\." + byte + "){3}";
}
Text ipv6() {
  const Text group = "[0-9A-Fa-f]{1,4}";
  const auto up_to = [](int n) { return "{0," + std::to_string(n) + "}"; };
  Text all = "(" + group + ":){7}" + group + "|(" + group + ":){6}" + ipv4();
  all += "|::(" + group + "(:" + group + ")" + up_to(6) + ")?";
  all += "|::(" + group + ":)" + up_to(5) + ipv4();
  for (int n = 1; n < 7; ++n) {  // groups before the gap
    const Text before = group + "(:" + group + "){" + std::to_string(n - 1) + "}::";
    all += "|" + before + "(" + group + "(:" + group + ")" + up_to(6 - n) + ")?";
    if (n < 6) all += "|" + before + "(" + group + ":)" + up_to(5 - n) + ipv4();
  }
  return all + "|" + group + "(:" + group + "){6}::";
}

// RFC 5321; of literal addresses those of its section 4.1.3 that are no tags of others.
Text email() {
  const Text atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  const Text quoted = R"re("([ !#-\[\]-~]|\\[ -~])*")re";
  return "(" + atom + "(\\." + atom + ")*|" + quoted + ")@(" + hostname() + "|\\[(" + ipv4() +
         "|IPv6:(" + ipv6() + "))\\])";
}

// RFC 3986 and, with characters beyond ASCII, 3987.
struct Uris {
  Text name;      // of characters that names have
  Text in_query;  // besides
  explicit Uris(bool international)
      : name("A-Za-z0-9._~!$&'()*+,;="), in_query(international ? Text("\\uE000-\\uF8FF") : "") {
    if (!international) return;
    name += "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF";
    for (const char plane : Text("123456789ABCDE")) {
      const Text start = "\\u{" + Text(1, plane);
      name += start + (plane == 'E' ? "1000}-" : "0000}-") + start + "FFFD}";
    }
    in_query += "\\u{F0000}-\\u{FFFFD}\\u{100000}-\\u{10FFFD}";
  }
  [[nodiscard]] Text some(const Text& besides) const {
    return "(?:[" + name + besides + "-]|%[0-9A-Fa-f]{2})";
  }
  [[nodiscard]] Text segments() const { return "(/" + some(":@") + "*)*"; }
  [[nodiscard]] Text with_authority() const {
    return "//(" + some(":") + "*@)?(" + some("") + "*|\\[(" + ipv6() + ")\\])(:[0-9]*)?" +
           segments();
  }
  [[nodiscard]] Text tail() const {
    return "(\\?" + some(":@/?" + in_query) + "*)?(#" + some(":@/?") + "*)?";
  }
  [[nodiscard]] Text absolute_path() const { return "/(" + some(":@") + "+" + segments() + ")?"; }
  [[nodiscard]] Text whole() const {
    return "[A-Za-z][A-Za-z0-9+.-]*:(" + with_authority() + "|" + absolute_path() + "|" +
           some(":@") + "+" + segments() + ")?" + tail();
  }
  [[nodiscard]] Text relative() const {
    return "(" + with_authority() + "|" + absolute_path() + "|" + some("@") + "+" + segments() +
           ")?" + tail();
  }
  [[nodiscard]] Text reference() const { return "(" + whole() + "|" + relative() + ")"; }
};

// RFC 6570.
Text uri_template() {
  const Text character = "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})";
  const Text variable = character + "(\\.?" + character + ")*(:[1-9][0-9]{0,3}|\\*)?";
  const Text text =
      R"re((?:[!#$&(-;=?-\[\]_a-z~\u00A0-\uD7FF\uE000-\uFDCF\uFDF0-\uFFEF]|%[0-9A-Fa-f]{2}))re";
  return "(" + text + "|\\{[+#./;?&=,!@|]?" + variable + "(," + variable + ")*\\})*";
}

std::map<Text, Text, std::less<>> make_formats() {
  const Uris uris(false);
  const Uris iris(true);
  const Text pointer = "(/([^~/]|~[01])*)*";  // RFC 6901
  const Text base64 = "[A-Za-z0-9+/]";        // RFC 4648
  return {
      {"byte", "(" + base64 + "{4})*(" + base64 + "{2}==|" + base64 + "{3}=)?"},
      {"date", date()},
      {"date-time", date() + "[Tt]" + time()},
      {"duration", duration()},
      {"email", email()},
      {"host-name", hostname()},
      {"hostname", hostname()},
      {"ip-address", ipv4()},
      {"ipv4", ipv4()},
      {"ipv6", ipv6()},
      {"iri", iris.whole()},
      {"iri-reference", iris.reference()},
      {"json-pointer", pointer},
      {"relative-json-pointer", "(0|[1-9][0-9]*)(#|" + pointer + ")"},
      {"time", time()},
      {"uri", uris.whole()},
      {"uri-reference", uris.reference()},
      {"uri-template", uri_template()},
      {"url", uris.whole()},
      {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
  };
}

}  // namespace

bool is_silent_format(std::string_view format) {
  constexpr std::string_view kSilent[] = {"binary", "commonmark", "html", "password"};
  return std::ranges::find(kSilent, format) != std::end(kSilent);
}

const Dfa* format_dfa(std::string_view format) {
  static std::mutex mutex;
  static const auto formats = make_formats();
  static std::map<Text, Dfa, std::less<>> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(format);
  if (found != known.end()) return &found->second;
  const auto pattern = formats.find(format);
  const bool is_silent = is_silent_format(format);
  if (pattern == formats.end() && !is_silent) return nullptr;
  WorkBudget budget;
  CharacterClasses classes(budget);
  Dfa dfa(
      is_silent ? repeat(any_character(), 0, kUnbounded) : parse_regex(pattern->second, classes),
      budget);
  return &known.emplace(format, std::move(dfa)).first->second;
}

}  // namespace faststream::rules
