#include "api/request_body.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>
#include <utility>

#include "api/conversation.h"
#include "api/response_format.h"
#include "api/tool_choice.h"
#include "engine/request_settings.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::api {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

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
    } else if (name == "response_format" && !value.is_null()) {
      options[name] = value.dump();  // a schema's members have an order
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

OutputRule rule(OutputRule::Kind kind, const JsonView& value, const char* name) {
  return {.kind = kind, .text = value.as<std::string>(), .name = in_quotes(name)};
}

// As move_options() leaves it.
std::optional<OutputRule> response_format(const JsonView& value) {
  return read_response_format(value.as<std::string>());
}

// After the conversation and, by the names' order, other rules.
void set_tool_choice(const JsonView& value, Request& request) {
  auto* conversation = std::get_if<ChatPrompt>(&request.prompt);
  const auto rule =
      read_tool_choice(value.value(), conversation == nullptr ? "" : conversation->tools);
  if (rule && request.rule) {
    throw Error(
        "\"tool_choice\" demands a call, which another rule for the answer does not go with; leave "
        "one out");
  }
  if (rule) request.rule = rule;
  if (conversation != nullptr && value.value() == "none") conversation->tools.clear();
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
    {"adapter", [](const JsonView& v, Request& r) { r.adapter = v.as<std::string>(); }},
    {"stop", [](const JsonView& v, Request& r) { r.stop = texts(v); }},
    {"stop_tokens", [](const JsonView& v, Request& r) { r.stop_tokens = token_ids(v); }},
    {"ignore_eos", [](const JsonView& v, Request& r) { r.ignore_eos = v.as<bool>(); }},
    {"speculate", [](const JsonView& v, Request& r) { r.speculate = v.as<std::string>(); }},
    {"special", [](const JsonView& v, Request& r) { r.show_special = v.as<bool>(); }},
    {"parse_special", [](const JsonView& v, Request& r) { r.parse_special = v.as<bool>(); }},
    {"response_format", [](const JsonView& v, Request& r) { r.rule = response_format(v); }},
    {"regex",
     [](const JsonView& v, Request& r) { r.rule = rule(OutputRule::Kind::regex, v, "regex"); }},
    {"grammar",
     [](const JsonView& v, Request& r) { r.rule = rule(OutputRule::Kind::grammar, v, "grammar"); }},
    {"source_lang", [](const JsonView& v, Request& r) { r.source_language = v.as<std::string>(); }},
    {"target_lang", [](const JsonView& v, Request& r) { r.target_language = v.as<std::string>(); }},
};

void set_max_tokens(const JsonView& value, Request& request) {
  find_request_setting("max_tokens")->read(value, request);
}

// Of OpenAI's bodies alone: what completions call "max_tokens" is "max_completion_tokens" of chats
// and "max_output_tokens" of responses. "logprobs" is true or false for chats; top_logprobs says
// how many.
constexpr Key kOpenAiKeys[] = {
    {"max_completion_tokens", set_max_tokens},
    {"max_output_tokens", set_max_tokens},
    {"logprobs",
     [](const JsonView& v, Request& r) {
       if (!v.value().is_boolean()) {
         find_request_setting("logprobs")->read(v, r);
       } else {
         r.logprobs = v.as<bool>() ? 0 : -1;
       }
     }},
    {"tool_choice", set_tool_choice},
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
      {"modalities", {json::array({"text"})}},
      {"audio", {}},
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

bool is_among(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

const Key* find_key(std::span<const Key> keys, std::string_view name) {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

// Whether a member is there and says something.
bool says(const ordered_json& object, const char* key) {
  return has_value(object, key) && !object.at(key).empty();
}

void check_prompt(const json& options, const ordered_json& object, ParsedRequest& parsed) {
  const bool has_prompt = has_value(options, "prompt");
  const bool both = has_prompt && has_value(object, "messages");
  const bool none = !has_prompt && !has_value(object, "messages");
  if (both) throw Error("both \"prompt\" and \"messages\" are given; leave one out");
  if (none) throw Error("neither \"prompt\" nor \"messages\" is given; give one");
  for (const char* name : {"tools", "documents", "chat_template_kwargs"}) {
    if (has_prompt && says(object, name)) {
      parsed.idle.push_back(in_quotes(name) + " has no effect without \"messages\"");
    }
  }
}

// The keys of which a request can have one.
void check_rules(const JsonView& options) {
  int n_rules = 0;
  for (const char* name : {"response_format", "regex", "grammar"}) {
    if (options.find(name)) ++n_rules;
  }
  if (n_rules > 1) {
    throw Error("of \"response_format\", \"regex\" and \"grammar\" more than one is given");
  }
}

// Of both forms: what the text is about.
void read_conversation_or_prompt(const JsonView& options, const ordered_json& object,
                                 ParsedRequest& parsed) {
  check_prompt(options.value(), object, parsed);
  check_rules(options);
  if (has_value(object, "messages")) parsed.request.prompt = read_conversation(object);
}

// Notes what a line says that has no effect, unless it says what holds anyway.
void note_idle_settings(const JsonView& options, ParsedRequest& parsed) {
  for (const RequestSetting& setting : request_settings()) {
    if (!options.find(setting.key) || setting.is_unset(parsed.request)) continue;
    const std::string_view why = setting.idleness(parsed.request);
    if (!why.empty()) parsed.idle.push_back(in_quotes(setting.key) + " " + std::string(why));
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
  for (const char* name : {"max_completion_tokens", "max_output_tokens"}) {
    const auto same = options.find(name);
    if (tokens && same && tokens->value() != same->value()) {
      throw Error("\"max_tokens\" and " + in_quotes(name) + " differ; leave one out");
    }
  }
  const auto top = options.find("top_logprobs");
  const auto logprobs = options.find("logprobs");
  if (top && top->value() != 0 && (!logprobs || logprobs->value() != true)) {
    throw Error("\"top_logprobs\" needs \"logprobs\": true");
  }
}

}  // namespace

RequestObject::RequestObject(std::string_view text, std::string_view where, std::string_view advice)
    : object_(parse_ordered_json(text, where, advice, RepeatedMembers::are_errors)) {
  try {
    if (!object_.is_object()) {
      throw Error(std::string(where) + " is JSON, but not an object as it must be");
    }
    move_options(object_, options_);
  } catch (...) {
    free();
    throw;
  }
}

RequestObject::~RequestObject() { free(); }

void RequestObject::free() noexcept {
  dismantle(object_);
  dismantle(options_);
}

void refuse_key(std::string_view name) {
  throw Error("unknown key " + in_quotes(name) + "; correct it or leave it out");
}

bool is_of_requests(std::string_view name) {
  return is_conversation_member(name) || find_request_setting(name) != nullptr ||
         find_key(kKeys, name) != nullptr || find_key(kOpenAiKeys, name) != nullptr ||
         is_among(kIgnoredKeys, name) || is_among(kIdleKeys, name) ||
         find_unsupported(name) != nullptr;
}

void read_own_request(const JsonView& options, const ordered_json& object,
                      const std::function<bool(std::string_view, const json&)>& passes_over,
                      ParsedRequest& parsed) {
  read_conversation_or_prompt(options, object, parsed);
  for (const auto& [name, value] : options.value().items()) {
    if (!passes_over(name, value)) set_key(name, options, parsed.request);
  }
  note_idle_settings(options, parsed);
}

void read_openai_request(const JsonView& options, const ordered_json& body, ParsedRequest& parsed) {
  read_conversation_or_prompt(options, body, parsed);
  check_openai_pairs(options);
  // By name: logprobs comes before top_logprobs.
  for (const auto& [name, value] : options.value().items()) {
    if (has_no_effect(name, value)) continue;
    if (is_among(kIdleKeys, name)) {
      if (!value.is_null()) parsed.idle.push_back(in_quotes(name) + " has no effect");
    } else if (const Key* key = find_key(kOpenAiKeys, name)) {
      if (const auto given_value = options.find(name)) key->set(*given_value, parsed.request);
    } else {
      set_key(name, options, parsed.request);
    }
  }
  note_idle_settings(options, parsed);
}

}  // namespace faststream::api
