#include "convert/quantized/held_formats.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "convert/quantized/module_tensors.h"
#include "convert/weights/elements.h"
#include "convert/weights/read_values.h"
#include "models/tensor_plan.h"
#include "support/small_floats.h"

namespace faststream::convert {
namespace {

constexpr int64_t group_of(WeightFormat format) { return packed_layout(format).group; }

// Whether columns share scales as if they were in order, though the tensor says of each.
bool are_in_order(const Checkpoint& checkpoint, const SourceTensor& tensor) {
  const BlockScaling& scaling = *tensor.scaling;
  if (scaling.groups == nullptr) return true;
  if (scaling.columns < 1) return false;
  std::vector<int32_t> groups(static_cast<size_t>(tensor.columns()));
  checkpoint.read(*scaling.groups, 0, std::as_writable_bytes(std::span(groups)));
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i] != static_cast<int64_t>(i) / scaling.columns) return false;
  }
  return true;
}

// Whether groups of so many columns have one scale each.
bool share_scales(const SourceTensor& tensor, int64_t columns) {
  const BlockScaling& scaling = *tensor.scaling;
  if (scaling.rows == 0) {  // blocks of all numbers one after the other
    return scaling.columns >= tensor.elements() ||
           (scaling.columns % columns == 0 && tensor.columns() % columns == 0);
  }
  return scaling.columns >= tensor.columns() || scaling.columns % columns == 0;
}

// Whether scales fit where four of their bits are the zero point's.
bool are_short(const Checkpoint& checkpoint, const SourceTensor& scales) {
  if (scales.scaling) return false;
  if (scales.format == &kF16Format || scales.format == &kBf16Format) return true;
  constexpr uint32_t kZeroBits = 15;
  return std::ranges::all_of(values_of(checkpoint, scales), [](float scale) {
    return (std::bit_cast<uint32_t>(scale) & kZeroBits) == 0;
  });
}

// Whether zero points are among the numbers that they are taken from, as formats have them. Those
// that are packed are.
bool are_among_numbers(const Checkpoint& checkpoint, const SourceTensor& tensor) {
  const std::shared_ptr<const SourceTensor>& zeros = tensor.scaling->zeros;
  if (zeros == nullptr || zeros->packed != nullptr) return true;
  const std::vector<float>& numbers = tensor.packed->values;
  return std::ranges::all_of(values_of(checkpoint, *zeros), [&](float zero) {
    return std::ranges::find(numbers, zero) != numbers.end();
  });
}

bool has_values(const SourceTensor& tensor, std::span<const float> values) {
  return tensor.packed && std::ranges::equal(tensor.packed->values, values);
}

// Whether it is BitNet's, whose products quantize what they multiply by token as those of int4 do.
bool is_ternary(const SourceTensor& tensor) {
  return tensor.ternary > 0 || (has_values(tensor, kTernaryValues) && tensor.scaling &&
                                tensor.scaling->columns >= tensor.columns());
}

std::optional<WeightFormat> format_of_integers(const Checkpoint& checkpoint,
                                               const SourceTensor& tensor) {
  using enum WeightFormat;
  if (!are_in_order(checkpoint, tensor) || !are_among_numbers(checkpoint, tensor)) {
    return std::nullopt;
  }
  for (const WeightFormat format : {int4_g128, int4_g64, int4_g32}) {
    if (!share_scales(tensor, group_of(format))) continue;
    if (!are_short(checkpoint, *tensor.scaling->scales)) return std::nullopt;
    return format;
  }
  return std::nullopt;
}

// What one tensor of the model file is made of.
struct Held {
  bool quantized = false;
  std::optional<WeightFormat> format = {};  // that holds all parts
};
Held held_of(const SourceModel& source, const TensorPlan& plan,
             std::map<std::string, std::optional<WeightFormat>>& of_tensors) {
  Held held;
  bool first = true;
  bool possible = true;
  const int64_t width = row_width(plan);
  for (const TensorPart& part : source.parts.at(plan.id)) {
    if (part.source.empty()) {
      possible = possible && part.values == nullptr;  // zeros are held by all
      continue;
    }
    const SourceTensor& tensor = source.weights.require(part.source, part.shape);
    const auto [at, is_new] = of_tensors.try_emplace(part.source);
    if (is_new) at->second = held_format(source.weights, tensor);
    const bool is_quantized =
        tensor.scaling || tensor.ternary > 0 || tensor.format->block_elements > 1;
    held.quantized = held.quantized || (is_quantized && !tensor.update);
    possible = possible && is_rows_alone(part, width) && tensor.columns() == width;
    if (!first && held.format != at->second) possible = false;
    held.format = at->second;
    first = false;
  }
  if (!possible) held.format.reset();
  return held;
}

// The formats of a stack's matrices of a kind, by layer.
using FormatsOfKinds = std::map<TensorKind, std::map<int64_t, WeightFormat>>;

void set_rules(ModelConfig& config, WeightFormat most, const FormatsOfKinds& kinds) {
  config.weight_format = most;
  for (const auto& [kind, layers] : kinds) {
    const WeightFormat first = layers.begin()->second;
    const bool alike =
        std::ranges::all_of(layers, [&](const auto& layer) { return layer.second == first; });
    if (alike || !is_of_layers(kind)) {
      const WeightFormat format = alike ? first : config.embedding_format;
      if (format != most) config.formats.push_back({kind, format});
      continue;
    }
    for (auto at = layers.begin(); at != layers.end();) {
      const auto [begin, format] = *at;
      int64_t last = begin;
      for (; at != layers.end() && at->second == format; ++at) last = at->first;
      if (format != most) config.formats.push_back({kind, format, begin, last - begin + 1});
    }
  }
}

}  // namespace

