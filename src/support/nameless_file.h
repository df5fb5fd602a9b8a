// A file that nobody needs afterwards.
#pragma once

#include <filesystem>

#include "support/output_file.h"

namespace faststream {

/// A file without a name in the system's folder for temporary files (TMPDIR, or /tmp), which is
/// gone with this object and who reads it, however the process ends.
class NamelessFile final : public OutputFile {
 public:
  /// Throws Error, naming the folder, when it cannot be made.
  NamelessFile();

  /// By which this process can open it.
  [[nodiscard]] std::filesystem::path path() const;
  /// What is written can be read at once.
  void commit() override {}

 private:
  explicit NamelessFile(const std::filesystem::path& folder);
};

}  // namespace faststream
