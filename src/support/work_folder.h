// A folder for files that nobody needs afterwards.
#pragma once

#include <filesystem>

namespace faststream {

/// A new folder in the system's folder for temporary files (TMPDIR, or /tmp), for this user alone.
/// The destructor removes it and what is in it.
class WorkFolder {
 public:
  /// Throws Error, naming the folder, when it cannot be made.
  WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace faststream
