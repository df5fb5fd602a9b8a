// How long work is ended from outside.
#pragma once

#include <functional>

namespace faststream {

/// Called now and then during long work, which what it throws ends. May be empty.
using CheckInterrupted = std::function<void()>;

}  // namespace faststream
