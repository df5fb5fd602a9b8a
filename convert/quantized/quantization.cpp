#include "convert/quantized/quantization.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "convert/quantized/four_bit_floats.h"
#include "convert/quantized/methods.h"
#include "convert/quantized/module_tensors.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

struct Method {
  std::string_view name;
  void (*join)(const JsonView& quantization, Checkpoint& checkpoint);
};

constexpr auto kMethods = std::to_array<Method>({
    {"gptq", join_gptq},
    {"awq", join_awq},
    {"bitnet", join_bitnet},
    {"bitsandbytes", join_bitsandbytes},
    {"fp8", join_fp8},
    {"fbgemm_fp8", join_fp8},
    {"modelopt", join_modelopt},
    {"compressed-tensors", join_compressed_tensors},
    {"mxfp4", [](const JsonView&, Checkpoint&) {}},  // its tensors say so themselves
});

std::string supported_methods() {
  std::string names;
  for (const Method& method : kMethods) {
    names += (names.empty() ? "" : ", ") + std::string(method.name);
  }
  return names;
}

std::optional<JsonView> quantization_in(const JsonView& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (auto found = config.find(key)) return found;
  }
  return std::nullopt;
}

const Method& method_of(const JsonView& quantization) {
  // bitsandbytes' first checkpoints do not name the method.
  const bool is_bitsandbytes =
      quantization.find("load_in_8bit") || quantization.find("load_in_4bit");
  const auto name =
      quantization.get<std::string>("quant_method", is_bitsandbytes ? "bitsandbytes" : "");
  const auto found = std::ranges::find(kMethods, name, &Method::name);
  if (found != kMethods.end()) return *found;
  quantization.fail("asks for " +
                    (name.empty() ? "no method by name" : "the method " + in_quotes(name)) +
                    ", which is not supported (" + supported_methods() +
                    " are); convert the checkpoint that was quantized");
}

// How activations were to be rounded, and keys and values that are kept.
void drop_scales_of_activations(Checkpoint& checkpoint) {
  for (const char* ending : {".k_scale", ".v_scale", ".q_scale", ".kv_scale"}) {
    for (const std::string& module : names_before(checkpoint, ending)) {
      drop_tensor(checkpoint, module + ending);
    }
  }
  for (const char* ending :
       {".input_scale", ".input_zero_point", ".input_global_scale", ".input_scale_ub",
        ".activation_scale", ".output_scale", ".output_zero_point"}) {
    for (const std::string& module : names_before(checkpoint, ending)) {
      const SourceTensor* matrix = checkpoint.find(module + ".weight");
      if (matrix != nullptr && matrix->scaling) drop_tensor(checkpoint, module + ending);
    }
  }
}

std::set<std::string, std::less<>> biases_of_zeros(const Checkpoint& checkpoint) {
  std::set<std::string, std::less<>> names;
  for (const std::string& module : names_before(checkpoint, ".bias")) {
    const SourceTensor* matrix = checkpoint.find(module + ".weight");
    const SourceTensor& bias = *checkpoint.find(module + ".bias");
    if (matrix == nullptr || !matrix->scaling || bias.shape.size() != 1 || !bias.has_values()) {
      continue;
    }
    const std::vector<float> values = values_of(checkpoint, bias);
    if (std::ranges::all_of(values, [](float value) { return value == 0; })) {
      names.insert(module + ".bias");
    }
  }
  return names;
}

}  // namespace

std::set<std::string, std::less<>> join_quantized(const JsonView& config, Checkpoint& checkpoint) {
  join_mxfp4_blocks(checkpoint);
  const auto quantization = quantization_in(config);
  if (!quantization) return {};
  method_of(*quantization).join(*quantization, checkpoint);
  drop_scales_of_activations(checkpoint);
  return biases_of_zeros(checkpoint);
}

}  // namespace faststream::convert
