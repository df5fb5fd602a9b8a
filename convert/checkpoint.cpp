#include "convert/checkpoint.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "support/error.h"
#include "support/printable.h"
#include "support/shape_text.h"

namespace faststream::convert {

int64_t SourceTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

uint64_t SourceTensor::bytes() const { return format->bytes(elements()); }

void refuse_overlaps(std::span<const SourceTensor> tensors, std::string_view where) {
  std::vector<const SourceTensor*> in_order;
  for (const SourceTensor& tensor : tensors) {
    if (tensor.bytes() > 0) in_order.push_back(&tensor);
  }
  std::ranges::sort(in_order, {}, &SourceTensor::offset);
  for (size_t i = 1; i < in_order.size(); ++i) {
    const SourceTensor& before = *in_order[i - 1];
    if (in_order[i]->offset >= before.offset + before.bytes()) continue;
    throw Error(std::string(where) + ": tensor " + in_quotes(in_order[i]->name) +
                " overlaps tensor " + in_quotes(before.name) + "; download the file again");
  }
}

size_t Checkpoint::add_file(InputFile file) {
  files_.push_back(std::move(file));
  return files_.size() - 1;
}

void Checkpoint::add_tensor(SourceTensor tensor, const std::string& name) {
  const std::string key = name.empty() ? tensor.name : name;
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

SourceTensor Checkpoint::take(std::string_view name) {
  return std::move(tensors_.extract(tensors_.find(name)).mapped());
}

const SourceTensor& Checkpoint::require(std::string_view name,
                                        std::span<const int64_t> shape) const {
  const SourceTensor* tensor = find(name);
  if (tensor == nullptr) {
    throw Error(name_ + ": tensor \"" + std::string(name) +
                "\" is missing; is the checkpoint complete and its configuration the right one?");
  }
  if (!std::ranges::equal(tensor->shape, shape)) {
    throw Error(files_.at(tensor->file).path().string() + ": tensor \"" + tensor->name +
                "\" has the shape " + shape_text(tensor->shape) +
                ", but the configuration asks for " + shape_text(shape));
  }
  if (!tensor->has_values()) {
    throw Error(files_.at(tensor->file).path().string() + ": tensor \"" + tensor->name +
                "\" has elements of the type " + std::string(tensor->format->name) +
                ", which cannot be converted; F64, F32, F16 and BF16 can");
  }
  return *tensor;
}

void Checkpoint::read(const SourceTensor& tensor, int64_t first, std::span<std::byte> out) const {
  files_.at(tensor.file).read(tensor.offset + tensor.format->bytes(first), out);
}

}  // namespace faststream::convert
