// llama.cpp's files of importance matrices (llama-imatrix), both forms: GGUF, and the older one,
// which has no magic number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/calibration/activation_statistics.h"
#include "convert/source_model.h"
#include "models/tensor_plan.h"

namespace faststream::convert {

/// Of a tensor, by the name that it has in GGUF files.
struct ImportanceEntry {
  std::vector<float> mean_squares;  ///< [parts, columns], finite and not negative
  std::vector<float> counts;        ///< [parts], of which there is one, or one for each expert; 0:
                                    ///< no input was seen
};
using ImportanceEntries = std::map<std::string, ImportanceEntry, std::less<>>;

/// Reads a file of `size` bytes through `read`, which fills a span with the bytes at an offset. The
/// older form does not tell how many parts an entry has: it has one, of all values. Throws Error,
/// starting with `where`, when it is neither form, unsound, or a value is negative or not finite.
ImportanceEntries parse_imatrix(const std::function<void(uint64_t, std::span<std::byte>)>& read,
                                uint64_t size, std::string_view where);

/// The moments of the matrices `wanted` of a model from a file: by what a matrix is made of, if
/// that is a GGUF file, else by llama.cpp's names for its kind. Matrices that the file does not
/// name have none. Throws Error when it cannot be read, names none of them, or has another number
/// of columns for one.
ActivationStatistics read_imatrix(const std::filesystem::path& path, const SourceModel& source,
                                  std::span<const TensorPlan> wanted);

}  // namespace faststream::convert
