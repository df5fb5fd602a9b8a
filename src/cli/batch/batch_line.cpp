#include "cli/batch/batch_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/json.h"
#include "support/split_mix.h"
#include "support/utf8.h"

namespace faststream {
namespace {

using nlohmann::json;

constexpr std::string_view kBlanks = " \t\r\n\v\f";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// `text` for a message: the start of it, if it is long, in quotes.
std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxBytes = 40;
  std::string start(text.substr(0, kMaxBytes));
  start = take_utf8(start);
  return '"' + start + (text.size() > kMaxBytes ? "...\"" : "\"");
}

// A member of an object; null where there is none.
const json& member(const json& object, const char* key) {
  static const json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool given(const json& object, const char* key) { return !member(object, key).is_null(); }

// Values of keys. Each throws Error with the end of a sentence that begins with the key. ----------

template <typename Integer>
Integer whole_number(const json& value, Integer least = 0) {
  constexpr Integer kMost = std::numeric_limits<Integer>::max();
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (std::cmp_greater_equal(number, least) && std::cmp_less_equal(number, kMost)) {
      return static_cast<Integer>(number);
    }
  } else if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    if (std::cmp_greater_equal(number, least) && std::cmp_less_equal(number, kMost)) {
      return static_cast<Integer>(number);
    }
  }
  throw Error("must be a whole number from " + std::to_string(least) + " to " +
              std::to_string(kMost));
}

float number(const json& value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (!value.is_number() || !(std::abs(value.get<double>()) <= kMost)) {
    throw Error("must be a number");
  }
  return value.get<float>();
}

bool truth(const json& value) {
  if (!value.is_boolean()) throw Error("must be true or false");
  return value.get<bool>();
}

std::vector<int32_t> token_ids(const json& value) {
  if (!value.is_array()) throw Error("must be a list of token ids");
  std::vector<int32_t> tokens;
  tokens.reserve(value.size());
  for (const json& token : value) {
    try {
      tokens.push_back(whole_number<int32_t>(token));
    } catch (const Error&) {
      throw Error("must hold token ids only, whole numbers of at least 0");
    }
  }
  return tokens;
}

Prompt prompt(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) throw Error("must be a text or a list of token ids");
  return token_ids(value);
}

std::vector<std::string> texts(const json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  const bool sound = value.is_array() && std::all_of(value.begin(), value.end(),
                                                     [](const json& v) { return v.is_string(); });
  if (!sound) throw Error("must be a text or a list of texts");
  return value.get<std::vector<std::string>>();
}

// {"TOKEN": BIAS, ...}
std::vector<LogitBias> logit_biases(const json& value) {
  if (!value.is_object()) throw Error("must be an object of token ids and biases");
  std::vector<LogitBias> biases;
  for (const auto& [key, bias] : value.items()) {
    LogitBias entry;
    const char* end = key.data() + key.size();
    const auto [stop, status] = std::from_chars(key.data(), end, entry.token);
    if (status != std::errc() || stop != end) {
      throw Error("has the key " + in_quotes(key) + ", which is no token id");
    }
    if (!bias.is_number()) throw Error("has a bias that is no number, that of " + in_quotes(key));
    entry.bias = number(bias);
    biases.push_back(entry);
  }
  return biases;
}

// A text, or OpenAI's list of parts: {"type": "text", "text": "..."}.
std::string message_content(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  bool sound = value.is_array();
  std::string text;
  for (size_t i = 0; sound && i < value.size(); ++i) {
    const json& part = value[i];
    sound = part.is_object() && part.size() == 2 && member(part, "type") == "text" &&
            member(part, "text").is_string();
    if (sound) text += part.at("text").get_ref<const std::string&>();
  }
  if (!sound) throw Error("must have texts as \"content\", and nothing but text");
  return text;
}

std::vector<Message> messages(const json& value) {
  if (!value.is_array() || value.empty()) throw Error("must be a list of messages");
  std::vector<Message> all;
  for (const json& message : value) {
    if (!message.is_object()) throw Error("must hold objects with \"role\" and \"content\"");
    for (const auto& [key, ignored] : message.items()) {
      if (key == "role" || key == "content") continue;
      throw Error("must hold objects with \"role\" and \"content\"; one has " + in_quotes(key));
    }
    const json& role = member(message, "role");
    if (!role.is_string()) throw Error("must have texts as \"role\", such as \"user\"");
    all.push_back({role.get<std::string>(), message_content(member(message, "content"))});
  }
  return all;
}

