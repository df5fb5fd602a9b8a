// Facts about llama.cpp's architectures are from its src/models and conversion scripts.
#include "convert/gguf/gguf_architectures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/families/family.h"
#include "convert/gguf/gguf_encoders.h"
#include "convert/gguf/gguf_experts.h"
#include "convert/gguf/gguf_gemma4.h"
#include "convert/gguf/gguf_hybrids.h"
#include "convert/gguf/gguf_layers.h"
#include "convert/gguf/gguf_t5.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

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
  set_windows(source, model, 2);
}

void adjust_gemma3(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kLayersOf27B = 62;
  adjust_gemma(source, model);
  set_gemma_scale(model, kLayersOf27B);
  set_windows(source, model, 6);
  set_plain_rope_of_windows(source, model, 10000);
}

// The window of the first Phi 3, as Transformers has it; llama.cpp leaves it out.
void adjust_phi3(const GgufSource& source, GgufFamilyModel& model) {
  set_windows(source, model, std::vector<bool>(model.config.layers.size(), true));
}

// The margin of a sparse mixer that the release has.
void adjust_phimoe(const GgufSource& source, GgufFamilyModel& model) {
  adjust_phi3(source, model);
  constexpr float kMargin = 0.02F;
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (!layer.experts) continue;
    layer.experts->router.score = Router::Score::sparse_mixer;
    layer.experts->router.margin = kMargin;
  }
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
  set_windows(source, model, 4);
  set_plain_rope_of_windows(source, model, source.number("rope.freq_base", 10000));
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
  set_windows(source, model, 4);
  rotate_windows_alone(model.config);
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

void refuse_clamps(const GgufSource& source) {
  if (source.number("attention.clamp_kqv", 0) == 0) return;
  source.fail("attention.clamp_kqv", "asks for products that are cut off, which are not supported");
}

void adjust_mpt(const GgufSource& source, GgufFamilyModel& model) {
  constexpr double kLargest = 8;
  constexpr std::string_view kName = "attention.max_alibi_bias";
  if (source.number(kName, 0) != kLargest) {
    source.fail(kName, "is not 8, and another ALiBi is not supported");
  }
  refuse_clamps(source);
  AttentionConfig& attention = model.config.layer_kinds[0].attention();
  attention.slopes = mpt_slopes(attention.n_heads);
}

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
  set_windows(source, model, 2);
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

// Which experts GLM-4.7-Flash's first files chose, they did not say.
Router::Score deepseek_score(const GgufSource& source) {
  constexpr int64_t kVocabOfGlm = 154880;
  const int64_t layers = source.count("block_count", kMaxLayers);
  const bool is_glm =
      (layers == 47 || layers == 48) && source.count("vocab_size", kMaxSize, 1) == kVocabOfGlm;
  return is_glm ? Router::Score::sigmoid : Router::Score::softmax;
}

void use_latent_attention(const GgufSource& source, GgufFamilyModel& model) {
  LatentAttentionConfig attention = latent_attention_of(source, model);
  move_yarn_factor(source, model, attention);
  model.config.layer_kinds[0].mixers = {attention};
}

void adjust_deepseek2(const GgufSource& source, GgufFamilyModel& model) {
  use_latent_attention(source, model);
  set_routers(source, model, {.score = deepseek_score(source), .normalized = false});
}

// The experts behind plain attention. A window is of Unlimited OCR's models, whose text model sees
// pictures beside it.
void adjust_deepseek2_ocr(const GgufSource& source, GgufFamilyModel& model) {
  if (window_of(source) > 0) {
    source.fail("attention.sliding_window",
                "asks for Unlimited OCR's window, which is not supported");
  }
  set_routers(source, model, {.score = Router::Score::softmax, .normalized = false});
}

