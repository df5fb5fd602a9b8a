// A file that shrinks while it is mapped into memory.
#pragma once

#include <string>

namespace faststream {

/// From now on the process ends with one sentence on standard error, which begins with `program`,
/// and with the exit code of a failure, when it reads mapped memory whose file has lost that part
/// or whose disk fails (SIGBUS). No C++ exception can leave such a read, so nothing is unwound. A
/// SIGBUS of another kind ends the process as it always does.
void report_bus_errors(const std::string& program);

}  // namespace faststream
