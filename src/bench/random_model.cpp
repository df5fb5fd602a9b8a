#include "bench/random_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/gemma4_shapes.h"
#include "models/tensor_plan.h"
#include "support/error.h"
#include "support/machine.h"
#include "support/name_list.h"
#include "support/split_mix.h"
#include "support/thread_pool.h"

namespace faststream::bench {
namespace {

struct Shape {
  std::string_view name;
  PlainShape sizes;
  void (*adjust)(ModelConfig&) = nullptr;  // what is not plain
};

// Qwen3-30B-A3B: each head of queries and keys normalized, 8 of 128 experts.
void make_qwen3_moe(ModelConfig& config) {
  LayerConfig& layer = config.layer_kinds[0];
  layer.attention().qk_norm = QkNorm::head;
  layer.attention().qk_norm_as = layer.mixer_norms.before;
  layer.experts = {.count = 128,
                   .router = {.used = 8, .normalized = true},
                   .each = layer.ffn,
                   .shared = {},
                   .shared_gate = false};
  layer.ffn = {};
}

// gpt-oss-20b: every other layer sees 128 positions; sinks, biases; 4 of 32 experts.
void make_gpt_oss(ModelConfig& config) {
  LayerConfig& windowed = config.layer_kinds[0];
  windowed.attention().qkv_bias = true;
  windowed.attention().out_bias = true;
  windowed.attention().sinks = true;
  windowed.experts = {.count = 32,
                      .router = {.used = 4, .bias = true, .normalized = true},
                      .each = {.size = windowed.ffn.size,
                               .gated = true,
                               .activation = Activation::swiglu_clamped,
                               .bias = true},
                      .shared = {},
                      .shared_gate = false};
  windowed.ffn = {};
  config.layer_kinds.push_back(windowed);
  config.layer_kinds[0].name = "windowed";
  config.layer_kinds[0].attention().window = 128;
  config.layer_kinds[1].name = "full";
  for (size_t n = 1; n < config.layers.size(); n += 2) config.layers[n] = 1;
}

// DeepSeek-V2-Lite: latent attention whose queries are of the input, 6 of 64 experts beside two
// that all use, but in the first layer.
void make_deepseek_v2_lite(ModelConfig& config) {
  constexpr int64_t kExpertSize = 1408;
  LayerConfig& dense = config.layer_kinds[0];
  LatentAttentionConfig attention{.n_heads = dense.attention().n_heads,
                                  .kv_rank = 512,
                                  .rope_dim = dense.attention().head_dim,
                                  .nope_dim = 128,
                                  .value_head_dim = 128,
                                  .latent_norm = dense.mixer_norms.before,
                                  .rope = 0};
  attention.scale = 1 / std::sqrt(static_cast<float>(attention.q_head_dim()));
  dense.mixers = {attention};
  LayerConfig sparse = dense;
  dense.name = "dense";
  sparse.name = "sparse";
  FeedForwardConfig each = sparse.ffn;
  each.size = kExpertSize;
  FeedForwardConfig shared = each;
  shared.size = 2 * kExpertSize;
  sparse.experts = {.count = 64, .router = {.used = 6}, .each = each, .shared = shared};
  sparse.ffn = {};
  config.layer_kinds.push_back(std::move(sparse));
  for (size_t n = 1; n < config.layers.size(); ++n) config.layers[n] = 1;
}

// Three of four layers are gated delta nets, the others attention with a gate.
void make_qwen3_5(ModelConfig& config) {
  LayerConfig& attention = config.layer_kinds[0];
  attention.name = "attention";
  attention.attention().qk_norm = QkNorm::head;
  attention.attention().qk_norm_as = attention.mixer_norms.before;
  attention.attention().output_gate = true;
  constexpr int64_t kRotated = 64;  // elements of a head
  config.ropes[0].frequencies = plain_frequencies(1e7, kRotated);
  LayerConfig delta_net = attention;
  delta_net.name = "delta net";
  delta_net.mixers = {DeltaNetConfig{.n_key_heads = 16,
                                     .n_value_heads = 32,
                                     .key_head_dim = 128,
                                     .value_head_dim = 128,
                                     .convolution = {.taps = 4, .activation = Activation::silu},
                                     .norm = attention.mixer_norms.before}};
  config.layer_kinds.push_back(std::move(delta_net));
  for (size_t n = 0; n < config.layers.size(); ++n) config.layers[n] = (n + 1) % 4 != 0 ? 1 : 0;
}

// With 8 of 256 experts and one that all tokens use.
void make_qwen3_5_moe(ModelConfig& config) {
  make_qwen3_5(config);
  for (LayerConfig& layer : config.layer_kinds) {
    layer.experts = {.count = 256,
                     .router = {.used = 8, .normalized = true},
                     .each = layer.ffn,
                     .shared = layer.ffn,
                     .shared_gate = true};
    layer.ffn = {};
  }
}

// LFM2-2.6B: short convolutions, and eight layers of attention.
void make_lfm2(ModelConfig& config) {
  LayerConfig& attention = config.layer_kinds[0];
  attention.name = "attention";
  attention.attention().qk_norm = QkNorm::head;
  attention.attention().qk_norm_as = attention.mixer_norms.before;
  LayerConfig convolution = attention;
  convolution.name = "convolution";
  convolution.mixers = {ShortConvolutionConfig{.convolution = {.taps = 3}}};
  config.layer_kinds.push_back(std::move(convolution));
  constexpr std::array<size_t, 8> kAttention{2, 5, 9, 13, 17, 21, 24, 27};
  config.layers.assign(config.layers.size(), 1);
  for (const size_t n : kAttention) config.layers[n] = 0;
}

constexpr std::array kShapes{
    Shape{"llama-2-7b", {32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e-5F, 1e4}},
    Shape{"llama-2-13b", {40, 5120, 40, 40, 128, 13824, 32000, 4096, 1e-5F, 1e4}},
    Shape{"llama-3-8b", {32, 4096, 32, 8, 128, 14336, 128256, 8192, 1e-5F, 5e5}},
    Shape{"llama-3-70b", {80, 8192, 64, 8, 128, 28672, 128256, 8192, 1e-5F, 5e5}},
    Shape{"llama-3.2-1b", {16, 2048, 32, 8, 64, 8192, 128256, 8192, 1e-5F, 5e5}},
    Shape{"llama-3.2-3b", {28, 3072, 24, 8, 128, 8192, 128256, 8192, 1e-5F, 5e5}},
    Shape{"llama-1.1b", {16, 2048, 32, 8, 64, 8192, 32000, 4096, 1e-5F, 1e4}},
    Shape{"qwen3-30b-a3b", {48, 2048, 32, 4, 128, 768, 151936, 40960, 1e-6F, 1e6}, make_qwen3_moe},
    Shape{"qwen3.5-9b", {32, 4096, 16, 4, 256, 12288, 248320, 32768, 1e-6F, 1e7}, make_qwen3_5},
    Shape{"qwen3.5-35b-a3b",
          {40, 2048, 16, 2, 256, 512, 248320, 32768, 1e-6F, 1e7},
          make_qwen3_5_moe},
    Shape{"lfm2-2.6b", {30, 2048, 32, 8, 64, 10752, 65536, 128000, 1e-5F, 1e6}, make_lfm2},
    Shape{"gpt-oss-20b", {24, 2880, 64, 8, 64, 2880, 201088, 131072, 1e-5F, 1.5e5}, make_gpt_oss},
    Shape{"gemma-4-26b-a4b",
          {30, 2816, 16, 8, 256, 2112, 262144, 262144, 1e-6F, 1e4},
          make_gemma4_26b_a4b},
    Shape{"gemma-4-e4b", {42, 2560, 8, 2, 256, 10240, 262144, 131072, 1e-6F, 1e4}, make_gemma4_e4b},
    Shape{"deepseek-v2-lite",
          {27, 2048, 16, 16, 64, 10944, 102400, 163840, 1e-6F, 1e4},
          make_deepseek_v2_lite},
    Shape{"llama-tiny", {2, 64, 4, 2, 16, 128, 256, 512, 1e-5F, 1e4}},
};

// Independent streams from any two seeds.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint64_t next() { return split_mix(seed_, ++n_); }
  /// The same stream without its next `count` numbers.
  [[nodiscard]] Random after(uint64_t count) const {
    Random later = *this;
    later.n_ += count;
    return later;
  }
  /// Uniform in [-1, 1).
  float uniform() {
    return static_cast<float>(static_cast<int64_t>(next() >> 40) - (1 << 23)) * 0x1p-23F;
  }

