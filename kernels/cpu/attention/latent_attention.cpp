// Latent attention: over the latents themselves, or over the keys and values that heads make of
// them, which have a third of the elements; of each sequence what takes fewer operations.
// DeepSeek-V2-Lite's 16 heads have 2 · 16 · 1,088 for each query and latent, or 2 · 16 · 320, and
// 2 · 16 · 256 · 512 for each latent that is made keys and values of.
//
// Neither way rounds more than the cache does: queries are multiplied as floats, and latents, which
// the cache has rounded, exactly.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

// Of keys and values of a sequence, for as many heads at a time as fit.
constexpr int64_t kMostPlainBytes = int64_t{128} << 20;

/// The dimensions of a layer's heads.
struct LatentDims {
  int64_t heads;
  int64_t rope;
  int64_t nope;
  int64_t value;
  int64_t rank;

  [[nodiscard]] int64_t key() const { return rope + nope; }
  [[nodiscard]] int64_t kept() const { return rope + rank; }
  /// Floats of a position that all heads, and that each head needs.
  [[nodiscard]] int64_t shared_floats(int64_t positions) const { return positions * kept(); }
  [[nodiscard]] int64_t floats_of_head(int64_t positions) const {
    return positions * (key() + nope + value) + nope * rank;
  }
  /// Heads whose keys and values fit beside each other; 0: none.
  [[nodiscard]] int64_t heads_at_once(int64_t positions) const {
    const int64_t left =
        kMostPlainBytes / static_cast<int64_t>(sizeof(float)) - shared_floats(positions);
    return std::clamp<int64_t>(left / floats_of_head(positions), 0, heads);
  }
};

/// Positions in whole pages.
int64_t padded_positions(int64_t count) { return int64_t{pages_for(count)} * kPageTokens; }

/// Whether keys and values take fewer operations than latents for `tokens` new ones of `cached`.
bool is_plain(const LatentDims& dims, int64_t tokens, int64_t cached) {
  if (dims.heads_at_once(padded_positions(cached)) == 0) return false;
  const auto pairs =
      static_cast<double>(tokens) * (static_cast<double>(cached) - static_cast<double>(tokens) / 2);
  const auto of_pair_less = static_cast<double>(dims.kept() + dims.rank - dims.key() - dims.value);
  const auto of_latent = static_cast<double>((dims.nope + dims.value) * dims.rank);
  return pairs * of_pair_less > static_cast<double>(cached - tokens) * of_latent;
}

}  // namespace

int64_t plain_bytes(const LatentBound& latent, int64_t context) {
  // The parts of rope, nope and value are not told apart: of keys twice what they may have.
  const int64_t floats =
      padded_positions(context) * (latent.kept_dim + 2 * latent.n_heads * latent.head_dim) +
      latent.n_heads * latent.head_dim * latent.kept_dim;
  return std::min(floats * static_cast<int64_t>(sizeof(float)), kMostPlainBytes);
}

void CpuBackend::latent_attention(const BatchView& batch, const Matrix& queries,
                                  const Matrix& cos_sin, const LatentHeads& heads,
                                  const KvLayer& kv, const AttentionRule& rule,
                                  const Matrix& latent_qkv, const Matrix& latent_sums,
                                  const Matrix& out) {
  const int64_t n = heads.n_heads;
  const int64_t q_dim = n * kv.head_dim;
  const LatentDims dims{n, heads.rope_dim, heads.keys.cols, out.cols / n, kv.v_head_dim};
  require(queries.cols == n * dims.key() && latent_qkv.cols == q_dim + kv.head_dim,
          "latent_attention: heads do not fit the layer");
  KvLayer of_queries = kv;
  of_queries.head_dim = static_cast<int32_t>(dims.key());
  rope_append(batch, queries, n, cos_sin, {}, of_queries);
  rope_append(batch, latent_qkv.columns(q_dim, kv.head_dim), 0, cos_sin, {}, kv);

  const Matrix latent_q = latent_qkv.columns(0, q_dim);
  const auto plain = [&](int32_t s) {
    return is_plain(dims, batch.query_start[s + 1] - batch.query_start[s], batch.kv_len[s]);
  };
  int32_t next = 0;
  for (int32_t s = 0; s < batch.n_sequences; s = next) {
    next = s + 1;
    if (plain(s)) {
      attend_plainly(batch, s, queries, heads, kv, rule, out);
      continue;
    }
    while (next < batch.n_sequences && !plain(next)) ++next;
    const int64_t row = batch.query_start[s];
    const int64_t rows = batch.query_start[next] - row;
    multiply_heads(queries.row_range(row, rows), heads.keys, n, true,
                   latent_q.row_range(row, rows));
    attend(batch, s, next, latent_q, kv, rule, false, latent_sums);
    multiply_heads(latent_sums.row_range(row, rows), heads.values, n, true,
                   out.row_range(row, rows));
  }
}

