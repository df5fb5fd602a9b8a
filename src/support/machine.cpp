#include "support/machine.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/error.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// A whole number without a sign; nothing for "max", "-1" and whatever else says "no limit".
std::optional<size_t> number(std::string_view text, int base = 10) {
  size_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value, base);
  return status == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Calls visit(words) for each line of a file; not at all if it cannot be read.
void for_each_line(const fs::path& path,
                   const std::function<void(const std::vector<std::string>&)>& visit) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) visit(words(line));
}

// The words of a file's first line.
std::vector<std::string> first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return words(line);
}

std::optional<size_t> number_in(const fs::path& path) {
  const std::vector<std::string> line = first_line(path);
  return line.empty() ? std::nullopt : number(line.front());
}

// The sum of those of `keys` that a file of lines "key value" has.
size_t sum_in(const fs::path& path, const std::vector<std::string_view>& keys) {
  size_t sum = 0;
  for_each_line(path, [&](const std::vector<std::string>& line) {
    if (line.size() < 2 || std::find(keys.begin(), keys.end(), line[0]) == keys.end()) return;
    sum += number(line[1]).value_or(0);
  });
  return sum;
}

size_t minus(size_t a, size_t b) { return a > b ? a - b : 0; }

// Control groups. ---------------------------------------------------------------------------------

bool has_item(std::string_view list, std::string_view item) {
  for (size_t first = 0; first <= list.size();) {
    const size_t end = std::min(list.find(',', first), list.size());
    if (list.substr(first, end - first) == item) return true;
    first = end + 1;
  }
  return false;
}

// A group's path below the folder where a hierarchy is mounted. A container may see its own group
// alone, mounted under the path that it has outside.
fs::path below_mount(const std::string& group, const std::string& mount_root) {
  if (group.find("/..") != std::string::npos) return {};
  if (mount_root == "/") return fs::path(group).relative_path();
  if (group != mount_root && !group.starts_with(mount_root + "/")) return {};
  return fs::path(group.substr(mount_root.size())).relative_path();
}

// The folders of the process's group and of its parents in the hierarchy of version 2, or in that
// of version 1 with `controller`. See cgroups(7), proc_pid_cgroup(5) and proc_pid_mountinfo(5).
std::vector<fs::path> group_folders(const fs::path& root, int version,
                                    std::string_view controller) {
  std::string group;
  std::ifstream membership(root / "proc/self/cgroup");
  for (std::string line; std::getline(membership, line);) {  // number:controllers:path
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    if (version == 2 ? controllers.empty() : has_item(controllers, controller)) {
      group = line.substr(second + 1);
    }
  }
  std::vector<fs::path> folders;
  if (group.empty()) return folders;
  for_each_line(root / "proc/self/mountinfo", [&](const std::vector<std::string>& mount) {
    // number parent device root mount-point options [tags] - type source super-options
    const auto dash = std::find(mount.begin(), mount.end(), "-");
    if (mount.size() < 7 || mount.end() - dash < 4) return;
    const std::string& type = *(dash + 1);
    if (version == 2 ? type != "cgroup2" : type != "cgroup" || !has_item(*(dash + 3), controller)) {
      return;
    }
    const fs::path top = root / fs::path(mount[4]).relative_path();
    for (fs::path path = below_mount(group, mount[3]); !path.empty(); path = path.parent_path()) {
      folders.push_back(top / path);
    }
    folders.push_back(top);
  });
  return folders;
}

size_t group_memory(const fs::path& root) {
  size_t least = kNoLimit;
  const auto consider = [&](std::optional<size_t> limit, size_t used, size_t reclaimable) {
    if (limit) least = std::min(least, minus(*limit, minus(used, reclaimable)));
  };
  for (const fs::path& group : group_folders(root, 2, "memory")) {
    const size_t used = number_in(group / "memory.current").value_or(0);
    const size_t reclaimable =
        sum_in(group / "memory.stat", {"active_file", "inactive_file", "slab_reclaimable"});
    consider(number_in(group / "memory.max"), used, reclaimable);
    consider(number_in(group / "memory.high"), used, reclaimable);  // beyond it, it is slowed down
  }
  for (const fs::path& group : group_folders(root, 1, "memory")) {
    consider(number_in(group / "memory.limit_in_bytes"),
             number_in(group / "memory.usage_in_bytes").value_or(0),
             sum_in(group / "memory.stat", {"total_active_file", "total_inactive_file"}));
  }
  return least;
}

