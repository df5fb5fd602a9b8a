// Files that the user names.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <string>

namespace faststream {

/// open(2) with O_CLOEXEC. Throws Error, which begins with `name`, when it fails; Interrupted when
/// a signal ends the wait for the other end of a FIFO.
int open_file(const std::string& path, const std::string& name, int flags, mode_t mode = 0);

}  // namespace faststream
