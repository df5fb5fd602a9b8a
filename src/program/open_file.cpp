#include "program/open_file.h"

#include <cerrno>
#include <cstring>

#include "program/interrupt.h"
#include "support/error.h"

namespace faststream {

int open_file(const std::string& path, const std::string& name, int flags, mode_t mode) {
  for (;;) {
    check_interrupted();
    const int fd = open(path.c_str(), flags | O_CLOEXEC, mode);
    if (fd >= 0) return fd;
    if (errno != EINTR) throw Error(name + " cannot be opened: " + std::strerror(errno));
  }
}

}  // namespace faststream
