#include "models/shares.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "models/activations.h"
#include "models/tensor_plan.h"
#include "support/error.h"

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
    const SplitShare& queries = heads->served;
    if (attention.qk_norm == QkNorm::whole) {
      if (!can_share(attention.qk_norm_as)) return false;
      attention.q_norm_share = {.columns = attention.q_dim(), .group = 0, .groups = 2};
      attention.k_norm_share = {
          .columns = attention.k_dim(), .group = 1, .groups = 2, .counts = heads->is_first};
    }
    if (attention.sums_norm) {
      if (!can_share(attention.sums_norm)) return false;
      attention.sums_norm_share = {.columns = attention.sums_dim()};
    }
    if (!attention.slopes.empty()) {
      const auto first = attention.slopes.begin() + queries.first;
      attention.slopes = std::vector<float>(first, first + queries.count);
    }
    attention.n_heads = queries.count;
    attention.n_kv_heads = heads->keys.count;
    return true;
  }
  bool cut(LatentAttentionConfig& attention) const {
    const auto heads = heads_of(attention, attention.n_heads, attention.n_heads);
    if (heads) attention.n_heads = heads->served.count;
    return heads.has_value();
  }
  bool cut(DeltaNetConfig& mixer) const {
    const auto heads = heads_of(mixer, mixer.n_key_heads, mixer.n_value_heads);
    if (!heads) return false;
    mixer.n_key_heads = heads->keys.count;
    mixer.n_value_heads = heads->served.count;
    return true;
  }
  bool cut(StateSpaceConfig& mixer) const {
    const auto heads = heads_of(mixer, mixer.n_groups, mixer.n_heads);
    if (!heads) return false;
    const SplitShare& groups = heads->keys;
    if (heads->is_divided && mixer.norm) {
      if (!can_share(mixer.norm)) return false;
      mixer.norm_share = {.columns = mixer.x_dim() / mixer.n_groups,
                          .group = static_cast<int32_t>(groups.first),
                          .groups = static_cast<int32_t>(mixer.n_groups)};
    }
    mixer.n_groups = groups.count;
    mixer.n_heads = heads->served.count;
    return true;
  }
  bool cut(LinearAttentionConfig& mixer) const {
    const auto heads = heads_of(mixer, mixer.n_heads, mixer.n_heads);
    if (!heads) return false;
    if (mixer.norm) {
      if (!can_share(mixer.norm)) return false;
      mixer.norm_share = {.columns = mixer.dim()};
    }
    mixer.n_heads = heads->served.count;
    return true;
  }
  bool cut(SelectiveScanConfig& mixer) const {
    const auto share = heads_of(mixer, mixer.channels, mixer.channels);
    if (!share) return false;
    mixer.channels = share->served.count;
    mixer.shares_gates = true;
    return true;
  }
  bool cut(ShortConvolutionConfig& mixer) const {
    const int64_t channels = recurrent_shape(mixer, config_.hidden).channels;
    const auto share = heads_of(mixer, channels, channels);
    if (share) mixer.channels = share->served.count;
    return share.has_value();
  }
  bool cut(Mixer& mixer) const {
    return std::visit([this](auto& kind) { return cut(kind); }, mixer);
  }
  bool cut(FeedForwardConfig& ffn) const {
    if (ffn.size == 0) return true;
    if (ffn.cutoff) return false;  // which depends on all gates
    const SplitRule::Part part = middle_part(config_, ffn);
    if (part.extent < part.unit * rank_.count) return false;
    if (ffn.middle_norm) {
      if (!can_share(ffn.middle_norm)) return false;
      ffn.middle_norm_share = {.columns = ffn.size};
    }
    ffn.size = faststream::share_of(part, rank_).count;
    return true;
  }
  bool cut(ExpertsConfig& experts) const { return cut(experts.each) && cut(experts.shared); }

 private:
  struct Heads {
    SplitShare keys;
    SplitShare served;        // the heads that these serve
    bool is_divided = false;  // some ranks have the same key heads, and each others of their heads
    bool is_first = true;     // no rank before this one has the same key heads
  };

  template <typename Kind>
  std::optional<Heads> heads_of(const Kind& mixer, int64_t n_key_heads, int64_t n_heads) const {
    const HeadUnits units = head_units(config_, mixer);
    const SplitRule::Part heads = units.of_heads(n_heads, 1);
    const int64_t n_units = (n_heads + heads.unit - 1) / heads.unit;
    if (n_units < rank_.count && units.fine == 0) return std::nullopt;
    for (int32_t index = 0; index < rank_.count; ++index) {
      if (faststream::share_of(heads, {index, rank_.count}).count == 0) return std::nullopt;
    }
    const SplitRule::Part keys = units.of_key_heads(n_key_heads, 1);
    const auto keys_of = [&](int32_t index) {
      return faststream::share_of(keys, {.index = index, .count = rank_.count});
    };
    const SplitShare own = keys_of(rank_.index);
    return Heads{.keys = own,
                 .served = faststream::share_of(heads, rank_),
                 .is_divided = n_units < rank_.count,
                 .is_first = rank_.index == 0 || keys_of(rank_.index - 1) != own};
  }

  // Whether ranks can normalize together what each has a part of.
  [[nodiscard]] static bool can_share(const NormConfig& norm) { return norm.kind == NormKind::rms; }

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

// Why a model cannot be run in stages; empty where it can.
std::string why_no_stages(const ModelConfig& config) {
  if (config.encoder || config.output.none) return "it has an encoder";
  if (config.altup) return "its layers work on several streams";
  if (config.layer_inputs) return "each of its layers reads embeddings of its own";
  if (std::ranges::any_of(config.layer_kinds,
                          [](const LayerConfig& layer) { return layer.aside.has_value(); })) {
    return "its layers read the embeddings beside the stream";
  }
  return "";
}