// Processors that a quota of `microseconds` in each period makes, rounded up.
int processors(std::optional<size_t> microseconds, std::optional<size_t> period) {
  constexpr size_t kMost = std::numeric_limits<int>::max();
  if (!microseconds || !period || *microseconds == 0 || *period == 0) return kMost;
  return static_cast<int>(std::min((*microseconds - 1) / *period + 1, kMost));
}

int group_processors(const fs::path& root) {
  int least = std::numeric_limits<int>::max();
  for (const fs::path& group : group_folders(root, 2, "cpu")) {
    const std::vector<std::string> quota = first_line(group / "cpu.max");  // microseconds period
    if (quota.size() == 2) least = std::min(least, processors(number(quota[0]), number(quota[1])));
  }
  for (const fs::path& group : group_folders(root, 1, "cpu")) {
    least = std::min(least, processors(number_in(group / "cpu.cfs_quota_us"),
                                       number_in(group / "cpu.cfs_period_us")));
  }
  return least;
}

// The rest. ---------------------------------------------------------------------------------------

std::optional<size_t> kilobytes(std::string_view text) {
  const std::optional<size_t> count = number(text);
  return count ? std::optional(*count * 1024) : std::nullopt;
}

size_t system_memory(const fs::path& root) {
  const fs::path path = root / "proc/meminfo";
  std::optional<size_t> free;
  std::optional<size_t> available;  // since Linux 3.14
  errno = 0;
  for_each_line(path, [&](const std::vector<std::string>& line) {
    if (line.size() < 2) return;
    if (line[0] == "MemFree:") free = kilobytes(line[1]);
    if (line[0] == "MemAvailable:") available = kilobytes(line[1]);
  });
  if (available) return *available;
  if (free) return *free;
  throw Error(path.string() + " does not say how much memory is free" +
              (errno == 0 ? "" : std::string(": ") + std::strerror(errno)));
}

// Address space that is mapped, but for files that are mapped for reading alone: not a program or a
// library, other parts of which are run.
size_t used_address_space(const fs::path& root) {
  size_t used = 0;
  std::map<std::string, size_t> readable;  // bytes, by device and inode
  std::set<std::string> used_otherwise;
  for_each_line(root / "proc/self/maps", [&](const std::vector<std::string>& line) {
    // first-last permissions offset device inode [path]
    if (line.size() < 5) return;
    const std::string_view range = line[0];
    const size_t dash = range.find('-');
    if (dash == std::string_view::npos) return;
    const auto first = number(range.substr(0, dash), 16);
    const auto last = number(range.substr(dash + 1), 16);
    if (!first || !last) return;
    const size_t bytes = minus(*last, *first);
    used += bytes;
    if (line[4] == "0") return;  // no file
    const std::string file = line[3] + ' ' + line[4];
    if (line[1].starts_with("r--")) {
      readable[file] += bytes;
    } else {
      used_otherwise.insert(file);
    }
  });
  for (const auto& [file, bytes] : readable) {
    if (!used_otherwise.contains(file)) used -= bytes;
  }
  return used;
}

// Of addresses, the stacks of threads that programs start beside those that compute: the engine's,
// and those that submit a batch's lines and write its results.
size_t stacks_to_come() {
  constexpr int kMostSubmitters = 8;
  pthread_attr_t defaults;
  size_t stack = 0;
  pthread_attr_init(&defaults);
  pthread_attr_getstacksize(&defaults, &stack);
  pthread_attr_destroy(&defaults);
  return stack * static_cast<size_t>(2 + std::min(available_threads(), kMostSubmitters));
}

}  // namespace

size_t available_memory(const fs::path& root, size_t address_space) {
  size_t least = std::min(system_memory(root), group_memory(root));
  if (address_space != kNoLimit) {
    least = std::min(least, minus(address_space, used_address_space(root)));
  }
  return least;
}

size_t peak_memory(const fs::path& root) {
  size_t peak = 0;
  for_each_line(root / "proc/self/status", [&](const std::vector<std::string>& line) {
    if (line.size() == 3 && line[0] == "VmHWM:") peak = number(line[1]).value_or(0) * 1024;
  });
  return peak;
}

int available_threads(const fs::path& root, int affinity) {
  return std::max(1, std::min(affinity, group_processors(root)));
}

size_t available_memory() {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return available_memory("/", limited ? minus(limit.rlim_cur, stacks_to_come()) : kNoLimit);
}

// What getrusage() says is inherited over fork, so it may be another program's.
size_t peak_memory() {
  if (const size_t peak = peak_memory("/"); peak > 0) return peak;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

int available_threads() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  return available_threads("/", sched_getaffinity(0, sizeof mask, &mask) == 0
                                    ? CPU_COUNT(&mask)
                                    : static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace faststream
