// Rotary frequencies from what a config.json says of them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "support/json.h"

namespace faststream::convert {

/// Sizes that rules of rotation depend on, and what holds where config.json says nothing.
struct RopeShape {
  int64_t head_dim = 0;
  int64_t max_context = 0;
  double theta = 10000;
  double rotated_share = 1;  ///< of each head's elements
};

/// The rotation that config.json describes in the members of Transformers 4 (rope_theta,
/// rope_scaling, partial_rotary_factor) or 5 (rope_parameters): modeling_rope_utils.py of 5.23. Its
/// types default, linear, dynamic, llama3, yarn (arXiv:2309.00071), longrope (arXiv:2402.13753) and
/// proportional. `layer_type`, if not empty, is the type of layers whose rotation is wanted where
/// each type has its own, and the rotation's name. Throws Error when a member is missing, of the
/// wrong type or out of range, or the type is unknown.
RopeConfig rope_from_hf(const JsonView& config, const RopeShape& shape,
                        std::string_view layer_type = "");

/// The factor of scores that DeepSeek's models take of a rule's "factor" and "mscale_all_dim": the
/// square of YaRN's of cosines and sines; 1 where there is no rule or no such member.
double yarn_score_factor(const JsonView& config);

/// What YaRN makes of theta's frequencies.
struct YarnRule {
  double factor = 1;
  double original_max_context = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  ///< the band where both rules blend begins and ends at whole pairs
};
std::vector<float> yarn_frequencies(double theta, int64_t rotated, const YarnRule& rule);

/// YaRN's factor of cosines and sines: 0.1 · mscale · ln(factor) + 1, and 1 for factors up to 1.
double yarn_attention_factor(double factor, double mscale = 1);

/// The same for LongRoPE: sqrt(1 + ln(factor) / ln(original_max_context)).
double longrope_attention_factor(double factor, double original_max_context);

}  // namespace faststream::convert
