#include "support/nameless_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "support/error.h"

namespace faststream {
namespace {

std::filesystem::path temporary_folder() {
  const char* named = std::getenv("TMPDIR");
  return named != nullptr && *named != '\0' ? named : "/tmp";
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

NamelessFile::NamelessFile() : NamelessFile(temporary_folder()) {}

NamelessFile::NamelessFile(const std::filesystem::path& folder)
    : OutputFile(folder.string() + ", the folder of temporary files (TMPDIR)") {
  fd_ = open_nameless(folder);
  if (fd_ >= 0) return;
  throw Error(folder.string() + ": a temporary file cannot be made in it: " + std::strerror(errno) +
              "; name another folder with TMPDIR");
}

std::filesystem::path NamelessFile::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

}  // namespace faststream
