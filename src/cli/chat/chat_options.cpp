#include "cli/chat/chat_options.h"

#include <CLI/CLI.hpp>

#include "cli/chat/chat_settings.h"

namespace faststream {

void add_chat_options(CLI::App& app, ChatOptions& options, EngineOptions& engine) {
  constexpr const char* kGroup = "Chat";
  auto* chat = app.add_flag("--chat", options.enabled,
                            "Talk with the model; /help lists what can be typed besides messages. "
                            "Without a terminal, each line of standard input is a message")
                   ->group(kGroup);
  for (const char* other :
       {"--prompt", "--file", "--perplexity", "--tokenize", "--echo", "--batch"}) {
    if (CLI::Option* option = app.get_option_no_throw(other)) chat->excludes(option);
  }
  app.add_option("--system", options.system, "The system prompt: how the model shall answer")
      ->group(kGroup)
      ->type_name("TEXT")
      ->needs(chat);
  app.add_option("--session", options.session,
                 "Go on with the conversation in FILE, if it exists, and keep it there")
      ->group(kGroup)
      ->type_name("FILE")
      ->needs(chat);
  app.add_option("--chat-template", engine.chat_template,
                 "How conversations are written for the model: a built-in name or a file [the "
                 "model's own]")
      ->group(kGroup)
      ->type_name("NAME|FILE");
  app.parse_complete_callback([&app, &options] {
    for (const SettingName& setting : setting_names()) {
      const CLI::Option* option = app.get_option_no_throw(std::string(setting.option));
      if (option != nullptr && option->count() > 0) options.given.emplace_back(setting.name);
    }
  });
}

}  // namespace faststream