// Keys. -------------------------------------------------------------------------------------------

struct Key {
  std::string_view name;
  void (*set)(const json& value, Request& request);
};

// Of both formats.
constexpr Key kKeys[] = {
    {"prompt", [](const json& v, Request& r) { r.prompt = prompt(v); }},
    {"messages", [](const json& v, Request& r) { r.prompt = messages(v); }},
    {"max_tokens", [](const json& v, Request& r) { r.max_tokens = whole_number<int64_t>(v); }},
    {"temperature", [](const json& v, Request& r) { r.sampling.temperature = number(v); }},
    {"top_k", [](const json& v, Request& r) { r.sampling.top_k = whole_number<int32_t>(v); }},
    {"top_p", [](const json& v, Request& r) { r.sampling.top_p = number(v); }},
    {"min_p", [](const json& v, Request& r) { r.sampling.min_p = number(v); }},
    {"repetition_penalty",
     [](const json& v, Request& r) { r.sampling.repetition_penalty = number(v); }},
    {"presence_penalty",
     [](const json& v, Request& r) { r.sampling.presence_penalty = number(v); }},
    {"frequency_penalty",
     [](const json& v, Request& r) { r.sampling.frequency_penalty = number(v); }},
    {"logit_bias", [](const json& v, Request& r) { r.sampling.logit_bias = logit_biases(v); }},
    {"seed", [](const json& v, Request& r) { r.sampling.seed = whole_number<uint64_t>(v); }},
    {"stop", [](const json& v, Request& r) { r.stop = texts(v); }},
    {"stop_tokens", [](const json& v, Request& r) { r.stop_tokens = token_ids(v); }},
    {"ignore_eos", [](const json& v, Request& r) { r.ignore_eos = truth(v); }},
    {"n", [](const json& v, Request& r) { r.n = whole_number<int32_t>(v, 1); }},
    {"best_of", [](const json& v, Request& r) { r.best_of = whole_number<int32_t>(v, 1); }},
    {"logprobs", [](const json& v, Request& r) { r.logprobs = whole_number<int32_t>(v); }},
    {"priority",
     [](const json& v, Request& r) {
       r.priority = whole_number<int32_t>(v, std::numeric_limits<int32_t>::min());
     }},
};

// Of OpenAI's bodies alone. "logprobs" is true or false for chats; top_logprobs says how many.
constexpr Key kOpenAiKeys[] = {
    {"max_completion_tokens",
     [](const json& v, Request& r) { r.max_tokens = whole_number<int64_t>(v); }},
    {"logprobs",
     [](const json& v, Request& r) {
       if (!v.is_boolean()) {
         r.logprobs = whole_number<int32_t>(v);
       } else {
         r.logprobs = v.get<bool>() ? 0 : -1;
       }
     }},
    {"top_logprobs", [](const json& v, Request& r) { r.logprobs = whole_number<int32_t>(v); }},
};

// Keys of OpenAI's bodies that ask for what there is not, and the values with which they do not.
struct UnsupportedKey {
  std::string_view name;
  std::vector<json> harmless;
};
const std::vector<UnsupportedKey>& unsupported_keys() {
  static const std::vector<UnsupportedKey> keys = {
      {"stream", {false}},
      {"stream_options", {}},
      {"echo", {false}},
      {"suffix", {""}},
      {"response_format", {json::object({{"type", "text"}})}},
      {"modalities", {json::array({"text"})}},
      {"audio", {}},
      {"tools", {json::array()}},
      {"tool_choice", {"none", "auto"}},
      {"parallel_tool_calls", {true, false}},
      {"functions", {json::array()}},
      {"function_call", {"none", "auto"}},
      {"prediction", {}},
      {"reasoning_effort", {}},
  };
  return keys;
}

// Keys of OpenAI's bodies that do not change the answer.
constexpr std::string_view kIgnoredKeys[] = {"model",        "user",
                                             "metadata",     "store",
                                             "service_tier", "safety_identifier",
                                             "verbosity",    "prompt_cache_key"};

