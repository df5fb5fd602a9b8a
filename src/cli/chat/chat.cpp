#include "cli/chat/chat.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <ranges>
#include <utility>

#include "cli/chat/chat_context.h"
#include "program/output.h"
#include "support/error.h"
#include "support/name_list.h"
#include "support/printable.h"
#include "support/utf8.h"

namespace faststream::cli {
namespace {

void check_text(const std::string& text, const char* what) {
  if (!is_valid_utf8(text)) {
    throw UsageError(std::string(what) + " is not UTF-8 text; convert it, with iconv for example");
  }
}

// A name as a shell would take it: "~/" is the user's own folder.
std::string with_home(const std::string& file) {
  const char* home = std::getenv("HOME");
  if (!file.starts_with("~/") || home == nullptr || *home == '\0') return file;
  return home + file.substr(1);
}

std::string exchanges(size_t count) {
  return std::to_string(count) + (count == 1 ? " exchange" : " exchanges");
}

std::string rate(int64_t tokens, double seconds) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "%lld in %.3f s, %.1f tokens/s",
                static_cast<long long>(tokens), seconds,
                seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
  return text.data();
}

}  // namespace

struct Chat::Command {
  std::string_view name;
  std::string_view argument;  // as /help shows it
  std::string_view help;
  bool changes = false;  // what a session file keeps
  Handler handler = nullptr;
};

std::span<const Chat::Command> Chat::commands() {
  static const std::array<Command, 12> all = {{
      {"help", "", "show this", false, &Chat::help},
      {"system", "[TEXT]", "show the system prompt or set it (\"\" for none)", true, &Chat::system},
      {"reset", "", "begin a new conversation", true, &Chat::reset},
      {"undo", "", "take the last exchange back", true, &Chat::undo},
      {"retry", "", "generate another answer to the last message", true, &Chat::retry},
      {"set", "[NAME [VALUE]]", "show the settings or change one", true, &Chat::change},
      {"adapter", "[NAME]", "show the adapters or answer with one (\"\" for none)", false,
       &Chat::adapter},
      {"save", "FILE", "write the conversation and the settings to a new file", false,
       &Chat::save_as},
      {"save!", "FILE", "the same, also in place of an older session", false, &Chat::save_over},
      {"load", "FILE", "go on with those of a file", true, &Chat::load_from},
      {"stats", "", "count turns, tokens and speed", false, &Chat::stats},
      {"quit", "", "leave, as Ctrl-D does", false, &Chat::quit},
  }};
  return all;
}

Chat::Chat(Answerer& answerer, ChatModel model, Request prototype, ChatOutput output)
    : answerer_(&answerer),
      request_(std::move(prototype)),
      output_(std::move(output)),
      session_{.model = std::move(model), .conversation = {}, .settings = {}} {
  if (auto* frame = std::get_if<ChatPrompt>(&request_.prompt)) frame_ = std::move(*frame);
  request_.prompt = {};
  session_.settings = request_;
}

bool Chat::take(const ChatInput& input) {
  bool changes = true;
  if (!input.command) {
    check_text(input.text, "the message");
    (void)exchange(session_.conversation, input.text);
  } else {
    const auto command = std::ranges::find(commands(), *input.command, &Command::name);
    const std::string name = "/" + *input.command;
    if (command == commands().end()) {
      throw UsageError(name + " is no command; /help lists them, and // begins a message with a /");
    }
    if (command->argument.empty() && !input.text.empty()) {
      throw UsageError(name + " takes nothing after it");
    }
    const bool takes_file = command->argument == "FILE";
    if (takes_file && input.text.empty()) throw UsageError(name + " needs the name of a file");
    (this->*command->handler)(takes_file ? with_home(input.text) : input.text);
    changes = command->changes;
  }
  if (changes) {
    try {
      save();
    } catch (const Error& error) {  // what was done stands; the next change tries again
      notice(error.what());
    }
  }
  if (output_failure_) std::rethrow_exception(std::exchange(output_failure_, nullptr));
  return !leaving_;
}

