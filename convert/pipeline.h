// From a checkpoint to a model file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "convert/calibration/activation_statistics.h"
#include "convert/source_model.h"
#include "support/output_file.h"
#include "support/weight_format.h"

namespace faststream::convert {

struct ConvertOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path output;
  OutputFile* into = nullptr;          ///< is written in place of a file called `output`
  std::optional<WeightFormat> format;  ///< absent: the checkpoint's own
  /// With no format: quantized matrices become bf16, even where a format holds them exactly.
  bool decode = false;
  bool keep_output = false;  ///< with int8 or int4: the output matrix stays in 16 bits
  /// Where weights are quantized: tensors of other formats, as keep_formats() takes them, or
  /// kKeepNone; empty: those that usually_kept() says.
  std::string keep = {};
  /// With int8: of what matrices multiply, 8 or 16; absent: 8. With 16 matrices are not rotated,
  /// and the last ones of feed-forwards are bf16.
  std::optional<int> activation_bits = {};
  std::optional<std::filesystem::path> tokenizer;  ///< instead of the checkpoint's own
  /// How an encoder's vectors are made where the checkpoint does not say, and whether they get
  /// length 1.
  std::optional<Pooling> pooling = {};
  bool normalize = false;
  /// What matrices are multiplied with, for those that are quantized; null: it is not known.
  std::shared_ptr<const ActivationStatistics> statistics = {};
  std::optional<std::filesystem::path> imatrix = {};  ///< llama.cpp's file that says it instead
  std::vector<std::filesystem::path> adapters = {};   ///< folders, merged into the weights in turn
  std::string task = {};  ///< of the checkpoint's own adapters, see merge_task()
  bool no_mtp = false;    ///< leave out what predicts further tokens
  std::optional<std::filesystem::path> eagle = {};  ///< the folder of a head that does instead
  bool force = false;                               ///< overwrite `output`
  bool show_progress = false;                       ///< on a terminal
  int threads = 1;
  /// Called between pieces of work; what it throws ends the conversion. May be empty.
  std::function<void()> check_interrupted;
  /// Called once, before the output is begun, which an interrupt must not leave behind. May be
  /// empty.
  std::function<void()> before_output;
};

/// How far a quantized tensor is from the original.
struct QuantizationError {
  std::string tensor;
  TensorKind kind{};
  WeightFormat format = WeightFormat::int8;
  double relative = 0;  ///< ||w - q|| / ||w||
};

struct ConvertReport {
  std::filesystem::path output;
  size_t source_files = 0;
  uint64_t source_bytes = 0;  ///< of the tensors that were read, however often
  uint64_t file_bytes = 0;
  size_t n_tensors = 0;
  double seconds = 0;
  std::vector<QuantizationError> errors;  ///< quantized tensors in file order
  double bits_a_weight = 0;               ///< sizes_of() the tensors
  size_t n_measured = 0;                  ///< of the matrices in int4: those whose inputs are known
  size_t n_calibrated = 0;                ///< matrices in int4; 0: nothing was measured
  std::map<WeightFormat, size_t> kept;    ///< matrices whose bits were kept
  size_t rounded = 0;                     ///< those with a few values that their format has not
  size_t decoded = 0;                     ///< and those that no format holds
  std::vector<LeftOut> left_out;          ///< of the checkpoint
  std::vector<MergedAdapter> adapters;    ///< in the order in which they were merged
  std::vector<LeftOut> predictors;        ///< kept, which predict further tokens
  bool has_eagle = false;                 ///< they are a head of EAGLE-3
  std::vector<std::string> untaken_settings;  ///< likewise
  std::string chat_template_fault;            ///< as SourceModel has it
};

/// Converts; memory stays below 1.5 GB for any checkpoint. Throws Error when the checkpoint cannot
/// be converted (see open_source_model), an adapter cannot be merged, a weight is NaN, infinite or
/// too large for the type, the output is one of the files it is made from, or cannot be written;
/// UsageError when options contradict each other. No file is left behind then.
ConvertReport convert_checkpoint(const ConvertOptions& options);

/// What a file that is made of the checkpoint at `path` says of where it is from.
nlohmann::json provenance_of(const SourceModel& source, const std::filesystem::path& path);

/// Throws Error when there is a file of the output's name that must not be overwritten: before
/// anything is done that takes long.
void check_output(const ConvertOptions& options);

/// The checkpoint with all that is to be converted of it.
SourceModel open_source(const ConvertOptions& options);

/// The hyperparameters of the model file: the checkpoint's with the formats that `options` ask for,
/// or, where they ask for none, those that keep_bits() finds. Throws UsageError when they make no
/// sense together.
ModelConfig target_config(const SourceModel& source, const ConvertOptions& options);
/// The same of a model whose matrices are floats.
ModelConfig target_config(const ModelConfig& source, const ConvertOptions& options);

/// What is wrong with --calibrate and --imatrix where no weights become int4, after their names.
inline constexpr const char* kOfInt4 =
    "has a meaning only where weights become int4, as with --dtype int4; all other types are "
    "rounded the same without";

/// Bytes of the model file that convert_checkpoint() would write.
uint64_t model_size(const SourceModel& source, const ConvertOptions& options);

/// A few lines for the user.
void print_report(const ConvertReport& report, std::ostream& out);

}  // namespace faststream::convert
