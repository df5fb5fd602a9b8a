// The file of an adapter that runs beside a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <vector>

#include "convert/adapters/merge_adapter.h"
#include "convert/pipeline.h"

namespace faststream::convert {

struct AdapterReport {
  std::filesystem::path output;
  uint64_t file_bytes = 0;
  size_t n_matrices = 0;  ///< of the model, that are changed
  std::vector<MergedAdapter> adapters;
};

/// Makes of options.adapters, which add up, one that runs beside the model in a file that was made
/// of the same checkpoint (models/adapter_plan.h). Formats are the model's; of the options those of
/// checkpoint, tokenizer and output count. Throws Error when the model was made of another
/// checkpoint, or an adapter changes what can only be merged; no file is left behind then.
AdapterReport write_adapter(const ConvertOptions& options, const std::filesystem::path& model);

/// A few lines for the user.
void print_report(const AdapterReport& report, std::ostream& out);

}  // namespace faststream::convert
