#include "convert/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "support/error.h"
#include "support/io.h"
#include "support/mapped_file.h"
#include "support/progress.h"
#include "support/shape_text.h"

namespace faststream {

InputFile::InputFile(const std::filesystem::path& path) : path_(path), fd_(open_for_reading(path)) {
  struct stat status {};
  if (::fstat(fd_, &status) == 0) size_ = static_cast<uint64_t>(status.st_size);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), size_(other.size_), fd_(std::exchange(other.fd_, -1)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  const ssize_t n = read_at(fd_, offset, out);
  if (n < 0) {
    throw Error(path_.string() + ": cannot be read: " + std::generic_category().message(errno));
  }
  if (static_cast<size_t>(n) < out.size()) {
    throw Error(path_.string() + ": ends too early; download or copy the file again");
  }
}

std::string read_small_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const InputFile file(path);
  if (file.size() > max_bytes) {
    throw Error(path.string() + ": has " + format_bytes(file.size()) + ", where at most " +
                format_bytes(max_bytes) + " make sense; is this the right file?");
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

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
