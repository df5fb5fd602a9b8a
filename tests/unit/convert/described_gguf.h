// A GGUF file of the metadata and tensors that a test gives it, and what is made of them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_file.h"
#include "unit/convert/gguf_files.h"

namespace faststream::convert {

class DescribedGguf : public testing::Test {
 protected:
  template <typename T>
  void set(const std::string& name, T value) {
    gguf_.add(prefix_ + name, value);
  }
  void tensor(const std::string& name, const std::vector<int64_t>& shape) {
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    gguf_.floats(name, shape, random_values(static_cast<size_t>(count), 1));
  }
  [[nodiscard]] GgufFamilyModel describe() const {
    write_bytes(folder_ / "m.gguf", gguf_.bytes());
    SourceFiles files;
    const GgufFile file = open_gguf_file(folder_ / "m.gguf", files);
    return describe_gguf(file.metadata, file.weights);
  }
  [[nodiscard]] std::string error() const {
    return error_of([&] { static_cast<void>(describe()); });
  }

  TemporaryFolder folder_;
  GgufBuilder gguf_;
  std::string prefix_;
};

}  // namespace faststream::convert
