// The public C++ API of encoders: a model in memory that turns texts into vectors, or scores pairs
// of texts.
//
//   faststream::Embedder embedder("minilm.bin", {});
//   std::vector<faststream::TextVector> vectors = embedder.embed({{"A cat.", "A dog."}});
//
// docs/embeddings.md is a guide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/options.h"
#include "support/error.h"

namespace faststream {

struct EmbedderInfo {
  std::string device;       ///< such as "CPU (2 threads, AMX)"
  int64_t vector_size = 0;  ///< elements of a vector; or labels that are scored
  int64_t context = 0;      ///< tokens at which texts are cut
  bool scores = false;      ///< vectors are scores of labels
  bool pairs = false;       ///< the model takes pairs of texts
  double load_seconds = 0;
  size_t weight_bytes = 0;
};

/// What a text has become.
struct TextVector {
  std::vector<float> values;  ///< [vector_size]; none where the text has no tokens
  int64_t tokens = 0;         ///< that were processed
  bool cut = false;           ///< the text has more
};

/// Runs one encoder. Texts of any lengths are packed into steps without padding; a text's vector
/// does not depend on the others, but for the last bits where products are summed in float32. One
/// thread at a time may call it.
class Embedder {
 public:
  /// Loads a model. Throws UsageError for bad options, Error when the file is no sound model, the
  /// model gives no vectors, or the device does not suffice.
  Embedder(const std::filesystem::path& model, const EmbedderOptions& options);
  Embedder(Embedder&&) noexcept;
  Embedder& operator=(Embedder&&) noexcept;
  ~Embedder();

  [[nodiscard]] const EmbedderInfo& info() const;

  /// The vector of each text, in their order; or its scores, if the model gives such. Throws Error
  /// when the device fails.
  std::vector<TextVector> embed(std::span<const std::string> texts);

  /// The scores of each pair (first, text). Where both are too long, the longer one is cut first.
  /// Throws UsageError when the model takes no pairs or gives no scores, Error as embed().
  std::vector<TextVector> score(std::string_view first, std::span<const std::string> texts);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace faststream