std::optional<WeightFormat> held_format(const Checkpoint& checkpoint, const SourceTensor& tensor) {
  using enum WeightFormat;
  if (tensor.update) return std::nullopt;
  if (is_ternary(tensor)) return int4;
  if (!tensor.scaling) {
    if (tensor.packed != nullptr) return std::nullopt;
    if (tensor.format->name == "Q4_0") return int4_g32;
    if (tensor.format->name == "MXFP4") return mxfp4;
    return std::nullopt;
  }
  const BlockScaling& scaling = *tensor.scaling;
  if (scaling.divides || scaling.factor != 1 || scaling.addend != 0) return std::nullopt;
  if (tensor.format == &packed_integers(4)) return format_of_integers(checkpoint, tensor);
  if (scaling.zeros || scaling.groups) return std::nullopt;
  if (tensor.format == &kE4m3Format) {
    const bool one = scaling.rows > 0 || scaling.scales->elements() == 1;
    return one && share_scales(tensor, group_of(fp8)) ? std::optional(fp8) : std::nullopt;
  }
  if (has_values(tensor, kE2m1Values) && scaling.scales->format == &kE8m0Format) {
    return share_scales(tensor, group_of(mxfp4)) ? std::optional(mxfp4) : std::nullopt;
  }
  // A block's largest magnitude is its scale, so that blocks must be groups.
  if (has_values(tensor, kNf4Values) && scaling.columns == group_of(nf4)) {
    return share_scales(tensor, group_of(nf4)) ? std::optional(nf4) : std::nullopt;
  }
  return std::nullopt;
}

bool is_rows_alone(const TensorPart& part, int64_t width) {
  return !part.source.empty() && !part.transposed && source_width(part, width) == width &&
         part.projection.inputs == 0 && part.add == 0 && part.scale == 1 &&
         part.values == nullptr && !part.unit_rows && part.plus == nullptr &&
         part.column_blocks.empty() && !part.log_of_opposite;
}

void read_held_scales(const Checkpoint& checkpoint, const SourceTensor& tensor, WeightFormat format,
                      int64_t row, std::vector<float>& scales, std::vector<std::byte>& raw) {
  const BlockScaling& scaling = *tensor.scaling;
  const int64_t group = group_of(format);
  const int64_t columns = tensor.columns();
  scales.resize(static_cast<size_t>((columns + group - 1) / group));
  int64_t of_row = 0;
  int64_t first = 0;  // block of the row, and those that it has
  int64_t n_blocks = 1;
  if (scaling.rows > 0) {
    const int64_t rows = tensor.matrix_rows();
    of_row = row / rows * ((rows + scaling.rows - 1) / scaling.rows) + row % rows / scaling.rows;
    n_blocks = (columns + scaling.columns - 1) / scaling.columns;
  } else if (scaling.columns < tensor.elements()) {
    first = row * columns / scaling.columns;
    n_blocks = (row * columns % scaling.columns + columns + scaling.columns - 1) / scaling.columns;
  }
  std::vector<float> of_blocks(static_cast<size_t>(n_blocks));
  read_block(checkpoint, *scaling.scales, {of_row, 1, first, n_blocks}, of_blocks, raw);
  const int64_t before = scaling.rows > 0 ? 0 : row * columns - first * scaling.columns;
  for (size_t i = 0; i < scales.size(); ++i) {
    const int64_t block = (before + static_cast<int64_t>(i) * group) / scaling.columns;
    scales[i] = of_blocks[static_cast<size_t>(std::min(n_blocks - 1, block))];
  }
}

KeptBits keep_bits(const SourceModel& source, ModelConfig& config) {
  struct OfStack {
    std::map<WeightFormat, int64_t> weights;
    FormatsOfKinds kinds;
    std::optional<WeightFormat> output;
  };
  std::map<std::pair<bool, int64_t>, OfStack> stacks;
  std::map<std::string, std::optional<WeightFormat>> of_tensors;
  KeptBits result;
  for (const TensorPlan& plan : tensor_plan(config)) {
    const bool is_output = plan.id.kind == TensorKind::output;
    if (plan.id.member != TensorMember::weights || (!is_output && !takes_format(plan.id.kind))) {
      continue;
    }
    const Held held = held_of(source, plan, of_tensors);
    if (held.format) result.held.emplace(plan.id, *held.format);
    if (held.quantized && !held.format) ++result.decoded;
    const WeightFormat format = held.format.value_or(plan.format);
    OfStack& stack = stacks[{plan.id.of_encoder, plan.id.predictor}];
    if (is_output) {
      stack.output = format;
      continue;
    }
    stack.weights[format] += plan.shape[0] * plan.shape[1];
    stack.kinds[plan.id.kind][plan.id.n] = format;
  }
  if (result.held.empty()) return result;
  for (const auto& [which, stack] : stacks) {
    const auto set = [&, &of = stack](ModelConfig& to) {
      if (of.output) to.output_format = *of.output;
      if (of.weights.empty()) return;
      const auto most = std::ranges::max_element(of.weights, {},
                                                 [](const auto& format) { return format.second; });
      set_rules(to, most->first, of.kinds);
    };
    if (which.first) {
      auto encoder = std::make_shared<ModelConfig>(*config.encoder);
      set(*encoder);
      config.encoder = std::move(encoder);
    } else if (which.second > 0) {
      set(config.predictors.at(static_cast<size_t>(which.second - 1)));
    } else {
      set(config);
    }
  }
  return result;
}

}  // namespace faststream::convert
