// Work is split into (sequence, KV head, block of queries): the query heads that share a KV head
// read its pages together.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

static_assert(kPageTokens <= kMaxPageTokens);

// That a thread takes at once.
constexpr int64_t kMostBlocks = 16;
// Heads of a block that are not divided among threads: fewer would read keys for too little.
constexpr int32_t kLeastHeads = 8;

struct Block {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t first_head = 0;  // of n_heads
  int32_t heads = 0;
  int32_t first_token = 0;  // row of the batch
  int32_t tokens = 0;
};

/// Whether two sequences see the same pages to their end.
bool see_the_same(const BatchView& batch, int32_t a, int32_t b) {
  if (batch.kv_len[a] != batch.kv_len[b]) return false;
  const int32_t* of_a = batch.page_table + int64_t{a} * batch.max_pages;
  const int32_t* of_b = batch.page_table + int64_t{b} * batch.max_pages;
  return std::equal(of_a, of_a + pages_for(batch.kv_len[a]), of_b);
}

/// Heads of a block: as many as share keys, but where so few tokens leave threads without a block.
int32_t heads_of_block(const BatchView& batch, int32_t n_kv_heads, int32_t group, int threads) {
  const int32_t most = std::min<int32_t>(group, kMaxAttentionRows);
  const int32_t blocks = batch.n_tokens * n_kv_heads * ((group + most - 1) / most);
  if (batch.max_query_len > 1 || blocks >= threads) return most;
  const int32_t each = (threads + blocks - 1) / blocks;
  return std::min(most, std::max((most + each - 1) / each, kLeastHeads));
}

/// n_heads: of all; first_row: of the batch, that of position 0.
void add_relative_scores(const RelativeScores& relative, int64_t n_heads, const Block& block,
                         int64_t first_row, AttentionTask& task) {
  const auto of_block = [&](const Matrix& scores, int64_t row) {
    task.relative_count = scores.cols / n_heads;
    return static_cast<const float*>(scores.data) + row * scores.stride +
           block.first_head * task.relative_count;
  };
  if (relative.of_queries.data != nullptr) {
    task.relative_of_queries = of_block(relative.of_queries, block.first_token);
    task.relative_of_queries_stride = relative.of_queries.stride;
  }
  if (relative.of_keys.data != nullptr) {
    task.relative_of_keys = of_block(relative.of_keys, first_row);
    task.relative_of_keys_stride = relative.of_keys.stride;
  }
  task.relative_vectors = relative.vectors;
  task.relative_reach = relative.reach;
}

/// Blocks of at most kMaxAttentionRows rows of sequences [first, last), those with the longest
/// contexts first. Where positions have no meaning (`joins`), sequences in a row that see the same,
/// such as beams of a source, are one: no row's sums depend on those beside it.
std::vector<Block> split(const BatchView& batch, int32_t first, int32_t last, int32_t n_heads,
                         int32_t n_kv_heads, bool joins, int threads) {
  const int32_t group = n_heads / n_kv_heads;
  const int32_t heads = heads_of_block(batch, n_kv_heads, group, threads);
  const int32_t tokens = kMaxAttentionRows / heads;
  std::vector<Block> blocks;
  int32_t next = 0;
  for (int32_t s = first; s < last; s = next) {
    next = s + 1;
    while (joins && next < last && see_the_same(batch, s, next)) ++next;
    const int32_t begin = batch.query_start[s];
    for (int32_t end = batch.query_start[next]; end > begin; end -= std::min(tokens, end - begin)) {
      const int32_t count = std::min(tokens, end - begin);
      for (int32_t h = 0; h < n_heads; h += std::min(heads, group - h % group)) {
        blocks.push_back({s, h / group, h, std::min(heads, group - h % group), end - count, count});
      }
    }
  }
  return blocks;
}

}  // namespace

void CpuBackend::attention(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                           const HeadTransform& transform, const KvLayer& kv,
                           const AttentionRule& rule, const Matrix& out) {
  require_f32(out, batch.n_tokens, out.cols,
              "attention: out must be [tokens, n_heads v_head_dim] f32");
  require(out.cols % (int64_t{kv.v_head_dim} * kv.n_kv_heads) == 0,
          "attention: n_heads must be a multiple of n_kv_heads");
  const int64_t n_heads = out.cols / kv.v_head_dim;
  const int64_t q_dim = n_heads * kv.head_dim;
  const bool is_cross = qkv.cols == q_dim && rule.bidirectional;
  if (!is_cross) rope_append(batch, qkv, n_heads, cos_sin, transform, kv);
  attend(batch, 0, batch.n_sequences, qkv.columns(0, q_dim), kv, rule, is_cross, out);
}

