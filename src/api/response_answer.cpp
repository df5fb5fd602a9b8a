#include "api/response_answer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "api/conversation.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::api {
namespace {

using nlohmann::ordered_json;

class ResponseWriter final : public AnswerWriter {
 public:
  ResponseWriter(AnswerHead head, TokenTexts texts)
      : head_(std::move(head)), texts_(std::move(texts)) {}

  std::string whole(std::span<const Output> choices, const AnswerUsage& usage) override {
    return json_text(response(finished(choices.front()), &usage));
  }

  std::string begin() override {
    const ordered_json begun = response(Parts{}, nullptr);
    std::string events = event("response.created", {{"response", begun}});
    return events += event("response.in_progress", {{"response", begun}});
  }

  std::string piece(size_t /*choice*/, std::string_view text,
                    std::span<const PositionLogprobs> /*logprobs*/) override {
    std::string filtered;
    if (head_.has_tools) {
      filtered = filter_.push(text);
      text = filtered;
    }
    return text.empty() ? "" : show(text);
  }

  std::string finish(size_t /*choice*/, const Output& output) override {
    last_ = finished(output);
    const std::string_view content = last_.content;
    const std::string_view rest = head_.has_tools
                                      ? filter_.rest_of(content)
                                      : content.substr(std::min(content.size(), n_shown_));
    std::string events;
    if (!rest.empty() || (last_.calls.empty() && !message_is_open_)) events += show(rest);
    if (message_is_open_) events += close_message();
    size_t index = message_is_open_ ? 1 : 0;
    for (const ordered_json& call : last_.calls) events += call_events(call, index++);
    return events;
  }

  std::string end(const AnswerUsage& usage) override {
    return event(last_.complete ? "response.completed" : "response.incomplete",
                 {{"response", response(last_, &usage)}});
  }

 private:
  // What there is of the answer.
  struct Parts {
    bool ended = false;
    bool complete = true;
    std::string content = {};
    std::vector<ordered_json> calls = {};
  };

  [[nodiscard]] std::string suffix() const { return head_.id.substr(head_.id.find('_') + 1); }
  [[nodiscard]] std::string message_id() const { return "msg_" + suffix(); }

  [[nodiscard]] Parts finished(const Output& output) const {
    const ParsedAnswer answer =
        parse_answer(output, head_.has_tools, head_.show_special, texts_.text_of);
    Parts parts{.ended = true,
                .complete = openai_finish_reason(output.finish_reason, false) == "stop",
                .content = answer.content};
    for (const ToolCall& call : answer.tool_calls) {
      const std::string number = suffix() + "_" + std::to_string(parts.calls.size());
      parts.calls.push_back({{"id", "fc_" + number},
                             {"type", "function_call"},
                             {"status", "completed"},
                             {"call_id", "call_" + number},
                             {"name", call.name},
                             {"arguments", call.arguments}});
    }
    return parts;
  }

