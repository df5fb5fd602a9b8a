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

struct SourceTensor;

/// Numbers of a few bits in little-endian words, row after row of the tensor (or, of one that is
/// transposed, column after column), which are called lines here.
struct PackedNumbers {
  int bits = 4;        ///< at most 8
  int word_bits = 32;  ///< 8 or 32
  /// Words hold as many as fit, or follow each other like one word.
  bool across_words = false;
  /// A word's numbers are neighbours in a line; or of lines, at the same place: of neighbouring
  /// ones, or of those that are as far apart as there are lines of words.
  enum class Along { line, lines, distant_lines };
  Along along = Along::line;
  /// Bits from the beginning of a line, or of a line of words, to that of the next: whole words, or
  /// along a line at least whole numbers where none is across words.
  int64_t pitch = 0;
  /// Which number of a word each place from its lowest bits on holds; empty: in order.
  std::vector<uint8_t> order = {};
  std::vector<float> values = {};  ///< [2^bits], of each number
};

/// What makes values of a quantized tensor's numbers: a value is
/// (number - zero) · scale · factor + addend, in float32 and in this order. Numbers share a scale
/// in blocks, from the top left of each matrix; the last blocks of rows and columns may be smaller.
struct BlockScaling {
  /// Of a block; 0: blocks are `columns` numbers of the tensor one after the other, whatever rows
  /// they are of.
  int64_t rows = 1;
  int64_t columns = 1;
  std::shared_ptr<const SourceTensor> scales;           ///< [..., blocks of rows, of columns]
  std::shared_ptr<const SourceTensor> zeros = nullptr;  ///< likewise; null: zeros
  /// int32 [columns]: the block of columns that each belongs to; null: as `columns` has it.
  std::shared_ptr<const SourceTensor> groups = nullptr;
  bool divides = false;  ///< by the scale
  float factor = 1;
  float addend = 0;
};

/// Two matrices whose product is one of low rank.
struct LowRankFactors {
  std::shared_ptr<const SourceTensor> left = nullptr;   ///< [rows, rank]; null: ones
  std::shared_ptr<const SourceTensor> right = nullptr;  ///< [rank, columns]
};

/// What an adapter of low rank makes of a tensor: scale · left · right is added to each of its
/// matrices, of which a vector is one of one row, in float32.
struct LowRankUpdate {
  std::shared_ptr<const SourceTensor> base = nullptr;  ///< the tensor without it
  std::vector<LowRankFactors> factors = {};            ///< of each matrix
  float scale = 1;
  /// [rows, 1] or [1, columns]: each row of the sum, or each column, then gets this Euclidean norm.
  std::shared_ptr<const SourceTensor> magnitudes = nullptr;
};

/// A tensor as it lies in a checkpoint: row-major, little-endian, without gaps, unless it says
/// otherwise.
struct SourceTensor {
  std::string name;
  const ElementFormat* format = &kF32Format;  ///< static; a row is whole blocks
  std::vector<int64_t> shape;
  size_t file = 0;      ///< number that Checkpoint::add_file() gave
  uint64_t offset = 0;  ///< of the first byte in that file
  /// The file has the columns of the matrix one after the other, not its rows.
  bool transposed = false;
  /// The file has so many elements for each of a row (or of a column, if transposed), the first of
  /// which is the tensor's.
  int64_t step = 1;
  /// How numbers lie in words, if they are not elements of `format`.
  std::shared_ptr<const PackedNumbers> packed = nullptr;
  /// What makes values of the numbers; null: they are the values.
  std::shared_ptr<const BlockScaling> scaling = nullptr;
  /// If above 0, values are what BitNet (arXiv:2402.17764) makes of the floats x that lie there:
  /// round(x · ternary), within -1 to 1, over ternary.
  float ternary = 0;
  /// What its values become, in place of all that is said here but the shape; null: they stay.
  std::shared_ptr<const LowRankUpdate> update = nullptr;

  /// Of the tensor as one matrix, whose rows have all but the last dimension.
  [[nodiscard]] int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  /// Of each of its matrices, of which it has several if it has more than two dimensions.
  [[nodiscard]] int64_t matrix_rows() const { return shape.size() < 2 ? 1 : shape.end()[-2]; }
  /// Whether columns of a matrix lie together in the file, so that few of its rows at a time are
  /// read from many places.
  [[nodiscard]] bool lies_in_columns() const { return transposed; }
  /// Whether its values can be read.
  [[nodiscard]] bool has_values() const { return packed != nullptr || format->decode != nullptr; }
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
  /// Fills `out` with blocks of the tensor's elements as they lie in the file, from that on that
  /// begins with element `first`. Any thread may call it.
  /// Throws Error when the file cannot be read.
  void read(const SourceTensor& tensor, int64_t first, std::span<std::byte> out) const;

 private:
  std::string name_;
  std::vector<InputFile> files_;
  std::map<std::string, SourceTensor, std::less<>> tensors_;
};

}  // namespace faststream::convert
