// Archives of files that are stored as they are (PKWARE's APPNOTE 6.3.10), as torch.save() writes
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace faststream::convert {

/// Fills `out` with the bytes of a file from `offset` on, all of which it has.
using ReadBytes = std::function<void(uint64_t offset, std::span<std::byte> out)>;

/// Where a file of the archive lies in it.
struct ArchivedFile {
  uint64_t offset = 0;
  uint64_t size = 0;
};

/// The files of an archive of `size` bytes, by their names. All of them lie within it. Throws
/// Error, starting with `where`, when it is no archive, damaged, or has files that are compressed
/// or encrypted.
std::map<std::string, ArchivedFile, std::less<>> read_zip_directory(const ReadBytes& read,
                                                                    uint64_t size,
                                                                    std::string_view where);

}  // namespace faststream::convert
