#include "model_file/model_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "model_file/layout.h"
#include "support/error.h"
#include "support/progress.h"

namespace faststream {

namespace fs = std::filesystem;

struct ModelWriter::Impl {
  fs::path path;
  fs::path partial;
  bool overwrite = false;
  layout::Plan plan;
  int fd = -1;
  bool renamed = false;

  size_t current = 0;   // index of the tensor that append() fills
  uint64_t filled = 0;  // bytes of it so far
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash{XXH3_createState(),
                                                                       &XXH3_freeState};

  ~Impl() {
    if (fd >= 0) ::close(fd);
    if (!renamed && !partial.empty()) ::unlink(partial.c_str());
  }

  [[noreturn]] void fail(const std::string& action, int reason) const {
    if (reason == ENOSPC || reason == EDQUOT || reason == EFBIG) {
      throw Error(path.string() + ": the disk is full: the file needs " +
                  format_bytes(plan.file_bytes) + "; free some space or choose another disk");
    }
    throw Error(path.string() + ": cannot " + action + ": " +
                std::generic_category().message(reason));
  }

  [[noreturn]] void fail_exists() const {
    throw Error(path.string() +
                ": already exists; choose another name or overwrite it with "
                "--force");
  }

  void create() {
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    if (fs::is_directory(status)) {
      throw Error(path.string() + ": is a folder; name the file to write");
    }
    if (fs::exists(status) && !overwrite) fail_exists();
    if (fs::exists(status) && !fs::is_regular_file(status)) {
      throw Error(path.string() + ": is not a regular file and cannot be replaced");
    }
    fs::path name = path;
    name += ".partial-" + std::to_string(::getpid());
    fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) fail("create the file", errno);
    partial = name;
    reserve();
  }

  // Takes the space now: running out of it after an hour of conversion would be a waste.
  void reserve() const {
    const auto size = static_cast<off_t>(plan.file_bytes);
    if (::fallocate(fd, 0, 0, size) == 0) return;
    if (errno != EOPNOTSUPP && errno != ENOSYS) fail("reserve space", errno);
    if (::ftruncate(fd, size) != 0) fail("set the size", errno);
    std::error_code failed;
    const fs::space_info space = fs::space(partial, failed);
    if (!failed && space.available < plan.file_bytes) fail("reserve space", ENOSPC);
  }

  void write_at(uint64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("write", written == 0 ? ENOSPC : errno);
      bytes = bytes.subspan(static_cast<size_t>(written));
      offset += static_cast<uint64_t>(written);
    }
  }

  void rename_into_place() {
    int failed = 0;
    if (overwrite) {
      failed = ::rename(partial.c_str(), path.c_str());
    } else {
      failed = ::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE);
      if (failed != 0 && errno == EEXIST) fail_exists();
      // Some network filesystems know no RENAME_NOREPLACE; create() has looked before.
      if (failed != 0 && errno == EINVAL) failed = ::rename(partial.c_str(), path.c_str());
    }
    if (failed != 0) fail("rename the finished file", errno);
    renamed = true;
  }

  // Makes the new name durable. Filesystems that cannot sync folders lose nothing but that.
  void sync_folder() const {
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    const int folder_fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0) return;
    ::fsync(folder_fd);
    ::close(folder_fd);
  }
};

ModelWriter::ModelWriter(const fs::path& path, const nlohmann::json& header,
                         const std::vector<TensorSpec>& tensors, bool overwrite)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->overwrite = overwrite;
  impl_->plan = layout::make_plan(header, tensors);
  impl_->create();
  XXH3_64bits_reset(impl_->hash.get());
}

ModelWriter::~ModelWriter() = default;

void ModelWriter::append(std::span<const std::byte> bytes) {
  Impl& w = *impl_;
  if (bytes.empty()) return;
  if (w.current == w.plan.tensors.size()) {
    throw Error(w.path.string() + ": more bytes were written than the tensors have");
  }
  TensorInfo& tensor = w.plan.tensors[w.current];
  if (bytes.size() > tensor.bytes - w.filled) {
    throw Error(w.path.string() + ": too many bytes were written for tensor \"" + tensor.name +
                "\"");
  }
  w.write_at(tensor.offset + w.filled, bytes);
  XXH3_64bits_update(w.hash.get(), bytes.data(), bytes.size());
  w.filled += bytes.size();
  if (w.filled < tensor.bytes) return;
  tensor.checksum = XXH3_64bits_digest(w.hash.get());
  XXH3_64bits_reset(w.hash.get());
  w.filled = 0;
  ++w.current;
}

void ModelWriter::finish() {
  Impl& w = *impl_;
  if (w.current < w.plan.tensors.size()) {
    throw Error(w.path.string() + ": bytes of tensor \"" + w.plan.tensors[w.current].name +
                "\" are missing");
  }
  w.write_at(0, layout::encode_metadata(w.plan));
  if (::fsync(w.fd) != 0) w.fail("sync", errno);
  if (::close(std::exchange(w.fd, -1)) != 0) w.fail("close", errno);
  w.rename_into_place();
  w.sync_folder();
}

uint64_t ModelWriter::file_size() const { return impl_->plan.file_bytes; }

uint64_t model_file_size(const nlohmann::json& header, const std::vector<TensorSpec>& tensors) {
  return layout::make_plan(header, tensors).file_bytes;
}

}  // namespace faststream
