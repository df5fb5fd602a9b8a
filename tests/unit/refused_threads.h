// A system that gives no more threads.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace faststream {

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