  [[nodiscard]] static ordered_json part(std::string_view text) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", ordered_json::array()},
            {"logprobs", ordered_json::array()}};
  }

  [[nodiscard]] ordered_json message(const char* status, const ordered_json& content) const {
    return {{"id", message_id()},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", content}};
  }

  [[nodiscard]] ordered_json response(const Parts& parts, const AnswerUsage* usage) const {
    const char* status = !parts.ended ? "in_progress" : parts.complete ? "completed" : "incomplete";
    ordered_json object = {
        {"id", head_.id},      {"object", "response"}, {"created_at", head_.created},
        {"status", status},    {"error", nullptr},     {"incomplete_details", nullptr},
        {"model", head_.model}};
    if (!parts.complete) object["incomplete_details"] = {{"reason", "max_output_tokens"}};
    ordered_json& output = object["output"] = ordered_json::array();
    if (parts.ended && (!parts.content.empty() || parts.calls.empty())) {
      output.push_back(message(status, ordered_json::array({part(parts.content)})));
    }
    for (const ordered_json& call : parts.calls) output.push_back(call);
    const ordered_json repeated = ordered_json::parse(head_.request);
    for (const auto& [name, value] : repeated.items()) {
      object[name] = value;
    }
    object["store"] = false;
    object["usage"] = usage == nullptr ? ordered_json() : usage_of(*usage);
    return object;
  }

  [[nodiscard]] static ordered_json usage_of(const AnswerUsage& usage) {
    return {{"input_tokens", usage.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", {{"reasoning_tokens", 0}}},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  }

  std::string event(const std::string& type, const ordered_json& members) {
    ordered_json data = {{"type", type}, {"sequence_number", n_events_++}};
    data.update(members);
    return "event: " + type + "\ndata: " + json_text(data) + "\n\n";
  }

  // Of the message, the first item, and its only part.
  std::string text_event(const std::string& type, const ordered_json& members) {
    ordered_json all = {{"item_id", message_id()}, {"output_index", 0}, {"content_index", 0}};
    all.update(members);
    return event(type, all);
  }

  std::string show(std::string_view text) {
    std::string events;
    if (!message_is_open_) {
      message_is_open_ = true;
      events =
          event("response.output_item.added",
                {{"output_index", 0}, {"item", message("in_progress", ordered_json::array())}});
      events += text_event("response.content_part.added", {{"part", part("")}});
    }
    n_shown_ += text.size();
    if (text.empty()) return events;
    return events + text_event("response.output_text.delta",
                               {{"delta", text}, {"logprobs", ordered_json::array()}});
  }

  std::string close_message() {
    const ordered_json whole = part(last_.content);
    const char* status = last_.complete ? "completed" : "incomplete";
    std::string events = text_event("response.output_text.done",
                                    {{"text", last_.content}, {"logprobs", ordered_json::array()}});
    events += text_event("response.content_part.done", {{"part", whole}});
    return events +=
           event("response.output_item.done",
                 {{"output_index", 0}, {"item", message(status, ordered_json::array({whole}))}});
  }

  std::string call_events(const ordered_json& call, size_t index) {
    ordered_json begun = call;
    begun["status"] = "in_progress";
    begun["arguments"] = "";
    const ordered_json at = {{"item_id", call.at("id")}, {"output_index", index}};
    ordered_json delta = at;
    delta["delta"] = call.at("arguments");
    ordered_json done = at;
    done["name"] = call.at("name");
    done["arguments"] = call.at("arguments");
    std::string events =
        event("response.output_item.added", {{"output_index", index}, {"item", begun}});
    events += event("response.function_call_arguments.delta", delta);
    events += event("response.function_call_arguments.done", done);
    return events += event("response.output_item.done", {{"output_index", index}, {"item", call}});
  }

  AnswerHead head_;
  TokenTexts texts_;
  ToolCallFilter filter_;
  Parts last_;
  bool message_is_open_ = false;
  size_t n_shown_ = 0;  // bytes
  int64_t n_events_ = 0;
};

[[noreturn]] void refuse(const std::string& name, const char* what) {
  throw Error(in_quotes(name) + " " + what);
}

const std::string* find_text(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

// The text of a member that is one, or a list of parts of text; null stays, where it may be.
ordered_json chat_content(const ordered_json& item, const char* key, const std::string& of_item,
                          bool may_be_null = false) {
  const std::string name = of_item + "." + key;
  const auto content = item.find(key);
  if (content == item.end() || (content->is_null() && !may_be_null)) refuse(name, "is missing");
  if (content->is_string() || content->is_null()) return *content;
  if (!content->is_array()) refuse(name, "is not a text");
  ordered_json parts = *content;
  for (ordered_json& part : parts) {
    const std::string* type = part.is_object() ? find_text(part, "type") : nullptr;
    if (type != nullptr && (*type == "input_text" || *type == "output_text")) part["type"] = "text";
  }
  return text_of_parts(parts, name);
}

// A call that an earlier response had; several in a row are of one message.
void add_call(const ordered_json& item, const std::string& name, ordered_json& messages) {
  const std::string* function = find_text(item, "name");
  const std::string* arguments = find_text(item, "arguments");
  const std::string* id = find_text(item, "call_id");
  if (function == nullptr) refuse(name + ".name", "is not a text");
  if (arguments == nullptr) refuse(name + ".arguments", "is not a text");
  if (messages.empty() || messages.back().value("role", "") != "assistant") {
    messages.push_back({{"role", "assistant"}, {"content", nullptr}});
  }
  ordered_json call = {{"type", "function"},
                       {"function", {{"name", *function}, {"arguments", *arguments}}}};
  if (id != nullptr) call["id"] = *id;
  messages.back()["tool_calls"].push_back(std::move(call));
}

void add_item(const ordered_json& item, const std::string& name, ordered_json& messages) {
  if (!item.is_object()) refuse(name, "is not an object");
  const std::string* type = find_text(item, "type");
  if (type == nullptr || *type == "message") {
    const std::string* role = find_text(item, "role");
    if (role == nullptr) refuse(name + ".role", "is not a text");
    messages.push_back(
        {{"role", *role}, {"content", chat_content(item, "content", name, *role == "assistant")}});
  } else if (*type == "function_call") {
    add_call(item, name, messages);
  } else if (*type == "function_call_output") {
    ordered_json message = {{"role", "tool"}, {"content", chat_content(item, "output", name)}};
    if (const std::string* id = find_text(item, "call_id")) message["tool_call_id"] = *id;
    messages.push_back(std::move(message));
  } else if (*type != "reasoning") {  // which no template is given
    refuse(name + ".type",
           "is none that is known; give messages, function calls and their outputs");
  }
}

ordered_json chat_messages(const ordered_json& body) {
  ordered_json messages = ordered_json::array();
  if (const auto instructions = body.find("instructions");
      instructions != body.end() && !instructions->is_null()) {
    if (!instructions->is_string()) refuse("instructions", "is not a text");
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  const auto input = body.find("input");
  if (input == body.end() || input->is_null()) refuse("input", "is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (!input->is_array()) refuse("input", "is not a text or a list");
  if (input->empty()) refuse("input", "is empty, but must be a text or a list of messages");
  for (size_t i = 0; i < input->size(); ++i) {
    add_item((*input)[i], "input[" + std::to_string(i) + "]", messages);
  }
  if (messages.empty()) refuse("input", "has no message; give one");
  return messages;
}

// {"type": "function", "name": ...} as chats have it: {"type", "function": {...}}.
ordered_json chat_tools(const ordered_json& tools) {
  if (!tools.is_array()) return tools;
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string name = "tools[" + std::to_string(i) + "]";
    if (!tools[i].is_object()) refuse(name, "is not an object");
    const std::string* type = find_text(tools[i], "type");
    if (type == nullptr || *type != "function") {
      refuse(name + ".type", "is not \"function\", which is all there can be");
    }
    if (find_text(tools[i], "name") == nullptr) refuse(name + ".name", "is not a text");
    const auto parameters = tools[i].find("parameters");
    if (parameters != tools[i].end() && !parameters->is_null() && !parameters->is_object()) {
      refuse(name + ".parameters", "is not an object");
    }
    ordered_json function = tools[i];
    function.erase("type");
    function.erase("strict");
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

// What chats call "response_format", null for none.
ordered_json chat_response_format(const ordered_json& text) {
  if (text.is_null()) return {};
  if (!text.is_object()) refuse("text", "is not an object");
  const auto format = text.find("format");
  if (format == text.end() || format->is_null()) return {};
  if (!format->is_object()) refuse("text.format", "is not an object");
  const std::string* type = find_text(*format, "type");
  if (type == nullptr || (*type != "text" && *type != "json_object" && *type != "json_schema")) {
    refuse("text.format.type", R"(is not "text", "json_object" or "json_schema")");
  }
  if (*type != "json_schema") return {{"type", *type}};
  const auto schema = format->find("schema");
  if (schema == format->end()) refuse("text.format.schema", "is missing; give a JSON schema");
  return {{"type", *type}, {"json_schema", {{"schema", *schema}}}};
}

// Members that change no answer here, or say what holds anyway.
constexpr std::array<std::string_view, 9> kIgnored = {
    "store",        "metadata",         "user",      "include",   "safety_identifier",
    "service_tier", "prompt_cache_key", "reasoning", "truncation"};
constexpr size_t kMostMembers = 200;  // each of which is looked for among all others
constexpr std::array<std::string_view, 5> kUnsupported = {"previous_response_id", "conversation",
                                                          "prompt", "background", "max_tool_calls"};

}  // namespace

std::unique_ptr<AnswerWriter> make_response_writer(AnswerHead head, TokenTexts texts) {
  return std::make_unique<ResponseWriter>(std::move(head), std::move(texts));
}

ordered_json chat_body_of_response(ordered_json body) {
  if (body.size() > kMostMembers) throw Error("the body has more members than there are known");
  ordered_json chat = ordered_json::object();
  chat["messages"] = chat_messages(body);
  for (auto& [name, value] : body.items()) {
    if (name == "input" || name == "instructions" ||
        std::ranges::find(kIgnored, name) != kIgnored.end()) {
      continue;
    }
    if (std::ranges::find(kUnsupported, name) != kUnsupported.end()) {
      if (!value.is_null() && value != false) refuse(name, "is not supported; leave it out");
    } else if (name == "messages") {
      throw Error("unknown key \"messages\"; call it \"input\"");
    } else if (name == "text") {
      chat["response_format"] = chat_response_format(value);
    } else if (name == "tools") {
      chat["tools"] = chat_tools(value);
    } else {
      chat[name] = std::move(value);
    }
  }
  return chat;
}

ordered_json repeated_members(const ordered_json& body) {
  const ordered_json none = ordered_json::array();
  ordered_json members = ordered_json::object();
  for (const char* name :
       {"instructions", "max_output_tokens", "metadata", "temperature", "top_p"}) {
    const auto found = body.find(name);
    members[name] = found == body.end() ? ordered_json() : *found;
  }
  const auto parallel = body.find("parallel_tool_calls");
  members["parallel_tool_calls"] =
      parallel == body.end() || !parallel->is_boolean() || parallel->get<bool>();
  members["previous_response_id"] = nullptr;
  members["tool_choice"] = body.contains("tool_choice") ? body.at("tool_choice") : "auto";
  members["tools"] =
      body.contains("tools") && body.at("tools").is_array() ? body.at("tools") : none;
  members["text"] = {{"format", {{"type", "text"}}}};
  const auto text = body.find("text");
  if (text != body.end() && text->is_object() && text->contains("format") &&
      text->at("format").is_object()) {
    members["text"]["format"] = text->at("format");
  }
  return members;
}

}  // namespace faststream::api