// What multiplies is not in the metadata: it is the release's.
void adjust_minicpm3(const GgufSource& source, GgufFamilyModel& model) {
  constexpr float kOfEmbedding = 12;
  constexpr float kOfDepth = 1.4F;
  constexpr float kHiddenOfLogits = 256;
  use_latent_attention(source, model);
  model.config.embedding.multiplier = kOfEmbedding;
  model.modules.residual_scale = kOfDepth / std::sqrt(static_cast<float>(model.config.n_layers()));
  model.modules.output_norm_scale = kHiddenOfLogits / static_cast<float>(model.config.hidden);
}

// Older files leave out what multiplies, which all releases have alike. The released code takes the
// factors of longer texts for all texts, where there can be any.
void adjust_minicpm(const GgufSource& source, GgufFamilyModel& model) {
  constexpr double kOfEmbedding = 12;
  constexpr double kOfDepth = 1.4;
  constexpr double kHiddenOfLogits = 256;
  ModelConfig& config = model.config;
  const auto hidden = static_cast<double>(config.hidden);
  const double of_depth = kOfDepth / std::sqrt(static_cast<double>(config.n_layers()));
  const double of_logits = source.number("logit_scale", hidden / kHiddenOfLogits);
  if (of_logits == 0) source.fail("logit_scale", "is 0, by which logits are divided");
  config.embedding.multiplier = static_cast<float>(source.number("embedding_scale", kOfEmbedding));
  model.modules.residual_scale = static_cast<float>(source.number("residual_scale", of_depth));
  model.modules.output_norm_scale = static_cast<float>(1 / of_logits);
  RopeConfig& rope = config.ropes[0];
  if (rope.long_frequencies.empty()) return;
  if (config.max_context > rope.original_max_context) rope.frequencies = rope.long_frequencies;
  rope.long_frequencies.clear();
  rope.original_max_context = 0;
}

// Queries of positions beyond the original context are scaled by them, which latent attention does
// not know: longer texts are refused.
void adjust_mistral4(const GgufSource& source, GgufFamilyModel& model) {
  use_latent_attention(source, model);
  set_routers(source, model, {.score = Router::Score::softmax, .normalized = true});
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (layer.experts) layer.experts->router.group_score = Router::GroupScore::two_best;
  }
  if (source.number("attention.temperature_scale", 0) == 0) return;
  const int64_t original = source.count("rope.scaling.original_context_length", kMaxContext);
  end_context(model.config, original, ContextEnd::scaled_queries);
}

// DeepSeek V3.2 and GLM-5: while a text is no longer than what the indexer chooses, each token sees
// all before it. Longer texts are refused.
void adjust_with_indexer(const GgufSource& source, GgufFamilyModel& model) {
  use_latent_attention(source, model);
  set_routers(source, model, {});
  const int64_t budget = source.count("attention.indexer.top_k", kMaxContext);
  end_context(model.config, budget, ContextEnd::sparse_attention);
  model.modules.left_out.emplace_back("indexer.");
  model.modules.without_left_out = longest_text(model.config.max_context);
}

// Layers without heads of keys have short convolutions.
void adjust_lfm2(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kTaps = 64;
  const std::vector<int64_t> kv_heads = source.of_layers("attention.head_count_kv");
  const ShortConvolutionConfig mixer{
      .convolution = {.taps = source.count("shortconv.l_cache", kTaps),
                      .bias = source.a_layer_has("shortconv.conv.bias")},
      .bias = source.a_layer_has("shortconv.in_proj.bias")};
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (kv_heads[static_cast<size_t>(n)] != 0) return;
    layer.name = "convolution";
    layer.mixers = {mixer};
  });
  const int64_t rows = 3 * model.config.hidden;
  Modules& m = model.modules;
  m.recurrent_in = {{"shortconv.in_proj", rows, 0, rows}};
  m.recurrent_convolution = "shortconv.conv";
  m.recurrent_out = "shortconv.out_proj";
  // What is called the embedding's norm is the output's.
  m.output_norm = m.embedding_norm;
  model.config.output.norm = std::exchange(model.config.embedding.norm, {});
}

void adjust_lfm2moe(const GgufSource& source, GgufFamilyModel& model) {
  adjust_lfm2(source, model);
  set_routers(source, model, {.score = Router::Score::sigmoid, .normalized = true});
}

