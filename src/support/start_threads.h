// As many threads as the system gives.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace faststream {

/// Starts `count` threads that run work(), or fewer where the system refuses more: those that it
/// gave will do. Throws std::system_error where it gives none.
std::vector<std::jthread> start_threads(int count, const std::function<void()>& work);

}  // namespace faststream
