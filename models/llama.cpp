#include "models/llama.h"

#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace faststream::llama {
namespace {

struct Layer {
  const float* attention_norm;
  Weight attention_qkv;
  const float* attention_qkv_bias;  // null without attention_bias
  Weight attention_out;
  const float* attention_out_bias;
  const float* ffn_norm;
  Weight ffn_gate_up;
  Weight ffn_down;
};

// Places of the tensors of tensor_plan() in the backend's memory.
struct Weights {
  Weight embedding;
  std::vector<Layer> layers;
  const float* output_norm;
  Weight output;
};

Weights find_weights(const ModelConfig& config, const WeightLookup& lookup) {
  const auto vector = [&](const std::string& name, int64_t size) {
    return reinterpret_cast<const float*>(lookup({name, DType::f32, {size}}));
  };
  const auto matrix = [&](const std::string& name, DType dtype, int64_t rows, int64_t cols) {
    Weight weight{lookup({name, dtype, {rows, cols}}), dtype, rows, cols, nullptr};
    if (dtype == DType::i8) weight.scales = vector(name + ".scales", rows);
    return weight;
  };

  Weights weights{};
  weights.embedding = matrix("embedding", config.embedding, config.vocab, config.hidden);
  for (int64_t n = 0; n < config.n_layers; ++n) {
    const std::string prefix = "layers." + std::to_string(n) + ".";
    Layer layer{};
    layer.attention_norm = vector(prefix + "attention_norm", config.hidden);
    layer.attention_qkv =
        matrix(prefix + "attention_qkv", config.weights, config.qkv_dim(), config.hidden);
    layer.attention_out =
        matrix(prefix + "attention_out", config.weights, config.hidden, config.q_dim());
    if (config.attention_bias) {
      layer.attention_qkv_bias = vector(prefix + "attention_qkv_bias", config.qkv_dim());
      layer.attention_out_bias = vector(prefix + "attention_out_bias", config.hidden);
    }
    layer.ffn_norm = vector(prefix + "ffn_norm", config.hidden);
    layer.ffn_gate_up =
        matrix(prefix + "ffn_gate_up", config.weights, 2 * config.ffn_hidden, config.hidden);
    layer.ffn_down = matrix(prefix + "ffn_down", config.weights, config.hidden, config.ffn_hidden);
    weights.layers.push_back(layer);
  }
  weights.output_norm = vector("output_norm", config.hidden);
  weights.output = config.tied_output
                       ? weights.embedding
                       : matrix("output", config.output, config.vocab, config.hidden);
  return weights;
}

// What the output matrix is multiplied by: rows of its own type where both have 16 bits, which is
// what the tensor cores take.
DType last_type(DType act, DType output) {
  const bool both_16_bit = dtype_size(act) == 2 && dtype_size(output) == 2;
  return both_16_bit ? output : act;
}

// The matrices between operations, one buffer each, allocated once for the largest batch.
struct Activations {
  Matrix residual;     // [tokens, hidden] f32: the residual stream
  Matrix normed;       // [tokens, hidden]
  Matrix cos_sin;      // [tokens, head_dim] f32: rotations
  Matrix qkv;          // [tokens, qkv_dim]
  Matrix attended;     // [tokens, q_dim]
  Matrix gated;        // [tokens, ffn_hidden]
  Matrix last;         // [logits, hidden] f32: rows of the residual stream whose logits are wanted
  Matrix last_normed;  // [logits, hidden]

  // Calls visit(matrix) for each member once its shape is set.
  template <typename Visit>
  void layout(const ModelConfig& config, DType act, const BatchLimits& limits, Visit visit) {
    const auto shape = [&](Matrix& matrix, DType dtype, int64_t rows, int64_t cols) {
      matrix = Matrix(nullptr, dtype, rows, cols);
      visit(matrix);
    };
    shape(residual, DType::f32, limits.max_tokens, config.hidden);
    shape(normed, act, limits.max_tokens, config.hidden);
    shape(cos_sin, DType::f32, limits.max_tokens, config.head_dim);
    shape(qkv, act, limits.max_tokens, config.qkv_dim());
    shape(attended, act, limits.max_tokens, config.q_dim());
    shape(gated, act, limits.max_tokens, config.ffn_hidden);
    shape(last, DType::f32, limits.max_logits, config.hidden);
    shape(last_normed, last_type(act, config.output), limits.max_logits, config.hidden);
  }
};

size_t matrix_bytes(const Matrix& matrix) {
  return static_cast<size_t>(matrix.rows * matrix.cols) * dtype_size(matrix.dtype);
}

class LlamaModel : public Model {
 public:
  LlamaModel(const ModelConfig& config, const WeightLookup& lookup, Backend& backend,
             const BatchLimits& limits)
      : config_(config), backend_(backend), weights_(find_weights(config, lookup)) {
    const DType act = backend.activation_dtype(config.weights);
    activations_.layout(config, act, limits, [&](Matrix& matrix) {
      buffers_.push_back(backend.allocate(matrix_bytes(matrix)));
      matrix.data = buffers_.back().get();
    });
    const std::vector<float> frequencies = rope_inv_freq(config.rope, config.head_dim);
    inv_freq_ = backend.allocate(frequencies.size() * sizeof(float));
    backend.copy_to_device(inv_freq_.get(), frequencies.data(), frequencies.size() * sizeof(float));
  }

