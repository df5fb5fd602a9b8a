#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/quantized/four_bit_floats.h"
#include "convert/quantized/methods.h"
#include "convert/quantized/module_tensors.h"
#include "convert/weights/elements.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr int64_t kMostInBlock8 = int64_t{1} << 24;

void refuse_unless_one_of(const JsonView& config, std::string_view key,
                          std::initializer_list<std::string_view> known) {
  const auto found = config.find(key);
  if (!found) return;
  const auto value = found->as<std::string>();
  for (const std::string_view name : known) {
    if (value == name) return;
  }
  found->fail("is " + in_quotes(value) + ", which is not supported");
}

// All matrices of E4M3 that have scales.
void join_e4m3(Checkpoint& checkpoint, std::pair<int64_t, int64_t> block) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.format->name == kE4m3Format.name && tensor.shape.size() >= 2) names.push_back(name);
  }
  for (const std::string& name : names) {
    for (const char* ending : {"_scale_inv", "_scale"}) {
      if (checkpoint.find(name + ending) == nullptr) continue;
      SourceTensor matrix = checkpoint.take(name);
      matrix.format = &kE4m3Format;
      matrix.scaling = std::make_shared<const BlockScaling>(
          scaling_by_shape(checkpoint, matrix, checkpoint.take(name + ending), block));
      checkpoint.add_tensor(std::move(matrix), name);
      break;
    }
  }
}

}  // namespace

void join_fp8(const JsonView& quantization, Checkpoint& checkpoint) {
  refuse_unless_one_of(quantization, "fmt", {"e4m3", "float8_e4m3fn"});
  refuse_unless_one_of(quantization, "activation_scheme", {"dynamic", "static"});
  std::pair<int64_t, int64_t> block = {0, 0};
  if (const auto size = quantization.find("weight_block_size")) {
    const std::vector<int64_t> both = size->integers<int64_t>(1, kMostInBlock8);
    if (both.size() != 2) size->fail("is not a pair");
    block = {both[0], both[1]};
  }
  join_e4m3(checkpoint, block);
}

void join_modelopt(const JsonView& quantization, Checkpoint& checkpoint) {
  refuse_unless_one_of(quantization, "quant_algo",
                       {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "MIXED_PRECISION"});
  for (const std::string& module : names_before(checkpoint, ".weight_scale_2")) {
    SourceTensor matrix = take_needed(checkpoint, module + ".weight");
    SourceTensor scales = take_needed(checkpoint, module + ".weight_scale");
    SourceTensor of_scales = checkpoint.take(module + ".weight_scale_2");
    matrix =
        nvfp4_matrix(checkpoint, std::move(matrix), std::move(scales), std::move(of_scales), false);
    checkpoint.add_tensor(std::move(matrix), module + ".weight");
  }
  join_e4m3(checkpoint, {0, 0});
}

}  // namespace faststream::convert