void Chat::set_system(const std::string& text) {
  check_text(text, "the system prompt");
  std::optional<std::string> prompt = system_prompt(text);
  check_template(prompt);
  session_.conversation.system = std::move(prompt);
}

// Throws Error when there is `system` and the template refuses system prompts.
void Chat::check_template(const std::optional<std::string>& system) const {
  (void)answerer_->count_tokens(
      prompt_of({.system = system, .messages = {{.role = "user", .content = "?"}}}, 0, frame_));
}

void Chat::set(std::string_view name, std::string_view value) {
  change_setting(session_.settings, name, value);
  const RequestSetting& setting = find_chat_setting(name);
  setting.copy(session_.settings, request_);
}

void Chat::save() const {
  if (!session_path_.empty()) write_session(session_path_, session_, true);
}

void Chat::load(const std::string& path, const std::string& command) {
  Session loaded = read_session(path, session_, command);
  check_template(loaded.conversation.system);
  if (loaded.model.fingerprint != session_.model.fingerprint) {
    notice(printable(path) + " was held with another model, " + printable(loaded.model.name) +
           ": its text is kept, its tokens are not");
    loaded.model = session_.model;
  }
  session_ = std::move(loaded);
  const Request before = request_;
  for (const RequestSetting* setting : chat_settings()) setting->copy(session_.settings, request_);
  first_in_context_ = 0;
  usage_.reset();
  notice(path + ": going on after " + exchanges(n_exchanges()) + ", with the settings saved there");
  tell_idle(before);
}

void Chat::print_stats() const {
  const size_t seen = n_exchanges() - first_in_context_;
  const int64_t tokens =
      seen == 0
          ? 0
          : answerer_->count_tokens(prompt_of(session_.conversation, first_in_context_, frame_));
  notice("turns:       " + std::to_string(n_exchanges()) +
         (first_in_context_ == 0 ? "" : ", the last " + std::to_string(seen) + " in the context"));
  notice("context:     " + std::to_string(tokens) + " of " + std::to_string(answerer_->context()) +
         " tokens");
  if (!usage_) return;
  const int64_t processed = usage_->prompt_tokens - usage_->cached_tokens;
  notice("last prompt: " + std::to_string(usage_->prompt_tokens) + " tokens, " +
         std::to_string(usage_->cached_tokens) + " from the KV cache, " +
         rate(processed, usage_->prompt_seconds));
  // The first token comes out of the prompt's pass.
  notice("last answer: " + std::to_string(usage_->answer_tokens) + " tokens, " +
         rate(std::max<int64_t>(usage_->answer_tokens - 1, 0), usage_->generation_seconds));
}

void Chat::help(const std::string& /*argument*/) {
  constexpr size_t kColumn = 24;
  for (const Command& command : commands()) {
    std::string line = "/" + std::string(command.name) + " " + std::string(command.argument);
    line.resize(kColumn, ' ');
    notice(line + std::string(command.help));
  }
  notice(
      "A line that ends in \\ goes on in the next one; lines between two lines \"\"\" are one "
      "message; // begins a message with a /. Ctrl-C stops an answer.");
}

void Chat::system(const std::string& argument) {
  if (argument.empty()) {
    const auto& prompt = session_.conversation.system;
    notice(prompt ? *prompt : "there is no system prompt; /system TEXT sets one");
    return;
  }
  set_system(argument == "\"\"" ? "" : argument);
  const std::string done =
      session_.conversation.system ? "the system prompt is set" : "there is no system prompt now";
  notice(session_.conversation.messages.empty()
             ? done
             : done +
                   ", from the start of the conversation: the next message processes all of it "
                   "again");
}

void Chat::reset(const std::string& /*argument*/) {
  session_.conversation.messages.clear();
  first_in_context_ = 0;
  usage_.reset();
  notice("a new conversation; system prompt and settings stay");
}

