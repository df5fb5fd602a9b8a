#include "convert/command/convert_command.h"

#include <iostream>
#include <sstream>

#include "convert/adapters/write_adapter.h"
#include "convert/command/check.h"
#include "convert/command/show.h"
#include "convert/huggingface/sentence_transformers.h"
#include "convert/pipeline.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "support/error.h"
#include "support/machine.h"

namespace faststream::convert {
namespace {

void convert(const ConvertCommandOptions& options) {
  if (options.checkpoint.empty()) {
    throw UsageError("CHECKPOINT is missing (see faststream-convert --help)");
  }
  if (options.output.empty()) {
    throw UsageError("-o FILE is missing: where should the model file go?");
  }
  ConvertOptions conversion = conversion_of(options.checkpoint, options);
  conversion.output = options.output;
  conversion.force = options.force;
  conversion.show_progress = !options.quiet;
  conversion.threads = options.threads == 0 ? available_threads() : options.threads;
  conversion.check_interrupted = check_interrupted;
  conversion.before_output = catch_interrupts;
  if (!options.adapter_for.empty()) {
    const AdapterReport report = write_adapter(conversion, options.adapter_for);
    if (!options.quiet) print_report(report, std::cerr);
    return;
  }
  add_statistics(options, conversion);
  const ConvertReport report = convert_checkpoint(conversion);
  if (!report.chat_template_fault.empty()) print_notice(report.chat_template_fault);
  if (!options.quiet) print_report(report, std::cerr);
}

}  // namespace

void convert_command(const ConvertCommandOptions& options) {
  end_at_interrupts();
  std::ostringstream text;
  if (!options.show.empty()) {
    show_model_file(options.show, text);
  } else if (!options.verify.empty()) {
    verify_model_file(options.verify, text);
  } else if (!options.check.empty()) {
    check_checkpoint(conversion_of(options.check, options), text);
  } else {
    convert(options);
  }
  print(text.str());
}

}  // namespace faststream::convert
