// Attention of a token.
#pragma once

#include "kernels/cuda/attention/attention_decode_mma.cuh"
#include "kernels/cuda/program/consumer_threads.cuh"
#include "kernels/cuda/rope.cuh"

namespace faststream::program {

/// By teams of kDecodeWarps consumers, each with a part of the context for a tile of heads.
template <int kDim, typename Rule>
class Attender {
 public:
  explicit __device__ Attender(const RowMemory& rows) : rows_(rows) {}

  __device__ void attend(const AttendInstruction& a) const {
    const AttentionArguments& attention = a.attention;
    const int head_tiles = attention.kv.n_kv_heads * a.splits.head_tiles;
    const int items = head_tiles * faststream::parts_of(attention, a.kv_len);
    auto* memory = reinterpret_cast<Attention*>(shared_memory().x);
    const auto split_of_item = [&](int item) {
      return split_of(attention, a.splits, kDecodeHeads, {0, 0, a.kv_len}, item % head_tiles,
                      item / head_tiles);
    };
    const int team = warp() / kDecodeWarps;
    const auto synchronize_team = [&] { synchronize_threads(kTeam + team, kTeamThreads); };
    const auto blocks = static_cast<int>(gridDim.x);
    for (int first = static_cast<int>(blockIdx.x); first < items; first += blocks * kTeams) {
      if (const int item = first + team * blocks; team < kTeams && item < items) {
        const Split split = split_of_item(item);
        const int page = split.first / kPageTokens;
        ask_for(attention.page_table + page, pages_for(split.last) - page);
      }
      // All warps together transform, for each team's item, queries, the key and the value.
      int task = warp();
      for (int t = 0; t < kTeams && first + t * blocks < items; ++t) {
        const Split split = split_of_item(first + t * blocks);
        const int tasks = split.n_heads + (split.last == a.kv_len ? 2 : 0);
        for (; task < tasks; task += kConsumers) transform(a, split, task, memory[t].queries);
        task -= tasks;
      }
      synchronize();
      const int item = first + team * blocks;
      if (team < kTeams && item < items) {
        const Split split = split_of_item(item);
        auto& mine = memory[team];
        attend_split<T, kDim, Rule>(attention, split, mine.queries, mine.results);
        synchronize_team();
        const auto store = [&](int head, int d, float first, float second) {
          store_output(a, head * attention.kv.head_dim + d, first, second);
        };
        store_split(attention, a.splits, split, mine.results, store);
        if (a.splits.count > 1) merge(a, split, item % head_tiles, team, synchronize_team, store);
      }
      synchronize();
    }
  }

 private:
  struct Attention {
    alignas(16) T queries[kDecodeHeads * kDim];
    DecodeResults<kDim> results;
  };
  static constexpr int kTeamThreads = kDecodeWarps * kWarp;
  static constexpr int kTeams =
      2 * sizeof(Attention) <= kMaxInputBytes ? kConsumers / kDecodeWarps : 1;
  static_assert(sizeof(Attention) <= kMaxInputBytes);

  __device__ void store_output(const AttendInstruction& a, int index, float first,
                               float second) const {
    const uint32_t pair = pack_pair<T>(first, second);
    if (a.result.offset >= 0) publish(static_cast<T*>(rows_.at(a.result)) + index, pair);
    T* out = static_cast<T*>(a.attention.out.data);
    if (out != nullptr) *reinterpret_cast<uint32_t*>(out + index) = pair;
  }

  // The last team of a head tile puts together what all have stored.
  template <typename Synchronize, typename Store>
  static __device__ void merge(const AttendInstruction& a, const Split& split, int head_tile,
                               int team, const Synchronize& synchronize_team, const Store& store) {
    const int parts = faststream::parts_of(a.attention, a.kv_len);
    bool& is_last = shared_memory().is_last[team];
    __threadfence();
    synchronize_team();
    if (thread() % kTeamThreads == 0) {
      is_last = atomicAdd(&a.arrivals[head_tile], 1) == parts - 1;
      if (is_last) a.arrivals[head_tile] = 0;
      __threadfence();
    }
    synchronize_team();
    if (!is_last) return;
    for (int h = warp() % kDecodeWarps; h < split.n_heads; h += kDecodeWarps) {
      merge_head(a.attention, a.splits, split, split.first_head + h, parts, lane(), kWarp, store);
    }
  }

  // A head of the queries, keys and values, once it is there, in shared memory: by a warp.
  __device__ T* bring_head(const AttendInstruction& a, int head) const {
    const int pairs = a.attention.kv.head_dim / 2;
    const auto* from = static_cast<const uint32_t*>(rows_.at(a.qkv)) + int64_t{head} * pairs;
    uint32_t words[kDim / 2 / kWarp];
    bring(
        words, a.qkv.awaited, [&](int i) { return i * kWarp + lane() < pairs; },
        [&](int i) { return from + i * kWarp + lane(); });
    T* to = shared_memory().heads[warp()];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kDim / 2 / kWarp; ++i) {
      const int pair = i * kWarp + lane();
      if (pair < pairs) reinterpret_cast<uint32_t*>(to)[pair] = words[i];
    }
    __syncwarp();
    return to;
  }

  // Asks for memory that is read after something else was awaited, so that it will be in the L1
  // cache: by a warp, in sectors of 32 bytes.
  template <typename Element>
  static __device__ void ask_for(const Element* from, int count) {
    constexpr int kSector = 32 / static_cast<int>(sizeof(Element));
    for (int i = lane() * kSector; i < count; i += kWarp * kSector) {
      uint32_t ignored;
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(ignored) : "l"(from + i));
    }
  }

  // By a warp: task h < n_heads brings the split's query h to `queries`, the next two bring the
  // token's key and value to their page.
  __device__ void transform(const AttendInstruction& a, const Split& split, int task,
                            T* queries) const {
    const AttentionArguments& attention = a.attention;
    const KvLayer& kv = attention.kv;
    const int dim = kv.head_dim;
    const int64_t page = attention.page_table[split.position / kPageTokens];
    const int64_t slot = element_of_token(kv, page, split.kv_head, split.position);
    const int key_head = attention.n_heads + split.kv_head;
    if (task == split.n_heads + 1) {
      T* to = static_cast<T*>(kv.v) + slot;
      const T* value = bring_head(a, key_head + kv.n_kv_heads);
      for (int i = lane(); i < dim; i += kWarp) to[i] = value[i];
      return;
    }
    const bool is_key = task == split.n_heads;
    const int head = split.first_head + task;
    const float* weight = is_key ? a.transform.k_weight + int64_t{split.kv_head} * dim
                                 : a.transform.q_weight + int64_t{head} * dim;
    T* to = is_key ? static_cast<T*>(kv.k) + slot : queries + task * dim;
    const float factor = is_key ? 1 : query_factor(a.transform, split.position);
    ask_for(a.cos_sin, a.rotated_dims);
    if (a.transform.norm != NormKind::none) ask_for(weight, dim);
    transform_head(bring_head(a, is_key ? key_head : head), dim, a.transform, weight, a.cos_sin,
                   a.rotated_dims,
                   [&](int i, float value) { to[i] = from_float<T>(__fmul_rn(value, factor)); });
  }
  RowMemory rows_;
};

}  // namespace faststream::program
