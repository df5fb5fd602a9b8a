#include "cli/chat/chat_command.h"

#include <unistd.h>

#include <memory>
#include <optional>
#include <string>

#include "cli/chat/chat_terminal.h"
#include "cli/terminal_text.h"
#include "engine/find_chat_template.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "support/error.h"
#include "support/file_lock.h"

namespace faststream {
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

// Everything that a session or the command line says before the first message.
void prepare(Chat& chat, const ChatOptions& options, const ChatSettings& settings) {
  if (!options.session.empty()) {
    if (session_begun(options.session)) {
      chat.load(options.session, "--session");
      for (const std::string& name : options.given) chat.set(name, show_setting(settings, name));
    }
    chat.keep_in(options.session);
  }
  if (options.system) chat.set_system(*options.system);
  chat.save();  // a file that cannot be written is better known now
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
  const bool on_terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  std::optional<ChatModel> model;
  {
    const ModelFile file = ModelFile::open(run.model);
    if (!find_chat_template(run.chat_template, file)) {
      throw UsageError(unknown_chat_template(file));
    }
    model = chat_model(file);
  }
  std::optional<FileLock> lock;  // for as long as the chat lasts
  if (!options.session.empty()) lock.emplace(lock_session(options.session, "--session"));
  LoadedEngine loaded = load();
  EngineAnswerer answerer(loaded.engine);
  const ChatOutput output = standard_output();
  Chat chat(answerer, *model, loaded.prototype, output);
  prepare(chat, options,
          {.max_tokens = loaded.prototype.max_tokens, .sampling = loaded.prototype.sampling});

  size_t n_refused = 0;
  if (on_terminal) {
    survive_interrupts();
    output.notice(model->name + ", context of " + std::to_string(answerer.context()) +
                  " tokens; /help lists the commands, Ctrl-D leaves\n");
    TerminalLines lines(chat_history_path());
    (void)converse(chat, lines, output, on_terminal);
  } else {
    ScriptLines lines(STDIN_FILENO);
    n_refused = converse(chat, lines, output, on_terminal);
  }
  chat.save();
  if (run.stats) chat.print_stats();
  if (n_refused > 0) {
    throw Error(std::to_string(n_refused) + (n_refused == 1 ? " input was" : " inputs were") +
                " refused, for the reasons above");
  }
}

}  // namespace faststream
