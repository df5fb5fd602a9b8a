#include "cli/chat/chat_command.h"

#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "cli/chat/chat_context.h"
#include "cli/chat/chat_terminal.h"
#include "cli/conversation_file.h"
#include "cli/terminal_text.h"
#include "engine/find_chat_template.h"
#include "engine/load_weights.h"
#include "engine/loaded_model.h"
#include "program/input.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "support/error.h"
#include "support/file_lock.h"
#include "support/json.h"

namespace faststream::cli {
namespace {

ChatOutput standard_output() {
  const auto answer = [write = text_output(true)](std::string_view text) {
    try {
      write(text);
    } catch (const Interrupted&) {  // ends the answer, which is kept, by its own way
    }
  };
  return {.answer = answer, .notice = &print_notice};
}

// Everything that a session or the command line says before the first message. What options say of
// settings is for this chat: a session has what /set did.
void prepare(Chat& chat, const ChatOptions& options, std::span<const std::string> given,
             const Request& asked) {
  if (!options.session.empty()) {
    if (session_begun(options.session)) chat.load(options.session, "--session");
    chat.keep_in(options.session);
  }
  for (const std::string& option : given) {
    const RequestSetting* setting = find_setting_of_option(option);
    if (setting != nullptr && setting->in_chat) chat.use(*setting, asked);
  }
  if (options.system) chat.set_system(*options.system);
  chat.save();  // a file that cannot be written is better known now
}

// What a chat's requests share: with the settings that the model recommends, where a session may
// say others.
Request prototype_of(const LoadedEngine& model, ChatPrompt frame) {
  Request prototype = model.prototype;
  for (const RequestSetting* setting : chat_settings()) {
    setting->copy(model.recommended, prototype);
  }
  prototype.prompt = std::move(frame);
  return prototype;
}

// A file of JSON, as text; empty for none.
std::string read_list(const std::string& path, const std::string& option) {
  if (path.empty()) return "";
  const nlohmann::ordered_json list =
      parse_ordered_json(read_text_file(path, option), option + " " + path, "give a JSON list");
  if (!list.is_array()) throw Error(option + " " + path + ": is not a JSON list");
  return list.empty() ? "" : list.dump();
}

// What the command line gives the chat template besides messages.
void add_frame(const ChatOptions& options, ChatPrompt& prompt) {
  if (!options.tools.empty()) prompt.tools = read_list(options.tools, "--tools");
  if (!options.documents.empty()) prompt.documents = read_list(options.documents, "--documents");
  for (const std::string& definition : options.template_args) {
    add_template_variable(prompt.variables, definition);
  }
}

// Renders what is asked once, before a model is loaded for it.
std::string written_text(const ChatTemplate& chat_template, const ChatPrompt& prompt,
                         const std::string& messages_file) {
  try {
    return chat_template.write(prompt).text();
  } catch (const Error& error) {
    if (messages_file.empty()) throw;
    throw Error("--messages " + messages_file + ": " + error.what());
  }
}

void warn_of_unused(const ChatTemplate& chat_template, const ChatPrompt& prompt) {
  if (prompt.documents.empty() || chat_template.mentions("documents")) return;
  print_notice("the chat template does not look at documents: the model will not see them\n");
}

void check_combination(const ChatOptions& options, const ChatRun& run) {
  const bool has_messages = !options.messages.empty();
  if (run.question && run.question->empty()) {
    throw UsageError("the question is empty; give a text with -p or -f");
  }
  if (has_messages && run.question) {
    throw UsageError("--messages and -p or -f do not go together; leave one of them out");
  }
  if (has_messages && (!options.session.empty() || options.system)) {
    throw UsageError("--messages does not go with --session or --system; put all into its file");
  }
  if (options.show_prompt && !has_messages && !run.question) {
    throw UsageError("--show-prompt needs -p, -f or --messages");
  }
  if (options.show_prompt && !options.session.empty()) {
    throw UsageError("--show-prompt has no effect with --session; leave one of them out");
  }
}

// A conversation from a file.
void answer_once(LoadedEngine& model, ChatPrompt prompt, const ChatOutput& output) {
  Request request = model.prototype;
  request.prompt = std::move(prompt);
  (void)generate(model.engine, std::move(request), [&](std::string_view text) {
    output.answer(text);
    return true;
  });
  output.answer("\n");
  check_interrupted();
}

}  // namespace

size_t converse(Chat& chat, LineSource& lines, const ChatOutput& output, bool on_terminal) {
  // Ctrl-C has done its work; SIGTERM, or Ctrl-C in a script, ends the chat.
  const auto go_on = [on_terminal] {
    if (on_terminal) clear_interrupt();
    check_interrupted();
  };
  InputAssembler assembler;
  size_t n_refused = 0;
  int emptied = 0;  // lines by Ctrl-C, one after the other
  for (;;) {
    std::string line;
    const LineSource::Event event = lines.next(assembler.unfinished(), line);
    if (event == LineSource::Event::interrupted) {
      go_on();
      assembler.clear();
      if (++emptied == 2) output.notice("Ctrl-D or /quit leaves\n");
      continue;
    }
    emptied = 0;
    const bool ended = event == LineSource::Event::end;
    if (const auto input = ended ? assembler.finish() : assembler.add(line)) {
      lines.remember(input->typed());
      try {
        if (!chat.take(*input)) return n_refused;
      } catch (const OutputError&) {
        throw;
      } catch (const Error& error) {
        ++n_refused;
        output.notice(std::string(error.what()) + "\n");
      } catch (const Interrupted&) {
        output.notice("stopped; the conversation is as before\n");
      }
      go_on();
    }
    if (ended) return n_refused;
  }
}

void chat_command(const ChatOptions& options, const ChatRun& run,
                  const std::function<LoadedEngine()>& load) {
  check_combination(options, run);
  ChatPrompt prompt;  // what is known of it: all, or the frame of a chat
  if (!options.messages.empty()) prompt = read_conversation_file(options.messages);
  add_frame(options, prompt);
  std::optional<ChatModel> model;
  {
    const ModelFile file = ModelFile::open(run.model);
    require_text(file, read_config(file));
    const std::optional<ChatTemplate> chat_template = find_chat_template(run.chat_template, file);
    if (!chat_template) throw UsageError(unknown_chat_template(file));
    warn_of_unused(*chat_template, prompt);
    if (options.show_prompt && run.question) {
      const Conversation conversation{.system = system_prompt(options.system.value_or("")),
                                      .messages = {{.role = "user", .content = *run.question}}};
      prompt = prompt_of(conversation, 0, prompt);
    }
    if (options.show_prompt || !options.messages.empty()) {
      const std::string text = written_text(*chat_template, prompt, options.messages);
      check_interrupted();
      if (options.show_prompt) return text_output(false)(text);
    }
    model = chat_model(file);
  }
  std::optional<FileLock> lock;  // for as long as the chat lasts
  if (!options.session.empty()) lock.emplace(lock_session(options.session, "--session"));
  LoadedEngine loaded = load();
  const ChatOutput output = standard_output();
  if (!options.messages.empty()) return answer_once(loaded, std::move(prompt), output);

  EngineAnswerer answerer(loaded.engine, loaded.prototype.parse_special);
  Chat chat(answerer, *model, prototype_of(loaded, std::move(prompt)), output);
  prepare(chat, options, run.given, loaded.prototype);

  size_t n_refused = 0;
  if (run.question) {
    (void)chat.take({.command = {}, .text = *run.question});
    check_interrupted();
  } else if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
    survive_interrupts();
    output.notice(model->name + ", context of " + std::to_string(answerer.context()) +
                  " tokens; /help lists the commands, Ctrl-D leaves\n");
    TerminalLines lines(chat_history_path());
    (void)converse(chat, lines, output, true);
  } else {
    ScriptLines lines(STDIN_FILENO);
    n_refused = converse(chat, lines, output, false);
  }
  chat.save();
  if (run.stats) chat.print_stats();
  if (n_refused > 0) {
    throw Error(std::to_string(n_refused) + (n_refused == 1 ? " input was" : " inputs were") +
                " refused, for the reasons above");
  }
}

}  // namespace faststream::cli
