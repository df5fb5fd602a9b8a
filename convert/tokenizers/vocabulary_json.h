// A vocabulary by itself: vocab.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "convert/source_files.h"

namespace faststream::convert {

/// Its tokens by their ids, which the file gives each of its own, from 0 on without gaps. Throws
/// Error, naming the file, when it does not.
std::vector<std::string> read_vocabulary_json(const std::filesystem::path& path,
                                              SourceFiles& files);

}  // namespace faststream::convert
