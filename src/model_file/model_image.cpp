#include "model_file/model_image.h"

#include <sys/mman.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include "model_file/layout.h"
#include "support/error.h"
#include "support/progress.h"

namespace faststream {

ModelImage::ModelImage(const nlohmann::json& header, const std::vector<TensorSpec>& tensors) {
  layout::Plan plan = layout::make_plan(header, tensors);
  const std::vector<std::byte> metadata = layout::encode_metadata(plan);
  // Not reserved: it may stay a place where weights would be.
  void* memory = ::mmap(nullptr, plan.file_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error("there is not enough memory for a model of " + format_bytes(plan.file_bytes));
  }
  data_ = static_cast<std::byte*>(memory);
  size_ = plan.file_bytes;
  std::ranges::copy(metadata, data_);
  tensors_ = std::move(plan.tensors);
}

ModelImage::ModelImage(ModelImage&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      tensors_(std::move(other.tensors_)) {}

ModelImage& ModelImage::operator=(ModelImage&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(tensors_, other.tensors_);
  return *this;
}

ModelImage::~ModelImage() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::span<std::byte> ModelImage::tensor(std::string_view name) {
  const auto found = std::ranges::find(tensors_, name, &TensorInfo::name);
  if (found == tensors_.end()) {
    throw Error("the model image has no tensor \"" + std::string(name) + "\"");
  }
  return {data_ + found->offset, found->bytes};
}

}  // namespace faststream