// Each layer's numbers of xIELU are metadata.
void adjust_apertus(const GgufSource& source, GgufFamilyModel& model) {
  FeedForwardConfig& ffn = model.config.layer_kinds[0].ffn;
  ffn.activation = Activation::none;
  ffn.xielu = true;
  ffn.gated = false;
  model.modules.gate_up = {"ffn_up"};
  std::vector<std::vector<float>> numbers;
  for (const char* name : {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta"}) {
    numbers.push_back(source.metadata().numbers(name));
    if (numbers.back().size() == model.config.layers.size()) continue;
    source.metadata().fail(name, "has not a number for each layer");
  }
  model.finish = [numbers](const ModelConfig& config, TensorParts& parts) {
    for (int64_t n = 0; n < config.n_layers(); ++n) {
      std::vector<float> of_layer;
      for (const std::vector<float>& each : numbers) {
        of_layer.push_back(each[static_cast<size_t>(n)]);
      }
      std::vector<TensorPart>& all = parts[{TensorKind::ffn_xielu, n}];
      all.clear();
      TensorPart& part = all.emplace_back();
      part.shape = {static_cast<int64_t>(of_layer.size())};
      part.values = std::make_shared<const std::vector<float>>(std::move(of_layer));
    }
  };
}

// Norms without weights.
void adjust_olmo(const GgufSource& source, GgufFamilyModel& model) {
  refuse_clamps(source);
  const NormConfig norm{
      .kind = NormKind::layer,
      .eps = static_cast<float>(source.number("attention.layer_norm_epsilon", 0))};
  set_norms(model.config, norm);
  Modules& m = model.modules;
  m.attention_norm = m.ffn_norm = m.output_norm = "";
}

void adjust_phi2(const GgufSource& /*source*/, GgufFamilyModel& model) {
  model.config.layer_kinds[0].parallel = true;
}

// EXAONE 4: where there are windows, layers without one rotate nothing.
void adjust_exaone4(const GgufSource& source, GgufFamilyModel& model) {
  if (window_of(source) <= 0) return;
  set_windows(source, model, 4);
  rotate_windows_alone(model.config);
}

void adjust_hunyuan(const GgufSource& source, GgufFamilyModel& model) {
  model.config.layer_kinds[0].attention().qk_norm_after_rope = true;
  constexpr std::string_view kAlpha = "rope.scaling.alpha";
  if (!source.has(kAlpha)) return;
  const double alpha = source.number(kAlpha, 1);
  RopeConfig& rope = model.config.ropes[0];
  const auto dims = static_cast<double>(rope.dims());
  if (alpha <= 0 || dims <= 2) source.fail(kAlpha, "is not above 0, or too little is rotated");
  const double theta = source.number("rope.freq_base", 10000);
  rope.frequencies = plain_frequencies(theta * std::pow(alpha, dims / (dims - 2)), rope.dims());
}

constexpr auto kArchitectures = std::to_array<GgufArchitecture>({
    {"llama", GgufPairs::side_by_side, Activation::silu, normalize_experts},
    {"mistral3", GgufPairs::side_by_side, Activation::silu, adjust_mistral3},
    {"qwen2"},
    {"qwen3"},
    {"qwen2moe"},
    {"qwen2vl"},
    {"qwen3vl"},
    {"qwen3vlmoe", GgufPairs::halves, Activation::silu, normalize_experts},
    {"phimoe", GgufPairs::halves, Activation::silu, adjust_phimoe, false, NormKind::layer},
    {"mimo2", GgufPairs::halves, Activation::silu, adjust_mimo2, true},
    {"kimi-linear", GgufPairs::side_by_side, Activation::silu, adjust_kimi_linear},
    {"mpt", GgufPairs::none, Activation::gelu, adjust_mpt},
    {"mistral4", GgufPairs::side_by_side, Activation::silu, adjust_mistral4},
    {"hunyuan_vl", GgufPairs::halves, Activation::silu, adjust_hunyuan},
    {"paddleocr"},
    {"qwen3moe", GgufPairs::halves, Activation::silu, normalize_experts},
    {"gemma", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma},
    {"gemma2", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma2},
    {"gemma3", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma3},
    {"gemma4", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma4, true},
    {"phi3", GgufPairs::halves, Activation::silu, adjust_phi3},
    {"chatglm", GgufPairs::side_by_side},
    {"glm4", GgufPairs::side_by_side},
    {"granite", GgufPairs::side_by_side, Activation::silu, adjust_granite},
    {"granite_swa", GgufPairs::side_by_side, Activation::silu, adjust_granite_swa},
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
    {"deepseek2", GgufPairs::side_by_side, Activation::silu, adjust_deepseek2, false,
     NormKind::none, true},
    {"deepseek2-ocr", GgufPairs::halves, Activation::silu, adjust_deepseek2_ocr},
    {"lfm2", GgufPairs::halves, Activation::silu, adjust_lfm2},
    {"lfm2moe", GgufPairs::halves, Activation::silu, adjust_lfm2moe},
    {"qwen", GgufPairs::halves, Activation::silu, nullptr, false, NormKind::rms},
    {"qwen3next", GgufPairs::halves, Activation::silu, adjust_qwen3next, false, NormKind::none,
     true},
    {"qwen35", GgufPairs::halves, Activation::silu, adjust_qwen35, false, NormKind::none, true},
    {"qwen35moe", GgufPairs::halves, Activation::silu, adjust_qwen35, false, NormKind::none, true},
    {"falcon-h1", GgufPairs::halves, Activation::silu, adjust_falcon_h1},
    {"minimax-01", GgufPairs::halves, Activation::silu, adjust_minimax_01},
    {"minicpm", GgufPairs::side_by_side, Activation::silu, adjust_minicpm},
    {"minicpm3", GgufPairs::halves, Activation::silu, adjust_minicpm3},
    {"gemma3n", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma3n, true},
    {"mamba", GgufPairs::none, Activation::silu, adjust_mamba},
    {"jamba", GgufPairs::none, Activation::silu, adjust_jamba},
    {"mamba2", GgufPairs::none, Activation::silu, adjust_mamba2},
    {"granitehybrid", GgufPairs::side_by_side, Activation::silu, adjust_granitehybrid},
    {"nemotron_h", GgufPairs::none, Activation::relu_squared, adjust_nemotron_h, false,
     NormKind::rms},
    {"nemotron_h_moe", GgufPairs::none, Activation::relu_squared, adjust_nemotron_h, false,
     NormKind::rms},
    {"deepseek32", GgufPairs::side_by_side, Activation::silu, adjust_with_indexer, false,
     NormKind::none, true},
    {"glm-dsa", GgufPairs::side_by_side, Activation::silu, adjust_with_indexer, false,
     NormKind::none, true},
    {"glm4moe", GgufPairs::halves, Activation::silu, adjust_routed, false, NormKind::none, true},
    {"dots1", GgufPairs::halves, Activation::silu, adjust_routed},
    {"minimax-m2", GgufPairs::halves, Activation::silu, adjust_minimax_m2},
    {"ernie4_5", GgufPairs::side_by_side},
    {"ernie4_5-moe", GgufPairs::side_by_side, Activation::silu, adjust_ernie4_5_moe},
    {"bailingmoe", GgufPairs::side_by_side, Activation::silu, adjust_bailingmoe},
    {"bailingmoe3", GgufPairs::side_by_side, Activation::silu, adjust_bailingmoe3},
    {"bailingmoe2", GgufPairs::halves, Activation::silu, adjust_routed},
    {"exaone4", GgufPairs::halves, Activation::silu, adjust_exaone4},
    {"exaone-moe", GgufPairs::halves, Activation::silu, adjust_exaone_moe},
    {"laguna", GgufPairs::halves, Activation::silu, adjust_laguna, true},
    {"step35", GgufPairs::halves, Activation::silu, adjust_step35, true},
    {"afmoe", GgufPairs::halves, Activation::silu, adjust_afmoe},
    {"hunyuan-dense", GgufPairs::halves, Activation::silu, adjust_hunyuan},
    {"hunyuan-moe", GgufPairs::halves, Activation::silu, adjust_hunyuan_moe},
    {"hy_v3", GgufPairs::halves, Activation::silu, adjust_routed},
    {"llama4", GgufPairs::side_by_side, Activation::silu, adjust_llama4},
    {"cohere2moe", GgufPairs::side_by_side, Activation::silu, adjust_cohere2moe},
    {"mellum", GgufPairs::halves, Activation::silu, adjust_mellum},
    {"seed_oss"},
    {"arcee", GgufPairs::side_by_side, Activation::relu_squared},
    {"nemotron", GgufPairs::halves, Activation::relu_squared},
    {"jais2", GgufPairs::halves, Activation::relu_squared},
    {"apertus", GgufPairs::halves, Activation::silu, adjust_apertus},
    {"olmo", GgufPairs::side_by_side, Activation::silu, adjust_olmo},
    {"starcoder", GgufPairs::none, Activation::gelu_tanh, adjust_gpt2},
    {"phi2", GgufPairs::halves, Activation::gelu_tanh, adjust_phi2},
    {"bert", GgufPairs::none, Activation::gelu, adjust_bert},
    {"nomic-bert", GgufPairs::halves, Activation::silu, adjust_nomic_bert},
    {"nomic-bert-moe", GgufPairs::halves, Activation::gelu, adjust_nomic_bert},
    {"neo-bert", GgufPairs::side_by_side, Activation::silu, adjust_neo_bert},
    {"jina-bert-v2", GgufPairs::none, Activation::gelu, adjust_jina_bert_v2},
    {"jina-bert-v3", GgufPairs::halves, Activation::gelu, adjust_nomic_bert},
    {"modern-bert", GgufPairs::halves, Activation::gelu, adjust_modern_bert},
    {"eurobert", GgufPairs::halves, Activation::silu, adjust_eurobert},
    {"gemma-embedding", GgufPairs::halves, Activation::gelu_tanh, adjust_gemma_embedding},
    {.name = "t5", .describe = describe_gguf_t5},
    {.name = "t5encoder", .describe = describe_gguf_t5_encoder},
});

}  // namespace

