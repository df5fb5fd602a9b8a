#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

// What dynamic scaling makes of the frequencies for texts of `length` tokens.
std::span<const float> scaled_frequencies(const Rope& rope, int32_t length, std::span<float> out) {
  const double s = rope.dynamic_factor * length / rope.original - (rope.dynamic_factor - 1);
  const double step = std::log(s) / (static_cast<double>(out.size()) - 1);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(rope.frequencies[i] * std::exp(-static_cast<double>(i) * step));
  }
  return out;
}

// What queries at a position are multiplied by.
float query_factor(const HeadTransform& transform, int64_t position) {
  const int64_t ahead = position + transform.query_scaling_ahead;
  if (transform.query_power) {
    const float lengths =
        static_cast<float>(ahead) / static_cast<float>(transform.query_scaling_from);
    return std::pow(1 + lengths, transform.query_scaling);
  }
  const int64_t lengths = ahead / transform.query_scaling_from;
  return 1 + transform.query_scaling * std::log(1 + static_cast<float>(lengths));
}

}  // namespace

void CpuBackend::rope_table(const BatchView& batch, const Rope& rope, const Matrix& cos_sin) {
  require_f32(cos_sin, batch.n_tokens, cos_sin.cols,
              "rope_table: cos_sin must be [tokens, dim] f32");
  const auto n_pairs = static_cast<size_t>(cos_sin.cols / 2);
  pool_.parallel_for(batch.n_tokens, 16, [&](int64_t first, int64_t last) {
    std::vector<float> scaled(rope.dynamic_factor > 0 ? n_pairs : 0);
    for (int64_t t = first; t < last; ++t) {
      std::span<const float> frequencies(rope.frequencies, n_pairs);
      const int32_t length = rope_length(batch, t);
      if (rope.original > 0 && length > rope.original) {
        frequencies = rope.long_frequencies != nullptr ? std::span(rope.long_frequencies, n_pairs)
                                                       : scaled_frequencies(rope, length, scaled);
      }
      float* row = static_cast<float*>(cos_sin.data) + t * cos_sin.stride;
      for (size_t i = 0; i < n_pairs; ++i) {
        const double angle = static_cast<float>(batch.positions[t]) * frequencies[i];
        row[2 * i] = static_cast<float>(rope.factor * std::cos(angle));
        row[2 * i + 1] = static_cast<float>(rope.factor * std::sin(angle));
      }
    }
  });
}

void CpuBackend::rope_append(const BatchView& batch, const Matrix& qkv, int64_t n_heads,
                             const Matrix& cos_sin, const HeadTransform& transform,
                             const KvLayer& kv) {
  const int64_t dim = kv.head_dim;
  const int64_t v_dim = kv.v_head_dim;
  const int64_t q_dim = n_heads * dim;
  const int64_t kv_heads = qkv.cols == q_dim ? 0 : kv.n_kv_heads;
  const int64_t rotated = cos_sin.cols;
  require_f32(cos_sin, batch.n_tokens, rotated, "attention: cos_sin must be [tokens, d] f32");
  require(rotated % 2 == 0 && rotated <= dim, "attention: d must be even and at most head_dim");
  require_f32(qkv, batch.n_tokens, qkv.cols, "attention: qkv must be f32 with a row a token");
  require(kv_heads == 0 || qkv.cols == q_dim + kv.k_dim() + kv.v_dim(),
          "attention: qkv must be as many query heads as out has, alone or with keys and values");
  const FloatType type = float_type(kv.dtype);
  const Kernels::Normalize normalize = normalizer(transform.norm);

  pool_.parallel_for(
      batch.n_tokens, 8, batch.n_tokens, [&](int thread, int64_t first, int64_t last) {
        auto* cosines = thread_scratch_[static_cast<size_t>(thread)].get<float>(rotated);
        float* sines = cosines + rotated / 2;
        const auto normalize_heads = [&](float* heads, int64_t n, int64_t size,
                                         const float* weights, const float* biases) {
          NormTask head;
          head.eps = transform.eps;
          head.n = size;
          for (int64_t at = 0; at < n * size; at += size) {
            head.x = head.out = heads + at;
            head.weight = weights + at;
            if (biases != nullptr) head.bias = biases + at;
            normalize(head);
          }
        };
        for (int64_t t = first; t < last; ++t) {
          const int64_t position = batch.positions[t];
          float* queries = static_cast<float*>(qkv.data) + t * qkv.stride;
          float* keys = queries + q_dim;
          float* values = keys + kv.k_dim();
          const auto normalize_queries_and_keys = [&] {
            if (transform.norm == NormKind::none) return;
            normalize_heads(queries, n_heads, dim, transform.q_weight, transform.q_bias);
            normalize_heads(keys, kv_heads, dim, transform.k_weight, transform.k_bias);
          };
          if (!transform.norm_after_rotation) normalize_queries_and_keys();
          if (transform.v_weight != nullptr) {
            normalize_heads(values, kv_heads, v_dim, transform.v_weight, nullptr);
          }
          const float* rotation = static_cast<const float*>(cos_sin.data) + t * cos_sin.stride;
          for (int64_t i = 0; i < rotated / 2; ++i) {
            cosines[i] = rotation[2 * i];
            sines[i] = rotation[2 * i + 1];
          }
          kernels_.rotate(queries, cosines, sines, n_heads + kv_heads, dim, rotated);
          if (transform.norm_after_rotation) normalize_queries_and_keys();
          if (transform.query_scaling != 0) {
            const float factor = query_factor(transform, position);
            for (int64_t i = 0; i < q_dim; ++i) queries[i] *= factor;
          }
          if (kv.is_coded()) {
            for (int64_t h = 0; h < n_heads + kv_heads; ++h) {
              kernels_.hadamard(queries + h * dim, dim, queries + h * dim);
            }
          }
          if (kv_heads == 0) continue;

          const int64_t s = batch.sequence_of[t];
          const int64_t page = batch.page_table[s * batch.max_pages + position / kPageTokens];
          // `elements` to this token's row of a head's part of a page.
          const auto keep = [&](const float* elements, int64_t n, void* pages, int64_t head_bytes,
                                int64_t h) {
            std::byte* of_head =
                static_cast<std::byte*>(pages) + (page * kv_heads + h) * head_bytes;
            const int64_t row = position % kPageTokens;
            if (!kv.is_coded()) {
              const auto row_bytes = n * static_cast<int64_t>(dtype_size(kv.dtype));
              return kernels_.narrow(elements, type, n, of_head + row * row_bytes);
            }
            const KvScale scale = encode_kv(kv.format, {elements, static_cast<size_t>(n)},
                                            reinterpret_cast<uint8_t*>(of_head + row * n));
            reinterpret_cast<KvScale*>(of_head + kPageTokens * n)[row] = scale;
          };
          for (int64_t h = 0; h < kv_heads; ++h) {
            keep(keys + h * dim, dim, kv.k, kv.k_head_bytes(), h);
            if (kv.values_in_keys) continue;
            keep(values + h * v_dim, v_dim, kv.v, kv.v_head_bytes(), h);
          }
        }
      });
}

void CpuBackend::append(const BatchView& batch, const Matrix& kv_rows, const KvLayer& kv) {
  rope_append(batch, kv_rows, 0, {nullptr, DType::f32, batch.n_tokens, 0}, {}, kv);
}

}  // namespace faststream
