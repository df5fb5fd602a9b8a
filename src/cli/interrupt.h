// Ctrl-C.
#pragma once

#include <exception>

namespace faststream {

/// Thrown to unwind after Ctrl-C; programs exit with 130.
class Interrupted : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "interrupted"; }
};

/// From now on Ctrl-C (SIGINT) and SIGTERM only set a flag; a second one ends the process at once.
void catch_interrupts();
/// Whether the flag is set.
bool interrupted();
/// Throws Interrupted if the flag is set.
void check_interrupted();

}  // namespace faststream
