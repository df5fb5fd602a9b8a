#include "program/program.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <iostream>
#include <memory>
#include <new>
#include <span>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "program/bus_error.h"
#include "program/help_formatter.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "program/usage_sentence.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream {
namespace {

// Where standard input, output or error is closed, the next file that is opened would take its
// place and get its text. Something else takes it that refuses to be read, or written, as a closed
// descriptor does.
void fill_closed_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Where addresses are limited (ulimit -v) all threads share a heap: each of their own would take
// 64 MB of addresses, however little is in it.
void share_heap_of_limited_addresses() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    mallopt(M_ARENA_MAX, 1);
  }
}

// The last first, as CLI11 takes them. It would take what follows "--name=" as the option's value,
// where an empty one is meant: that of a script's empty variable.
std::vector<std::string> arguments_from_last(const CLI::App& app,
                                             std::span<const char* const> arguments) {
  std::vector<std::string> all;
  for (const std::string argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    const CLI::Option* option = name.size() + 1 == argument.size() && name.starts_with("--")
                                    ? app.get_option_no_throw(name)
                                    : nullptr;
    if (option != nullptr && option->get_items_expected_min() > 0) {
      all.insert(all.end(), {name, ""});
    } else {
      all.push_back(argument);
    }
  }
  std::ranges::reverse(all);
  return all;
}

void parse_and_run(CLI::App& app, std::span<const char* const> arguments,
                   const std::function<void()>& command) {
  try {
    app.parse(arguments_from_last(app, arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw;
    std::ostringstream text;
    app.exit(error, text, text);  // the help or the version
    print(text.str());
    return;
  }
  command();
}

int fail(const std::string& name, const std::string& message, int code) {
  std::cout.flush();
  print_notice(name + ": " + printable(message));
  return interrupted() ? kExitInterrupted : code;
}

}  // namespace

int run_program(const std::string& name, int argc, const char* const* argv,
                const std::function<void(CLI::App&)>& add_options,
                const std::function<void()>& command) {
  fill_closed_descriptors();
  share_heap_of_limited_addresses();
  report_bus_errors(name);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write(), as a full disk is
  CLI::App app("", name);
  app.formatter(std::make_shared<HelpFormatter>());
  add_options(app);
  const std::span arguments(argv + std::min(argc, 1), argv + argc);
  try {
    parse_and_run(app, arguments, command);
    flush_output();
    return kExitDone;
  } catch (const CLI::ParseError& error) {
    return fail(name, usage_sentence(app, error, arguments) + " (see " + name + " --help)",
                kExitUsage);
  } catch (const UsageError& error) {
    return fail(name, error.what(), kExitUsage);
  } catch (const Interrupted&) {
    return kExitInterrupted;
  } catch (const std::bad_alloc&) {
    return fail(name, "out of memory; a smaller model, context or text needs less", kExitFailed);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) {
      return fail(name, error.what(), kExitFailed);
    }
    return fail(name,
                "no thread can be started; raise the limits of memory and processes (ulimit -v, "
                "ulimit -u) or give fewer threads with -t",
                kExitFailed);
  } catch (const std::exception& error) {
    return fail(name, error.what(), kExitFailed);
  }
}

}  // namespace faststream
