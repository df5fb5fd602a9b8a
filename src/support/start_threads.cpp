#include "support/start_threads.h"

#include <system_error>

namespace faststream {

std::vector<std::jthread> start_threads(int count, const std::function<void()>& work) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {
      if (threads.empty()) throw;
      break;
    }
  }
  return threads;
}

}  // namespace faststream
