// Checkpoints that Transformers has loaded and saved again, under names that releases do not have.

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "golden_data.h"
#include "model_file/model_file.h"
#include "searches.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

// The bytes of a safetensors file with a tensor renamed.
std::string renamed(const std::string& bytes, const std::string& from, const std::string& to) {
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  nlohmann::json header = nlohmann::json::parse(bytes.substr(sizeof size, size));
  header[to] = header.at(from);
  header.erase(from);
  const std::string text = header.dump();
  const uint64_t new_size = text.size();
  return std::string(reinterpret_cast<const char*>(&new_size), sizeof new_size) + text +
         bytes.substr(sizeof size + size);
}

TEST(ResavedCheckpoints, OfOlmoHybridsHaveTheNormsAfterAttentionUnderAnotherName) {
  const GoldenData golden = load_golden("families/olmo_hybrid");
  const TemporaryFolder folder;
  std::filesystem::copy_file(golden.folder / "config.json", folder / "config.json");
  write_bytes(folder / "model.safetensors",
              renamed(read_bytes(golden.folder / "model.safetensors"),
                      "model.layers.1.post_attention_layernorm.weight",
                      "model.layers.1.feedforward_layer_norm.weight"));
  convert::ConvertOptions options;
  options.tokenizer = golden.tokenizer;
  options.checkpoint = golden.folder;
  const ConvertedCheckpoint released(options);
  options.checkpoint = folder.path();
  const ConvertedCheckpoint resaved(options);
  const ModelFile file = ModelFile::open(resaved.path());
  const ModelFile original = ModelFile::open(released.path());
  for (const TensorInfo& tensor : original.tensors()) {
    EXPECT_EQ(file.find(tensor.name)->checksum, tensor.checksum) << tensor.name;
  }
}

}  // namespace
}  // namespace faststream
