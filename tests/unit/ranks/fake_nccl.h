// A libnccl for tests (tests/fakes/nccl.cpp), and the environment that has it used.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace faststream {

/// Built beside the tests' program.
inline std::string fake_nccl() {
  return (std::filesystem::canonical("/proc/self/exe").parent_path() / "libfake-nccl.so").string();
}

/// An environment variable during the lifetime.
class SetVariable {
 public:
  SetVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;
  ~SetVariable() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace faststream
