// Facts about llama.cpp's architectures are from its src/models and conversion scripts.
#include "convert/gguf/gguf_architectures.h"

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "convert/families/family.h"
#include "convert/gguf/gguf_gemma4.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

int64_t window_of(const GgufSource& source) {
  return source.metadata().find_integer(source.key("attention.sliding_window")).value_or(0);
}

// A window for all layers but every so manieth, or, where that is given, for every so manieth.
void set_windows(const GgufSource& source, GgufFamilyModel& model,
                 const std::function<bool(int64_t)>& windowed) {
  const int64_t window = window_of(source);
  if (window <= 0) return;
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!windowed(n)) return;
    layer.name = "windowed";
    layer.attention().window = window;
  });
}

std::function<bool(int64_t)> all_but_every(int64_t pattern) {
  return [=](int64_t n) { return (n + 1) % pattern != 0; };
}

// A rotation without rules for layers with a window.
void set_plain_rope_of_windows(GgufFamilyModel& model, double theta) {
  RopeConfig rope;
  rope.name = "windowed";
  rope.frequencies = plain_frequencies(theta, model.config.ropes[0].dims());
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (layer.attention().window > 0) layer.attention().rope = model.config.ropes.size();
  }
  model.config.ropes.push_back(std::move(rope));
}

void normalize_experts(const GgufSource& /*source*/, GgufFamilyModel& model) {
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (layer.experts) layer.experts->router.normalized = true;
  }
}

void adjust_mistral3(const GgufSource& source, GgufFamilyModel& model) {
  AttentionConfig& attention = model.config.layer_kinds[0].attention();
  attention.query_scaling = static_cast<float>(source.number("attention.temperature_scale", 0));
  if (attention.query_scaling != 0) {
    attention.query_scaling_from =
        source.count("rope.scaling.original_context_length", kMaxContext);
  }
}

void adjust_gemma(const GgufSource& /*source*/, GgufFamilyModel& model) {
  model.config.embedding.multiplier = std::sqrt(static_cast<float>(model.config.hidden));
}

// The largest of Gemma 2 and 3 have another scale of scores, which the metadata do not say.
void set_gemma_scale(GgufFamilyModel& model, int64_t layers_of_largest) {
  AttentionConfig& attention = model.config.layer_kinds[0].attention();
  if (model.config.n_layers() != layers_of_largest) return;
  attention.scale = inverse_root(static_cast<double>(model.config.hidden) /
                                 static_cast<double>(attention.n_heads));
}

void adjust_gemma2(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kLayersOf27B = 46;
  adjust_gemma(source, model);
  set_gemma_scale(model, kLayersOf27B);
  set_windows(source, model, all_but_every(2));
}

void adjust_gemma3(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kLayersOf27B = 62;
  adjust_gemma(source, model);
  set_gemma_scale(model, kLayersOf27B);
  set_windows(source, model,
              all_but_every(source.count("attention.sliding_window_pattern", kMaxLayers, 6)));
  const double theta = source.number("rope.freq_base_swa", 10000);
  if (theta <= 0) source.fail("rope.freq_base_swa", "is not above 0");
  set_plain_rope_of_windows(model, theta);
}

// The window of the first Phi 3, as Transformers has it; llama.cpp leaves it out.
void adjust_phi3(const GgufSource& source, GgufFamilyModel& model) {
  set_windows(source, model, [](int64_t /*n*/) { return true; });
}

void adjust_granite(const GgufSource& source, GgufFamilyModel& model) {
  model.config.embedding.multiplier = static_cast<float>(source.number("embedding_scale", 1));
  AttentionConfig& attention = model.config.layer_kinds[0].attention();
  attention.scale = static_cast<float>(source.number("attention.scale", attention.scale));
  model.modules.residual_scale = static_cast<float>(source.number("residual_scale", 1));
  const double scale = source.number("logit_scale", 1);
  if (scale == 0) source.fail("logit_scale", "is 0, by which logits are divided");
  model.modules.output_norm_scale = static_cast<float>(1 / scale);
  normalize_experts(source, model);
}

void adjust_smollm3(const GgufSource& /*source*/, GgufFamilyModel& model) {
  change_layers(model.config, [](int64_t n, LayerConfig& layer) {
    if ((n + 1) % 4 != 0) return;
    layer.name = "without rotation";
    layer.attention().rope.reset();
  });
}

// OLMo 3 is OLMo 2 with windows.
void adjust_olmo2(const GgufSource& source, GgufFamilyModel& model) {
  model.config.layer_kinds[0].attention().qk_norm = QkNorm::whole;
  if (window_of(source) <= 0) return;
  set_windows(source, model, all_but_every(4));
  set_plain_rope_of_windows(model, source.number("rope.freq_base", 10000));
}

