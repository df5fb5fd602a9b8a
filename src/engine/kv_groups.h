// Layers whose keys and values live equally long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "models/config.h"
#include "support/dtype.h"

namespace faststream {

/// Layers that see all positions, or the same window of them.
struct KvGroup {
  int64_t window = 0;          ///< see AttentionConfig
  std::vector<size_t> layers;  ///< places among kv_layers()
  size_t token_bytes = 0;      ///< of keys and values of one token in all of them
};

/// What kv_layers() keep of each token, in their order.
std::vector<KvGeometry> kv_geometries(const ModelConfig& config);

/// How a layer of a model keeps what it keeps where `wanted` is asked for: in a format that is not
/// plain only if it sees all positions of a decoder and its geometry allows it. What is in a window
/// takes little memory, and sources are in pages of all layers.
KvType kv_type_of(const ModelConfig& config, const KvGeometry& geometry, KvType wanted);

/// How many of kv_layers() have the format of `wanted` then.
int64_t n_layers_of_format(const ModelConfig& config, KvType wanted);

/// Bytes of keys and values of one token in a layer.
size_t kv_token_bytes(const KvGeometry& geometry, KvType type);

/// A layer's keys and values in n_pages pages of `memory`, the keys before the values.
KvLayer kv_layer(const KvGeometry& geometry, KvType type, std::byte* memory, int32_t n_pages,
                 int32_t group);

/// The first group is of the layers that see all positions, if there are none an empty one. Stages
/// have the same groups, each with its own layers, which may be none. wanted: as kv_type_of() takes
/// it.
std::vector<KvGroup> kv_groups(const ModelConfig& config, KvType wanted);

/// Frames (see WindowPages) that so many sequences need for steps of at most max_tokens tokens:
/// each the pages of its window, of which the first and the last may be cut, one page to copy to,
/// and the step's own.
int32_t window_frames(const KvGroup& group, int32_t sequences, int32_t max_tokens);

}  // namespace faststream
