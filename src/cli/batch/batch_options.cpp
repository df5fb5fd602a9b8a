#include "cli/batch/batch_options.h"

#include <CLI/CLI.hpp>

#include "cli/setting_options.h"

namespace faststream::cli {
namespace {

CLI::Validator part_of_file() {
  const auto check = [](const std::string& text) {
    return batch_part_of(text) ? std::string() : text + " is not a part K/N of a file, such as 2/5";
  };
  return CLI::Validator(check, "", "");
}

}  // namespace

void add_batch_options(CLI::App& app, BatchOptions& options, Request& defaults) {
  constexpr const char* kGroup = "Batch";
  app.add_option("--batch", options.input,
                 "Answer every line of FILE (- is standard input): prompts, JSON lines or OpenAI's "
                 "batch format; the sampling options are for lines that do not say")
      ->group(kGroup)
      ->type_name("FILE");
  auto* output = app.add_option("-o,--output", options.output,
                                "Write the results, JSON lines, to FILE [standard output]")
                     ->group(kGroup)
                     ->type_name("FILE");
  app.add_flag("--resume", options.resume,
               "Go on where a former run that wrote the same FILE was ended, of the same model and "
               "options (with the same --seed: as if it never was)")
      ->group(kGroup)
      ->needs(output);
  const auto set_part = [&options](const std::string& text) {
    options.part = batch_part_of(text).value();
  };
  app.add_option_function<std::string>(
         "--part", set_part,
         "Answer the K-th of N parts of the file alone, as other processes do the others; their "
         "results, one after the other, are those of one run with the same --seed")
      ->group(kGroup)
      ->check(part_of_file())
      ->type_name("K/N");
  app.add_flag("--unordered", options.unordered,
               "Write results as they finish, not in the order of the lines")
      ->group(kGroup);
  app.add_flag("--strict", options.strict,
               "End at the first bad line, instead of writing an error as its result")
      ->group(kGroup);
  add_setting_options(app, kGroup, defaults);
}

}  // namespace faststream::cli