void adjust_olmoe(const GgufSource& /*source*/, GgufFamilyModel& model) {
  model.config.layer_kinds[0].attention().qk_norm = QkNorm::whole;
}

// Attention and feed-forward side by side, as norms tell.
void adjust_stablelm(const GgufSource& /*source*/, GgufFamilyModel& model) {
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = !layer.ffn_norms.before;
}

void adjust_command_r(const GgufSource& source, GgufFamilyModel& model) {
  model.config.layer_kinds[0].parallel = true;
  model.modules.output_norm_scale = static_cast<float>(source.number("logit_scale", 1));
}

void adjust_cohere2(const GgufSource& source, GgufFamilyModel& model) {
  adjust_command_r(source, model);
  set_windows(source, model, all_but_every(4));
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (layer.attention().window == 0) layer.attention().rope.reset();
  }
}

void adjust_gpt2(const GgufSource& source, GgufFamilyModel& model) {
  const SourceTensor* positions = source.weights().find("position_embd.weight");
  model.config.embedding.positions = positions != nullptr && positions->shape.size() == 2
                                         ? positions->shape[0]
                                         : model.config.max_context;
}

void adjust_gptneox(const GgufSource& source, GgufFamilyModel& model) {
  model.config.layer_kinds[0].parallel =
      source.metadata().find_boolean(source.key("use_parallel_residual")).value_or(true);
}

// "attn_norm_2" is attention's norm where there are two.
void adjust_falcon(const GgufSource& source, GgufFamilyModel& model) {
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = true;
  if (!source.a_layer_has("attn_norm_2.weight")) return;
  layer.ffn_norms.before = layer.mixer_norms.before;
  model.modules.attention_norm = "attn_norm_2";
  model.modules.ffn_norm = "attn_norm";
}

void set_alibi(GgufFamilyModel& model) {
  remove_rotation(model.config);
  AttentionConfig& attention = model.config.layer_kinds[0].attention();
  attention.slopes = alibi_slopes(attention.n_heads);
}

void adjust_bloom(const GgufSource& /*source*/, GgufFamilyModel& model) { set_alibi(model); }

// The 7B models rotate; 13B have ALiBi. Whether the output's rows are normalized already, the
// metadata do not say; it does no harm to do it again.
void adjust_baichuan(const GgufSource& /*source*/, GgufFamilyModel& model) {
  constexpr int64_t kLayersOf7B = 32;
  if (model.config.n_layers() != kLayersOf7B) set_alibi(model);
  model.modules.unit_output = model.config.vocab == kBaichuan2Vocab;
}

void adjust_gpt_oss(const GgufSource& source, GgufFamilyModel& model) {
  LayerConfig& layer = model.config.layer_kinds[0];
  if (layer.experts) {
    layer.experts->router.normalized = true;
    layer.experts->each.activation = Activation::swiglu_clamped;
  }
  // What is called after attention comes before the feed-forward.
  layer.ffn_norms.before = layer.mixer_norms.after;
  layer.mixer_norms.after = {};
  model.modules.ffn_norm = "post_attention_norm";
  set_windows(source, model, all_but_every(2));
}

// DeepSeek V2 and V3 and what has their layers. Where keys' lengths are of what is kept, products
// of latents lie by themselves, k's transposed already; in older files they are one.
LatentAttentionConfig latent_attention_of(const GgufSource& source, GgufFamilyModel& model) {
  const bool is_split = source.has("attention.key_length_mla");
  const auto length = [&](const std::string& name) {
    return source.count(name + (is_split ? "_mla" : ""), kMaxHeadDim);
  };
  LatentAttentionConfig attention;
  attention.n_heads = source.count("attention.head_count", kMaxHeads);
  if (source.a_layer_has("attn_q_a.weight")) {
    attention.q_rank = source.count("attention.q_lora_rank", kMaxSize);
  }
  attention.kv_rank = source.count("attention.kv_lora_rank", kMaxHeadDim);
  attention.rope_dim = model.config.ropes[0].dims();
  const int64_t key_length = length("attention.key_length");
  if (key_length <= attention.rope_dim) {
    source.fail(is_split ? "attention.key_length_mla" : "attention.key_length",
                "is not above the elements that are rotated");
  }
  attention.nope_dim = key_length - attention.rope_dim;
  attention.value_head_dim = length("attention.value_length");
  attention.scale = inverse_root(static_cast<double>(key_length));
  constexpr float kEps = 1e-6F;  // as Transformers; llama.cpp takes that of other norms
  attention.latent_norm = {.kind = NormKind::rms, .eps = kEps};
  attention.rope = 0;
  Modules& m = model.modules;
  m.latent_q_down = "attn_q_a";
  m.latent_q_norm = "attn_q_a_norm";
  m.latent_q = "attn_q_b";
  m.latent_q_of_input = "attn_q";
  m.latent_kv = "attn_kv_a_mqa";
  m.latent_kv_norm = "attn_kv_a_norm";
  m.latent_kv_up = "attn_kv_b";
  if (is_split) {
    m.latent_k = "attn_k_b";
    m.latent_v = "attn_v_b";
  }
  return attention;
}

