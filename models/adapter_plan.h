// Adapters of low rank (LoRA, arXiv:2106.09685) beside a model: which matrices they can change, and
// with what.
//
// Of a matrix W [out, in] that it changes an adapter has two others, a [rank, in] and b [out,
// rank], and products x Wᵀ become x Wᵀ + (x aᵀ) bᵀ. They are no more those that were trained than W
// is the checkpoint's: rows and columns stand, are joined, multiplied and rotated as W's are, and b
// has the factor of the sum. Of what W joins of several matrices, such as Q, K and V, each has its
// own columns of b and rows of a.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config.h"
#include "models/tensor_plan.h"

namespace faststream {

/// Ranks are multiples of it: what is too many is 0, and rows begin where devices read fastest.
inline constexpr int64_t kAdapterRankStep = 16;

/// Whether adapters beside the model can change a tensor of tensor_plan(): matrices of attention,
/// of recurrent mixers and of feed-forwards. Others are experts, whose choice is the backend's,
/// have gates that only a product can cut (is_of_gates()), or are not of layers.
bool takes_adapter(const TensorPlan& plan);

/// Of a and b: 16 bits, but for a model of f32.
WeightFormat adapter_format(const ModelConfig& config);

/// The tensors of an adapter in the order of its file, a and b of each matrix that it changes:
/// `ranks` names tensors of tensor_plan(config) that take adapters. number: of their TensorId. Of a
/// description with adapters what they have of a rank's share.
std::vector<TensorPlan> adapter_plan(const ModelConfig& config, const AdapterRanks& ranks,
                                     int64_t number = 1);

/// Those of all adapters of a description.
std::vector<TensorPlan> adapter_plans(const ModelConfig& config);

/// Columns of what is between the two products, at most; 0: there are no adapters.
int64_t most_adapter_rank(const ModelConfig& config);

}  // namespace faststream
