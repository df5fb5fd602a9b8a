// A model file that exists in memory only.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "model_file/model_file.h"
#include "model_file/model_writer.h"

namespace faststream {

/// The bytes of a model file in anonymous memory, head, header and table already there, tensors
/// zero until somebody fills them: models with random weights for benchmarks and tests. The
/// tensors' checksums are 0, so ModelFile::verify() does not accept it; everything else does.
class ModelImage {
 public:
  /// As ModelWriter. Tensors take memory when they are filled. Throws Error for impossible tensors
  /// or when there are not so many addresses.
  ModelImage(const nlohmann::json& header, const std::vector<TensorSpec>& tensors);
  ModelImage(ModelImage&& other) noexcept;
  ModelImage& operator=(ModelImage&& other) noexcept;
  ~ModelImage();

  [[nodiscard]] std::span<const TensorInfo> tensors() const { return tensors_; }
  /// The bytes of a tensor, to be filled. Throws Error when there is no such tensor.
  [[nodiscard]] std::span<std::byte> tensor(std::string_view name);
  /// All bytes, for ModelFile::from_bytes().
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::vector<TensorInfo> tensors_;
};

}  // namespace faststream
