#include "cli/batch/batch_line.h"

#include <algorithm>
#include <new>
#include <utility>

#include "api/request_body.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "support/split_mix.h"
#include "support/utf8.h"

namespace faststream::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kUtf16LittleEndian = "\xFF\xFE";
constexpr std::string_view kUtf16BigEndian = "\xFE\xFF";

// Keys of OpenAI's lines, of which the body has the request.
constexpr std::string_view kLineKeys[] = {"custom_id", "method", "url", "body"};

bool is_line_key(std::string_view name) {
  return std::ranges::find(kLineKeys, name) != std::end(kLineKeys);
}

json read_id(const JsonView& value) {
  if (value.value().is_string() || value.value().is_number_integer()) return value.value();
  value.fail("is not a text or a whole number");
}

// Of a key that is beside "custom_id" or "body", where OpenAI's format has none of requests.
[[noreturn]] void refuse_beside_body(std::string_view name, const ordered_json& object) {
  const bool has_custom_id = has_value(object, "custom_id");
  const std::string mixture = in_quotes(name) + " does not go with OpenAI's " +
                              in_quotes(has_custom_id ? "custom_id" : "body") + "; ";
  if (name == "id") {
    throw Error(mixture + (has_custom_id ? "leave one of them out" : "call it \"custom_id\""));
  }
  if (!api::is_of_requests(name)) api::refuse_key(name);
  throw Error(mixture + "put it into \"body\"" +
              (has_value(object, "body") ? "" : ", or call \"custom_id\" \"id\""));
}

// Ours.
void parse_own(const JsonView& options, const ordered_json& object, BatchLine& line) {
  if (const auto id = options.find("id")) line.id = read_id(*id);
  const auto passes_over = [](std::string_view name, const json& value) {
    return name == "id" || (value.is_null() && is_line_key(name));
  };
  api::read_own_request(options, object, passes_over, line);
}

void parse_openai(const JsonView& options, const ordered_json& object, BatchLine& line) {
  if (const auto id = options.find("custom_id")) line.id = read_id(*id);
  for (const auto& [name, value] : object.items()) {
    const bool absent = value.is_null() && (name == "id" || api::is_of_requests(name));
    if (!absent && !is_line_key(name)) refuse_beside_body(name, object);
  }
  if (!options.find("custom_id")) throw Error("\"custom_id\" is missing; give each line one");
  const JsonView body = options.member("body");
  if (!body.value().is_object()) body.fail("is not an object");
  api::read_openai_request(body, object.at("body"), line);
}

// Of a text that begins with "[", which prompts do too: "[INST] ...".
bool is_array_of_json(std::string_view text) {
  const std::string_view inside = without_blanks(text.substr(1));
  return inside.empty() || inside.front() == '{' || inside.front() == '"' || json::accept(text);
}

}  // namespace

std::string_view without_byte_order_mark(std::string_view line, uint64_t number) {
  if (number == 1 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  return line;
}

bool is_blank(std::string_view line) { return without_blanks(line).empty(); }

BatchFormat recognize_batch_format(std::string_view line, std::string_view input) {
  const auto refuse = [input](const std::string& what) { throw Error(std::string(input) + what); };
  if (line.starts_with(kUtf16LittleEndian) || line.starts_with(kUtf16BigEndian) ||
      line.find('\0') != std::string_view::npos) {
    refuse(" is UTF-16, or no text; save it as UTF-8");
  }
  const std::string_view text = without_blanks(line);
  if (text.starts_with('[') && is_array_of_json(text)) {
    refuse(
        " is a JSON array; give JSON lines: one object a line, no brackets or commas around them");
  }
  if (!text.starts_with('{')) return BatchFormat::text;
  constexpr std::string_view kGoesOn = "{[:,";  // no object ends so
  if (kGoesOn.find(text.back()) != std::string_view::npos) {
    refuse(
        " has JSON that does not end with its line; give JSON lines: each object whole in a line");
  }
  return BatchFormat::json;
}

BatchLine parse_batch_line(std::string_view text, uint64_t number, BatchFormat format,
                           const Request& defaults) {
  BatchLine line;
  line.id = number;
  line.error = line_error([&] {
    line.request = defaults;
    line.request.sampling.seed = line_seed(defaults.sampling.seed.value(), number);
    if (format == BatchFormat::text) {
      if (text.ends_with('\r')) text.remove_suffix(1);
      if (!is_valid_utf8(text)) throw Error("the line is not UTF-8 text");
      line.request.prompt = std::string(text);
      return;
    }
    api::RequestObject object(text, "the line", "give one JSON object a line");
    const JsonView view(object.options(), "");
    const bool openai = view.find("custom_id") || view.find("body");
    openai ? parse_openai(view, object.object(), line) : parse_own(view, object.object(), line);
  });
  return line;
}

std::string line_error(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return error.what();
  } catch (const std::bad_alloc&) {
    return "the line needs more memory than there is; make it shorter, or ask for less";
  }
}

uint64_t line_seed(uint64_t run_seed, uint64_t line) { return split_mix(run_seed, line) >> 11; }

}  // namespace faststream::cli
