#include "convert/families/state_space.h"

#include <cmath>

namespace faststream::convert {
namespace {

// "time_step_limit": two numbers, of which the second may be infinite: bare, as Python writes it,
// or an object that says so.
void set_limits(StateSpaceConfig& mixer, const JsonView& config) {
  const auto limit = config.find("time_step_limit");
  if (!limit) return;
  const std::vector<JsonView> numbers = limit->elements();
  if (numbers.size() != 2) limit->fail("is not a list of two numbers");
  mixer.least_step = static_cast<float>(numbers[0].as<double>());
  if (!numbers[1].value().is_number()) return;
  const auto most = numbers[1].value().get<double>();
  if (std::isfinite(most)) mixer.most_step = static_cast<float>(most);
}

}  // namespace

StateSpaceConfig state_space_in(const JsonView& config, const StateSpaceKeys& keys, int64_t hidden,
                                const NormConfig& norm) {
  constexpr int64_t kTaps = 64;
  StateSpaceConfig mixer;
  mixer.n_heads = count_in(config, keys.heads, kMaxHeads, keys.heads_otherwise);
  const auto head_dim = config.find(keys.head_dim);
  if (head_dim && head_dim->value().is_number()) {
    mixer.head_dim = head_dim->as<int64_t>(1, kMaxHeadDim);
  } else {
    const int64_t expanded = count_in(config, keys.expand, kMaxHeads, 2) * hidden;
    const int64_t inner = config.find(keys.inner) ? count_in(config, keys.inner) : expanded;
    if (inner % mixer.n_heads != 0) {
      config.fail("the width of all heads of state spaces, " + std::to_string(inner) +
                  ", is not a multiple of their number, " + std::to_string(mixer.n_heads));
    }
    mixer.head_dim = inner / mixer.n_heads;
  }
  mixer.n_groups = count_in(config, keys.groups, kMaxHeads, keys.groups_otherwise);
  mixer.state_size = count_in(config, keys.state, kMaxHeadDim, keys.state_otherwise);
  mixer.convolution = {.taps = count_in(config, keys.taps, kTaps, 4),
                       .bias = config.get(keys.convolution_bias, true),
                       .activation = activation_in(config, keys.activation, "silu")};
  mixer.in_bias = mixer.out_bias = config.get(keys.bias, false);
  mixer.norm = norm;
  set_limits(mixer, config);
  return mixer;
}

void name_state_space(Modules& modules, const StateSpaceConfig& mixer, const std::string& prefix) {
  const int64_t x = mixer.x_dim();
  const int64_t xbc = x + 2 * mixer.n_groups * mixer.state_size;
  const std::string in = prefix + "in_proj";
  const int64_t all = x + xbc + mixer.n_heads;
  modules.recurrent_in = {{in, all, x, xbc}, {in, all, 0, x}};
  modules.recurrent_gates = {{in, all, x + xbc, mixer.n_heads}};
  modules.recurrent_convolution = prefix + "conv1d";
  modules.recurrent_decay = prefix + "A_log";
  modules.recurrent_step = prefix + "dt_bias";
  modules.recurrent_skip = prefix + "D";
  modules.recurrent_norm = prefix + "norm";
  modules.recurrent_out = prefix + "out_proj";
}

}  // namespace faststream::convert
