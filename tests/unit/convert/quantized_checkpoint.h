// Checkpoints of quantized tensors, byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "convert/huggingface/weight_files.h"
#include "convert/quantized/module_tensors.h"
#include "convert/quantized/quantization.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {

using Floats = std::vector<float>;

struct RawTensor {
  std::string type;
  std::vector<int64_t> shape;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor>;

template <typename T>
std::string bytes_of(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

class QuantizedCheckpoint : public testing::Test {
 protected:
  // The checkpoint of these tensors, joined as quantization_config says.
  Checkpoint joined(const RawTensors& tensors, const nlohmann::json& quantization) {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", tensor.type},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    write_bytes(folder_ / "model.safetensors",
                std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data);
    SourceFiles files;
    Checkpoint checkpoint = open_weight_files(folder_.path(), files);
    const nlohmann::json config = {{"quantization_config", quantization}};
    biases_of_zeros_ = join_quantized(JsonView(config, "config.json"), checkpoint);
    return checkpoint;
  }
  std::string error(const RawTensors& tensors, const nlohmann::json& quantization) {
    return error_of([&] { joined(tensors, quantization); });
  }

  static Floats values(const Checkpoint& checkpoint, const std::string& name) {
    return values_of(checkpoint, *checkpoint.find(name));
  }

  TemporaryFolder folder_;
  std::set<std::string, std::less<>> biases_of_zeros_;
};

inline std::string zeros(size_t count) { return std::string(count, '\0'); }

// Eight inputs and outputs of 4 bits, one group: scales are 1, 2, ..., 8, numbers and zeros are 0.
inline RawTensors gptq_module() {
  RawTensor scales{"F32", {1, 8}, bytes_of<float>({1, 2, 3, 4, 5, 6, 7, 8})};
  return {{"m.qweight", {"I32", {1, 8}, zeros(32)}},
          {"m.qzeros", {"I32", {1, 1}, zeros(4)}},
          {"m.scales", scales}};
}
inline const nlohmann::json kGptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 8}};

}  // namespace faststream::convert
