// Feed-forwards (arXiv:2002.05202) and mixtures of experts (arXiv:1701.06538), with a feed-forward
// that all tokens use beside them (arXiv:2401.06066).
#include "models/feed_forward.h"

#include <algorithm>
#include <span>
#include <vector>

namespace faststream {
namespace {

// The first product of a feed-forward, through its activation.
Matrix widened(const Pass& pass, const FeedForwardConfig& ffn, const FeedForwardWeights& weights,
               Input& input) {
  const Matrix middle = pass.memory.middle.first_rows(input.x.rows).columns(0, ffn.size);
  const bool is_changed = ffn.gated && is_adapted(pass, weights.up, input.x.rows);
  if (ffn.cutoff || is_changed) {
    const Matrix both = pass.memory.middle.first_rows(input.x.rows).columns(0, ffn.up_dim());
    const Matrix up = both.columns(ffn.size, ffn.size);
    if (ffn.cutoff) {
      const Matrix gates = both.columns(0, ffn.size);
      multiply(pass, input, weights.up, both);
      pass.backend.keep_largest(*ffn.cutoff, gates);
      pass.backend.scale(gates, ffn.activation, up);
    } else {
      multiply_gated(pass, input, weights.up, ffn.gate(), both);
    }
    return up;
  }
  if (ffn.gated) {
    pass.backend.gated_linear(input, weights.up.weight, weights.up.bias, ffn.gate(), middle);
  } else {
    multiply_and_activate(pass, input, weights.up, ffn.activation, middle);
  }
  if (weights.xielu != nullptr) pass.backend.xielu(weights.xielu, middle);
  return middle;
}

void narrow(const Pass& pass, const FeedForwardWeights& weights, const Matrix& middle,
            OutputMode output, const Matrix& out) {
  Input input{.x = middle};
  multiply(pass, input, weights.down, out, output);
}

// The middle of the feed-forward that all tokens use; without data where there is none.
Matrix widened_shared(const Pass& pass, const ExpertsConfig& experts, const LayerWeights& weights,
                      Input& input) {
  if (!weights.shared.up) return {};
  const Matrix middle = widened(pass, experts.shared, weights.shared, input);
  if (weights.shared_gate) {
    const Matrix gate = pass.memory.gate.first_rows(middle.rows);
    pass.backend.linear(input, weights.shared_gate.weight, {.in_order = true}, gate);
    pass.backend.scale(gate, Activation::sigmoid, middle);
  }
  return middle;
}

Matrix router_scores(const Pass& pass, const RouterConfig& config, const LayerWeights& weights,
                     Input& input) {
  const Linear& router = weights.router;
  const Matrix scores = pass.memory.scores.first_rows(input.x.rows).columns(0, router.weight.rows);
  pass.backend.linear(input, router.weight, {.bias = router.bias, .in_order = true}, scores);
  if (config.soft_cap > 0) pass.backend.soft_cap(config.soft_cap, scores);
  return scores;
}

// out = or += norm of what part(out) stores, see add_up().
template <typename Part>
void add_part(const Pass& pass, bool is_shared, const Norm& norm, OutputMode output,
              const Matrix& out, Part part) {
  if (norm.kind == NormKind::none) return add_up(pass, is_shared, output, out, part);
  const Matrix memory = pass.memory.part.first_rows(out.rows);
  add_up(pass, is_shared, OutputMode::store, memory, part);
  pass.backend.norm(memory, norm, output, out);
}

// is_shared: what each part gives is added up over ranks by itself.
void mixture(const Pass& pass, const ExpertsConfig& experts, const LayerWeights& weights,
             Input& input, const Stream& stream, Deferred& deferred, bool is_shared,
             OutputMode output, const Matrix& out) {
  // All that reads the stream comes before what may add to it. What has a norm of its own reads the
  // stream in the place of what has been read by then. Scores come first: as soon as they are there
  // the weights of the experts may be fetched.
  Input of_router;
  if (experts.router_norm) of_router = stream.before(weights.router_norm, pass.memory.normed);
  const Matrix scores =
      router_scores(pass, experts.router, weights, experts.router_norm ? of_router : input);
  const Matrix middle = widened_shared(pass, experts, weights, input);
  if (experts.norm) input = stream.before(weights.experts_norm, pass.memory.normed);
  if (experts.deferred) {
    add_up(pass, is_shared, OutputMode::store, deferred.put(),
           [&](OutputMode mode, const Matrix& to) {
             pass.backend.experts(input, scores, weights.routing, weights.experts, mode, to);
           });
    return add_up(pass, is_shared, output, out, [&](OutputMode mode, const Matrix& to) {
      narrow(pass, weights.shared, middle, mode, to);
    });
  }
  const auto add_experts = [&](OutputMode mode) {
    add_part(pass, is_shared, weights.experts_after_norm, mode, out,
             [&](OutputMode of_part, const Matrix& to) {
               pass.backend.experts(input, scores, weights.routing, weights.experts, of_part, to);
             });
  };
  const auto add_shared = [&](OutputMode mode) {
    add_part(pass, is_shared, weights.shared_after_norm, mode, out,
             [&](OutputMode of_part, const Matrix& to) {
               narrow(pass, weights.shared, middle, of_part, to);
             });
  };
  if (middle.data == nullptr) return add_experts(output);
  if (output == OutputMode::add) {  // to the stream, which experts read
    add_experts(output);
    add_shared(OutputMode::add);
  } else {
    add_shared(kept(output));
    add_experts(OutputMode::add);
  }
}

}  // namespace

// What identities give is no part of a sum over ranks: the first rank gives it, and of the others
// its weights are zero.
void complete_experts(const LayerConfig& layer, const RankPlace& rank, LayerWeights& weights,
                      Backend& backend, Tables& tables) {
  if (!layer.experts || !layer.shares_feed_forward || rank.index == 0) return;
  const ExpertsConfig& experts = *layer.experts;
  if (experts.identities == 0) return;
  std::vector<float> scales(static_cast<size_t>(experts.scored()), 1.0F);
  const auto of_experts = std::span(scales).first(static_cast<size_t>(experts.count));
  if (weights.routing.expert_scales != nullptr) {
    backend.copy_to_host(of_experts.data(), weights.routing.expert_scales, of_experts.size_bytes());
  }
  std::ranges::fill(std::span(scales).subspan(of_experts.size()), 0.0F);
  weights.routing.expert_scales = tables.add(scales);
}

void Deferred::keep_wanted() {
  if (rows_.data == nullptr) return;
  const Matrix wanted = pass_.memory.last_deferred.first_rows(pass_.batch.n_logits);
  pass_.backend.gather_rows(pass_.batch, rows_, wanted);
  rows_ = wanted;
}

void feed_forward(const Pass& pass, const LayerConfig& layer, const LayerWeights& weights,
                  Input& input, Stream& stream, Deferred& deferred) {
  const Matrix due = deferred.take();
  stream.add(weights.ffn_norms, [&](OutputMode output, const Matrix& out) {
    const bool by_part = layer.experts && (layer.experts->has_parts() || layer.experts->deferred);
    const bool is_shared = layer.shares_feed_forward;
    add_up(pass, is_shared && !by_part, output, out, [&](OutputMode mode, const Matrix& to) {
      if (layer.experts) {
        mixture(pass, *layer.experts, weights, input, stream, deferred, is_shared && by_part, mode,
                to);
      } else {
        feed_forward(pass, layer.ffn, weights.ffn, input, mode, to);
      }
    });
    if (weights.experts_sum_bias != nullptr) {
      pass.backend.norm(Matrix::repeated(weights.experts_sum_bias, out.rows, out.cols), {},
                        OutputMode::add, out);
    }
  });
  if (due.data == nullptr) return;
  stream.add(
      {}, [&](OutputMode output, const Matrix& out) { pass.backend.norm(due, {}, output, out); });
}

void feed_forward(const Pass& pass, const FeedForwardConfig& ffn, const FeedForwardWeights& weights,
                  Input& input, OutputMode output, const Matrix& out) {
  const Matrix middle = widened(pass, ffn, weights, input);
  const SharedNorm norm{middle, weights.middle_norm, ffn.middle_norm_share};
  renormalize(pass.backend, {&norm, 1});
  narrow(pass, weights, middle, output, out);
}

}  // namespace faststream
