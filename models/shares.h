// What each of several ranks that compute a step together has of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config.h"

namespace faststream {

/// The description of a rank's share: a model of its own, whose tensors are what the split rules of
/// `config`'s give the rank (tensor_plan(share_of(config, rank)) and shares_of() agree), and which
/// is computed like any other but for this: what layers' parts give that ranks share
/// (LayerConfig::shares_mixers, shares_feed_forward) is added up over all of them.
///
/// Heads go with the key heads that serve them, a feed-forward is cut through its middle, experts
/// through each one's, so that all ranks work on every token, however its experts are chosen. What
/// cannot be cut so that each rank has some, every rank computes whole. Predictors are cut by the
/// same rules; of several stages those of the first one have them.
///
/// Of several stages it is of the layers of the rank's alone, stages_of(config).
ModelConfig share_of(const ModelConfig& config, RankPlace rank);

/// The layers of each of so many stages: the largest of these has as few bytes of weights as can
/// be, the first one's ends among them. Layers that read what an earlier one keeps, or hands on
/// beside the stream, are in its stage. Throws UsageError where the model cannot be run in stages,
/// or not in so many.
std::vector<LayerRange> stages_of(const ModelConfig& config, int32_t count);

}  // namespace faststream
