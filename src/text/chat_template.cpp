#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/error.h"
#include "support/json.h"
#include "support/name_list.h"
#include "support/printable.h"
#include "support/utf8.h"
#include "text/builtin_chat_templates.h"
#include "text/chat_variables.h"
#include "text/generic_tools.h"

namespace faststream {
namespace {

using jinja::Origin;
using jinja::Text;
using jinja::Value;

std::string_view strip(std::string_view text) { return strip_left(strip_right(text)); }

/// Calls use(begin, end, origin) for each stretch of one origin.
template <typename Use>
void for_each_run(const Text& text, Use&& use) {
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    use(begin, run.end, run.origin);
    begin = run.end;
  }
  if (begin < text.size()) use(begin, text.size(), jinja::kFromTemplate);
}

/// What the tokenizer's own BOS and EOS look like where nothing says how they are spelled.
constexpr std::string_view kBosText = "<s>";
constexpr std::string_view kEosText = "</s>";

jinja::Dict special_token_variables(const nlohmann::json* spellings) {
  jinja::Dict variables;
  const auto set = [&](std::string_view name, Value value) {
    variables.set(Value(name), std::move(value));
  };
  set("bos_token", Value(Text(std::string(kBosText), kBosToken)));
  set("eos_token", Value(Text(std::string(kEosText), kEosToken)));
  if (spellings == nullptr || !spellings->is_object()) return variables;
  for (const auto& [name, spelling] : spellings->items()) {
    if (spelling.is_string()) {
      set(name, Value(Text(spelling.get<std::string>())));
    } else if (spelling.is_array()) {
      std::vector<Value> all;
      for (const auto& one : spelling) {
        if (one.is_string()) all.emplace_back(Text(one.get<std::string>()));
      }
      set(name, Value(jinja::List(std::move(all))));
    }
  }
  return variables;
}

/// Ends of turns in templates of many families; models are trained to end an answer with them, and
/// some checkpoints do not say so anywhere else.
std::vector<std::string> ends_of_turns(const jinja::Template& jinja) {
  constexpr std::array<std::string_view, 6> kEnds = {
      "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end_of_turn|>", "<turn|>"};
  std::vector<std::string> ends;
  for (const std::string_view end : kEnds) {
    if (jinja.mentions(end)) ends.emplace_back(end);
  }
  return ends;
}

/// The text without its mark and what follows it, as Transformers' continue_final_message cuts it.
Text cut_at_mark(const Text& text) {
  size_t begin = std::string::npos;
  bool whole = false;
  for_each_run(text, [&](size_t from, size_t to, Origin origin) {
    if (origin != kContinuationMark) return;
    begin = from;
    whole = to - from == kMarkText.size();
  });
  if (begin == std::string::npos) {
    throw UsageError("the chat template does not write the message that is to be continued");
  }
  Text cut = text.substr(0, begin);
  return whole ? cut : cut.part(strip_right(cut.view()));
}

}  // namespace

// What is written.
// ---------------------------------------------------------------------------------

std::vector<ChatText::Known> ChatText::known(const Tokenizer& tokenizer) const {
  std::vector<Known> all = answers_;
  const TokenizerConfig& config = tokenizer.config();
  for_each_run(text_, [&](size_t begin, size_t end, Origin origin) {
    if (origin != kBosToken && origin != kEosToken) return;
    const size_t size = origin == kBosToken ? kBosText.size() : kEosText.size();
    std::vector<int32_t> tokens;
    if (origin == kBosToken && config.bos) tokens.assign((end - begin) / size, *config.bos);
    if (origin == kEosToken && !config.eos.empty()) {
      tokens.assign((end - begin) / size, config.eos.front());
    }
    all.push_back({.begin = begin, .end = end, .tokens = std::move(tokens)});
  });
  std::sort(all.begin(), all.end(),
            [](const Known& a, const Known& b) { return a.begin < b.begin; });
  return all;
}

