// Multi-head latent attention (arXiv:2405.04434), its products absorbed: a head's queries are taken
// to the latents that are kept, k's product with these being that of its transpose with the query,
// and v is multiplied with sums of latents rather than with each of them.
#include "models/mixers.h"

namespace faststream {

LastProduct mix(const Pass& pass, const LatentAttentionWeights& attention, Input& input) {
  const LatentAttentionConfig& config = attention.config;
  const KvLayer& layer = pass.layers.kv[attention.kv_layer];
  Backend& backend = pass.backend;
  const int64_t latent_q_dim = config.latent_q_dim();
  const Matrix queries = pass.rows_in(pass.memory.heads, config.q_dim());
  const Matrix qkv = pass.rows_in(pass.memory.qkv, latent_q_dim + config.kept_dim());
  const Matrix kept = qkv.columns(latent_q_dim, config.kept_dim());
  const Matrix latent_sums = pass.rows_in(pass.memory.attended, config.n_heads * config.kv_rank);
  const Matrix sums = pass.rows_in(pass.memory.heads, config.sums_dim());

  backend.linear(input, attention.kv.weight, {.bias = attention.kv.bias}, kept);
  renormalize(backend, attention.kv_norm, kept.columns(config.rope_dim, config.kv_rank));
  if (attention.q_down) {
    const Matrix latents = pass.rows_in(pass.memory.latents, config.q_rank);
    backend.linear(input, attention.q_down.weight, {.bias = attention.q_down.bias}, latents);
    renormalize(backend, attention.q_norm, latents);
    input = {.x = latents};
  }
  backend.linear(input, attention.q.weight, {}, queries);
  backend.head_linear(queries, attention.k, config.n_heads, qkv.columns(0, latent_q_dim));
  backend.attention(view_of_group(pass.batch, layer.group), qkv, rotations(pass, config.rope), {},
                    layer, attention.rule, latent_sums);
  backend.head_linear(latent_sums, attention.v, config.n_heads, sums);
  return {backend, {.x = sums}, attention.out};
}

}  // namespace faststream