void Chat::undo(const std::string& /*argument*/) {
  std::vector<Message>& messages = session_.conversation.messages;
  if (messages.empty()) throw UsageError("there is no exchange to take back");
  const std::string message = messages[messages.size() - 2].content;
  messages.resize(messages.size() - 2);
  if (first_in_context_ >= n_exchanges()) first_in_context_ = 0;  // there is room for older ones
  notice("took back " + in_quotes(message) + " and its answer");
}

void Chat::retry(const std::string& /*argument*/) {
  Conversation before = session_.conversation;
  if (before.messages.empty()) throw UsageError("there is no message to answer again");
  const std::string message = before.messages[before.messages.size() - 2].content;
  before.messages.resize(before.messages.size() - 2);

  const SamplingParams& sampling = request_.sampling;
  const bool searches = request_.search.beams > 1;
  const bool greedy = sampling.temperature == 0 && !searches;
  if (searches) {
    notice("a beam search always gives the same answer; only a chat without --beams gives others");
  } else if (greedy) {
    notice("the temperature is 0, which always gives the same answer; /set temperature changes it");
  } else if (sampling.seed) {
    notice("the seed is fixed, " + std::to_string(*sampling.seed) +
           ", which gives the same answer; /set seed random draws others");
  }
  if (exchange(std::move(before), message) && !searches && !greedy && !sampling.seed) {
    notice("another answer, with seed " + std::to_string(usage_->seed));
  }
}

void Chat::change(const std::string& argument) {
  if (argument.empty()) {
    output_.notice(list_settings(request_));
    return;
  }
  const size_t end = argument.find_first_of(" \t");
  const std::string name = argument.substr(0, end);
  const Request before = request_;
  if (end != std::string::npos) set(name, argument.substr(argument.find_first_not_of(" \t", end)));
  notice(name + " is " + find_chat_setting(name).show(request_));
  tell_idle(before);
}

void Chat::adapter(const std::string& argument) {
  const std::vector<std::string> names = answerer_->adapters();
  if (names.empty()) {
    throw UsageError(
        "no adapters run beside the model; faststream-run takes them with --adapter NAME=FILE");
  }
  if (argument.empty()) {
    const std::string now = request_.adapter.value_or(names.front());
    for (const std::string& name : names) notice(name + (name == now ? " (answers now)" : ""));
    if (now.empty()) notice("none of them answers now; /adapter NAME chooses one");
    return;
  }
  const std::string name = argument == "\"\"" ? "" : argument;
  if (!name.empty() && std::ranges::find(names, name) == names.end()) {
    std::string known;
    for (const std::string& each : names) add_name(known, each);
    throw UsageError("there is no adapter " + in_quotes(name) + "; there are " + known +
                     ", and \"\" is the model without");
  }
  request_.adapter = name;
  const std::string done =
      name.empty() ? "the model answers without an adapter now" : "the adapter is " + name + " now";
  notice(session_.conversation.messages.empty()
             ? done
             : done + ": the next message processes the conversation again");
}

void Chat::tell_idle(const Request& before) const {
  for (const RequestSetting& setting : request_settings()) {
    const std::string_view why = setting.idleness(request_);
    if (why.empty()) continue;
    const bool changed = setting.show(request_) != setting.show(before);
    const bool newly_idle = setting.idleness(before).empty() && !setting.is_unset(request_);
    if (changed || newly_idle) notice(chat_name(setting) + " " + std::string(why));
  }
}

void Chat::save_as(const std::string& argument) {
  std::error_code ignored;
  if (std::filesystem::exists(argument, ignored)) {
    throw UsageError(argument + " already exists; name another file, or replace it with /save! " +
                     argument);
  }
  save_to(argument, "/save", false);
}

void Chat::save_over(const std::string& argument) { save_to(argument, "/save!", true); }

