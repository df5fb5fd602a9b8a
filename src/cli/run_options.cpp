#include "cli/run_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <system_error>
#include <vector>

#include "cli/run_modes.h"
#include "cli/setting_options.h"
#include "engine/within.h"
#include "program/device_options.h"
#include "program/input.h"
#include "program/option_values.h"
#include "support/printable.h"

namespace faststream::cli {
namespace {

constexpr const char* kGeneration = "Generation";

// "29=-1.5"
LogitBias parse_logit_bias(const std::string& text) {
  LogitBias bias;
  const char* end = text.data() + text.size();
  const auto [equals, token_status] = std::from_chars(text.data(), end, bias.token);
  const bool is_token = token_status == std::errc() && bias.token >= 0;
  if (is_token && equals != end && *equals == '=') {
    const auto [stop, status] = std::from_chars(equals + 1, end, bias.bias);
    if (status == std::errc() && stop == end && within(bias.bias, -100, 100)) return bias;
  }
  throw CLI::ValidationError("--logit-bias", in_quotes(text) +
                                                 " is not TOKEN=BIAS with a bias from -100 to 100, "
                                                 "such as 29=-1.5");
}

void add_logit_bias(CLI::App& app, std::vector<LogitBias>& biases) {
  const auto parse = [&biases](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      const LogitBias bias = parse_logit_bias(text);
      if (std::ranges::find(biases, bias.token, &LogitBias::token) != biases.end()) {
        throw CLI::ValidationError("--logit-bias", in_quotes(text) +
                                                       " is the second bias of that "
                                                       "token; leave one of them out");
      }
      biases.push_back(bias);
    }
    return true;
  };
  app.add_option("--logit-bias", parse,
                 "Add BIAS, -100 to 100, to the logit of the token with id TOKEN (repeatable)")
      ->group(kGeneration)
      ->type_name("TOKEN=BIAS")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false);
}

void add_prompt_options(CLI::App& app, RunOptions& options) {
  app.add_option("-m,--model", options.model, "Model file made by faststream-convert")
      ->required()
      ->type_name("FILE");

  auto* prompt = app.add_option("-p,--prompt", options.prompt,
                                "Text to continue, or, with a model that has an encoder, to "
                                "translate or summarize")
                     ->group("Prompt")
                     ->check(utf8_text());
  app.add_option(
         "-f,--file", options.prompt_file,
         "Read the prompt from FILE, - for standard input, which is read too without -p and "
         "-f (of both, one final newline is dropped)")
      ->group("Prompt")
      ->type_name("FILE")
      ->excludes(prompt);
  app.add_flag(
         "--parse-special", options.request.parse_special,
         "Spellings of special tokens in the prompt or the messages, such as <|im_end|>, become "
         "those tokens [they are plain text]")
      ->group("Prompt");
  app.add_flag("--tokenize", options.tokenize,
               "Print the prompt's token ids as a JSON array and leave")
      ->group("Prompt");
}

void add_measurement_options(CLI::App& app, RunOptions& options) {
  app.add_option(
         "--perplexity", options.perplexity_file,
         "Instead of generating, print how well and how fast the model predicts the text in FILE")
      ->group("Measurement")
      ->type_name("FILE");
  app.add_option("--against", options.against,
                 "With --perplexity: compare the model's predictions with those of this one, such "
                 "as an INT8 file with the f32 file it came from")
      ->group("Measurement")
      ->type_name("MODEL");
  app.add_flag_callback(
         "--list-devices",
         [&app, &options] {
           options.list_devices = true;
           app.get_option("--model")->required(false);
         },
         "Print what --device can name, a line each, with the memory that is free, and leave")
      ->group("Measurement");
  app.add_flag("--json", options.json,
               "Print what --perplexity or --list-devices tell as JSON, one object a line")
      ->group("Measurement");
}

// What answers must be: one of three.
void add_rule_options(CLI::App& app, Request& request) {
  const auto add = [&](const char* name, OutputRule::Kind kind, const char* help) {
    const bool is_file = kind != OutputRule::Kind::regex;
    const auto read = [&request, kind, is_file, name](const std::string& value) {
      const std::string text = is_file ? read_text_file(value, name) : value;
      request.rule = OutputRule{.kind = kind, .text = text, .name = name};
    };
    CLI::Option* option = app.add_option_function<std::string>(name, read, help);
    option->group(kGeneration)->type_name(is_file ? "FILE" : "PATTERN");
    if (!is_file) option->check(utf8_text());
    return option;
  };
  CLI::Option* schema = add("--json-schema", OutputRule::Kind::json_schema,
                            "Answer in JSON that is valid under the schema in FILE");
  CLI::Option* regex = add("--regex", OutputRule::Kind::regex,
                           "Answer with what matches the regular expression as a whole");
  CLI::Option* grammar = add("--grammar", OutputRule::Kind::grammar,
                             "Answer with a text of the grammar in FILE (GBNF or Lark)");
  schema->excludes(regex)->excludes(grammar);
  regex->excludes(grammar);
}

