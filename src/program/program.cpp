#include "program/program.h"

#include <iostream>
#include <new>

#include "program/interrupt.h"
#include "support/error.h"

namespace faststream {
namespace {

int fail(const CLI::App& app, const std::string& message, int code) {
  std::cout.flush();
  std::cerr << app.get_name() << ": " << message << '\n';
  return code;
}

}  // namespace

int run_program(CLI::App& app, int argc, const char* const* argv,
                const std::function<void()>& command) {
  try {
    app.parse(argc, argv);
    command();
    return kExitDone;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(app, std::string(error.what()) + " (see " + app.get_name() + " --help)",
                kExitUsage);
  } catch (const UsageError& error) {
    return fail(app, error.what(), kExitUsage);
  } catch (const Interrupted&) {
    return kExitInterrupted;
  } catch (const std::bad_alloc&) {
    return fail(app, "out of memory; use a smaller model or a smaller --context", kExitFailed);
  } catch (const std::exception& error) {
    return fail(app, error.what(), kExitFailed);
  }
}

}  // namespace faststream
