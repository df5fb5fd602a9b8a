// What faststream-run does, and which options have a say in it.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace faststream::cli {

/// What to tell the user, in lines, of given options that have no effect on what the program is
/// asked to do. Throws UsageError when it is asked for two things at once, or for something that
/// only another mode does. After parsing.
std::string check_modes(const CLI::App& app);

}  // namespace faststream::cli
