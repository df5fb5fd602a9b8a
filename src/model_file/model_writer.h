// The single file, written. Format: docs/model-file.md.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model_file/model_file.h"
#include "support/output_file.h"

namespace faststream {

/// What a tensor will be, before its bytes are known.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

/// Writes a model file in one pass with constant memory: the layout is fixed at construction, the
/// bytes of tensors follow in order, the table's checksums come last. The file appears under its
/// name only when finish() returns; until then it is `path` + ".partial-N" beside it, which the
/// destructor removes.
class ModelWriter {
 public:
  /// u8 tensors must come first. Throws Error when the file cannot be created, when there is not
  /// enough room on the disk, or when `path` exists and `overwrite` is false.
  ModelWriter(const std::filesystem::path& path, const nlohmann::json& header,
              const std::vector<TensorSpec>& tensors, bool overwrite);
  /// Into this file, which must outlive the writer. Throws Error when there is not enough room.
  ModelWriter(OutputFile& file, const nlohmann::json& header,
              const std::vector<TensorSpec>& tensors);
  ModelWriter(const ModelWriter&) = delete;
  ModelWriter& operator=(const ModelWriter&) = delete;
  ~ModelWriter();

  /// Appends bytes of the current tensor; moves to the next one when it is full. Throws Error when
  /// the disk is full or too many bytes come.
  void append(std::span<const std::byte> bytes);

  /// Writes the table, and commits the file. Throws Error when bytes are missing or the disk fails.
  void finish();

  [[nodiscard]] uint64_t file_size() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Size of the file that a ModelWriter would write.
uint64_t model_file_size(const nlohmann::json& header, const std::vector<TensorSpec>& tensors);

}  // namespace faststream