// Where stages may begin: behind so many layers each, 0 and that of all layers among them.
std::vector<int64_t> stage_borders(const ModelConfig& config) {
  const int64_t n_layers = config.n_layers();
  std::vector<int64_t> reads_from;  // of each layer: the first one that it needs something of
  for (int64_t n = 0; n < n_layers; ++n) {
    const auto* attention = config.layer(n).find<AttentionConfig>();
    int64_t from = attention != nullptr && attention->kv_of ? *attention->kv_of : n;
    if (n > 0) {
      const std::optional<ExpertsConfig>& before = config.layer(n - 1).experts;
      if (before && before->deferred) from = std::min(from, n - 1);
    }
    reads_from.push_back(from);
  }
  std::vector<int64_t> borders = {n_layers};
  int64_t needed = n_layers;
  for (int64_t n = n_layers; n-- > 0;) {
    needed = std::min(needed, reads_from[static_cast<size_t>(n)]);
    if (needed == n) borders.push_back(n);
  }
  std::ranges::reverse(borders);
  return borders;
}

// Bytes of weights before each of these borders, the model's ends and its predictors first.
std::vector<uint64_t> bytes_before(const ModelConfig& config, std::span<const int64_t> borders) {
  std::vector<uint64_t> of_layers(static_cast<size_t>(config.n_layers()));
  uint64_t of_ends = 0;
  for (const TensorPlan& plan : tensor_plan(config)) {
    if (plan.id.of_encoder) continue;
    const auto bytes = static_cast<uint64_t>(plan.shape[0] * plan.bytes_of_columns(plan.columns()));
    const bool is_of_layer = plan.id.predictor == 0 && is_of_layers(plan.id.kind);
    (is_of_layer ? of_layers[static_cast<size_t>(plan.id.n)] : of_ends) += bytes;
  }
  std::vector<uint64_t> before;
  uint64_t sum = of_ends;
  int64_t n = 0;
  for (const int64_t border : borders) {
    while (n < border) sum += of_layers[static_cast<size_t>(n++)];
    before.push_back(sum);
  }
  return before;
}

// Which borders stages have as their ends, so that the largest stage has as few bytes as can be.
std::vector<size_t> best_ends(std::span<const uint64_t> before, size_t count) {
  constexpr uint64_t kNever = UINT64_MAX;
  const size_t n_borders = before.size();
  // Of the stages so far, with this border as their end: the largest one's bytes at best, and where
  // the last of them begins then.
  std::vector<uint64_t> best(n_borders, kNever);
  std::vector<std::vector<size_t>> begins;
  for (size_t end = 1; end < n_borders; ++end) best[end] = before[end];
  for (size_t stage = 1; stage < count; ++stage) {
    std::vector<uint64_t> next(n_borders, kNever);
    std::vector<size_t>& from = begins.emplace_back(n_borders);
    for (size_t end = stage + 1; end < n_borders; ++end) {
      for (size_t begin = end - 1; begin >= stage; --begin) {
        const uint64_t own = before[end] - before[begin];
        const uint64_t largest = std::max(best[begin], own);
        if (largest < next[end]) {
          next[end] = largest;
          from[end] = begin;
        }
        if (own > next[end]) break;  // those that begin before are larger still
      }
    }
    best = std::move(next);
  }
  std::vector<size_t> ends = {n_borders - 1};
  for (size_t stage = count - 1; stage > 0; --stage) {
    ends.push_back(begins[stage - 1][ends.back()]);
  }
  std::ranges::reverse(ends);
  return ends;
}

}  // namespace

std::vector<LayerRange> stages_of(const ModelConfig& config, int32_t count) {
  if (count == 1) return {config.own_layers()};
  const std::string told = "--pipeline " + std::to_string(count) + ": ";
  if (const std::string why = why_no_stages(config); !why.empty()) {
    throw UsageError(told + "this model does not run in stages, as " + why + "; leave it out");
  }
  const std::vector<int64_t> borders = stage_borders(config);
  const auto most = std::ssize(borders) - 1;
  if (count > most) {
    throw UsageError(told + "the model's layers make " + std::to_string(most) +
                     " stages at most; give fewer");
  }
  std::vector<LayerRange> stages;
  for (const size_t end : best_ends(bytes_before(config, borders), static_cast<size_t>(count))) {
    stages.push_back({stages.empty() ? 0 : stages.back().end, borders[end]});
  }
  return stages;
}

ModelConfig share_of(const ModelConfig& config, RankPlace rank) {
  ModelConfig share = config;
  share.rank = rank;
  if (rank == RankPlace{}) return share;
  if (rank.stages > 1) {
    share.stage = stages_of(config, rank.stages).at(static_cast<size_t>(rank.stage));
  }
  if (rank.count == 1) return share;
  const Cutter cutter(config, rank);
  for (LayerConfig& layer : share.layer_kinds) {
    layer.shares_mixers = cuts_mixers(config, cutter, layer);
    if (layer.shares_mixers) {
      for (Mixer& mixer : layer.mixers) cutter.cut(mixer);
    }
    layer.shares_feed_forward = layer.experts ? replace_by_share(*layer.experts, cutter)
                                              : replace_by_share(layer.ffn, cutter);
  }
  for (ModelConfig& predictor : share.predictors) {
    predictor = share_of(predictor, {.index = rank.index, .count = rank.count});
  }
  if (config.encoder) {
    share.encoder = std::make_shared<const ModelConfig>(share_of(*config.encoder, rank));
  }
  return share;
}

}  // namespace faststream