std::vector<int32_t> ChatText::encode(const Tokenizer& tokenizer, bool parses_special) const {
  std::vector<int32_t> ids;
  const auto add = [&ids](std::span<const int32_t> tokens) {
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  };
  bool continues = false;
  const auto add_text = [&](size_t begin, size_t end) {
    const Text part = text_.substr(begin, end - begin);
    std::vector<Stretch> stretches;
    for_each_run(part, [&](size_t from, size_t to, Origin origin) {
      stretches.push_back({.text = part.view().substr(from, to - from),
                           .from_template = parses_special || origin == jinja::kFromTemplate});
    });
    if (stretches.empty()) return;
    stretches.front().continues = continues;
    add(tokenizer.encode_stretches(stretches));
  };
  size_t at = 0;
  for (const Known& stretch : known(tokenizer)) {
    add_text(at, stretch.begin);
    add(stretch.tokens);
    at = stretch.end;
    continues = stretch.is_answer;
  }
  add_text(at, text_.size());
  const TokenizerConfig& config = tokenizer.config();
  if (leaves_bos_ && config.adds_bos() && (ids.empty() || ids.front() != *config.bos)) {
    ids.insert(ids.begin(), *config.bos);
  }
  return ids;
}

// Tokens at the ends of a user's text may reach beyond it.
int64_t ChatText::min_tokens(const Tokenizer& tokenizer, int64_t enough) const {
  constexpr int64_t kReach = 2;
  const std::vector<Known> all = known(tokenizer);
  int64_t n = 0;
  for (const Known& stretch : all) n += static_cast<int64_t>(stretch.tokens.size());
  auto next = all.begin();
  for_each_run(text_, [&](size_t begin, size_t end, Origin origin) {
    if (origin == jinja::kFromTemplate || n > enough) return;
    while (next != all.end() && next->end <= begin) ++next;
    if (next != all.end() && next->begin < end) return;
    const std::string_view stretch = text_.view().substr(begin, end - begin);
    const int64_t missing = std::min(enough, kCountAll - kReach) - n + kReach;
    n += std::max<int64_t>(tokenizer.min_tokens(stretch, missing) - kReach, 0);
  });
  return n;
}

// Templates.
// ---------------------------------------------------------------------------------------

ChatTemplate::ChatTemplate(std::string_view jinja, std::string_view where,
                           std::string_view tool_use, const nlohmann::json* special_tokens)
    : default_(jinja, where), special_tokens_(special_token_variables(special_tokens)) {
  if (!tool_use.empty()) tool_use_.emplace(tool_use, std::string(where) + " for tools");
  const auto builtin = builtin_chat_templates();
  const auto found = std::find_if(builtin.begin(), builtin.end(),
                                  [&](const auto& known) { return known.jinja == jinja; });
  if (found == builtin.end()) {
    stop_tokens_ = ends_of_turns(default_);
    return;
  }
  stop_tokens_.assign(found->stop_tokens.begin(), found->stop_tokens.end());
  stop_.assign(found->stop.begin(), found->stop.end());
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> all;
  for (const BuiltinChatTemplate& known : builtin_chat_templates()) all.emplace_back(known.name);
  return all;
}

ChatTemplate ChatTemplate::from_json(const nlohmann::json& chat_template, std::string_view where,
                                     const nlohmann::json* special_tokens) {
  const JsonView view(chat_template, where);
  if (chat_template.is_string()) {
    return {view.as<std::string>(), where, {}, special_tokens};
  }
  if (!chat_template.is_object()) view.fail("is neither a text nor an object of named ones");
  const auto tool_use = view.get<std::string>("tool_use", "");
  return {view.get<std::string>("default"), where, tool_use, special_tokens};
}

ChatTemplate ChatTemplate::named(std::string_view name, const nlohmann::json* special_tokens) {
  std::string names;
  for (const BuiltinChatTemplate& known : builtin_chat_templates()) {
    if (known.name == name) {
      ChatTemplate chat(known.jinja, "the chat template " + std::string(name), {}, special_tokens);
      chat.is_builtin_ = true;
      return chat;
    }
    add_name(names, known.name);
  }
  throw UsageError("the chat template " + in_quotes(name) + " is unknown; known are " + names);
}

