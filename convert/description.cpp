#include "convert/description.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "support/name_list.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::none:
      return "no activation";
    case Activation::silu:
      return "SiLU";
    case Activation::gelu:
      return "GELU";
    case Activation::gelu_tanh:
      return "GELU (tanh)";
    case Activation::relu:
      return "ReLU";
    case Activation::relu_squared:
      return "squared ReLU";
    case Activation::tanh:
      return "tanh";
    case Activation::sigmoid:
      return "sigmoid";
    case Activation::softplus:
      return "softplus";
    case Activation::swiglu_clamped:
      return "clamped SwiGLU";
    case Activation::silu_clamped:
      return "clamped SiLU";
  }
  return "?";
}

std::string name_of(const NormConfig& norm) {
  if (norm.kind == NormKind::rms) return "RMS norm";
  return norm.bias ? "layer norm with bias" : "layer norm";
}

// "0-4, 6-10".
std::string ranges(const ModelConfig& config, size_t kind) {
  std::ostringstream text;
  const std::vector<size_t>& layers = config.layers;
  for (size_t n = 0; n < layers.size(); ++n) {
    if (layers[n] != kind) continue;
    size_t end = n + 1;
    while (end < layers.size() && layers[end] == kind) ++end;
    text << (text.tellp() > 0 ? ", " : "") << n;
    if (end > n + 1) text << '-' << end - 1;
    n = end;
  }
  return text.str();
}

std::string embedding(const ModelConfig& config) {
  std::ostringstream text;
  text << "vocabulary " << config.vocab;
  if (config.embedding.size > 0) text << " of " << config.embedding.size << ", projected";
  if (config.embedding.multiplier != 1) text << ", times " << config.embedding.multiplier;
  if (config.embedding.positions > 0) {
    text << ", " << config.embedding.positions << " learned positions";
    if (config.embedding.offset != 0) text << " from " << config.embedding.offset << " on";
  }
  if (config.embedding.shared) text << ", the decoder's";
  if (config.embedding.segments > 0) text << ", " << config.embedding.segments << " segments";
  if (config.embedding.norm) text << ", " << name_of(config.embedding.norm);
  return text.str();
}

std::string layer_inputs(const LayerInputsConfig& inputs) {
  std::ostringstream text;
  text << inputs.size << " elements of each token for each layer, ";
  if (inputs.table) text << "table times " << inputs.multiplier << ", ";
  text << name_of(inputs.activation);
  if (inputs.norm) text << ", " << name_of(inputs.norm) << " of the projection";
  if (inputs.norm_after) text << ", " << name_of(inputs.norm_after) << " after";
  return text.str();
}

// What it is called, and what it is like.
std::pair<std::string, std::string> mixer(const ModelConfig& config,
                                          const AttentionConfig& attention) {
  std::ostringstream text;
  text << attention.n_heads << (attention.n_heads == 1 ? " head of " : " heads of ")
       << attention.head_dim << " over " << attention.n_kv_heads;
  if (attention.v_head_dim() != attention.head_dim) {
    text << ", values of " << attention.v_head_dim();
  }
  if (attention.qkv_bias) text << ", biases of queries, keys and values";
  if (attention.out_bias) text << ", bias of the output";
  if (attention.qk_norm != QkNorm::none) {
    text << ", " << name_of(attention.qk_norm_as)
         << (attention.qk_norm == QkNorm::head ? " of each head's" : " of all")
         << (attention.v_norm ? " queries, keys and values" : " queries and keys")
         << (attention.qk_norm_after_rope ? " after rotation" : "");
  }
  if (attention.kv_of) text << ", keys and values of layer " << *attention.kv_of;
  if (attention.rope) text << ", rotary \"" << config.ropes[*attention.rope].name << '"';
  if (attention.bidirectional) text << ", of tokens before and after";
  if (attention.window > 0) {
    text << (attention.window_in_blocks ? ", blocks of " : ", window ") << attention.window;
  }
  if (attention.soft_cap > 0) text << ", soft cap " << attention.soft_cap;
  if (attention.sinks) text << ", sinks";
  if (!attention.slopes.empty()) text << ", ALiBi";
  if (attention.relative_bias) {
    text << ", relative bias of " << attention.relative_bias.buckets << " buckets up to "
         << attention.relative_bias.max_distance;
  }
  if (const RelativeScoresConfig& scores = attention.relative_scores) {
    text << ", scores of " << scores.rows << " relative positions";
    if (scores.max_distance > 0) text << " up to " << scores.max_distance;
  }
  if (attention.query_scaling > 0) text << ", queries scaled by their position";
  if (attention.output_gate) {
    text << (attention.head_gate ? ", heads gated" : ", gated");
    if (attention.gate != Activation::sigmoid) text << " by " << name_of(attention.gate);
  }
  if (attention.sums_norm) text << ", " << name_of(attention.sums_norm) << " of sums";
  return {"  attention", text.str()};
}

