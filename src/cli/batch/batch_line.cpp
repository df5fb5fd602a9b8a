#include "cli/batch/batch_line.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "cli/conversation.h"
#include "engine/request_settings.h"
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

bool given(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

// Makes `to`, which is null, the same value in the other kind of JSON. Texts are moved, not copied.
void move_into(ordered_json& from, json& to) {
  if (auto* text = from.get_ptr<std::string*>()) {
    to = std::move(*text);
  } else if (auto* elements = from.get_ptr<ordered_json::array_t*>()) {
    to = json::array();
    for (ordered_json& element : *elements) {
      move_into(element, to.get_ref<json::array_t&>().emplace_back());
    }
  } else if (auto* members = from.get_ptr<ordered_json::object_t*>()) {
    to = json::object();
    for (auto& [name, member] : *members) move_into(member, to[name]);
  } else {
    to = from;
  }
}

// Makes `options` the members of a line that are no conversation's, which are looked for by name.
// Chat templates see the others in the order in which they are written.
void move_options(ordered_json& object, json& options) {
  options = json::object();
  for (auto& [name, value] : object.get_ref<ordered_json::object_t&>()) {
    if (name == "body" && value.is_object()) {
      move_options(value, options[name]);
    } else if (!is_conversation_member(name)) {
      move_into(value, options[name]);
    }
  }
}

// Values of keys. ---------------------------------------------------------------------------------

std::vector<int32_t> token_ids(const JsonView& value) {
  return value.integers<int32_t>(0, std::numeric_limits<int32_t>::max());
}

Prompt prompt(const JsonView& value) {
  if (value.value().is_string()) return value.as<std::string>();
  if (!value.value().is_array()) value.fail("is not a text or a list of token ids");
  return token_ids(value);
}

std::vector<std::string> texts(const JsonView& value) {
  if (value.value().is_string()) return {value.as<std::string>()};
  if (!value.value().is_array()) value.fail("is not a text or a list of texts");
  std::vector<std::string> all;
  for (const JsonView& text : value.elements()) all.push_back(text.as<std::string>());
  return all;
}

// {"TOKEN": BIAS, ...}
std::vector<LogitBias> logit_biases(const JsonView& value) {
  if (!value.value().is_object()) value.fail("is not an object of token ids and biases");
  std::vector<LogitBias> biases;
  for (const auto& [key, ignored] : value.value().items()) {
    LogitBias entry;
    const char* end = key.data() + key.size();
    const auto [stop, status] = std::from_chars(key.data(), end, entry.token);
    if (status != std::errc() || stop != end) {
      value.fail("has the key " + in_quotes(key) + ", which is no token id");
    }
    entry.bias = value.get<float>(key);
    biases.push_back(entry);
  }
  return biases;
}

// Keys. -------------------------------------------------------------------------------------------

struct Key {
  std::string_view name;
  void (*set)(const JsonView& value, Request& request);
};

// Of both formats, besides those of request_settings().
constexpr Key kKeys[] = {
    {"prompt", [](const JsonView& v, Request& r) { r.prompt = prompt(v); }},
    {"logit_bias", [](const JsonView& v, Request& r) { r.sampling.logit_bias = logit_biases(v); }},
    {"stop", [](const JsonView& v, Request& r) { r.stop = texts(v); }},
    {"stop_tokens", [](const JsonView& v, Request& r) { r.stop_tokens = token_ids(v); }},
    {"ignore_eos", [](const JsonView& v, Request& r) { r.ignore_eos = v.as<bool>(); }},
    {"special", [](const JsonView& v, Request& r) { r.show_special = v.as<bool>(); }},
    {"parse_special", [](const JsonView& v, Request& r) { r.parse_special = v.as<bool>(); }},
    {"source_lang", [](const JsonView& v, Request& r) { r.source_language = v.as<std::string>(); }},
    {"target_lang", [](const JsonView& v, Request& r) { r.target_language = v.as<std::string>(); }},
};

// Of OpenAI's bodies alone. "logprobs" is true or false for chats; top_logprobs says how many.
constexpr Key kOpenAiKeys[] = {
    {"max_completion_tokens",
     [](const JsonView& v, Request& r) { find_request_setting("max_tokens")->read(v, r); }},
    {"logprobs",
     [](const JsonView& v, Request& r) {
       if (!v.value().is_boolean()) {
         find_request_setting("logprobs")->read(v, r);
       } else {
         r.logprobs = v.as<bool>() ? 0 : -1;
       }
     }},
    {"top_logprobs",
     [](const JsonView& v, Request& r) {
       if (r.logprobs >= 0) find_request_setting("logprobs")->read(v, r);
     }},
};

// Keys of OpenAI's bodies that ask for what there is not, and the values with which they do not.
struct UnsupportedKey {
  std::string_view name;
  std::vector<json> harmless;
};
const std::vector<UnsupportedKey>& unsupported_keys() {
  static const std::vector<UnsupportedKey> keys = {
      {"echo", {false}},
      {"suffix", {""}},
      {"response_format", {json::object({{"type", "text"}})}},
      {"modalities", {json::array({"text"})}},
      {"audio", {}},
      {"tool_choice", {"none", "auto"}},
      {"parallel_tool_calls", {true, false}},
      {"functions", {json::array()}},
      {"function_call", {"none", "auto"}},
  };
  return keys;
}

const UnsupportedKey* find_unsupported(std::string_view name) {
  const auto found = std::ranges::find(unsupported_keys(), name, &UnsupportedKey::name);
  return found == unsupported_keys().end() ? nullptr : &*found;
}

// Keys of OpenAI's bodies that do not change a batch's answer.
constexpr std::string_view kIgnoredKeys[] = {"model",
                                             "user",
                                             "metadata",
                                             "store",
                                             "service_tier",
                                             "safety_identifier",
                                             "prompt_cache_key",
                                             "stream",
                                             "stream_options",
                                             "prediction"};

// Those that would with OpenAI's models.
constexpr std::string_view kIdleKeys[] = {"reasoning_effort", "verbosity"};

// Keys of OpenAI's lines, of which the body has the request.
constexpr std::string_view kLineKeys[] = {"custom_id", "method", "url", "body"};

bool is_among(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

const Key* find_key(std::span<const Key> keys, std::string_view name) {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_key(std::string_view name) {
  throw Error("unknown key " + in_quotes(name) + "; correct it or leave it out");
}

// Whether a member is there and says something.
bool says(const ordered_json& object, const char* key) {
  return given(object, key) && !object.at(key).empty();
}

void check_prompt(const json& options, const ordered_json& object, BatchLine& line) {
  const bool has_prompt = options.contains("prompt") && !options.at("prompt").is_null();
  const bool both = has_prompt && given(object, "messages");
  const bool none = !has_prompt && !given(object, "messages");
  if (both) throw Error("both \"prompt\" and \"messages\" are given; leave one out");
  if (none) throw Error("neither \"prompt\" nor \"messages\" is given; give one");
  for (const char* name : {"tools", "documents", "chat_template_kwargs"}) {
    if (has_prompt && says(object, name)) {
      line.idle.push_back(in_quotes(name) + " has no effect without \"messages\"");
    }
  }
}

// Notes what a line says that has no effect, unless it says what holds anyway.
void note_idle_settings(const JsonView& options, BatchLine& line) {
  for (const RequestSetting& setting : request_settings()) {
    if (!options.find(setting.key) || setting.is_unset(line.request)) continue;
    const std::string_view why = setting.idleness(line.request);
    if (!why.empty()) line.idle.push_back(in_quotes(setting.key) + " " + std::string(why));
  }
}

// Sets what a key of both formats says.
void set_key(std::string_view name, const JsonView& options, Request& request) {
  const RequestSetting* setting = find_request_setting(name);
  const Key* key = find_key(kKeys, name);
  if (setting == nullptr && key == nullptr) refuse_key(name);
  const auto value = options.find(name);
  if (!value) return;
  if (setting != nullptr) {
    setting->read(*value, request);
  } else {
    key->set(*value, request);
  }
}

json read_id(const JsonView& value) {
  if (value.value().is_string() || value.value().is_number_integer()) return value.value();
  value.fail("is not a text or a whole number");
}

// Whether OpenAI's bodies have the key, or our lines do.
bool is_of_requests(std::string_view name) {
  return is_conversation_member(name) || find_request_setting(name) != nullptr ||
         find_key(kKeys, name) != nullptr || find_key(kOpenAiKeys, name) != nullptr ||
         is_among(kIgnoredKeys, name) || is_among(kIdleKeys, name) ||
         find_unsupported(name) != nullptr;
}

// Of a key that is beside "custom_id" or "body", where OpenAI's format has none of requests.
[[noreturn]] void refuse_beside_body(std::string_view name, const ordered_json& object) {
  const bool has_custom_id = given(object, "custom_id");
  const std::string mixture = in_quotes(name) + " does not go with OpenAI's " +
                              in_quotes(has_custom_id ? "custom_id" : "body") + "; ";
  if (name == "id") {
    throw Error(mixture + (has_custom_id ? "leave one of them out" : "call it \"custom_id\""));
  }
  if (!is_of_requests(name)) refuse_key(name);
  throw Error(mixture + "put it into \"body\"" +
              (given(object, "body") ? "" : ", or call \"custom_id\" \"id\""));
}

// Ours. A value of null is none, here and below.
void parse_own(const JsonView& options, const ordered_json& object, BatchLine& line) {
  if (const auto id = options.find("id")) line.id = read_id(*id);
  check_prompt(options.value(), object, line);
  if (given(object, "messages")) line.request.prompt = read_conversation(object);
  for (const auto& [name, value] : options.value().items()) {
    const bool absent = value.is_null() && is_among(kLineKeys, name);
    if (name != "id" && !absent) set_key(name, options, line.request);
  }
  note_idle_settings(options, line);
}

// Of a key of OpenAI's bodies. Throws Error when it asks for what there is not.
bool has_no_effect(std::string_view name, const json& value) {
  if (is_among(kIgnoredKeys, name)) return true;
  const UnsupportedKey* key = find_unsupported(name);
  if (key == nullptr) return false;
  const std::vector<json>& harmless = key->harmless;
  if (value.is_null() || std::find(harmless.begin(), harmless.end(), value) != harmless.end()) {
    return true;
  }
  throw Error(in_quotes(name) + " is not supported; leave it out");
}

// Keys of which the one makes nothing of the other.
void check_openai_pairs(const JsonView& options) {
  const auto tokens = options.find("max_tokens");
  const auto completion_tokens = options.find("max_completion_tokens");
  if (tokens && completion_tokens && tokens->value() != completion_tokens->value()) {
    throw Error("\"max_tokens\" and \"max_completion_tokens\" differ; leave one out");
  }
  const auto top = options.find("top_logprobs");
  const auto logprobs = options.find("logprobs");
  if (top && top->value() != 0 && (!logprobs || logprobs->value() != true)) {
    throw Error("\"top_logprobs\" needs \"logprobs\": true");
  }
}

void parse_openai_body(const JsonView& options, const ordered_json& body, BatchLine& line) {
  check_prompt(options.value(), body, line);
  if (given(body, "messages")) line.request.prompt = read_conversation(body);
  check_openai_pairs(options);
  // By name: logprobs comes before top_logprobs.
  for (const auto& [name, value] : options.value().items()) {
    if (has_no_effect(name, value)) continue;
    if (is_among(kIdleKeys, name)) {
      if (!value.is_null()) line.idle.push_back(in_quotes(name) + " has no effect");
    } else if (const Key* key = find_key(kOpenAiKeys, name)) {
      if (const auto given_value = options.find(name)) key->set(*given_value, line.request);
    } else {
      set_key(name, options, line.request);
    }
  }
  note_idle_settings(options, line);
}

void parse_openai(const JsonView& options, const ordered_json& object, BatchLine& line) {
  if (const auto id = options.find("custom_id")) line.id = read_id(*id);
  for (const auto& [name, value] : object.items()) {
    const bool absent = value.is_null() && (name == "id" || is_of_requests(name));
    if (!absent && !is_among(kLineKeys, name)) refuse_beside_body(name, object);
  }
  if (!options.find("custom_id")) throw Error("\"custom_id\" is missing; give each line one");
  const JsonView body = options.member("body");
  if (!body.value().is_object()) body.fail("is not an object");
  parse_openai_body(body, object.at("body"), line);
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
  BatchLine line{.id = number};
  line.error = line_error([&] {
    line.request = defaults;
    line.request.sampling.seed = line_seed(defaults.sampling.seed.value(), number);
    if (format == BatchFormat::text) {
      if (text.ends_with('\r')) text.remove_suffix(1);
      if (!is_valid_utf8(text)) throw Error("the line is not UTF-8 text");
      line.request.prompt = std::string(text);
      return;
    }
    ordered_json object = parse_ordered_json(text, "the line", "give one JSON object a line",
                                             RepeatedMembers::are_errors);
    const auto free_at_end = [](auto* value) { dismantle(*value); };
    const std::unique_ptr<ordered_json, decltype(free_at_end)> guard(&object, free_at_end);
    if (!object.is_object()) throw Error("the line is JSON, but not an object as it must be");
    json options;
    const std::unique_ptr<json, decltype(free_at_end)> second(&options, free_at_end);
    move_options(object, options);
    const JsonView view(options, "");
    const bool openai = view.find("custom_id") || view.find("body");
    openai ? parse_openai(view, object, line) : parse_own(view, object, line);
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
