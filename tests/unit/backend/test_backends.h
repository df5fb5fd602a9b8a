// The backends that tests of the engine run on.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "backend/backend.h"

namespace faststream {

/// "reference", "cpu" or "cuda"; null for "cuda" where there is no GPU.
inline std::unique_ptr<Backend> make_test_backend(const std::string& name) {
  if (name == "reference") return make_reference_backend();
  if (name == "cpu") return make_cpu_backend(2);
  return cuda_device_count() > 0 ? make_cuda_backend(0) : nullptr;
}

/// Skips the test where the backend is not there.
#define FASTSTREAM_REQUIRE_BACKEND(backend) \
  if ((backend) == nullptr) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason()

/// A test on the device "cpu" or "cuda", skipped where that is not there.
class DeviceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cuda" && cuda_device_count() == 0) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
};

}  // namespace faststream