// YaRN's factors are the scores', squared, rather than those of cosines and sines. The metadata
// have a tenth of "mscale_all_dim".
void move_yarn_factor(const GgufSource& source, GgufFamilyModel& model,
                      LatentAttentionConfig& attention) {
  const double tenth = source.number("rope.scaling.yarn_log_multiplier", 0);
  if (tenth == 0) return;
  const double factor = yarn_attention_factor(source.number("rope.scaling.factor", 1), 10 * tenth);
  attention.scale *= static_cast<float>(factor * factor);
  model.config.ropes[0].attention_factor =
      static_cast<float>(source.number("rope.scaling.attn_factor", 1));
}

RouterConfig router_of(const GgufSource& source, RouterConfig router) {
  constexpr int64_t kSigmoid = 2;
  constexpr int64_t kVocabOfGlm = 154880;
  const auto gating = source.metadata().find_integer(source.key("expert_gating_func"));
  const int64_t layers = source.count("block_count", kMaxLayers);
  const bool is_glm = !gating && (layers == 47 || layers == 48) &&
                      source.count("vocab_size", kMaxSize, 1) == kVocabOfGlm;
  const bool is_sigmoid = is_glm || gating.value_or(1) == kSigmoid;
  if (gating.value_or(1) > kSigmoid) source.fail("expert_gating_func", "is not supported");
  router.score = is_sigmoid ? Router::Score::sigmoid : Router::Score::softmax;
  router.group_score = is_sigmoid ? Router::GroupScore::two_best : Router::GroupScore::largest;
  router.groups = static_cast<int32_t>(source.count("expert_group_count", kMaxExperts, 1));
  router.groups_used =
      static_cast<int32_t>(source.count("expert_group_used_count", kMaxExperts, 1));
  router.normalized =
      source.metadata().find_boolean(source.key("expert_weights_norm")).value_or(false);
  router.scale = static_cast<float>(source.number("expert_weights_scale", 1));
  return router;
}

void adjust_deepseek2(const GgufSource& source, GgufFamilyModel& model) {
  LatentAttentionConfig attention = latent_attention_of(source, model);
  move_yarn_factor(source, model, attention);
  LayerConfig& all = model.config.layer_kinds[0];
  all.mixers = {attention};
  const int64_t dense =
      source.metadata().find_integer(source.key("leading_dense_block_count")).value_or(0);
  const int64_t n_shared =
      source.metadata().find_integer(source.key("expert_shared_count")).value_or(0);
  model.modules.correction = "exp_probs_b.bias";
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!layer.experts) return;
    ExpertsConfig& experts = *layer.experts;
    if (n < dense) {
      layer.name = "dense";
      layer.ffn = experts.each;
      layer.ffn.size = source.count("feed_forward_length", kMaxSize);
      layer.experts.reset();
      return;
    }
    experts.router = router_of(source, experts.router);
    experts.router.correction =
        source.weights().find("blk." + std::to_string(n) + ".exp_probs_b.bias") != nullptr;
    experts.shared = experts.each;
    experts.shared.size = n_shared * experts.each.size;
  });
  for (int64_t n = 0; n < source.n_predicting_layers(); ++n) {
    model.modules.left_out.push_back("blk." + std::to_string(model.config.n_layers() + n) + ".");
  }
}

// Layers without heads of keys have short convolutions.
void adjust_lfm2(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kTaps = 64;
  const std::vector<int64_t> kv_heads = source.of_layers("attention.head_count_kv");
  const ShortConvolutionConfig mixer{
      .convolution = {.taps = source.count("shortconv.l_cache", kTaps)}};
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (kv_heads[static_cast<size_t>(n)] != 0) return;
    layer.name = "convolution";
    layer.mixers = {mixer};
  });
  const int64_t rows = 3 * model.config.hidden;
  Modules& m = model.modules;
  m.recurrent_in = {{"shortconv.in_proj", rows, 0, rows}};
  m.recurrent_convolution = "shortconv.conv";
  m.convolution_is_matrix = true;
  m.recurrent_out = "shortconv.out_proj";
  // What is called the embedding's norm is the output's.
  m.output_norm = m.embedding_norm;
  model.config.output.norm = std::exchange(model.config.embedding.norm, {});
}

