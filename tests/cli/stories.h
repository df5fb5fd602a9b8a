// The trained model of 260 thousand parameters, for tests that start programs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "run_program.h"

namespace faststream {

/// A folder of this process's own, removed at its end.
inline const std::filesystem::path& scratch_folder() {
  struct Folder {
    std::filesystem::path path;
    Folder() {
      std::string name =
          (std::filesystem::temp_directory_path() / "faststream-test-XXXXXX").string();
      if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder");
      path = name;
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder folder;
  return folder.path;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The folder shared/models/stories260K; empty where it is not there.
inline std::filesystem::path stories_folder() {
  const char* shared = std::getenv("FASTSTREAM_SHARED");
  if (shared == nullptr) return {};
  const auto folder = std::filesystem::path(shared) / "models" / "stories260K";
  return std::filesystem::exists(folder) ? folder : std::filesystem::path();
}

/// stories260K converted to `dtype` by faststream-convert, once a process.
inline std::string stories_model(const std::string& dtype = "f32") {
  const auto path = scratch_folder() / ("stories-" + dtype + ".bin");
  if (!std::filesystem::exists(path)) {
    const auto folder = stories_folder();
    const ProgramResult result = run_program(
        {"faststream-convert", (folder / "stories260K.bin").string(), "--tokenizer",
         (folder / "tok512.bin").string(), "-o", path.string(), "--dtype", dtype, "--quiet"});
    if (result.exit_code != 0) throw std::runtime_error(result.err);
  }
  return path.string();
}

}  // namespace faststream
