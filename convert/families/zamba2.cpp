// Zamba 2 (arXiv:2411.15242): state spaces, in some layers with a block beside the stream, which
// has attention and a feed-forward. A few such blocks take turns; what differs from layer to layer
// is added to their matrices, products of two narrow ones each.
#include <algorithm>
#include <memory>

#include "convert/families/state_space.h"

namespace faststream::convert {
namespace {

/// The layers with a block, and how these are shared.
struct Blocks {
  std::vector<int64_t> layers;
  int64_t count = 1;  ///< different ones, which take turns
  bool adapts_attention = false;
  int64_t rank = 0;  ///< of what is added
};

// The rows of a module, and what an adapter adds to them.
TensorPart adapted(const std::string& module, int64_t rows, int64_t cols,
                   const std::string& adapter, int64_t rank) {
  TensorPart part{.source = module + ".weight", .shape = {rows, cols}};
  if (adapter.empty()) return part;
  TensorPart added{.source = adapter + ".1.weight", .shape = {rows, rank}};
  added.projection = {.matrix = adapter + ".0.weight", .inputs = rank, .transposed = true};
  part.plus = std::make_shared<const TensorPart>(std::move(added));
  return part;
}

// Those of the block of the n-th layer that has one.
void set_block(const Blocks& blocks, size_t n, const std::string& base, const ModelConfig& config,
               TensorParts& parts) {
  const int64_t layer = blocks.layers[n];
  const AsideConfig& aside = *config.layer(layer).aside;
  const AttentionConfig& attention = aside.attention;
  const int64_t hidden = config.hidden;
  // The first layer with a block has it for the others.
  const int64_t first = blocks.layers[n % static_cast<size_t>(blocks.count)];
  const std::string block = base + "layers." + std::to_string(first) + ".shared_transformer.";
  const std::string own = base + "layers." + std::to_string(layer) + ".";
  const auto adapter = [&](const std::string& list) {
    return block + list + "." + std::to_string(n);
  };
  const auto part_of = [&](const char* name, int64_t rows) {
    const std::string list = std::string("self_attn.linear_") + name + "_adapter_list";
    return adapted(block + "self_attn." + name + "_proj", rows, 2 * hidden,
                   blocks.adapts_attention ? adapter(list) : "", blocks.rank);
  };
  using enum TensorKind;
  parts[{aside_norm, layer}] = {
      {.source = block + "input_layernorm.weight", .shape = {2 * hidden}}};
  parts[{aside_qkv, layer}] = {part_of("q", attention.q_dim()), part_of("k", attention.k_dim()),
                               part_of("v", attention.v_dim())};
  parts[{aside_out, layer}] = {
      {.source = block + "self_attn.o_proj.weight", .shape = {hidden, attention.sums_dim()}}};
  parts[{aside_middle_norm, layer}] = {
      {.source = block + "pre_ff_layernorm.weight", .shape = {hidden}}};
  parts[{aside_gate_up, layer}] = {
      adapted(block + "feed_forward.gate_up_proj", aside.ffn.up_dim(), hidden,
              adapter("feed_forward.gate_up_proj_adapter_list"), blocks.rank)};
  // The layer's own product of what the block gives is one with the block's last.
  TensorPart down{.source = own + "linear.weight", .shape = {hidden, hidden}};
  down.projection = {
      .matrix = block + "feed_forward.down_proj.weight", .inputs = hidden, .transposed = true};
  parts[{aside_down, layer}] = {down};
}

// The other modules of layers with a block are in one of these.
void rename_mixer(int64_t layer, const std::string& base, TensorParts& parts) {
  const std::string own = base + "layers." + std::to_string(layer) + ".";
  for (auto& [id, of_tensor] : parts) {
    if (!is_of_layers(id.kind) || id.n != layer) continue;
    for (TensorPart& part : of_tensor) {
      if (part.source.starts_with(own)) part.source.insert(own.size(), "mamba_decoder.");
    }
  }
}

}  // namespace

FamilyModel describe_zamba2(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "add_bias_linear", "biases of shared blocks");
  PlainShape shape{.n_layers = count_in(config, "num_hidden_layers", kMaxLayers, 54),
                   .hidden = count_in(config, "hidden_size", kMaxSize, 2560),
                   .n_heads = count_in(config, "num_attention_heads", kMaxHeads, 32),
                   .vocab = count_in(config, "vocab_size", kMaxSize, 32000),
                   .max_context = count_in(config, "max_position_embeddings", kMaxContext, 4096),
                   .norm_eps = number_in(config, "rms_norm_eps", 1e-5)};
  constexpr int64_t kLongContext = 16384;
  if (config.get("use_long_context", false)) shape.max_context = kLongContext;
  shape.n_kv_heads = count_or_null_in(config, "num_key_value_heads", kMaxHeads, shape.n_heads);
  if (shape.n_kv_heads == 0) shape.n_kv_heads = shape.n_heads;
  if (2 * shape.hidden % shape.n_heads != 0) {
    config.member("num_attention_heads").fail("does not divide twice the hidden size");
  }
  shape.head_dim = 2 * shape.hidden / shape.n_heads;
  shape.ffn_hidden = count_or_null_in(config, "intermediate_size", kMaxSize, 0);
  if (shape.ffn_hidden == 0) shape.ffn_hidden = 4 * shape.hidden;
  if (shape.head_dim > kMaxHeadDim) config.fail("has heads that are too wide");
  FamilyModel model{plain_decoder_in(config, shape, {.tied = true})};
  if (!config.get("use_mem_rope", false)) remove_rotation(model.config);

