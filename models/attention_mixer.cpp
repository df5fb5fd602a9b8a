// Attention over keys and values that the layer keeps of each token (arXiv:1706.03762), and cross
// attention over those of a source.
#include <array>

#include "models/mixers.h"

namespace faststream {
namespace {

// Products of each token's queries and keys with what positions relative to them have.
RelativeScores relative_scores(const Pass& pass, const AttentionWeights& attention,
                               const Matrix& qkv) {
  const AttentionConfig& config = attention.config;
  RelativeScores scores = attention.relative;
  const auto products = [&](const Linear& vectors, const Matrix& heads, const Matrix& memory) {
    const Matrix out = pass.rows_in(memory, vectors.weight.rows);
    pass.backend.head_linear(heads, vectors.weight, config.n_heads, out);
    return out;
  };
  if (attention.relative_keys) {
    scores.of_queries = products(attention.relative_keys, qkv.columns(0, config.q_dim()),
                                 pass.memory.relative_to_queries);
  }
  if (attention.relative_queries) {
    scores.of_keys =
        products(attention.relative_queries, qkv.columns(config.q_dim(), config.k_dim()),
                 pass.memory.relative_to_keys);
  }
  return scores;
}

}  // namespace

void complete(AttentionWeights& attention, Backend& backend, Tables& tables) {
  const AttentionConfig& config = attention.config;
  if (!config.slopes.empty()) attention.rule.slopes = tables.add(config.slopes);
  if (config.v_norm) {
    attention.heads.v_weight =
        tables.add(std::vector<float>(static_cast<size_t>(config.v_dim()), 1.0F));
  }
  if (config.relative_scores) {
    attention.relative.vectors = tables.add(row_by_distance(config.relative_scores));
    attention.relative.reach = static_cast<int32_t>(config.relative_scores.reach());
  }
  if (!config.relative_bias) return;
  std::vector<float> of_buckets(static_cast<size_t>(config.relative_bias.buckets * config.n_heads));
  backend.copy_to_host(of_buckets.data(), attention.distances, of_buckets.size() * sizeof(float));
  attention.rule.bias = tables.add(bias_by_distance(config.relative_bias, of_buckets));
  attention.rule.bias_reach = static_cast<int32_t>(config.relative_bias.max_distance);
}

LastProduct mix(const Pass& pass, const AttentionWeights& attention, Input& input) {
  const AttentionConfig& config = attention.config;
  const KvLayer& kv = pass.layers.kv[attention.kv_layer];
  const Matrix projected = pass.rows_in(pass.memory.qkv, config.in_dim());
  const Matrix qkv = projected.columns(0, config.qkv_dim());
  const Matrix sums = pass.rows_in(pass.memory.attended, config.sums_dim());

  multiply(pass, input, attention.qkv, projected);
  if (config.qk_norm == QkNorm::whole) {
    const std::array<SharedNorm, 2> norms = {
        {{qkv.columns(0, config.q_dim()), attention.q_norm, config.q_norm_share},
         {qkv.columns(config.q_dim(), config.k_dim()), attention.k_norm, config.k_norm_share}}};
    renormalize(pass.backend, norms);
  }
  AttentionRule rule = attention.rule;
  RelativeScores relative;
  if (config.relative_scores) {
    relative = relative_scores(pass, attention, qkv);
    rule.relative = &relative;
  }
  pass.backend.attention(view_of_group(pass.batch, kv.group), qkv, rotations(pass, config.rope),
                         attention.heads, kv, rule, sums);
  if (config.output_gate) {
    const Matrix gates = projected.columns(config.qkv_dim(), config.gates_dim());
    pass.backend.scale(gates, config.gate, sums);
  }
  const SharedNorm norm{sums, attention.sums_norm, config.sums_norm_share};
  renormalize(pass.backend, {&norm, 1});
  return {pass, {.x = sums}, attention.out};
}

LastProduct attend_to_source(const Pass& pass, const CrossAttentionWeights& cross, Input& input) {
  const Matrix queries = pass.rows_in(pass.memory.qkv, cross.q.weight.rows);
  const Matrix sums = pass.rows_in(pass.memory.attended, cross.out.weight.cols);

  multiply(pass, input, cross.q, queries);
  pass.backend.attention(view_of_sources(pass.batch), queries,
                         {nullptr, DType::f32, queries.rows, 0}, {}, pass.layers.kv[cross.kv_layer],
                         cross.rule, sums);
  return {pass, {.x = sums}, cross.out};
}

void read_source(const Pass& pass, const CrossAttentionWeights& cross, Input& encoded) {
  const Matrix kv_rows = pass.rows_in(pass.memory.qkv, cross.kv.weight.rows);
  multiply(pass, encoded, cross.kv, kv_rows);
  pass.backend.append(pass.batch, kv_rows, pass.layers.kv[cross.kv_layer]);
}

}  // namespace faststream
