// What adapter_config.json says: how PEFT, Hugging Face's library, made an adapter of low rank
// (LoRA, arXiv:2106.09685).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer/pattern.h"

namespace faststream::convert {

/// Values of modules whose names, or what follows a dot in them, match a pattern; the first that
/// matches counts.
template <typename T>
using ValuesOfModules = std::vector<std::pair<Pattern, T>>;

struct AdapterConfig {
  int64_t rank = 8;
  double alpha = 8;
  bool by_root =
      false;  ///< products are scaled by alpha / √rank (arXiv:2312.03732), not alpha / rank
  bool has_magnitudes = false;  ///< DoRA (arXiv:2402.09353)
  bool ties = false;            ///< what is tied in the model is so with the adapter
  ValuesOfModules<int64_t> ranks = {};
  ValuesOfModules<double> alphas = {};

  /// Of the module of that name: without ".weight" and what PEFT puts before. Throws Error when a
  /// pattern takes too long.
  [[nodiscard]] int64_t rank_of(std::string_view module) const;
  [[nodiscard]] float scale_of(std::string_view module) const;
};

/// Reads adapter_config.json. Throws Error, starting with `where`, when it is damaged, of another
/// kind of adapter, or asks for what is more than a product of two matrices and magnitudes.
AdapterConfig parse_adapter_config(std::string_view text, std::string_view where);

}  // namespace faststream::convert