std::pair<std::string, std::string> mixer(const ModelConfig& config,
                                          const LatentAttentionConfig& attention) {
  std::ostringstream text;
  text << attention.n_heads << (attention.n_heads == 1 ? " head of " : " heads of ")
       << attention.q_head_dim() << ", values of " << attention.value_head_dim
       << ", over latents of " << attention.kv_rank << ", " << name_of(attention.latent_norm);
  if (attention.q_rank > 0) text << ", queries of latents of " << attention.q_rank;
  if (attention.bias) text << ", biases of latents and of the output";
  if (attention.rope) {
    text << ", rotary \"" << config.ropes[*attention.rope].name << "\" of " << attention.rope_dim
         << " that heads share";
  }
  if (attention.head_gate) text << ", heads gated";
  return {"  latent attention", text.str()};
}

std::string convolution(const ConvolutionConfig& config) {
  std::ostringstream text;
  text << "convolution of " << config.taps << " tokens";
  if (config.bias) text << " with bias";
  if (config.activation != Activation::none) text << ", " << name_of(config.activation);
  return text.str();
}

std::pair<std::string, std::string> mixer(const ModelConfig& /*config*/,
                                          const DeltaNetConfig& delta_net) {
  std::ostringstream text;
  text << delta_net.n_value_heads << " heads, " << delta_net.key_head_dim << " by "
       << delta_net.value_head_dim << ", over " << delta_net.n_key_heads << " of keys; "
       << convolution(delta_net.convolution) << "; gate " << name_of(delta_net.gate);
  if (delta_net.gate_rank > 0) text << " of latents of " << delta_net.gate_rank;
  if (delta_net.decays_by_channel) {
    text << "; channels decay by themselves";
    if (delta_net.decay_rank > 0) text << ", by latents of " << delta_net.decay_rank;
  }
  return {"  delta net", text.str()};
}

std::pair<std::string, std::string> mixer(const ModelConfig& /*config*/,
                                          const StateSpaceConfig& state_space) {
  std::ostringstream text;
  text << state_space.n_heads << " heads of " << state_space.head_dim << ", states of "
       << state_space.state_size << " in " << state_space.n_groups
       << (state_space.n_groups == 1 ? " group; " : " groups; ")
       << convolution(state_space.convolution) << "; gate " << name_of(state_space.gate);
  return {"  state space", text.str()};
}

std::pair<std::string, std::string> mixer(const ModelConfig& /*config*/,
                                          const ShortConvolutionConfig& short_convolution) {
  return {"  short convolution", convolution(short_convolution.convolution)};
}

std::pair<std::string, std::string> mixer(const ModelConfig& /*config*/,
                                          const SelectiveScanConfig& scan) {
  std::ostringstream text;
  text << scan.channels << " channels, states of " << scan.state_size << ", steps of latents of "
       << scan.step_rank;
  if (scan.norm) text << ", " << name_of(scan.norm) << " of latents, B and C";
  if (scan.bias) text << ", biases";
  text << "; " << convolution(scan.convolution) << "; gate " << name_of(scan.gate);
  return {"  selective scan", text.str()};
}

std::pair<std::string, std::string> mixer(const ModelConfig& /*config*/,
                                          const LinearAttentionConfig& attention) {
  std::ostringstream text;
  text << attention.n_heads << " heads of " << attention.head_dim << ", "
       << name_of(attention.activation) << "; gate " << name_of(attention.gate);
  if (attention.norm) text << "; " << name_of(attention.norm) << " of sums";
  return {"  linear attention", text.str()};
}

std::string feed_forward(const FeedForwardConfig& ffn) {
  std::ostringstream text;
  text << ffn.size << ", " << (ffn.gated ? "gated " : "")
       << (ffn.xielu ? "xIELU" : name_of(ffn.activation));
  if (is_of_gates(ffn.activation)) text << " at " << ffn.gate_limit;
  if (ffn.cutoff) text << ", gates above " << *ffn.cutoff << " standard deviations";
  if (ffn.bias) text << ", biases";
  if (ffn.middle_norm) text << ", " << name_of(ffn.middle_norm) << " of its middle";
  return text.str();
}

