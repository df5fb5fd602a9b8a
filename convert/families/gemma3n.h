// What Gemma 3n is beyond a Gemma 4, whatever kind of file describes it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "convert/families/gemma4.h"
#include "models/config.h"

namespace faststream::convert {

/// What tells one Gemma 3n from another, beside its layers.
struct Gemma3nShape {
  int64_t streams = 0;      ///< that alternate
  int64_t laurel_rank = 0;  ///< of the residual that is learned
  bool scaled_inputs = true;
  /// Of each layer: how many standard deviations above their mean gates end that do not stay; none:
  /// all stay.
  std::vector<std::optional<float>> cutoffs;
};

/// The factor of the weights of altup_gates that belongs to this description.
float gemma3n_gates_scale(const ModelConfig& model);

/// Makes a Gemma 3n of a plain decoder, as make_gemma4() does.
void make_gemma3n(const Gemma4Shape& layers, const Gemma3nShape& shape, ModelConfig& model);

}  // namespace faststream::convert
