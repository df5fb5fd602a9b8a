// The layers of BERT, which encoder-decoders have too.
#pragma once

#include <string>

#include "convert/families/family.h"

namespace faststream::convert {

/// The sizes of BERT's own class.
inline constexpr PlainShape kBert = {.n_layers = 12,
                                     .hidden = 768,
                                     .n_heads = 12,
                                     .ffn_hidden = 3072,
                                     .vocab = 30522,
                                     .max_context = 512};

/// Their encoder, whose modules' names begin with `base` and a dot, without a head. `eps`: of its
/// norms, where config.json does not say it.
FamilyModel bert_stack(const JsonView& config, const std::string& base, double eps = 1e-12,
                       const PlainShape& otherwise = kBert);

}  // namespace faststream::convert
