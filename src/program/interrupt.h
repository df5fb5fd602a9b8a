// Ctrl-C, and the other signals that ask a program to end.
#pragma once

#include <exception>

namespace faststream {

/// Thrown to unwind after such a signal; programs exit with 130.
class Interrupted : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "interrupted"; }
};

/// From now on Ctrl-C (SIGINT), SIGTERM and SIGHUP (the terminal is gone) end the process at once,
/// with exit code 130: while nothing is begun that wants an end of its own. A signal that is
/// ignored stays so: nohup has SIGHUP ignored, and a shell SIGINT of a job in the background.
void end_at_interrupts();
/// From now on they only set a flag; a second one ends the process at once, but for SIGHUP, which
/// comes twice. Ignored ones stay so.
void catch_interrupts();
/// For a program that goes on after Ctrl-C, after catch_interrupts(): Ctrl-C sets the flag however
/// often it comes, and clear_interrupt() takes it back. SIGTERM, SIGHUP and Ctrl-\ (SIGQUIT) still
/// end the process. Throws Error when the system has no descriptor left.
void survive_interrupts();
/// Clears the flag, unless SIGTERM or SIGHUP set it.
void clear_interrupt();
/// Whether the flag is set.
bool interrupted();
/// Throws Interrupted if the flag is set.
void check_interrupted();
/// Waits until `fd` can be read, or has ended or failed: false, with errno set, where that cannot
/// be known. Throws Interrupted if the flag is set, by whichever thread, before or meanwhile: a
/// read that waits by itself would not see a signal that came just before it.
bool wait_for_input(int fd);
/// After survive_interrupts(), a descriptor that can be read (by poll alone) while the flag is set,
/// so that a wait for something else ends with it.
int interrupt_descriptor();

}  // namespace faststream
