#include "engine/random_model.h"

#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "support/error.h"
#include "support/machine.h"
#include "support/split_mix.h"
#include "support/thread_pool.h"

namespace faststream {
namespace {

struct Shape {
  std::string_view name;
  int64_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn_hidden, vocab, max_context;
  double rope_theta;
};

constexpr std::array kShapes{
    Shape{"llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e4},
    Shape{"llama-2-13b", 40, 5120, 40, 40, 128, 13824, 32000, 4096, 1e4},
    Shape{"llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192, 5e5},
    Shape{"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 8192, 5e5},
    Shape{"llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 8192, 5e5},
    Shape{"llama-1.1b", 16, 2048, 32, 8, 64, 8192, 32000, 4096, 1e4},
    Shape{"llama-tiny", 2, 64, 4, 2, 16, 128, 256, 512, 1e4},
};

// Independent streams from any two seeds.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint64_t next() { return split_mix(seed_, ++n_); }
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

void fill_floats(std::span<std::byte> out, DType dtype, float center, float spread, Random random) {
  const size_t count = out.size() / dtype_size(dtype);
  for (size_t i = 0; i < count; ++i) {
    store_float(out.data(), dtype, i, center + spread * random.uniform());
  }
}

}  // namespace

std::vector<std::string_view> shape_names() {
  std::vector<std::string_view> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

ModelConfig named_shape(std::string_view name, DType dtype) {
  std::string known;
  for (const Shape& shape : kShapes) {
    known += (known.empty() ? "" : ", ") + std::string(shape.name);
    if (shape.name != name) continue;
    ModelConfig config;
    config.n_layers = shape.n_layers;
    config.hidden = shape.hidden;
    config.n_heads = shape.n_heads;
    config.n_kv_heads = shape.n_kv_heads;
    config.head_dim = shape.head_dim;
    config.ffn_hidden = shape.ffn_hidden;
    config.vocab = shape.vocab;
    config.max_context = shape.max_context;
    config.rope.theta = shape.rope_theta;
    config.weights = dtype;
    config.output = dtype;
    config.embedding = dtype == DType::i8 ? DType::bf16 : dtype;
    return config;
  }
  throw UsageError("the shape \"" + std::string(name) + "\" is unknown; known are " + known);
}

ModelImage make_random_model(const ModelConfig& config, uint64_t seed) {
  std::vector<TensorSpec> specs;
  for (TensorPlan& plan : tensor_plan(config)) {
    specs.push_back({std::move(plan.name), plan.dtype, std::move(plan.shape)});
  }
  ModelImage image({{"model", config_to_json(config)}}, specs);

  ThreadPool pool(available_threads());
  int64_t in_of_last_matrix = 1;
  for (size_t t = 0; t < specs.size(); ++t) {
    const TensorSpec& spec = specs[t];
    const std::span<std::byte> bytes = image.tensor(spec.name);
    const bool is_scale = spec.name.ends_with(".scales");
    if (spec.shape.size() == 2) in_of_last_matrix = spec.shape[1];
    // A uniform distribution of variance 1 / in spans sqrt(3 / in) to both sides.
    const float span = std::sqrt(3.0F / static_cast<float>(in_of_last_matrix));
    constexpr int64_t kPiece = 1 << 20;  // bytes, each from a stream of its own
    pool.parallel_for(
        static_cast<int64_t>(bytes.size() - 1) / kPiece + 1, 1, [&](int64_t first, int64_t last) {
          for (int64_t piece = first; piece < last; ++piece) {
            const auto begin = static_cast<size_t>(piece * kPiece);
            const auto part = bytes.subspan(begin, std::min<size_t>(kPiece, bytes.size() - begin));
            const Random random(seed ^ (uint64_t{t} << 40) ^ (static_cast<uint64_t>(piece) << 20));
            if (spec.dtype == DType::i8) {
              fill_bytes(part, random);
            } else if (is_scale) {
              fill_floats(part, spec.dtype, span / 127, span / 1270, random);
            } else if (spec.name.ends_with("_bias")) {
              fill_floats(part, spec.dtype, 0, 0.1F, random);
            } else if (spec.shape.size() == 1) {
              fill_floats(part, spec.dtype, 1, 0.2F, random);
            } else {
              fill_floats(part, spec.dtype, 0, spec.name == "embedding" ? 1 : span, random);
            }
          }
        });
  }
  return image;
}

}  // namespace faststream
