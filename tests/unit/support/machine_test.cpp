// What is read of a machine, from made-up /proc and /sys.
#include "support/machine.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>

#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

class Machine : public testing::Test {
 protected:
  Machine() { write("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable:    8192000 kB\n"); }

  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = root_ / name;
    std::filesystem::create_directories(path.parent_path());
    write_bytes(path, text);
  }
  // The hierarchies as systemd mounts them, and where the process is in them.
  void mount_version_2(const std::string& group) {
    write("proc/self/mountinfo",
          "25 1 0:22 / / rw - ext4 /dev/root rw\n"
          "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    write("proc/self/cgroup", "0::" + group + "\n");
  }
  void mount_version_1(const std::string& group, const std::string& mount_root = "/") {
    write("proc/self/mountinfo",
          "32 31 0:29 " + mount_root +
              " /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
              "35 31 0:32 " +
              mount_root +
              " /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
              "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    write("proc/self/cgroup",
          "9:name=systemd:/\n4:memory:" + group + "\n1:cpu,cpuacct:" + group + "\n0::/\n");
  }
  [[nodiscard]] size_t memory(size_t address_space = SIZE_MAX) const {
    return available_memory(root_.path(), address_space);
  }
  [[nodiscard]] int threads(int affinity) const {
    return available_threads(root_.path(), affinity);
  }

  TemporaryFolder root_;
};

TEST_F(Machine, HasWhatTheSystemSaysIsAvailable) { EXPECT_EQ(memory(), 8000 * kMebibyte); }

TEST_F(Machine, TakesFreeMemoryOfAKernelThatDoesNotSayWhatIsAvailable) {
  write("proc/meminfo", "MemTotal: 16000000 kB\nMemFree: 1024 kB\n");
  EXPECT_EQ(memory(), kMebibyte);
}

TEST_F(Machine, DoesNotTakeMemoryThatIsUnknownForNone) {
  write("proc/meminfo", "MemAvailable: lots\n");
  EXPECT_TRUE(says(error_of([&] { (void)memory(); }), "proc/meminfo", "memory is free"));
  std::filesystem::remove(root_.path() / "proc/meminfo");
  EXPECT_TRUE(says(error_of([&] { (void)memory(); }), "proc/meminfo", "No such file"));
}

TEST_F(Machine, LeavesWhatAGroupOfVersion2IsAllowedBesideItsUse) {
  mount_version_2("/user.slice/run.scope");
  const std::string group = "sys/fs/cgroup/user.slice/run.scope/";
  write(group + "memory.max", std::to_string(600 * kMebibyte) + "\n");
  write(group + "memory.current", std::to_string(500 * kMebibyte) + "\n");
  EXPECT_EQ(memory(), 100 * kMebibyte);
  // Files in memory give way.
  write(group + "memory.stat", "anon 52428800\nactive_file " + std::to_string(300 * kMebibyte) +
                                   "\ninactive_file " + std::to_string(100 * kMebibyte) + "\n");
  EXPECT_EQ(memory(), 500 * kMebibyte);
  write(group + "memory.high", std::to_string(400 * kMebibyte) + "\n");
  EXPECT_EQ(memory(), 300 * kMebibyte);
  write(group + "memory.high", "max\n");
  write(group + "memory.max", "max\n");
  EXPECT_EQ(memory(), 8000 * kMebibyte);
  write(group + "memory.max", std::to_string(kMebibyte) + "\n");
  EXPECT_EQ(memory(), 0U) << "more is used than allowed";
}

TEST_F(Machine, HeedsTheLimitsOfParents) {
  mount_version_2("/a/b");
  write("sys/fs/cgroup/a/b/memory.max", std::to_string(900 * kMebibyte) + "\n");
  write("sys/fs/cgroup/a/memory.max", std::to_string(700 * kMebibyte) + "\n");
  EXPECT_EQ(memory(), 700 * kMebibyte);
  // The top folder is a container's own group.
  write("sys/fs/cgroup/memory.max", std::to_string(300 * kMebibyte) + "\n");
  EXPECT_EQ(memory(), 300 * kMebibyte);
}

