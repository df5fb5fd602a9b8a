#include "convert/source_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "support/error.h"
#include "support/io.h"
#include "support/json.h"
#include "support/mapped_file.h"
#include "support/progress.h"

namespace faststream::convert {

namespace fs = std::filesystem;

namespace {

// What a clone of a repository has in a large file's place.
void refuse_pointer(const InputFile& file) {
  constexpr std::string_view kBeginning = "version https://git-lfs.github.com/spec/";
  constexpr uint64_t kMostBytes = 1024;  // of a pointer, as Git LFS has it
  if (file.size() < kBeginning.size() || file.size() >= kMostBytes) return;
  std::string text(kBeginning.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  if (text != kBeginning) return;
  throw Error(file.path().string() +
              ": only stands for a file that Git LFS keeps; fetch it with \"git lfs pull\"");
}

}  // namespace

InputFile::InputFile(const fs::path& path) : path_(path), fd_(open_for_reading(path)) {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) return;
  size_ = static_cast<uint64_t>(status.st_size);
  modified_ = status.st_mtim;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      size_(other.size_),
      modified_(other.modified_),
      fd_(std::exchange(other.fd_, -1)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(modified_, other.modified_);
  std::swap(fd_, other.fd_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::refuse_changed() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) return;
  if (status.st_mtim.tv_sec == modified_.tv_sec && status.st_mtim.tv_nsec == modified_.tv_nsec &&
      static_cast<uint64_t>(status.st_size) == size_) {
    return;
  }
  throw Error(path_.string() + ": changed while it was converted; convert it again");
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

InputFile SourceFiles::open(const fs::path& path) {
  InputFile file(path);
  refuse_pointer(file);
  opened_.push_back(path);
  return file;
}

std::string SourceFiles::read(const fs::path& path, uint64_t max_bytes) {
  const InputFile file = open(path);
  if (file.size() > max_bytes) {
    throw Error(path.string() + ": has " + format_bytes(file.size()) + ", where at most " +
                format_bytes(max_bytes) + " make sense; is this the right file?");
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

nlohmann::json SourceFiles::read_json(const fs::path& path) {
  if (!fs::exists(path)) return nlohmann::json::object();
  constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;
  return parse_python_json_object(read(path, kMaxJsonBytes), path.string());
}

void SourceFiles::refuse_as_output(const fs::path& output) const {
  for (const fs::path& input : opened_) {
    std::error_code ignored;  // where there is no output yet, for one
    if (!fs::equivalent(input, output, ignored)) continue;
    throw Error(output.string() + ": is a file of the checkpoint" +
                (input == output ? "" : " (" + input.string() + ")") +
                ", which the conversion reads; choose another name");
  }
}

}  // namespace faststream::convert
