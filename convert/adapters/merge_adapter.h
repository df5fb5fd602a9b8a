// Adapters of low rank in PEFT's format, merged into the weights that they were trained beside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/source_files.h"

namespace faststream::convert {

/// What came of an adapter.
struct MergedAdapter {
  std::string name;        ///< of its folder
  size_t changed = 0;      ///< tensors that something was added to
  size_t replaced = 0;     ///< tensors that it has whole
  size_t left_out = 0;     ///< its own tensors of what is left out of the model
  int64_t least_rank = 0;  ///< of its factors; 0: it has none
  int64_t most_rank = 0;
  bool ties = false;  ///< what is tied in the model is so with the adapter
};

/// "support-bot: 224 tensors changed, of ranks 8 to 16, 2 replaced", as it can be shown.
std::string to_text(const MergedAdapter& adapter);

/// A matrix of each expert of a layer, as Transformers has one parameter for all of them.
struct ExpertMatrices {
  /// Rows that one tensor of the checkpoint has of an expert's matrix.
  struct Rows {
    std::string tensor;
    int64_t first = 0;
    int64_t count = 0;
  };
  std::string parameter;  ///< its name within the module
  int64_t out = 0;        ///< rows; of a joined tensor perhaps those of the transpose
  int64_t in = 0;
  int64_t count = 0;                               ///< of experts
  std::string joined = {};                         ///< the tensor that has all; or
  std::vector<std::vector<Rows>> of_experts = {};  ///< what each expert's rows are in
};

/// The checkpoint that adapters change.
struct AdaptedModel {
  Checkpoint& weights;
  size_t own_files = 0;  ///< of the checkpoint itself
  /// The checkpoint's name for the tensor that an adapter has under a name; empty: there is none.
  std::function<std::string(const std::string& name)> find = {};
  /// The matrices of experts in a module that an adapter has under a name; empty: it is no such
  /// one.
  std::function<std::vector<ExpertMatrices>(const std::string& module)> experts = {};
  /// Whether that is a tensor of what is left out of the model.
  std::function<bool(const std::string& name)> is_left_out = {};
  /// Whether the checkpoint's tensor of that name is an embedding that encoder and decoder share:
  /// classes of Transformers have modules of their own for its places, of which adapters change
  /// some.
  std::function<bool(const std::string& name)> is_shared = {};
  /// Whether the checkpoint has a matrix as [in, out] whose shape does not tell.
  std::function<bool(const std::string& name)> is_transposed = {};
  /// Rows that the checkpoint's matrix of that name must have if an adapter has it whole; 0: as
  /// many as it has.
  std::function<int64_t(const std::string& name)> rows_of_whole = {};
};

/// The adapter in a folder: adapter_config.json, and adapter_model.safetensors or
/// adapter_model.bin.
class Adapter {
 public:
  /// Its files become files of the checkpoint. Throws Error, naming the file and the tensor, when
  /// the adapter is damaged or asks for what cannot be merged.
  Adapter(std::filesystem::path folder, Checkpoint& weights, SourceFiles& files);
  Adapter(Adapter&& other) noexcept;
  ~Adapter();

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// Names of the tensors that it has whole, and rows of those that are matrices, else 0.
  [[nodiscard]] std::vector<std::pair<std::string, int64_t>> whole_tensors() const;

  /// Has tensors of the model read in float32 as the adapter changes them, W + scale · B · A, or as
  /// the adapter has them. Throws Error when it has a tensor without a counterpart in the model, or
  /// one that does not fit there.
  MergedAdapter merge(const AdaptedModel& model) &&;

 private:
  struct Contents;
  std::filesystem::path folder_;
  std::unique_ptr<Contents> contents_;
};

}  // namespace faststream::convert
