#include "convert/checkpoint.h"

#include <algorithm>
#include <utility>

#include "support/error.h"
#include "support/shape_text.h"

namespace faststream {

size_t Checkpoint::add_file(InputFile file) {
  files_.push_back(std::move(file));
  return files_.size() - 1;
}

void Checkpoint::add_tensor(SourceTensor tensor) {
  const std::string key = tensor.name;
  const std::filesystem::path& path = files_.at(tensor.file).path();
  if (!tensors_.emplace(key, std::move(tensor)).second) {
    throw Error(path.string() + ": tensor \"" + key +
                "\" is in the checkpoint twice; remove the files that do not belong to it");
  }
}

const SourceTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const SourceTensor& Checkpoint::require(std::string_view name,
                                        std::span<const int64_t> shape) const {
  const SourceTensor* tensor = find(name);
  if (tensor == nullptr) {
    throw Error(name_ + ": tensor \"" + std::string(name) +
                "\" is missing; is the checkpoint complete and its config.json the right one?");
  }
  if (!std::ranges::equal(tensor->shape, shape)) {
    throw Error(files_.at(tensor->file).path().string() + ": tensor \"" + tensor->name +
                "\" has the shape " + shape_text(tensor->shape) +
                ", but the configuration asks for " + shape_text(shape));
  }
  return *tensor;
}

void Checkpoint::read(const SourceTensor& tensor, int64_t first, std::span<std::byte> out) const {
  const uint64_t offset = tensor.offset + static_cast<uint64_t>(first) * dtype_size(tensor.dtype);
  files_.at(tensor.file).read(offset, out);
}

}  // namespace faststream