void CpuBackend::attend_plainly(const BatchView& batch, int32_t sequence, const Matrix& queries,
                                const LatentHeads& heads, const KvLayer& kv,
                                const AttentionRule& rule, const Matrix& out) {
  const LatentDims dims{heads.n_heads, heads.rope_dim, heads.keys.cols, out.cols / heads.n_heads,
                        kv.v_head_dim};
  const int64_t cached = batch.kv_len[sequence];
  const int64_t positions = padded_positions(cached);
  const int64_t groups =
      (dims.heads + dims.heads_at_once(positions) - 1) / dims.heads_at_once(positions);
  const int64_t most = (dims.heads + groups - 1) / groups;  // heads of a group
  float* latents = latent_scratch_.get<float>(dims.shared_floats(positions) +
                                              most * dims.floats_of_head(positions));
  float* ropes = latents + positions * dims.rank;
  float* keys = ropes + positions * dims.rope;              // [most][positions, key]
  float* parts = keys + most * positions * dims.key();      // [positions, most · nope]
  float* values = parts + most * positions * dims.nope;     // [positions, most · value]
  float* weights = values + most * positions * dims.value;  // [most · nope, rank]

  const int32_t* pages = batch.page_table + int64_t{sequence} * batch.max_pages;
  const FloatType type = float_type(kv.dtype);
  const auto element = static_cast<int64_t>(dtype_size(kv.dtype));
  pool_.parallel_for(cached, kPageTokens, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const int64_t row = int64_t{pages[p / kPageTokens]} * kPageTokens + p % kPageTokens;
      const auto* kept = static_cast<const std::byte*>(kv.k) + row * dims.kept() * element;
      kernels_.widen(kept, type, dims.rope, ropes + p * dims.rope);
      kernels_.widen(kept + dims.rope * element, type, dims.rank, latents + p * dims.rank);
    }
  });
  std::vector<int32_t> own_pages(static_cast<size_t>(positions / kPageTokens));
  std::iota(own_pages.begin(), own_pages.end(), 0);
  const int64_t row = batch.query_start[sequence];
  const int64_t tokens = batch.query_start[sequence + 1] - row;

  for (int64_t head = 0; head < dims.heads; head += most) {
    const int64_t n = std::min(most, dims.heads - head);
    // Keys' weights are stored transposed.
    constexpr int64_t kRows = 16;
    const int64_t strips = (dims.rank + kRows - 1) / kRows;
    pool_.parallel_for(n * strips, 1, n * strips, [&](int thread, int64_t first, int64_t last) {
      auto* rows = thread_scratch_[static_cast<size_t>(thread)].get<float>(kRows * dims.nope);
      for (int64_t i = first; i < last; ++i) {
        const int64_t r = i % strips * kRows;
        const int64_t count = std::min(kRows, dims.rank - r);
        for (int64_t c = 0; c < count; ++c) {
          heads.keys.decode((head + i / strips) * dims.rank + r + c, 0,
                            {rows + c * dims.nope, static_cast<size_t>(dims.nope)});
        }
        float* to = weights + i / strips * dims.nope * dims.rank + r;
        for (int64_t d = 0; d < dims.nope; ++d, to += dims.rank) {
          for (int64_t c = 0; c < count; ++c) to[c] = rows[c * dims.nope + d];
        }
      }
    });
    const Matrix from(latents, DType::f32, cached, dims.rank);
    Weight of_keys;
    of_keys.data = weights;
    of_keys.rows = n * dims.nope;
    of_keys.cols = dims.rank;
    multiply({linear_product(from, of_keys, {}, {parts, DType::f32, cached, n * dims.nope})});
    Weight of_values = heads.values.row_range(head * dims.value, n * dims.value);
    of_values.input_bits = 16;
    multiply({linear_product(from, of_values, {}, {values, DType::f32, cached, n * dims.value})});
    pool_.parallel_for(cached, kPageTokens, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        for (int64_t h = 0; h < n; ++h) {
          float* key = keys + (h * positions + p) * dims.key();
          std::copy_n(ropes + p * dims.rope, dims.rope, key);
          std::copy_n(parts + (p * n + h) * dims.nope, dims.nope, key + dims.rope);
        }
      }
    });

    attention_tasks_.clear();
    for (int64_t end = tokens; end > 0; end -= std::min<int64_t>(kMaxAttentionRows, end)) {
      const int64_t first = end - std::min<int64_t>(kMaxAttentionRows, end);
      for (int64_t h = 0; h < n; ++h) {
        AttentionTask task = attention_task(rule, head + h);
        task.q = static_cast<const float*>(queries.data) + (row + first) * queries.stride +
                 (head + h) * dims.key();
        task.q_stride = queries.stride;
        task.out =
            static_cast<float*>(out.data) + (row + first) * out.stride + (head + h) * dims.value;
        task.out_stride = out.stride;
        task.tokens = static_cast<int32_t>(end - first);
        task.group = 1;
        task.head_dim = static_cast<int32_t>(dims.key());
        task.v_head_dim = static_cast<int32_t>(dims.value);
        task.position = batch.positions[row + first];
        task.cached = static_cast<int32_t>(cached);
        task.k = keys + h * positions * dims.key();
        task.v = values + h * dims.value;
        task.v_stride = n * dims.value;
        task.pages = own_pages.data();
        task.k_page_stride = kPageTokens * dims.key();
        task.v_page_stride = kPageTokens * n * dims.value;
        attention_tasks_.push_back(task);
      }
    }
    run(attention_tasks_);
  }
}

}  // namespace faststream