 private:
  uint64_t seed_;
  uint64_t n_ = 0;
};

void fill_bytes(std::span<std::byte> out, Random random) {
  for (size_t i = 0; i + 8 <= out.size(); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(out.data() + i, &word, 8);
  }
  for (size_t i = out.size() / 8 * 8; i < out.size(); ++i) {
    out[i] = static_cast<std::byte>(random.next());
  }
  for (std::byte& value : out) {
    if (value == std::byte{0x80}) value = std::byte{0x81};  // INT8 is symmetric: no -128
  }
}

constexpr std::byte kE4m3Nan{0x7f};

// Of any group: so that its values reach about `span`.
std::array<std::byte, 4> description_of(WeightFormat format, float span) {
  const std::span<const float> codes = code_values(format);
  float largest = 0;
  for (const float value : codes) largest = std::isnan(value) ? largest : std::max(largest, value);
  if (format == WeightFormat::mxfp4) {
    constexpr int kBias = 127;
    return {static_cast<std::byte>(kBias + std::ilogb(span / largest))};
  }
  auto word = std::bit_cast<uint32_t>(span / largest);
  if (packed_layout(format).element_bits == 4 && format != WeightFormat::nf4) {
    word = std::bit_cast<uint32_t>(2 * span / largest) >> 16 << 16 | 8U;
  }
  return std::bit_cast<std::array<std::byte, 4>>(word);
}

void fill_floats(std::span<std::byte> out, DType dtype, float center, float spread, Random random) {
  const size_t count = out.size() / dtype_size(dtype);
  for (size_t i = 0; i < count; ++i) {
    store_float(out.data(), dtype, i, center + spread * random.uniform());
  }
}

// Bytes of a matrix of codes, from byte `offset` on, whose values reach about `span`.
void fill_codes(const TensorPlan& plan, uint64_t offset, float span, std::span<std::byte> out,
                const Random& random) {
  fill_bytes(out, random);
  const WeightFormat format = plan.format;
  const auto row = static_cast<uint64_t>(row_bytes(format, plan.columns()));
  const auto block = static_cast<uint64_t>(packed_block_bytes(format));
  const std::array<std::byte, 4> description = description_of(format, span);
  const auto period = static_cast<uint64_t>(packed_layout(format).group_bytes);
  for (std::byte& value : out) {
    const uint64_t in_block = offset++ % row % block;
    if (in_block < static_cast<uint64_t>(described_bytes(format))) {
      value = description[in_block % period];
    } else if (format == WeightFormat::fp8 && (value & kE4m3Nan) == kE4m3Nan) {
      value = std::byte{};
    }
  }
}

constexpr uint64_t kPiece = uint64_t{1} << 20;  // bytes of a tensor, from a stream of their own
constexpr int64_t kPiecesAtOnce = 64;           // a tenth of a second for a thread
constexpr uint64_t kUnit = 64;                  // bytes that a whole number of draws makes

// Bytes of one piece, from byte `offset` of the tensor on, which is a multiple of kUnit. `span`: of
// the elements of the last matrix, to both sides of 0; of scales, what they are about. `of_piece`:
// its stream.
void fill(const TensorPlan& plan, uint64_t offset, float span, std::span<std::byte> out,
          const Random& of_piece) {
  const bool in_floats = plan.role != TensorRole::matrix || is_float(plan.format);
  const size_t of_draw = in_floats ? dtype_size(plan.stored_as()) : sizeof(uint64_t);
  const Random random = of_piece.after(offset % kPiece / of_draw);
  switch (plan.role) {
    case TensorRole::table:
      return fill_floats(out, plan.stored_as(), 0, 1, random);
    case TensorRole::matrix:
      if (is_coded(plan.format)) return fill_codes(plan, offset, span, out, random);
      if (!is_float(plan.format)) return fill_bytes(out, random);
      return fill_floats(out, plan.stored_as(), 0, span, random);
    case TensorRole::scales:
      return fill_floats(out, plan.stored_as(), span, span / 10, random);
    case TensorRole::norm:
      return fill_floats(out, plan.stored_as(), 1, 0.2F, random);
    case TensorRole::bias:
      return fill_floats(out, plan.stored_as(), 0, 0.1F, random);
  }
}

ModelImage image_of(const ModelConfig& config, const std::vector<TensorPlan>& plans) {
  std::vector<TensorSpec> specs;
  for (const TensorPlan& plan : plans)
    specs.push_back({plan.name, plan.stored_as(), plan.stored_shape()});
  return {{{"model", config_to_json(config)}}, specs};
}

}  // namespace

