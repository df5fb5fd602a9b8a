// Where symbolic links lead.
#pragma once

#include <filesystem>

namespace faststream {

/// The file that a chain of symbolic links leads to, there or not; `path` itself where it is no
/// link. Throws Error when there are more links than the system follows.
std::filesystem::path follow_links(const std::filesystem::path& path);

}  // namespace faststream
