// Multi-head latent attention (arXiv:2405.04434): queries, and what is kept of a token, are made
// through latents.
#include "models/mixers.h"

namespace faststream {

LastProduct mix(const Pass& pass, const LatentAttentionWeights& attention, Input& input) {
  const LatentAttentionConfig& config = attention.config;
  const KvLayer& layer = pass.layers.kv[attention.kv_layer];
  Backend& backend = pass.backend;
  const int64_t latent_q_dim = config.latent_q_dim();
  const Matrix heads = pass.rows_in(pass.memory.heads, config.q_dim() + config.sums_dim());
  const Matrix queries = heads.columns(0, config.q_dim());
  const Matrix sums = heads.columns(config.q_dim(), config.sums_dim());
  const Matrix latent_qkv = pass.rows_in(pass.memory.qkv, latent_q_dim + config.kept_dim());
  const Matrix kept = latent_qkv.columns(latent_q_dim, config.kept_dim());
  const Matrix latent_sums = pass.rows_in(pass.memory.attended, config.n_heads * config.kv_rank);

  Matrix gates;
  if (attention.gate) {
    gates = pass.rows_in(pass.memory.steps, config.n_heads);
    multiply(pass, input, attention.gate, gates);
  }
  multiply(pass, input, attention.kv, kept);
  renormalize(backend, attention.kv_norm, kept.columns(config.rope_dim, config.kv_rank));
  if (attention.q_down) {
    const Matrix latents = pass.rows_in(pass.memory.latents, config.q_rank);
    multiply(pass, input, attention.q_down, latents);
    renormalize(backend, attention.q_norm, latents);
    input = {.x = latents};
  }
  multiply(pass, input, attention.q, queries);
  backend.latent_attention(view_of_group(pass.batch, layer.group), queries,
                           rotations(pass, config.rope), attention.heads, layer, attention.rule,
                           latent_qkv, latent_sums, sums);
  if (attention.gate) backend.scale(gates, Activation::sigmoid, sums);
  return {pass, {.x = sums}, attention.out};
}

}  // namespace faststream