void add_generation_options(CLI::App& app, Request& request) {
  add_setting_options(app, kGeneration, request);
  add_logit_bias(app, request.sampling.logit_bias);
  app.add_option("--stop", request.stop, "End the answer before TEXT (repeatable)")
      ->group(kGeneration)
      ->type_name("TEXT")
      ->check(some_text())
      ->check(utf8_text())
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", request.ignore_eos, "Go on when the model ends its text")
      ->group(kGeneration);
  add_rule_options(app, request);
  add_setting_options(app, "Beam search", request);

  app.add_option("--source-lang", request.source_language,
                 "Language of the text that is translated, by the model's name for it, such as "
                 "en_XX or eng_Latn [the model's own]")
      ->group("Translation")
      ->type_name("LANG");
  app.add_option("--target-lang", request.target_language,
                 "Language that it is translated into [the model's own]")
      ->group("Translation")
      ->type_name("LANG");
}

void add_output_options(CLI::App& app, RunOptions& options) {
  app.add_flag("--echo", options.echo, "Print the prompt before the text")->group("Output");
  app.add_flag("--special", options.request.show_special,
               "Print special tokens of the generated text, too, such as the one that ends it")
      ->group("Output");
  app.add_flag("--stats", options.stats,
               "Print times, tokens per second, memory and device to standard error")
      ->group("Output");
}

// What can be checked once all options are known.
void check_parsed(const CLI::App& app, RunOptions& options) {
  options.notices = check_modes(app);
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0) options.given.push_back("--" + option->get_lnames().at(0));
  }
}

}  // namespace

void add_run_options(CLI::App& app, RunOptions& options) {
  app.description("Runs a language model from a single file and prints the text it generates.");
  app.set_version_flag("--version", std::string("faststream ") + FASTSTREAM_VERSION);
  add_prompt_options(app, options);
  add_measurement_options(app, options);
  add_generation_options(app, options.request);
  add_device_options(app, options.engine);
  add_output_options(app, options);
  add_batch_options(app, options.batch, options.request);
  add_embed_options(app, options.embed);
  add_chat_options(app, options.chat, options.engine);
  for (const char* option :
       {"--model", "--file", "--perplexity", "--against", "--batch", "--output", "--session",
        "--chat-template", "--messages", "--tools", "--documents"}) {
    app.get_option(option)->check(named_file());
  }
  app.get_option("--output")->check(output_file());
  app.parse_complete_callback([&app, &options] { check_parsed(app, options); });

  app.footer(R"(
Sampling values in brackets hold where the model file recommends no others (faststream-convert --show).
Standard output gets the generated text and a newline, or what --batch, --embed, --rank,
--tokenize, --perplexity or --list-devices print; everything else goes to standard error.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

Examples:
  faststream-run -m llama.bin -p "The capital of France is" -n 32
  faststream-run -m llama.bin -f letter.txt --temp 0 > answer.txt
  git diff | faststream-run -m llama.bin --stats --device cuda:1
  faststream-run -m llama.bin -p "Once upon a time" --seed 7 --top-k 0 --top-p 0.9
  faststream-run -m llama.bin -p "The capital of France is" --beams 4 --no-repeat-ngram 3 -n 32
  faststream-run -m nllb.bin -p "Good morning." --source-lang eng_Latn --target-lang fra_Latn
  faststream-run -m llama.bin -p "How many tokens?" --tokenize
  faststream-run -m llama.bin --batch prompts.jsonl -o answers.jsonl --resume
  faststream-run -m llama.bin --adapter bot=bot.bin --adapter poet=poet.bin --batch prompts.jsonl
  faststream-run -m llama.bin --chat --system "Answer briefly." --session talk.json
  faststream-run -m minilm.bin --embed --batch texts.txt --format npy -o vectors.npy
  faststream-run -m reranker.bin --rank "How tall is it?" --batch answers.txt
  git diff | faststream-run -m llama.bin --chat -p "Write a commit message for this:"
  faststream-run -m llama-int8.bin --perplexity book.txt --against llama-f32.bin)");
}

}  // namespace faststream::cli
