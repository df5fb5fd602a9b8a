// A GGUF file's metadata as a family of models reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/gguf/metadata.h"

namespace faststream::convert {

/// Which of several layers that follow each other has no window.
enum class FullLayer { first, last };

/// Metadata under the name of the architecture that they begin with, and the tensors beside them.
class GgufSource {
 public:
  /// Both must outlive the source. Throws Error when the file names no architecture.
  GgufSource(const GgufMetadata& metadata, const Checkpoint& weights)
      : metadata_(metadata),
        weights_(weights),
        architecture_(metadata.text("general.architecture")) {}

  [[nodiscard]] const std::string& architecture() const { return architecture_; }
  [[nodiscard]] const GgufMetadata& metadata() const { return metadata_; }
  [[nodiscard]] const Checkpoint& weights() const { return weights_; }

  /// "llama.block_count" of "block_count".
  [[nodiscard]] std::string key(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return metadata_.has(key(name)); }
  /// Throws Error about the value; `what` goes on after its name.
  [[noreturn]] void fail(std::string_view name, const std::string& what) const;

  /// A whole number from 1 to `most` that must be there, or has a value when it is not.
  [[nodiscard]] int64_t count(std::string_view name, int64_t most) const;
  [[nodiscard]] int64_t count(std::string_view name, int64_t most, int64_t otherwise) const;
  /// The same of each of so many layers: an array, or one number for all.
  [[nodiscard]] std::vector<int64_t> counts(std::string_view name, int64_t layers,
                                            int64_t most) const;
  /// Finite.
  [[nodiscard]] double number(std::string_view name, double otherwise) const;

  /// Of each layer the whole number that is given for it, or for all.
  [[nodiscard]] std::vector<int64_t> of_layers(std::string_view name) const;
  /// The number. Throws Error unless it is from 1 to `most`.
  [[nodiscard]] int64_t in_range(std::string_view name, int64_t value, int64_t most) const;
  /// How many of the layers, the last ones, predict tokens after the next; not all, often none.
  [[nodiscard]] int64_t n_predicting_layers() const;

  /// Whether each layer has a window: as "attention.sliding_window_pattern" says, a list or how
  /// many follow each other of which one has none; without it, so many are `otherwise`.
  [[nodiscard]] std::vector<bool> windowed_layers(int64_t n_layers, int64_t otherwise,
                                                  FullLayer full = FullLayer::last) const;

  [[nodiscard]] bool layer_has(int64_t n, std::string_view name) const;
  // Layers may be of several kinds: these look at the first that has a tensor of this name.
  [[nodiscard]] bool a_layer_has(std::string_view name) const;
  /// Empty when there is none.
  [[nodiscard]] std::vector<int64_t> shape_in_layer(std::string_view name) const;
  /// The values of a small vector of `size` elements, each above 0, whatever dimensions of one
  /// element it has besides; nothing when there is none. Throws Error when it has another shape.
  [[nodiscard]] std::optional<std::vector<float>> vector(std::string_view name, int64_t size) const;

 private:
  [[nodiscard]] int64_t n_layers() const;
  [[nodiscard]] const SourceTensor* find_in_layer(int64_t n, std::string_view name) const;
  [[nodiscard]] const SourceTensor* find_in_layers(std::string_view name) const;

  const GgufMetadata& metadata_;
  const Checkpoint& weights_;
  std::string architecture_;
};

}  // namespace faststream::convert