std::vector<std::string_view> shape_names() {
  std::vector<std::string_view> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

ModelConfig named_shape(std::string_view name, WeightFormat format) {
  std::string known;
  for (const Shape& shape : kShapes) {
    add_name(known, shape.name);
    if (shape.name != name) continue;
    ModelConfig config = plain_decoder(shape.sizes);
    if (shape.adjust != nullptr) shape.adjust(config);
    config.weight_format = format;
    // What most of a model's error would come from keeps eight bits.
    config.output_format = format == WeightFormat::int4 ? WeightFormat::int8 : format;
    config.rotated = is_integer(format);
    config.values_rotated = config.rotated;
    config.embedding_format = is_float(format) ? format : WeightFormat::bf16;
    return config;
  }
  throw UsageError("the shape \"" + std::string(name) + "\" is unknown; known are " + known);
}

RandomModel::RandomModel(const ModelConfig& config, uint64_t seed)
    : seed_(seed), plans_(tensor_plan(config)), image_(image_of(config, plans_)) {
  int64_t in_of_last_matrix = 1;
  for (const TensorPlan& plan : plans_) {
    if (plan.role == TensorRole::matrix) in_of_last_matrix = plan.shape[1];
    // A uniform distribution of variance 1 / in spans sqrt(3 / in) to both sides.
    const float span = std::sqrt(3.0F / static_cast<float>(in_of_last_matrix));
    spans_.push_back(plan.role == TensorRole::scales ? span / 127 : span);
  }
}

void RandomModel::make_part(size_t t, uint64_t offset, std::span<std::byte> out) const {
  const uint64_t tensor_bytes = image_.tensors()[t].bytes;
  std::vector<std::byte> units;
  while (!out.empty()) {
    const uint64_t piece = offset / kPiece;
    const Random random(seed_ ^ (uint64_t{t} << 40) ^ (piece << 20));
    const uint64_t piece_end = std::min((piece + 1) * kPiece, tensor_bytes);
    const auto part = out.first(std::min<uint64_t>(piece_end - offset, out.size()));
    const uint64_t begin = offset / kUnit * kUnit;
    const uint64_t end = std::min((offset + part.size() + kUnit - 1) / kUnit * kUnit, piece_end);
    if (end - begin == part.size()) {
      fill(plans_[t], begin, spans_[t], part, random);
    } else {
      units.resize(end - begin);
      fill(plans_[t], begin, spans_[t], units, random);
      std::ranges::copy(std::span(units).subspan(offset - begin, part.size()), part.begin());
    }
    offset += part.size();
    out = out.subspan(part.size());
  }
}

void RandomModel::make(uint64_t offset, std::span<std::byte> out) const {
  std::ranges::fill(out, std::byte{});  // between tensors
  const uint64_t end = offset + out.size();
  const std::span<const TensorInfo> tensors = image_.tensors();
  for (size_t t = 0; t < tensors.size(); ++t) {
    const uint64_t first = std::max(offset, tensors[t].offset);
    const uint64_t last = std::min(end, tensors[t].offset + tensors[t].bytes);
    if (first >= last) continue;
    make_part(t, first - tensors[t].offset, out.subspan(first - offset, last - first));
  }
}

void RandomModel::make_all(const CheckInterrupted& check_interrupted) {
  ThreadPool pool(available_threads());
  for (size_t t = 0; t < plans_.size(); ++t) {
    const std::span<std::byte> bytes = image_.tensor(plans_[t].name);
    const auto n_pieces = static_cast<int64_t>((bytes.size() - 1) / kPiece + 1);
    for (int64_t done = 0; done < n_pieces; done += kPiecesAtOnce) {
      if (check_interrupted) check_interrupted();
      pool.parallel_for(
          std::min(kPiecesAtOnce, n_pieces - done), 1, [&](int64_t first, int64_t last) {
            const uint64_t begin = static_cast<uint64_t>(done + first) * kPiece;
            const uint64_t end =
                std::min<uint64_t>(static_cast<uint64_t>(done + last) * kPiece, bytes.size());
            make_part(t, begin, bytes.subspan(begin, end - begin));
          });
    }
  }
}

ModelFile RandomModel::file(const std::string& name) const {
  return ModelFile::from_bytes(
      image_.bytes(), name,
      [this](uint64_t offset, std::span<std::byte> out) { make(offset, out); });
}

ModelImage make_random_model(const ModelConfig& config, uint64_t seed) {
  RandomModel model(config, seed);
  model.make_all();
  return std::move(model).image();
}

}  // namespace faststream::bench
