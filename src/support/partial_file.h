// Files that appear whole or not at all.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "support/output_file.h"

namespace faststream {

/// A file in the making. It appears under its name only when commit() returns; until then it is
/// `path` + ".partial-N" beside it, which the destructor removes; N is the process's number, or the
/// next that is free. What a process that was killed left on its way to the same name is removed
/// first: nobody holds its lock (flock) any more. A symbolic link stays one: what it leads to is
/// written. A file that is replaced leaves its permissions and, where that is allowed, its owner to
/// the new one.
class PartialFile final : public OutputFile {
 public:
  /// Takes room for `bytes` on the disk. Throws Error, naming the file, when it cannot be created,
  /// there is not enough room, or `path` is no regular file, or exists and `overwrite` is false.
  PartialFile(std::filesystem::path path, uint64_t bytes, bool overwrite);
  ~PartialFile() override;

  /// Syncs, closes and renames. Throws Error when the disk fails, or the name is taken by now and
  /// must not be overwritten.
  void commit() override;

 private:
  [[noreturn]] void fail_exists() const;
  void remove_dead() const;
  void create(mode_t mode);
  void take_owner_and_mode(const struct stat& old) const;
  void rename_into_place();
  void remove();
  void sync_folder() const;

  std::filesystem::path target_;  // what it leads to
  std::filesystem::path partial_;
  bool overwrite_;
};

/// Writes a file that holds `text`. Throws as PartialFile does.
void write_file(const std::filesystem::path& path, std::string_view text, bool overwrite);

}  // namespace faststream
