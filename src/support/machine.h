// What the machine leaves to this process: memory and processors, within the limits that the
// system, containers and shells set.
#pragma once

#include <cstddef>
#include <filesystem>

namespace faststream {

/// Bytes of memory that the process can still take. What holds cached or mapped files counts as
/// free, a mapped model's weights too: the system takes it back when there is need. Of limited
/// addresses (RLIMIT_AS) those for the stacks of a program's threads are left. Throws Error where
/// the system does not say.
size_t available_memory();

/// Bytes of memory that the process had at most at once.
size_t peak_memory();

/// Hardware threads that the process may use, at least 1.
int available_threads();

// The same as functions of /proc and /sys, found below `root`: "/", or a folder of a test.

/// The least of what the system has available (MemAvailable), what the limits of the process's
/// control group and of its parents (versions 1 and 2) leave beside their use, and what of
/// `address_space` (RLIMIT_AS, SIZE_MAX for none) is not in use but by files that are mapped for
/// reading alone. Throws Error where proc/meminfo cannot be read or says nothing.
size_t available_memory(const std::filesystem::path& root, size_t address_space);

/// VmHWM of proc/self/status; 0 where it is not there.
size_t peak_memory(const std::filesystem::path& root);

/// `affinity`, the number of processors that the process may run on, or less where the control
/// group or one of its parents (versions 1 and 2) has a quota of less time; parts count as whole.
int available_threads(const std::filesystem::path& root, int affinity);

}  // namespace faststream