Text ChatTemplate::render(const ChatPrompt& prompt, bool with_generation_prompt,
                          const jinja::LocalTime& now) const {
  const auto render_with = [&](TextArguments arguments) {
    return render(prompt, arguments, with_generation_prompt, now);
  };
  const std::vector<std::string> texts = text_arguments(prompt);
  if (texts.empty()) return render_with(TextArguments::stay);
  // A template that wants objects fails with texts, or writes them as JSON once more.
  std::optional<Text> written;
  std::exception_ptr failure;
  try {
    written = render_with(TextArguments::stay);
  } catch (const Error&) {
    failure = std::current_exception();
  }
  const auto is_quoted = [&](const std::string& text) {
    return written->view().find(nlohmann::json(text).dump()) != std::string_view::npos;
  };
  if (written && std::none_of(texts.begin(), texts.end(), is_quoted)) return *std::move(written);
  try {
    return render_with(TextArguments::become_objects);
  } catch (const Error&) {
    if (failure) std::rethrow_exception(failure);
    return *std::move(written);
  }
}

Text ChatTemplate::render(const ChatPrompt& prompt, TextArguments arguments,
                          bool with_generation_prompt, const jinja::LocalTime& now) const {
  jinja::Dict variables = special_tokens_;
  const jinja::Dict given = chat_variables(prompt, arguments);
  for (const auto& [name, value] : given.entries()) variables.set(name, value);
  variables.set(Value(std::string_view("add_generation_prompt")), Value(with_generation_prompt));
  const bool for_tools = tool_use_ && !prompt.tools.empty();
  return (for_tools ? *tool_use_ : default_).render(variables, now);
}

ChatText ChatTemplate::write(const ChatPrompt& prompt, const jinja::LocalTime& now) const {
  const bool knows_tools = mentions("tools") || mentions("tool_calls");
  if (!knows_tools && speaks_of_tools(prompt)) return write(with_tools_as_text(prompt), now);
  ChatText written;
  written.leaves_bos_ = is_builtin_ && !default_.mentions("bos_token");
  written.text_ = render(prompt, !prompt.continue_final_message, now);
  if (prompt.continue_final_message) written.text_ = cut_at_mark(written.text_);
  find_answers(prompt, now, written);
  return written;
}

// An answer's tokens follow the generation prompt that it was given. Where the template has white
// space between that and the answer ("[/INST] It is"), the model wrote that itself.
void ChatTemplate::find_answers(const ChatPrompt& prompt, const jinja::LocalTime& now,
                                ChatText& written) const {
  if (std::all_of(prompt.messages.begin(), prompt.messages.end(),
                  [](const Message& message) { return message.tokens.empty(); })) {
    return;
  }
  std::optional<std::string> generation_prompt;
  if (!prompt.continue_final_message) {
    const Text without = render(prompt, false, now);
    if (written.text().starts_with(without.view())) {
      generation_prompt = written.text().substr(without.size());
    }
  }
  size_t before_begin = 0;  // where the template's text before the answer begins
  for_each_run(written.text_, [&](size_t begin, size_t end, Origin origin) {
    const size_t first = std::exchange(before_begin, origin == jinja::kFromTemplate ? begin : end);
    if (origin < kFirstAnswer) return;
    const Message& message = prompt.messages[origin - kFirstAnswer];
    const std::string_view text = written.text_.view();
    if (strip(text.substr(begin, end - begin)) != strip(message.content)) return;
    const std::string_view before = text.substr(0, begin);
    constexpr size_t kMostSpace = 64;
    const size_t least =
        std::max({strip_right(before).size(), first, begin - std::min(begin, kMostSpace)});
    for (size_t from = least; generation_prompt && from < begin; ++from) {
      if (!before.substr(0, from).ends_with(*generation_prompt)) continue;
      begin = from;
      break;
    }
    written.answers_.push_back(
        {.begin = begin, .end = end, .tokens = message.tokens, .is_answer = true});
  });
}

bool ChatTemplate::mentions(std::string_view name) const {
  return default_.mentions(name) || (tool_use_ && tool_use_->mentions(name));
}

std::vector<int32_t> ChatTemplate::stop_tokens(const Tokenizer& tokenizer) const {
  std::vector<int32_t> ids;
  for (const std::string& token : stop_tokens_) {
    if (const auto id = tokenizer.find_token(token)) ids.push_back(*id);
  }
  return ids;
}

}  // namespace faststream
