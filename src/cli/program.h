// What all programs share: exit codes and how errors are shown.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace faststream {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

/// Parses the command line with `app`, then calls `command`; returns the exit code. Help and
/// version go to stdout; an error is one line on stderr that begins with the program's name.
int run_program(CLI::App& app, int argc, const char* const* argv,
                const std::function<void()>& command);

}  // namespace faststream