const Key* find_key(std::span<const Key> keys, std::string_view name) {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

void set(const Key& key, const json& value, Request& request) {
  try {
    key.set(value, request);
  } catch (const Error& error) {
    throw Error('"' + std::string(key.name) + "\" " + error.what());
  }
}

[[noreturn]] void refuse_key(std::string_view name) {
  throw Error("unknown key " + in_quotes(name) + "; correct it or leave it out");
}

void check_prompt(const json& object) {
  const bool both = given(object, "prompt") && given(object, "messages");
  const bool none = !given(object, "prompt") && !given(object, "messages");
  if (both) throw Error("both \"prompt\" and \"messages\" are given; leave one out");
  if (none) throw Error("neither \"prompt\" nor \"messages\" is given; give one");
}

void read_id(const json& value, std::string_view key, json& id) {
  if (!value.is_string() && !value.is_number_integer()) {
    throw Error('"' + std::string(key) + "\" must be a text or a whole number");
  }
  id = value;
}

// Ours. A value of null is none, here and below.
void parse_own(const json& object, BatchLine& line) {
  if (given(object, "id")) read_id(object.at("id"), "id", line.id);
  check_prompt(object);
  for (const auto& [name, value] : object.items()) {
    if (name == "id") continue;
    const Key* key = find_key(kKeys, name);
    if (key == nullptr) refuse_key(name);
    if (!value.is_null()) set(*key, value, line.request);
  }
}

// Of a key of OpenAI's bodies. Throws Error when it asks for what there is not.
bool has_no_effect(std::string_view name, const json& value) {
  const auto& ignored = kIgnoredKeys;
  if (std::find(std::begin(ignored), std::end(ignored), name) != std::end(ignored)) return true;
  const std::vector<UnsupportedKey>& keys = unsupported_keys();
  const auto key = std::find_if(keys.begin(), keys.end(),
                                [&](const UnsupportedKey& each) { return each.name == name; });
  if (key == keys.end()) return false;
  const std::vector<json>& harmless = key->harmless;
  if (value.is_null() || std::find(harmless.begin(), harmless.end(), value) != harmless.end()) {
    return true;
  }
  throw Error(in_quotes(name) + " is not supported; leave it out");
}

void parse_openai_body(const json& body, Request& request) {
  check_prompt(body);
  if (given(body, "max_tokens") && given(body, "max_completion_tokens")) {
    throw Error("both \"max_tokens\" and \"max_completion_tokens\" are given; leave one out");
  }
  if (given(body, "top_logprobs") && member(body, "logprobs") != true) {
    throw Error("\"top_logprobs\" needs \"logprobs\": true");
  }
  for (const auto& [name, value] : body.items()) {  // by name: logprobs comes before top_logprobs
    if (has_no_effect(name, value)) continue;
    const Key* key = find_key(kOpenAiKeys, name);
    if (key == nullptr) key = find_key(kKeys, name);
    if (key == nullptr) refuse_key(name);
    if (!value.is_null()) set(*key, value, request);
  }
}

void parse_openai(const json& object, BatchLine& line) {
  if (given(object, "custom_id")) read_id(object.at("custom_id"), "custom_id", line.id);
  for (const auto& [name, ignored] : object.items()) {
    if (name != "custom_id" && name != "body" && name != "method" && name != "url") {
      refuse_key(name);
    }
  }
  if (!given(object, "custom_id")) throw Error("\"custom_id\" is missing; give each line one");
  const json& body = member(object, "body");
  if (!body.is_object()) throw Error("\"body\" must be an object");
  parse_openai_body(body, line.request);
}

}  // namespace

BatchFormat recognize_batch_format(std::string_view line) {
  if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  const size_t first = line.find_first_not_of(kBlanks);
  return first != std::string_view::npos && line[first] == '{' ? BatchFormat::json
                                                               : BatchFormat::text;
}

bool is_blank(std::string_view line) {
  if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  return line.find_first_not_of(kBlanks) == std::string_view::npos;
}

BatchLine parse_batch_line(std::string_view text, uint64_t number, BatchFormat format,
                           const Request& defaults) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  BatchLine line{.id = nullptr, .request = defaults, .error = ""};
  line.request.sampling.seed = line_seed(defaults.sampling.seed.value(), number);
  if (format == BatchFormat::text) {
    if (text.ends_with('\r')) text.remove_suffix(1);
    line.id = number;
    line.request.prompt = std::string(text);
    return line;
  }
  try {
    const json object = parse_json_object(text, "the line", "give one JSON object a line");
    line.id = number;
    const bool openai = object.contains("custom_id") || object.contains("body");
    openai ? parse_openai(object, line) : parse_own(object, line);
  } catch (const Error& error) {
    line.error = error.what();
  }
  return line;
}

uint64_t line_seed(uint64_t run_seed, uint64_t line) { return split_mix(run_seed, line) >> 11; }

}  // namespace faststream
