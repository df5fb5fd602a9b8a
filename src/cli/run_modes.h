// What faststream-run does, and which options have a say in it.
#pragma once

namespace CLI {
class App;
}

namespace faststream {

/// Throws UsageError when an option was given that what the program is asked to do does not look
/// at, or when it is asked for two things at once. After parsing.
void check_modes(const CLI::App& app);

}  // namespace faststream
