// A libnccl for tests (tests/fakes/nccl.cpp).
#pragma once

#include <filesystem>
#include <string>

namespace faststream {

/// Built beside the tests' program.
inline std::string fake_nccl() {
  return (std::filesystem::canonical("/proc/self/exe").parent_path() / "libfake-nccl.so").string();
}

}  // namespace faststream