TEST_F(Machine, LeavesWhatAGroupOfVersion1IsAllowedBesideItsUse) {
  mount_version_1("/docker/abc");
  const std::string group = "sys/fs/cgroup/memory/docker/abc/";
  write(group + "memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory(), 8000 * kMebibyte) << "no limit";
  write(group + "memory.limit_in_bytes", std::to_string(600 * kMebibyte) + "\n");
  write(group + "memory.usage_in_bytes", std::to_string(400 * kMebibyte) + "\n");
  write(group + "memory.stat", "cache 1\ntotal_inactive_file " + std::to_string(150 * kMebibyte) +
                                   "\ntotal_active_file " + std::to_string(50 * kMebibyte) + "\n");
  EXPECT_EQ(memory(), 400 * kMebibyte);
  write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
        std::to_string(200 * kMebibyte) + "\n");
  EXPECT_EQ(memory(), 200 * kMebibyte);
}

TEST_F(Machine, FindsAGroupThatAContainerMountsAsItsTop) {
  mount_version_1("/docker/abc", "/docker/abc");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(600 * kMebibyte) + "\n");
  EXPECT_EQ(memory(), 600 * kMebibyte);
  mount_version_1("/docker/abc/own", "/docker/abc");
  write("sys/fs/cgroup/memory/own/memory.limit_in_bytes", std::to_string(500 * kMebibyte) + "\n");
  EXPECT_EQ(memory(), 500 * kMebibyte);
  mount_version_1("/../other", "/docker/abc");
  EXPECT_EQ(memory(), 600 * kMebibyte) << "a group outside of what is mounted";
}

TEST_F(Machine, CountsMappedModelsAsFreeAddressSpaceButNoProgramsOwnSegments) {
  write("proc/self/maps",
        "00400000-00500000 r--p 00000000 fe:00 247498                     /usr/bin/x\n"
        "00500000-00600000 r-xp 00100000 fe:00 247498                     /usr/bin/x\n"
        "10000000-14000000 rw-p 00000000 00:00 0                          [heap]\n"
        "20000000-60000000 r--p 00000000 fe:00 99999                      /models/a model.bin\n"
        "60000000-61000000 ---p 00000000 00:00 0 \n"
        "nonsense\n");
  EXPECT_EQ(memory(200 * kMebibyte), (200 - 1 - 1 - 64 - 16) * kMebibyte);
  EXPECT_EQ(memory(kMebibyte), 0U);
  EXPECT_EQ(memory(1000000 * kMebibyte), 8000 * kMebibyte);
}

TEST_F(Machine, HasTheProcessorsThatAQuotaAllows) {
  EXPECT_EQ(threads(8), 8);
  mount_version_2("/a/b");
  write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(threads(8), 8);
  write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(threads(8), 3);
  write("sys/fs/cgroup/a/b/cpu.max", "10000 100000\n");
  EXPECT_EQ(threads(8), 1);
  EXPECT_EQ(threads(0), 1);

  mount_version_1("/a");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(threads(8), 8);
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(threads(8), 2);
}

TEST_F(Machine, IgnoresWhatItCannotRead) {
  write("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup rw - cgroup2\n- - -\n\n");
  write("proc/self/cgroup", "0::/a\nnonsense\n::\n");
  write("sys/fs/cgroup/a/memory.max", "\n");
  write("sys/fs/cgroup/a/cpu.max", "0 0\n");
  write("proc/self/maps", "zz-- r\n");
  EXPECT_EQ(memory(8000 * kMebibyte), 8000 * kMebibyte);
  EXPECT_EQ(threads(2), 2);
}

TEST_F(Machine, SaysWhatTheProcessHadAtMost) {
  EXPECT_EQ(peak_memory(root_.path()), 0U);
  write("proc/self/status", "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t  512 kB\nThreads:\t1\n");
  EXPECT_EQ(peak_memory(root_.path()), size_t{512} << 10);
}

TEST(ThisMachine, HasMemoryAndProcessors) {
  EXPECT_GT(available_memory(), kMebibyte);
  EXPECT_GT(peak_memory(), kMebibyte);
  EXPECT_GE(available_threads(), 1);
  EXPECT_LE(available_threads(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace faststream