LatentAttentionConfig latent_attention_of(const GgufSource& source, GgufFamilyModel& model) {
  const bool is_split = source.has("attention.key_length_mla");
  const std::string ending = is_split ? "_mla" : "";
  LatentAttentionConfig attention;
  attention.n_heads = source.count("attention.head_count", kMaxHeads);
  if (source.a_layer_has("attn_q_a.weight")) {
    attention.q_rank = source.count("attention.q_lora_rank", kMaxSize);
  }
  attention.kv_rank = source.count("attention.kv_lora_rank", kMaxHeadDim);
  attention.rope_dim = model.config.ropes[0].dims();
  const int64_t key_length = source.count("attention.key_length" + ending, kMaxHeadDim);
  if (key_length <= attention.rope_dim) {
    source.fail("attention.key_length" + ending, "is not above the elements that are rotated");
  }
  attention.nope_dim = key_length - attention.rope_dim;
  attention.value_head_dim = source.count("attention.value_length" + ending, kMaxHeadDim,
                                          model.config.hidden / attention.n_heads);
  attention.scale = inverse_root(static_cast<double>(key_length));
  attention.bias = source.a_layer_has("attn_kv_a_mqa.bias");
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
  const bool cohere =
      source.architecture() == "command-r" || source.architecture().starts_with("cohere2");
  const bool minimax = source.architecture() == "minimax-01";
  const bool minicpm = source.architecture() == "minicpm";
  for (const std::string_view name :
       {"embedding_scale", "residual_scale", "attention.scale", "logit_scale"}) {
    if (!source.has(name) || granite || (cohere && name == "logit_scale")) continue;
    if (minimax && name == "residual_scale") continue;
    if (minicpm && name != "attention.scale") continue;
    source.fail(name, "asks for a scaling that is not supported");
  }
}

}  // namespace faststream::convert
