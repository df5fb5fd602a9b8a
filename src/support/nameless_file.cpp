#include "support/nameless_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "support/error.h"

namespace faststream {
namespace {

std::filesystem::path temporary_folder() {
  std::error_code failed;
  std::filesystem::path folder = std::filesystem::temp_directory_path(failed);
  if (failed) throw Error("TMPDIR is no folder, in which temporary files would be");
  return folder;
}

// Where a file system knows no files without names, its name is taken away at once.
int open_nameless(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd >= 0) return fd;
  std::string name = (folder / "faststream-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

NamelessFile::NamelessFile() : OutputFile(temporary_folder()) {
  fd_ = open_nameless(name());
  if (fd_ >= 0) return;
  throw Error(name().string() + ": a temporary file cannot be made in it: " + std::strerror(errno) +
              "; name another folder with TMPDIR");
}

std::filesystem::path NamelessFile::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

}  // namespace faststream
