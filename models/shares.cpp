#include "models/shares.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "models/activations.h"
#include "models/tensor_plan.h"

namespace faststream {
namespace {

// Cuts parts of a description for one rank.
class Cutter {
 public:
  Cutter(const ModelConfig& config, RankPlace rank) : config_(config), rank_(rank) {}

  // These change what they cut, and return whether each rank has some of it.

  bool cut(AttentionConfig& attention) const {
    const auto heads = heads_of(attention, attention.n_kv_heads, attention.n_heads);
    if (!heads) return false;
    const auto [keys, queries] = *heads;
    if (!attention.slopes.empty()) {
      const auto first = attention.slopes.begin() + queries.first;
      attention.slopes = std::vector<float>(first, first + queries.count);
    }
    attention.n_heads = queries.count;
    attention.n_kv_heads = keys.count;
    return true;
  }
  bool cut(LatentAttentionConfig& attention) const {
    const auto heads = heads_of(attention, attention.n_heads, attention.n_heads);
    if (heads) attention.n_heads = heads->second.count;
    return heads.has_value();
  }
  bool cut(DeltaNetConfig& mixer) const {
    const auto heads = heads_of(mixer, mixer.n_key_heads, mixer.n_value_heads);
    if (!heads) return false;
    mixer.n_key_heads = heads->first.count;
    mixer.n_value_heads = heads->second.count;
    return true;
  }
  bool cut(StateSpaceConfig& mixer) const {
    const auto heads = heads_of(mixer, mixer.n_groups, mixer.n_heads);
    if (!heads) return false;
    mixer.n_groups = heads->first.count;
    mixer.n_heads = heads->second.count;
    return true;
  }
  bool cut(ShortConvolutionConfig& mixer) const {
    const int64_t channels = recurrent_shape(mixer, config_.hidden).channels;
    const auto share = heads_of(mixer, channels, channels);
    if (share) mixer.channels = share->second.count;
    return share.has_value();
  }
  template <typename Whole>
  bool cut(Whole& mixer) const {
    return head_units(config_, mixer).has_value();
  }
  bool cut(Mixer& mixer) const {
    return std::visit([this](auto& kind) { return cut(kind); }, mixer);
  }
  bool cut(FeedForwardConfig& ffn) const {
    if (ffn.size == 0) return true;
    if (ffn.cutoff) return false;  // which depends on all gates
    const SplitRule::Part part = middle_part(config_, ffn);
    if (part.extent < part.unit * rank_.count) return false;
    ffn.size = faststream::share_of(part, rank_).count;
    return true;
  }
  bool cut(ExpertsConfig& experts) const {
    // Identities give what they read, which is no part of a sum.
    return experts.identities == 0 && cut(experts.each) && cut(experts.shared);
  }

 private:
  using Heads = std::pair<SplitShare, SplitShare>;  // of key heads, and of the heads they serve

  template <typename Kind>
  std::optional<Heads> heads_of(const Kind& mixer, int64_t n_key_heads, int64_t n_heads) const {
    const std::optional<HeadUnits> units = head_units(config_, mixer);
    if (!units) return std::nullopt;
    const SplitRule::Part heads = units->of_heads(n_heads, 1);
    const int64_t n_units = (n_heads + heads.unit - 1) / heads.unit;
    if (n_units < rank_.count && units->fine == 0) return std::nullopt;
    for (int32_t index = 0; index < rank_.count; ++index) {
      if (faststream::share_of(heads, {index, rank_.count}).count == 0) return std::nullopt;
    }
    return Heads{faststream::share_of(units->of_key_heads(n_key_heads, 1), rank_),
                 faststream::share_of(heads, rank_)};
  }

  const ModelConfig& config_;
  RankPlace rank_;
};

// Replaces a part of a description by what `cut` makes of it, if all of it can be cut.
template <typename Part>
bool replace_by_share(Part& part, const Cutter& cutter) {
  Part share = part;
  const bool is_cut = cutter.cut(share);
  if (is_cut) part = std::move(share);
  return is_cut;
}

// Layers may read each other's keys and values: then all attention is cut alike, or none.
bool cuts_mixers(const ModelConfig& config, const Cutter& cutter, const LayerConfig& layer) {
  const auto can_cut = [&](const LayerConfig& each) {
    return std::ranges::all_of(each.mixers, [&](Mixer mixer) { return cutter.cut(mixer); });
  };
  const auto reads_others = [](const LayerConfig& each) {
    const auto* attention = each.find<AttentionConfig>();
    return attention != nullptr && attention->kv_of;
  };
  if (std::ranges::any_of(config.layer_kinds, reads_others)) {
    return std::ranges::all_of(config.layer_kinds, can_cut);
  }
  return can_cut(layer);
}

}  // namespace

ModelConfig share_of(const ModelConfig& config, RankPlace rank) {
  ModelConfig share = config;
  share.rank = rank;
  if (rank.count == 1) return share;
  const Cutter cutter(config, rank);
  share.predictors.clear();
  for (LayerConfig& layer : share.layer_kinds) {
    layer.shares_mixers = cuts_mixers(config, cutter, layer);
    if (layer.shares_mixers) {
      for (Mixer& mixer : layer.mixers) cutter.cut(mixer);
    }
    layer.shares_feed_forward = layer.experts ? replace_by_share(*layer.experts, cutter)
                                              : replace_by_share(layer.ffn, cutter);
  }
  if (config.encoder) {
    share.encoder = std::make_shared<const ModelConfig>(share_of(*config.encoder, rank));
  }
  return share;
}

}  // namespace faststream
