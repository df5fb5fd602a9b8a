// Experts as DeepSeek V3 has them (arXiv:2412.19437), which other families took over with the names
// of what they need.
#pragma once

#include "convert/families/family.h"

namespace faststream::convert {

/// What config.json leaves to its family.
struct RoutedDefaults {
  int64_t used = 8;
  int64_t shared = 1;
  bool normalized = true;
  double scale = 1;
  int64_t groups = 1;
  int64_t groups_used = 1;
};

/// Puts "n_routed_experts" experts of "moe_intermediate_size", chosen by sigmoids with a correction
/// from "topk_group" of "n_group" groups, and beside them the width of "n_shared_experts" in the
/// place of the feed-forward of the layers that are `sparse`. (Some say "num_experts" and
/// "num_shared_experts".)
void use_routed_experts(ModelConfig& model, const JsonView& config, const std::vector<bool>& sparse,
                        const RoutedDefaults& defaults);

/// Whether each layer has experts, as "mlp_layer_types" says, or where that is absent all but the
/// first `dense` ones.
std::vector<bool> sparse_in(const JsonView& config, int64_t n_layers, int64_t dense);

/// What checkpoints call them.
void name_routed_experts(Modules& modules);

}  // namespace faststream::convert