  LayerConfig& first = model.config.layer_kinds[0];
  first.name = "state space";
  AsideConfig aside{.norm = first.mixer_norms.before,
                    .attention = first.attention(),
                    .ffn_norm = first.ffn_norms.before,
                    .ffn = first.ffn};
  aside.attention.scale = inverse_root(static_cast<double>(shape.head_dim) / 2);
  aside.ffn.activation = activation_in(config, "hidden_act", "gelu");
  const StateSpaceKeys keys{.heads = "n_mamba_heads",
                            .head_dim = "mamba_headdim",
                            .groups = "mamba_ngroups",
                            .convolution_bias = "use_conv_bias",
                            .bias = "add_bias_linear",
                            .activation = "mamba_hidden_act",
                            .heads_otherwise = 8,
                            .state_otherwise = 64};
  constexpr float kEps = 1e-5F;  // of sums, whatever that of other norms
  StateSpaceConfig mixer =
      state_space_in(config, keys, shape.hidden, {.kind = NormKind::rms, .eps = kEps});
  mixer.convolution.bias = true;  // whatever "use_conv_bias" says
  mixer.least_step = number_in(config, "time_step_min", 0.001);
  first.mixers = {mixer};
  first.ffn_norms = {};
  first.ffn = {};

  const std::string_view of_types = key_in(config, {"layers_block_type", "layer_types"});
  static_cast<void>(config.member(of_types));
  const std::vector<std::string> types = layer_types_in(
      config, shape.n_layers, {"mamba", "linear_attention", "hybrid"}, [](int64_t) { return 0; },
      of_types);
  Blocks blocks{.layers = {},
                .count = count_in(config, "num_mem_blocks", kMaxLayers, 1),
                .adapts_attention = config.get("use_shared_attention_adapter", false),
                .rank = count_in(config, "adapter_rank", kMaxSize, 128)};
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (types[static_cast<size_t>(n)] != "hybrid") return;
    layer.name = "state space and block";
    layer.aside = aside;
    blocks.layers.push_back(n);
  });
  blocks.count =
      std::max<int64_t>(1, std::min(blocks.count, static_cast<int64_t>(blocks.layers.size())));

  Modules& m = model.modules;
  m.output_norm = "final_layernorm";
  name_state_space(m, mixer, "mamba.");
  model.finish = [blocks, m](const ModelConfig& of_model, const Checkpoint& weights,
                             TensorParts& parts) {
    const std::string base = base_in(weights, m);
    for (size_t n = 0; n < blocks.layers.size(); ++n) {
      rename_mixer(blocks.layers[n], base, parts);
      set_block(blocks, n, base, of_model, parts);
    }
  };
  return model;
}

}  // namespace faststream::convert
