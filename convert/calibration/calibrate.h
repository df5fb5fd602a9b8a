// Measures what a checkpoint's matrices are multiplied with, by running the model over a text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "convert/calibration/activation_statistics.h"
#include "convert/pipeline.h"

namespace faststream::convert {

struct CalibrationOptions {
  std::optional<std::string> text = {};  ///< absent: tokens of the vocabulary, drawn at random
  std::string device = "auto";           ///< "auto", "cpu", "cuda" or "cuda:N"
  int threads = 1;
  /// Of the blocks of products of columns: a multiple of kLeastGramColumns; 0: none are measured.
  /// Those of experts are left out where all together would take more than kMostGramBytes, and then
  /// all of them.
  int64_t gram_columns = kLeastGramColumns;
  bool show_progress = false;  ///< on a terminal
  /// Called between pieces of work; what it throws ends the calibration. May be empty.
  std::function<void()> check_interrupted = {};
};

inline constexpr uint64_t kMostGramBytes = uint64_t{8} << 30;

/// Converts the checkpoint to a temporary file with weights of its own type (TMPDIR says where),
/// runs the model over the text, in windows of kCalibrationContext tokens at most, and returns the
/// moments of the inputs of the matrices that become int4. Throws UsageError when there are none,
/// or the model has an encoder; Error when convert_checkpoint() would, the device has no room, the
/// text is too short, or the model computes NaN or infinity.
ActivationStatistics calibrate(const ConvertOptions& conversion,
                               const CalibrationOptions& calibration);

inline constexpr int64_t kCalibrationContext = 512;  // tokens
inline constexpr int64_t kRandomTokens = 16384;      // that are drawn where there is no text

}  // namespace faststream::convert
