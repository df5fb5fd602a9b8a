// Which tensors of a converted model have another format than most: faststream-convert --keep.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"

namespace faststream::convert {

/// What is told apart: words for the tensors of all families that do the same, or one of the file's
/// own names ("ffn_down").
std::vector<std::string_view> kept_words();

/// What is kept where the user does not say: a list as keep_formats() takes it, empty in most
/// cases.
///
/// Layers of int4 in models whose hidden states have fewer than kNarrow elements lose so much that
/// more bits are worth their place: Q, K and V, and the last matrices of the feed-forwards in the
/// first third of the layers, are int8. docs/quality.md has what was measured.
std::string usually_kept(const ModelConfig& config);
inline constexpr int64_t kNarrow = 1024;
inline constexpr std::string_view kKeepNone = "none";  ///< what a user says for nothing

/// Changes the formats of a description, its encoder's and its predictors' as `kept` says: a list
/// as "output=int8,down:0-3=int8", where what is after a colon are layers, of the description
/// alone; or as whole names of tensors, "layers.3.ffn_down=int8". Of entries for the same tensor
/// the last one holds. Throws UsageError, beginning with --keep, when the list says nothing that
/// can be done, or an entry names no tensors that the description has.
void keep_formats(std::string_view kept, ModelConfig& config);

}  // namespace faststream::convert
