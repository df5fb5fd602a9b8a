#include "support/work_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "support/error.h"

namespace faststream {

WorkFolder::WorkFolder() {
  std::error_code failed;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(failed);
  if (failed) throw Error("TMPDIR is no folder, in which temporary files would be");
  std::string name = (parent / "faststream-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw Error(parent.string() + ": a temporary folder cannot be made in it: " +
                std::strerror(errno) + "; name another one with TMPDIR");
  }
  path_ = name;
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace faststream
