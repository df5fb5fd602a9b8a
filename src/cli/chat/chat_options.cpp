#include "cli/chat/chat_options.h"

#include <CLI/CLI.hpp>

#include "program/option_values.h"

namespace faststream::cli {

void add_chat_options(CLI::App& app, ChatOptions& options, EngineOptions& engine) {
  constexpr const char* kGroup = "Chat";
  app.add_flag("--chat", options.enabled,
               "Talk with the model; /help lists what can be typed besides messages. Without a "
               "terminal, each line of standard input is a message. With -p or -f, ask that once, "
               "with what comes in a pipe after it, and leave")
      ->group(kGroup);
  app.add_option("--system", options.system, "The system prompt: how the model shall answer")
      ->group(kGroup)
      ->type_name("TEXT")
      ->check(utf8_text());
  app.add_option("--session", options.session,
                 "Go on with the conversation in FILE, if it exists, and keep it there")
      ->group(kGroup)
      ->type_name("FILE");
  app.add_option("--messages", options.messages,
                 "Answer the conversation in FILE once: {\"messages\": [...], \"tools\": [...], "
                 "...} as in OpenAI's API")
      ->group(kGroup)
      ->type_name("FILE");
  app.add_option("--tools", options.tools, "Tools that the model may call: a JSON list")
      ->group(kGroup)
      ->type_name("FILE");
  app.add_option("--documents", options.documents, "Documents for the chat template: a JSON list")
      ->group(kGroup)
      ->type_name("FILE");
  app.add_option("--template-arg", options.template_args,
                 "A variable for the chat template, such as enable_thinking=false (repeatable)")
      ->group(kGroup)
      ->type_name("NAME=VALUE")
      ->check(utf8_text())
      ->allow_extra_args(false);
  app.add_flag("--show-prompt", options.show_prompt,
               "With -p, -f or --messages: print what the model would read, and leave")
      ->group(kGroup);
  app.add_option("--chat-template", engine.chat_template,
                 "With --chat or --batch: how conversations are written for the model, a built-in "
                 "name or a Jinja file [the model's own]")
      ->group(kGroup)
      ->type_name("NAME|FILE");
}

}  // namespace faststream::cli
