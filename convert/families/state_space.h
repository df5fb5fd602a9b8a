// What families with Mamba 2 (arXiv:2405.21060) in their layers share.
#pragma once

#include <optional>
#include <string>

#include "convert/families/family.h"

namespace faststream::convert {

/// The keys that config.json has for a state space's sizes; the same in all families but these.
struct StateSpaceKeys {
  std::string_view heads = "mamba_n_heads";
  std::string_view head_dim = "mamba_d_head";
  std::string_view groups = "mamba_n_groups";
  std::string_view state = "mamba_d_state";
  std::string_view taps = "mamba_d_conv";
  std::string_view expand = "mamba_expand";
  std::string_view inner = "mamba_d_ssm";  ///< all heads' width, where it is not "expand" of hidden
  std::string_view convolution_bias = "mamba_conv_bias";
  std::string_view bias = "mamba_proj_bias";
  std::string_view activation = "hidden_act";
  int64_t heads_otherwise = 128;
  int64_t groups_otherwise = 1;
  int64_t state_otherwise = 256;
};

/// The mixer that config.json describes, whose sums are normalized like `norm`. Without a width of
/// heads ("auto"), they share what `inner` says, or else "expand" times the hidden size.
StateSpaceConfig state_space_in(const JsonView& config, const StateSpaceKeys& keys, int64_t hidden,
                                const NormConfig& norm);

/// Names its modules, which begin with `prefix`; the first one holds z, x, B, C and steps.
void name_state_space(Modules& modules, const StateSpaceConfig& mixer, const std::string& prefix);

}  // namespace faststream::convert
