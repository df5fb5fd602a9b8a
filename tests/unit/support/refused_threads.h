// A system that gives no more threads.
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>

namespace faststream {

/// From now on this process has addresses for two more threads' stacks of 8 MiB: for death tests.
/// Sanitizers need more than any such limit leaves. Exits with 2 where no limit can be set.
inline void leave_room_for_two_threads() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes =
      pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + 5 * (rlim_t{8} << 20) / 2;
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
}

/// No thread can be started during the lifetime: none has the address space for its stack.
class RefusedThreads {
 public:
  RefusedThreads() {
    pthread_attr_init(&before_);
    pthread_getattr_default_np(&before_);
    pthread_attr_t refused;
    pthread_attr_init(&refused);
    pthread_attr_setstacksize(&refused, size_t{1} << 47);
    pthread_setattr_default_np(&refused);
    pthread_attr_destroy(&refused);
  }
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;
  ~RefusedThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_ = {};
};

}  // namespace faststream
