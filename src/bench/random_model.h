// Models with random weights: for benchmarks and tests, so that nobody needs a download.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model_file/model_file.h"
#include "model_file/model_image.h"
#include "models/config.h"
#include "models/tensor_plan.h"
#include "support/check_interrupted.h"

namespace faststream::bench {

/// A well-known shape by name ("llama-2-7b", "llama-3-8b", ...), all matrices of `format`,
/// embeddings of 16 bits where that is quantized. Throws UsageError for an unknown name, listing
/// the known ones.
ModelConfig named_shape(std::string_view name, WeightFormat format);
/// Names that named_shape knows.
std::vector<std::string_view> shape_names();

/// A model with random weights, without a tokenizer, whose activations stay in a sane range: matrix
/// elements are uniform with variance 1 / in, norms near one. A function of (config, seed). Weights
/// are made when somebody reads them, and take no memory until make_all().
class RandomModel {
 public:
  /// Throws Error as ModelImage does.
  RandomModel(const ModelConfig& config, uint64_t seed);

  /// Writes the bytes from `offset` of the model file to `out`, the range of tensors alone. Any
  /// number of threads at once.
  void make(uint64_t offset, std::span<std::byte> out) const;
  /// Makes all weights in memory, for those who use them in place. `check_interrupted` is called
  /// many times a second.
  void make_all(const CheckInterrupted& check_interrupted = {});

  /// The model file, which must not outlive the model: its weights() has `make`, and its bytes are
  /// those of weights only after make_all().
  [[nodiscard]] ModelFile file(const std::string& name) const;
  [[nodiscard]] ModelImage image() && { return std::move(image_); }

 private:
  void make_part(size_t t, uint64_t offset, std::span<std::byte> out) const;

  uint64_t seed_;
  std::vector<TensorPlan> plans_;
  std::vector<float> spans_;  // by tensor: of the elements of the last matrix, to both sides of 0
  ModelImage image_;
};

/// All of it in memory.
ModelImage make_random_model(const ModelConfig& config, uint64_t seed);

}  // namespace faststream::bench