std::string experts(const ExpertsConfig& experts) {
  std::ostringstream text;
  text << experts.router.used << " of " << experts.count << " experts of "
       << feed_forward(experts.each);
  if (experts.router.soft_cap > 0) text << ", soft cap " << experts.router.soft_cap << " of logits";
  if (experts.identities > 0) text << " and " << experts.identities << " that change nothing";
  if (experts.deferred) text << ", added after the next layer";
  if (experts.shared.size > 0) {
    text << "; one that all use of " << feed_forward(experts.shared);
    if (experts.shared_gate) text << ", gated";
    if (experts.shared_norm_after) text << ", " << name_of(experts.shared_norm_after) << " after";
  }
  if (experts.sum_bias) text << "; a bias of their sum";
  if (experts.norm) text << "; " << name_of(experts.norm) << " before the experts";
  if (experts.norm_after) text << "; " << name_of(experts.norm_after) << " after the experts";
  if (experts.router_norm) text << "; " << name_of(experts.router_norm) << " before the router";
  if (experts.router.expert_scales) text << "; scales of the experts";
  return text.str();
}

std::string altup(const AltUpConfig& altup) {
  return std::to_string(altup.streams) + ", which alternate, " + name_of(altup.norm);
}

std::string laurel(const LaurelConfig& laurel) {
  return "rank " + std::to_string(laurel.rank) + ", " + name_of(laurel.norm);
}

std::string token_convolution(const TokenConvolutionConfig& convolution) {
  return std::to_string(convolution.taps) + " tokens, " +
         std::string(name_of(convolution.activation)) +
         (convolution.norm ? ", " + name_of(convolution.norm) + " of the sum" : "");
}

// "before RMS norm, after RMS norm".
std::string norms(const BranchNorms& branch) {
  std::string text;
  const auto add = [&](const char* place, const NormConfig& norm) {
    if (norm) add_name(text, name_of(norm) + " " + place);
  };
  add("before", branch.before);
  add("after", branch.after);
  add("of the sum", branch.stream);
  return text.empty() ? "none" : text;
}

std::string rope(const RopeConfig& rope) {
  std::ostringstream text;
  text << rope.dims() << " elements of each head, frequencies " << rope.frequencies.front()
       << " to " << rope.frequencies.back();
  if (rope.attention_factor != 1) text << ", times " << rope.attention_factor;
  if (rope.original_max_context > 0) {
    text << "; others for texts above " << rope.original_max_context << " tokens";
  }
  return text.str();
}

std::string_view name_of(Pooling pooling) {
  switch (pooling) {
    case Pooling::first:
      return "the first token's";
    case Pooling::last:
      return "the last token's";
    case Pooling::largest:
      return "the largest of all tokens'";
    case Pooling::mean:
      return "the mean of all tokens'";
    case Pooling::mean_by_root:
      return "the sum of all tokens' by the root of their number";
    case Pooling::weighted_mean:
      return "the mean of all tokens', weighted by position";
  }
  return "?";
}

std::string dense(const DenseConfig& layer) {
  std::string text = std::to_string(layer.size) + ", " + std::string(name_of(layer.activation));
  if (layer.bias) text += ", bias";
  if (layer.norm) text += ", " + name_of(layer.norm);
  return text;
}

std::string vectors(const ModelConfig& config) {
  const PoolingConfig& pooling = *config.pooling;
  std::ostringstream text;
  const auto pooled = pooling.dense.begin() + pooling.dense_before;
  for (auto layer = pooling.dense.begin(); layer != pooled; ++layer) {
    text << dense(*layer) << ", of each token; ";
  }
  text << name_of(pooling.mode);
  if (pooling.start)
    text << " of the decoder's, which reads the text behind token " << *pooling.start;
  for (auto layer = pooled; layer != pooling.dense.end(); ++layer) text << "; " << dense(*layer);
  if (pooling.scores) text << "; scores";
  if (pooling.sigmoid) text << ", sigmoid";
  if (pooling.normalize) text << "; of length 1";
  if (!pooling.prompt.empty()) text << "; after " << in_quotes(pooling.prompt);
  if (pooling.max_tokens > 0) text << "; of at most " << pooling.max_tokens << " tokens";
  return text.str();
}

