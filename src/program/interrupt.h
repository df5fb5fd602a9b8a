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
/// For a program that goes on after Ctrl-C, after catch_interrupts(): Ctrl-C sets the flag however
/// often it comes, and clear_interrupt() takes it back. SIGTERM and Ctrl-\ (SIGQUIT) still end the
/// process. Throws Error when the system has no descriptor left.
void survive_interrupts();
/// Clears the flag, unless SIGTERM set it.
void clear_interrupt();
/// Whether the flag is set.
bool interrupted();
/// Throws Interrupted if the flag is set.
void check_interrupted();
/// After survive_interrupts(), a descriptor that can be read (by poll alone) while the flag is set,
/// so that a wait for something else ends with it.
int interrupt_descriptor();

}  // namespace faststream
