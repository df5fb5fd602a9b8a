// "{} of {name}".format(...)
#include <algorithm>
#include <charconv>

#include "support/printable.h"
#include "text/jinja/failure.h"
#include "text/jinja/library.h"

namespace faststream::jinja {
namespace {

// What "{}", "{0}" or "{name}" stands for.
const Value& find_field(std::string_view field, const Arguments& arguments, size_t& next) {
  if (field.find_first_of(".[!:{") != std::string_view::npos) {
    throw Failure("the format {" + printable(field) +
                  "} is more than a number or a name, which is not supported");
  }
  size_t index = next;
  const auto number = std::from_chars(field.data(), field.data() + field.size(), index);
  if (field.empty() || number.ptr == field.data() + field.size()) {
    if (field.empty()) ++next;
    if (number.ec != std::errc::result_out_of_range && index < arguments.positional.size()) {
      return arguments.positional[index];
    }
    throw Failure("a format needs more values than it is given");
  }
  const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                  [&](const auto& named) { return named.first == field; });
  if (found == arguments.named.end()) {
    throw Failure("a format's " + in_quotes(field) + " is not given");
  }
  return found->second;
}

}  // namespace

Text format_braces(Runtime& runtime, const Text& format, const Arguments& arguments) {
  Text out;
  size_t next = 0;
  std::string_view rest = format.view();
  while (!rest.empty()) {
    const size_t at = std::min(rest.find_first_of("{}"), rest.size());
    out.append(format.part(rest.substr(0, at)));
    rest.remove_prefix(at);
    if (rest.empty()) break;
    if (rest.size() > 1 && rest[1] == rest[0]) {
      out.append(format.part(rest.substr(0, 1)));
      rest.remove_prefix(2);
      continue;
    }
    const size_t end = rest.find('}');
    if (rest[0] == '}' || end == std::string_view::npos) {
      throw Failure("a format has a single brace");
    }
    runtime.spend_steps(1 + arguments.named.size() / 16);
    const Text value = to_text(runtime, find_field(rest.substr(1, end - 1), arguments, next));
    runtime.spend_bytes(value.size());
    out.append(value);
    rest.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace faststream::jinja
