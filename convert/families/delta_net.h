// What families with delta nets in their layers share.
#pragma once

#include <string>

#include "convert/families/family.h"

namespace faststream::convert {

/// Has the convolutions of delta nets read from a tensor for queries, one for keys and one for
/// values, "q_conv1d" and so on for "conv1d", unless the checkpoint has one of all.
void split_convolutions(const ModelConfig& config, const Checkpoint& weights, TensorParts& parts);

/// Has the rates of delta nets read from tensors of the shape that the checkpoint has, if that is
/// heads' with other dimensions around it.
void take_shapes_of_rates(const Checkpoint& weights, TensorParts& parts);

/// A delta net whose channels decay by themselves, called KDA (arXiv:2510.26692), of heads as wide
/// as their keys.
DeltaNetConfig channel_delta_net(int64_t heads, int64_t head_dim, int64_t taps,
                                 const NormConfig& norm);

/// Names its modules, which begin with `prefix`.
void name_channel_delta_net(Modules& modules, const DeltaNetConfig& mixer,
                            const std::string& prefix);

}  // namespace faststream::convert