void adjust_lfm2moe(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kSigmoid = 2;
  if (source.count("expert_gating_func", kMaxSize, kSigmoid) != kSigmoid) {
    source.fail("expert_gating_func", "is another function of scores than a sigmoid");
  }
  const int64_t dense =
      source.metadata().find_integer(source.key("leading_dense_block_count")).value_or(0);
  adjust_lfm2(source, model);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (n < dense) {
      layer.experts.reset();
      layer.ffn.size = source.count("feed_forward_length", kMaxSize);
      return;
    }
    layer.name += " with experts";
    RouterConfig& router = layer.experts.value().router;
    router.score = Router::Score::sigmoid;
    router.correction = true;
    router.normalized = true;
    router.scale = static_cast<float>(source.number("expert_weights_scale", 1));
  });
  model.modules.correction = "exp_probs_b.bias";
}

constexpr auto kArchitectures = std::to_array<GgufArchitecture>({
    {"llama", GgufPairs::side_by_side, Activation::silu, normalize_experts},
    {"mistral3", GgufPairs::side_by_side, Activation::silu, adjust_mistral3},
    {"qwen2"},
    {"qwen3"},
    {"qwen2moe"},
    {"qwen3moe", GgufPairs::halves, Activation::silu, normalize_experts},
    {"gemma", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma},
    {"gemma2", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma2},
    {"gemma3", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma3},
    {"gemma4", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma4, true},
    {"phi3", GgufPairs::halves, Activation::silu, adjust_phi3},
    {"chatglm", GgufPairs::side_by_side},
    {"glm4", GgufPairs::side_by_side},
    {"granite", GgufPairs::side_by_side, Activation::silu, adjust_granite},
    {"granitemoe", GgufPairs::side_by_side, Activation::silu, adjust_granite},
    {"smollm3", GgufPairs::side_by_side, Activation::silu, adjust_smollm3},
    {"olmo2", GgufPairs::halves, Activation::silu, adjust_olmo2},
    {"olmoe", GgufPairs::halves, Activation::silu, adjust_olmoe},
    {"stablelm", GgufPairs::halves, Activation::silu, adjust_stablelm},
    {"command-r", GgufPairs::side_by_side, Activation::silu, adjust_command_r},
    {"cohere2", GgufPairs::side_by_side, Activation::silu, adjust_cohere2},
    {"starcoder2", GgufPairs::halves, Activation::gelu_tanh},
    {"gpt2", GgufPairs::none, Activation::gelu_tanh, adjust_gpt2},
    {"gptneox", GgufPairs::halves, Activation::gelu, adjust_gptneox},
    {"falcon", GgufPairs::halves, Activation::gelu, adjust_falcon},
    {"bloom", GgufPairs::none, Activation::gelu_tanh, adjust_bloom},
    {"internlm2", GgufPairs::side_by_side},
    {"baichuan", GgufPairs::side_by_side, Activation::silu, adjust_baichuan},
    {"gpt-oss", GgufPairs::halves, Activation::silu, adjust_gpt_oss},
    {"deepseek2", GgufPairs::side_by_side, Activation::silu, adjust_deepseek2},
    {"lfm2", GgufPairs::halves, Activation::silu, adjust_lfm2},
    {"lfm2moe", GgufPairs::halves, Activation::silu, adjust_lfm2moe},
});

}  // namespace

const GgufArchitecture& find_gguf_architecture(const GgufSource& source) {
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (source.architecture() == architecture.name) return architecture;
  }
  source.metadata().fail("general.architecture",
                         "is " + in_quotes(source.architecture()) +
                             ", which is not supported (README.md lists those that are)");
}

bool has_latent_attention(const GgufSource& source) { return source.has("attention.kv_lora_rank"); }

void refuse_scalings(const GgufSource& source) {
  const bool granite = source.architecture().starts_with("granite");
  const bool cohere = source.architecture() == "command-r" || source.architecture() == "cohere2";
  for (const std::string_view name :
       {"embedding_scale", "residual_scale", "attention.scale", "logit_scale"}) {
    if (!source.has(name) || granite || (cohere && name == "logit_scale")) continue;
    source.fail(name, "asks for a scaling that is not supported");
  }
}

}  // namespace faststream::convert