void CpuBackend::attend(const BatchView& batch, int32_t first, int32_t last, const Matrix& q,
                        const KvLayer& kv, const AttentionRule& rule, bool is_cross,
                        const Matrix& out) {
  const int64_t dim = kv.head_dim;
  const int64_t v_dim = kv.v_head_dim;
  const auto element_bytes = kv.is_coded() ? 1 : static_cast<int64_t>(dtype_size(kv.dtype));
  // Where values are in the keys there is one head.
  const int64_t v_head_bytes = kv.values_in_keys ? kv.k_head_bytes() : kv.v_head_bytes();
  attention_tasks_.clear();
  for (const Block& block : split(batch, first, last, static_cast<int32_t>(out.cols / v_dim),
                                  kv.n_kv_heads, is_cross, pool_.size())) {
    AttentionTask task = attention_task(rule, block.first_head);
    task.q =
        static_cast<const float*>(q.data) + block.first_token * q.stride + block.first_head * dim;
    task.q_stride = q.stride;
    task.out =
        static_cast<float*>(out.data) + block.first_token * out.stride + block.first_head * v_dim;
    task.out_stride = out.stride;
    task.tokens = block.tokens;
    task.group = block.heads;
    task.head_dim = kv.head_dim;
    task.v_head_dim = kv.v_head_dim;
    task.position = batch.positions[block.first_token];
    task.cached = batch.kv_len[block.sequence];
    task.k = static_cast<const std::byte*>(kv.k) + block.kv_head * kv.k_head_bytes();
    task.v = static_cast<const std::byte*>(kv.v) + block.kv_head * v_head_bytes;
    task.v_stride = kv.v_stride();
    task.type = float_type(kv.dtype);
    task.format = kv.format;
    task.pages = batch.page_table + int64_t{block.sequence} * batch.max_pages;
    task.k_page_stride = kv.n_kv_heads * kv.k_head_bytes() / element_bytes;
    task.v_page_stride = kv.n_kv_heads * v_head_bytes / element_bytes;
    if (rule.relative != nullptr) {
      add_relative_scores(*rule.relative, out.cols / v_dim, block,
                          block.first_token - task.position, task);
    }
    attention_tasks_.push_back(task);
  }
  run(attention_tasks_);
}

AttentionTask CpuBackend::attention_task(const AttentionRule& rule, int64_t first_head) {
  AttentionTask task;
  task.page_tokens = kPageTokens;
  task.scale = rule.scale;
  task.window = rule.window;
  task.window_in_blocks = rule.window_in_blocks;
  task.bidirectional = rule.bidirectional;
  task.soft_cap = rule.soft_cap;
  if (rule.sinks != nullptr) task.sinks = rule.sinks + first_head;
  if (rule.slopes != nullptr) task.slopes = rule.slopes + first_head;
  task.bias_reach = rule.bias_reach;
  if (rule.bias != nullptr) {
    task.bias = rule.bias + first_head * (2 * int64_t{rule.bias_reach} + 1);
  }
  return task;
}

void CpuBackend::run(std::span<AttentionTask> tasks) {
  if (tasks.empty()) return;
  const int64_t floats = attention_scratch(tasks[0].head_dim, tasks[0].v_head_dim);
  pool_.parallel_for(static_cast<int64_t>(tasks.size()), 1, kMostBlocks,
                     [&](int thread, int64_t first, int64_t last) {
                       auto* scratch =
                           thread_scratch_[static_cast<size_t>(thread)].get<float>(floats);
                       for (int64_t i = first; i < last; ++i) {
                         AttentionTask& task = tasks[static_cast<size_t>(i)];
                         task.scratch = scratch;
                         if (i + 1 < last) task.next = &tasks[static_cast<size_t>(i) + 1];
                         kernels_.attention(task);
                       }
                     });
}

}  // namespace faststream
