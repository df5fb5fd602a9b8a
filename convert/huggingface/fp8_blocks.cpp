#include "convert/huggingface/fp8_blocks.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/printable.h"
#include "support/shape_text.h"

namespace faststream::convert {
namespace {

constexpr const char* kQuantization = "quantization_config";
constexpr const char* kBlockSize = "weight_block_size";

// [..., blocks of rows, blocks of columns].
std::vector<int64_t> shape_of_factors(const SourceTensor& matrix, int64_t rows, int64_t columns) {
  std::vector<int64_t> shape = matrix.shape;
  shape.end()[-2] = (shape.end()[-2] + rows - 1) / rows;
  shape.back() = (shape.back() + columns - 1) / columns;
  return shape;
}

}  // namespace

bool has_fp8_blocks(const JsonView& config) {
  const auto quantization = config.find(kQuantization);
  return quantization && quantization->get<std::string>("quant_method", "") == "fp8" &&
         quantization->get<std::string>("fmt", "e4m3") == "e4m3" && quantization->find(kBlockSize);
}

void join_fp8_blocks(const JsonView& config, Checkpoint& checkpoint) {
  if (!has_fp8_blocks(config)) return;
  const JsonView size = config.member(kQuantization).member(kBlockSize);
  constexpr int64_t kMost = int64_t{1} << 24;
  const std::vector<int64_t> block = size.integers<int64_t>(1, kMost);
  if (block.size() != 2) size.fail("is not a pair");
  constexpr const char* kFactors = "_scale_inv";
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.format->name != kFp8BlocksFormat.name || tensor.shape.size() < 2) continue;
    if (checkpoint.find(name + kFactors) != nullptr) names.push_back(name);
  }
  for (const std::string& name : names) {
    SourceTensor matrix = checkpoint.take(name);
    static_cast<void>(
        checkpoint.require(name + kFactors, shape_of_factors(matrix, block[0], block[1])));
    matrix.format = &kFp8BlocksFormat;
    matrix.block_factors = {block[0], block[1],
                            std::make_shared<SourceTensor>(checkpoint.take(name + kFactors))};
    checkpoint.add_tensor(std::move(matrix), name);
  }
}

}  // namespace faststream::convert
