// What all programs share: exit codes and how errors are shown.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace faststream {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

/// A program of this name: parses the command line as `add_options` says, then calls `command`;
/// returns the exit code. To be called before anything keeps a file open: closed standard
/// descriptors are filled first. Help and version go to stdout; an error is one line on stderr that
/// begins with the name. Output that could not be written is an error.
int run_program(const std::string& name, int argc, const char* const* argv,
                const std::function<void(CLI::App&)>& add_options,
                const std::function<void()>& command);

}  // namespace faststream
