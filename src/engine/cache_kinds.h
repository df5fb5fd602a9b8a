// Which caches a model needs.
#pragma once

#include "engine/kv_groups.h"
#include "engine/layer_cache.h"
#include "models/config.h"
#include "support/kv_format.h"

namespace faststream {

/// The caches of a model whose keys and values are kept by kv_type_of(kv): of each of its groups of
/// layers (kv_groups()) in their order, then of its recurrent layers' states, then of its encoder's
/// outputs. The first one is TextPages.
CacheKinds cache_kinds(const ModelConfig& config, KvType kv);

/// Pages that a group of layers has memory for: all, or as many as sequences see at a time.
int32_t pages_of_group(const KvGroup& group, const CacheBounds& bounds);

/// Of a state of a recurrent layer.
size_t layer_state_bytes(const ModelConfig& config, int64_t layer);
/// States that recurrent layers have memory for, that of an empty text among them.
int32_t n_states(const ModelConfig& config, KvType kv, const CacheBounds& bounds);

/// Bytes of device memory of all of these caches.
size_t bytes_of(const CacheKinds& kinds, const CacheBounds& bounds);

}  // namespace faststream