  void forward(const BatchView& batch, std::span<const KvLayer> kv, const Matrix& logits) override {
    const Matrix residual = activations_.residual.first_rows(batch.n_tokens);
    const Matrix normed = activations_.normed.first_rows(batch.n_tokens);
    const Matrix cos_sin = activations_.cos_sin.first_rows(batch.n_tokens);
    const Matrix qkv = activations_.qkv.first_rows(batch.n_tokens);
    const Matrix queries = qkv.columns(0, config_.q_dim());
    const Matrix attended = activations_.attended.first_rows(batch.n_tokens);
    const Matrix gated = activations_.gated.first_rows(batch.n_tokens);
    const float scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
    const float eps = config_.norm_eps;

    backend_.embed(batch, weights_.embedding, residual);
    backend_.rope_table(batch, reinterpret_cast<const float*>(inv_freq_.get()), cos_sin);
    for (size_t n = 0; n < weights_.layers.size(); ++n) {
      const Layer& layer = weights_.layers[n];

      backend_.rms_norm(residual, layer.attention_norm, eps, normed);
      backend_.linear(normed, layer.attention_qkv, layer.attention_qkv_bias, LinearOutput::store,
                      qkv);
      backend_.rope_append(batch, cos_sin, qkv, kv[n]);
      backend_.attention(batch, queries, kv[n], scale, attended);
      backend_.linear(attended, layer.attention_out, layer.attention_out_bias, LinearOutput::add,
                      residual);

      backend_.rms_norm(residual, layer.ffn_norm, eps, normed);
      backend_.gated_linear(normed, layer.ffn_gate_up, Activation::silu, gated);
      backend_.linear(gated, layer.ffn_down, nullptr, LinearOutput::add, residual);
    }
    if (batch.n_logits == 0) return;

    const Matrix last = activations_.last.first_rows(batch.n_logits);
    const Matrix last_normed = activations_.last_normed.first_rows(batch.n_logits);
    backend_.gather_rows(batch, residual, last);
    backend_.rms_norm(last, weights_.output_norm, eps, last_normed);
    backend_.linear(last_normed, weights_.output, nullptr, LinearOutput::store, logits);
  }

 private:
  ModelConfig config_;
  Backend& backend_;
  Weights weights_;
  Activations activations_;
  std::vector<Buffer> buffers_;
  Buffer inv_freq_;
};

}  // namespace

std::unique_ptr<Model> make_model(const ModelConfig& config, const WeightLookup& weights,
                                  Backend& backend, const BatchLimits& limits) {
  return std::make_unique<LlamaModel>(config, weights, backend, limits);
}

std::vector<ProductBound> products(const ModelConfig& config, const BatchLimits& limits) {
  const int64_t tokens = limits.max_tokens;
  const bool bias = config.attention_bias;
  return {{tokens, config.hidden, config.qkv_dim(), config.weights, false, bias},
          {tokens, config.q_dim(), config.hidden, config.weights, false, bias},
          {tokens, config.hidden, 2 * config.ffn_hidden, config.weights, true, false},
          {tokens, config.ffn_hidden, config.hidden, config.weights, false, false},
          {limits.max_logits, config.hidden, config.vocab, config.output, false, false}};
}

size_t activation_bytes(const ModelConfig& config, DType activations, const BatchLimits& limits) {
  size_t total = 0;
  Activations{}.layout(config, activations, limits,
                       [&](const Matrix& matrix) { total += matrix_bytes(matrix); });
  return total;
}

}  // namespace faststream::llama
