#include "support/follow_links.h"

#include <system_error>

#include "support/error.h"

namespace faststream {

std::filesystem::path follow_links(const std::filesystem::path& path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  std::filesystem::path target = path;
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code is_no_link;
    const std::filesystem::path next = std::filesystem::read_symlink(target, is_no_link);
    if (is_no_link) return target;
    target = target.parent_path() / next;  // `next` alone where that is absolute
  }
  throw Error(path.string() + ": the symbolic link leads to too many others; name the file itself");
}

}  // namespace faststream