void Chat::save_to(const std::string& path, const std::string& command, bool overwrite) {
  std::error_code ignored;
  std::optional<FileLock> lock;  // the session file's is held for the whole chat
  if (session_path_.empty() || !std::filesystem::equivalent(path, session_path_, ignored)) {
    lock.emplace(lock_session(path, command));
  }
  if (overwrite && session_begun(path)) check_replaceable(path, command);
  write_session(path, session_, overwrite);
  notice("saved " + path);
}

void Chat::check_replaceable(const std::string& path, const std::string& command) const {
  try {
    (void)read_session(path, session_, command);
  } catch (const Error& error) {
    throw UsageError(path + " is not replaced, since it is no session; name another file (" +
                     error.what() + ")");
  }
}

void Chat::load_from(const std::string& argument) { load(argument, "/load"); }

void Chat::stats(const std::string& /*argument*/) { print_stats(); }

void Chat::quit(const std::string& /*argument*/) { leaving_ = true; }

bool Chat::exchange(Conversation before, const std::string& message) {
  const size_t n_before = before.messages.size() / 2;
  Conversation after = std::move(before);
  after.messages.push_back({.role = "user", .content = message});
  const size_t first =
      fit_context(*answerer_, after, first_in_context_, request_.max_tokens, frame_);
  if (first != first_in_context_) {
    notice("the context is full: the model no longer sees the oldest " + std::to_string(first) +
           " of " + exchanges(n_before));
  }
  const Result result = generate(prompt_of(after, first, frame_));
  const Output& output = result.outputs.at(0);
  if (output.finish_reason == FinishReason::cancelled && output.tokens.empty()) {
    notice("stopped before the answer began; the conversation is as before");
    return false;
  }
  after.messages.push_back(assistant_message(output));
  if (request_.show_special) after.messages.back().content = text_without_special(output);
  session_.conversation = std::move(after);
  first_in_context_ = first;
  usage_ = {.prompt_tokens = result.prompt_tokens,
            .cached_tokens = result.cached_tokens,
            .answer_tokens = static_cast<int64_t>(output.tokens.size()),
            .prompt_seconds = result.prompt_seconds,
            .generation_seconds = result.generation_seconds,
            .seed = result.seed};
  tell_end(output.finish_reason);
  return true;
}

// Of an answer that was shown with special tokens' spellings, which the model shall not read as
// text the next time.
std::string Chat::text_without_special(const Output& output) const {
  const std::string text = answerer_->text_of(output.tokens);
  const std::string_view answer = strip_left(text);
  return std::string(
      answer.substr(0, output.stop.empty() ? answer.npos : answer.find(output.stop)));
}

Result Chat::generate(ChatPrompt prompt) {
  Request request = request_;
  request.prompt = std::move(prompt);
  bool begun = false;
  // Where nobody can read on, the answer ends, and is kept before take() passes that on.
  const auto show = [&](std::string_view text) {
    try {
      output_.answer(text);
    } catch (const OutputError&) {
      output_failure_ = std::current_exception();
    }
    begun = true;
    return !output_failure_;
  };
  try {
    Result result = answerer_->answer(std::move(request), show);
    (void)show("\n");
    return result;
  } catch (const Error&) {
    if (begun) (void)show("\n");
    throw;
  }
}

void Chat::tell_end(FinishReason reason) const {
  if (reason == FinishReason::cancelled && !output_failure_) {
    notice("stopped; what there is of the answer is kept");
  }
  if (reason == FinishReason::context) notice("the answer ends here because the context is full");
  if (reason == FinishReason::length) {
    notice("the answer ends here because max-tokens is " + std::to_string(request_.max_tokens));
  }
}

Message assistant_message(const Output& output) {
  Message message{.role = "assistant", .content = output.text};
  if (output.finish_reason == FinishReason::stop_string) return message;
  message.tokens = output.tokens;
  const FinishReason reason = output.finish_reason;
  if (reason == FinishReason::eos || reason == FinishReason::stop_token) message.tokens.pop_back();
  return message;
}

}  // namespace faststream::cli
