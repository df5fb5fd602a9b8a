// The weights of a checkpoint: tensors by name, read piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/source_files.h"
#include "convert/weights/elements.h"

namespace faststream::convert {

/// A tensor as it lies in a checkpoint: row-major, little-endian, without gaps.
struct SourceTensor {
  std::string name;
  const ElementFormat* format = &kF32Format;  ///< static; a row is whole blocks
  std::vector<int64_t> shape;
  size_t file = 0;      ///< number that Checkpoint::add_file() gave
  uint64_t offset = 0;  ///< of the first byte in that file
  /// Where the first byte of each block lies, if not with the others: one after the other.
  struct Place {
    size_t file = 0;
    uint64_t offset = 0;
  };
  std::optional<Place> first_bytes = {};
  /// What elements are multiplied by, block by block of so many rows and columns from the top left;
  /// the last blocks of rows and of columns may be smaller.
  struct BlockFactors {
    int64_t rows = 0;
    int64_t columns = 0;
    std::shared_ptr<const SourceTensor> factors = nullptr;  ///< [..., blocks of rows, of columns]
  };
  std::optional<BlockFactors> block_factors = {};

  [[nodiscard]] int64_t elements() const;
  [[nodiscard]] uint64_t bytes() const;
};

/// Throws Error, starting with `where`, when two tensors of the same file share bytes.
void refuse_overlaps(std::span<const SourceTensor> tensors, std::string_view where);

/// Tensors in any number of files. Each format fills one; the pipeline reads it.
class Checkpoint {
 public:
  /// `name`: what messages call it, usually its path.
  explicit Checkpoint(std::string name) : name_(std::move(name)) {}

  /// Takes a file and returns its number.
  size_t add_file(InputFile file);
  /// The tensor's bytes must have been checked against the file's size; `name` is what find() shall
  /// know it by, if not by its own. Throws Error when the name is taken.
  void add_tensor(SourceTensor tensor, const std::string& name = "");

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::span<const InputFile> files() const { return files_; }
  [[nodiscard]] const std::map<std::string, SourceTensor, std::less<>>& tensors() const {
    return tensors_;
  }
  /// Null when there is none.
  [[nodiscard]] const SourceTensor* find(std::string_view name) const;
  /// Takes a tensor away, of which there is one.
  SourceTensor take(std::string_view name);
  /// Throws Error when there is no such tensor, its shape differs or its elements are no weights.
  [[nodiscard]] const SourceTensor& require(std::string_view name,
                                            std::span<const int64_t> shape) const;
  /// Fills `out` with blocks of the tensor, from that on that begins with element `first`. Any
  /// thread may call it.
  /// Throws Error when the file cannot be read.
  void read(const SourceTensor& tensor, int64_t first, std::span<std::byte> out) const;

 private:
  std::string name_;
  std::vector<InputFile> files_;
  std::map<std::string, SourceTensor, std::less<>> tensors_;
};

/// Whether two tensors of a checkpoint have the same elements.
bool same_bytes(const Checkpoint& weights, const SourceTensor& a, const SourceTensor& b);

}  // namespace faststream::convert
