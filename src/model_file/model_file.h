// The single file, read. Format: docs/model-file.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/dtype.h"
#include "support/weight_source.h"

namespace faststream {

/// Tensors start at multiples of this, from the start of the file.
inline constexpr uint64_t kTensorAlignment = 4096;

/// A tensor as the table of a model file names it.
struct TensorInfo {
  std::string name;  ///< at most 95 bytes of printable ASCII, unique in the file
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  ///< 1 or 2 dimensions, each at least 1; row-major, no gaps
  uint64_t offset = 0;         ///< of the first byte in the file; a multiple of kTensorAlignment
  uint64_t bytes = 0;          ///< product of shape × dtype_size
  uint64_t checksum = 0;       ///< XXH3-64 of the bytes
};

/// A model file, mapped read-only, or the same thing in memory. All metadata has been checked
/// against the size of the file when the constructor returns; the contents of tensors have not
/// (verify()). Moving keeps spans valid.
class ModelFile {
 public:
  /// Maps `path`. Throws Error, naming the file, when it cannot be read or is not a sound model
  /// file.
  static ModelFile open(const std::filesystem::path& path);

  /// The same checks on bytes in memory, which must outlive the result. `name` stands for the path
  /// in messages. `make`, if set, is where tensors come from that are not in `bytes` yet; its
  /// offsets are the file's (weights()).
  static ModelFile from_bytes(std::span<const std::byte> bytes, const std::string& name,
                              MakeBytes make = nullptr);

  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;
  ~ModelFile();

  [[nodiscard]] const std::string& name() const;       ///< the path as given
  [[nodiscard]] const nlohmann::json& header() const;  ///< an object; members in docs/model-file.md
  /// A member of the header. Throws Error when there is none.
  [[nodiscard]] const nlohmann::json& section(std::string_view name) const;
  [[nodiscard]] std::span<const TensorInfo> tensors() const;  ///< in file order
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  /// Throws Error when there is no such tensor, or its type or shape differs.
  [[nodiscard]] const TensorInfo& require(std::string_view name, DType dtype,
                                          std::span<const int64_t> shape) const;
  [[nodiscard]] std::span<const std::byte> bytes(const TensorInfo& tensor) const;
  [[nodiscard]] uint64_t file_size() const;

  /// Everything that a device needs, as one range: from the first tensor that is not u8 to the end
  /// of the last. A tensor's place in it is `tensor.offset - weights().offset`.
  [[nodiscard]] WeightSource weights() const;

  /// 16 hexadecimal digits, the same for files whose contents are: of the header and all tensors'
  /// checksums.
  [[nodiscard]] std::string fingerprint() const;

  /// The same for files whose weights are the same: of names, types, shapes and checksums of all
  /// tensors that are not u8.
  [[nodiscard]] uint64_t weights_checksum() const;

  /// Compares every tensor's checksum, and what lies between tensors with zeros: with what the
  /// constructor checks, every byte. Throws Error naming the first tensor that differs, or that
  /// comes after what does.
  void verify() const;

 private:
  struct Impl;
  explicit ModelFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace faststream