std::string output(const OutputConfig& output) {
  if (output.none) return "hidden states" + (output.norm ? ", " + name_of(output.norm) : "");
  std::string text = output.norm ? name_of(output.norm) : "no norm";
  if (output.dense) text += ", a product (" + dense(output.dense) + ")";
  if (output.tied) text += ", matrix of the embedding";
  if (output.bias) text += ", bias";
  std::ostringstream cap;
  if (output.soft_cap > 0) cap << ", soft cap " << output.soft_cap;
  return text + cap.str();
}

// One line: a predictor is a small decoder beside the one that is described.
std::string predictor(const ModelConfig& predictor) {
  const LayerConfig& layer = predictor.layer(0);
  auto [label, what] = std::visit([&](const auto& of_layer) { return mixer(predictor, of_layer); },
                                  layer.mixers.front());
  label.erase(0, label.find_first_not_of(' '));
  std::string text = label + ": " + what + "; ";
  text += layer.experts ? experts(*layer.experts) : feed_forward(layer.ffn);
  if (!predictor.embedding.shared) text += "; an embedding of its own";
  if (!predictor.output.shared) {
    text += "; an output matrix of its own";
    if (!predictor.output.tokens.empty()) {
      text += ", of " + std::to_string(predictor.output.tokens.size()) + " tokens";
    }
  }
  const std::vector<int64_t>& states = predictor.hidden_input->layer_states.after;
  for (size_t n = 0; n < states.size(); ++n) {
    text += (n == 0 ? "; reads the streams after " : ", ") + std::to_string(states[n]);
  }
  if (!states.empty()) text += " layers";
  return text + " (runs with --speculate mtp)";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> describe(const ModelConfig& config) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::ostringstream sizes;
  sizes << config.n_layers() << (config.n_layers() == 1 ? " layer" : " layers") << ", hidden "
        << config.hidden << ", context " << config.max_context;
  if (config.context_end != ContextEnd::trained) sizes << ", since " << why_context_ends(config);
  const bool encodes = std::ranges::any_of(config.layer_kinds, [](const LayerConfig& layer) {
    const auto* attention = layer.find<AttentionConfig>();
    return attention != nullptr && attention->bidirectional;
  });
  lines.emplace_back(encodes ? "encoder" : "decoder", sizes.str());
  lines.emplace_back("embedding", embedding(config));
  if (config.layer_inputs) lines.emplace_back("inputs", layer_inputs(config.layer_inputs));
  if (config.altup) lines.emplace_back("streams", altup(config.altup));
  for (size_t kind = 0; kind < config.layer_kinds.size(); ++kind) {
    const LayerConfig& layer = config.layer_kinds[kind];
    lines.emplace_back("layers",
                       "\"" + layer.name + "\": " + ranges(config, kind) +
                           (layer.mixers.size() > 1 ? "; mixers side by side" : "") +
                           (layer.parallel ? "; attention and feed-forward side by side" : ""));
    if (layer.aside) {
      lines.emplace_back("  beside the stream",
                         "what mixers read, too: of the stream and the embedding");
      lines.push_back(mixer(config, layer.aside->attention));
      lines.emplace_back("  feed-forward", feed_forward(layer.aside->ffn));
    }
    for (const Mixer& each : layer.mixers) {
      lines.push_back(std::visit([&](const auto& some) { return mixer(config, some); }, each));
    }
    lines.emplace_back("  norms", norms(layer.mixer_norms));
    if (layer.laurel) lines.emplace_back("  laurel", laurel(layer.laurel));
    if (layer.cross_attention) {
      lines.emplace_back("  cross", "attention to the encoder's output");
      lines.emplace_back("  norms", norms(layer.cross_attention->norms));
    }
    if (!layer.has_feed_forward()) continue;
    lines.emplace_back("  feed-forward",
                       layer.experts ? experts(*layer.experts) : feed_forward(layer.ffn));
    lines.emplace_back("  norms", norms(layer.ffn_norms));
    if (layer.token_convolution) {
      lines.emplace_back("  convolution", token_convolution(layer.token_convolution));
    }
    if (layer.scaled) lines.emplace_back("  scale", "of the sum");
  }
  for (const RopeConfig& each : config.ropes) {
    lines.emplace_back("rotary", "\"" + each.name + "\": " + rope(each));
  }
  lines.emplace_back("output", output(config.output));
  for (const ModelConfig& each : config.predictors) {
    lines.emplace_back("predicts on", predictor(each));
  }
  if (config.encoder) {
    for (auto& line : describe(*config.encoder)) lines.push_back(std::move(line));
  }
  if (config.pooling) {
    lines.emplace_back(config.pooling->scores ? "scores" : "vectors", vectors(config));
  }
  return lines;
}

}  // namespace faststream::convert
