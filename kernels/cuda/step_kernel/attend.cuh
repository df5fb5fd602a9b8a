// Attention of a token, or of several sequences' tokens.
#pragma once

#include "kernels/cuda/attention/attention_decode_mma.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/step_kernel/stage_reader.cuh"

namespace faststream::step_kernel {

/// By teams of kDecodeWarps consumers, each with a part of the context for a tile of heads. Where
/// these are wide, two warps share tokens. kDim: what heads have at most, but for wide ones;
/// kMixed: whether there may be these, values have norms, and keys and values be those of an
/// earlier layer.
template <int kDim, typename Rule, bool kMixed>
class Attender {
 public:
  explicit __device__ Attender(const RowMemory& rows) : rows_(rows) {}

  __device__ void attend(const AttendInstruction& a, StageReader& stages) const {
    const ItemsOfBlock mine(a);
    auto* memory = reinterpret_cast<Attention*>(shared_memory().x);
    const int team = warp() / kDecodeWarps;
    for (int first = mine.first(); first < mine.items; first += kTeams * mine.step()) {
      look(true);
      // All warps together transform, for each team's item, queries, the key and the value.
      Split own;  // of this warp's team, which has the stages from own_begin on
      uint32_t own_begin = 0;
      uint32_t end = stages.begin();
      int task = warp();
#pragma unroll 1
      for (int t = 0; t < kTeams && first + t * mine.step() < mine.items; ++t) {
        const Split split = mine.split(first + t * mine.step());
        if (split.empty()) continue;
        if (t == team) {
          own = split;
          own_begin = end;
        }
        end += ceil_div(split.last - split.first, kDecodeTokens) * stages_of_turn(a);
        const int tasks = split.n_heads + (has_own(a) && split.last == split.position + 1 ? 2 : 0);
#pragma unroll 1
        for (; task < tasks; task += kConsumers) transform(a, split, task, memory[t]);
        task -= tasks;
      }
      synchronize();
      look(false);
      if (!own.empty()) attend(a, own, memory[team], stages, own_begin);
      stages.pass_to(end);
      synchronize();
    }
    // When the block has stored all of its own, as others wait for them.
    if (a.splits.count > 1 && team < kTeams) {
      for (int item = mine.first() + team * mine.step(); item < mine.items;
           item += kTeams * mine.step()) {
        int parts = 0;
        const Split split = mine.split(item, parts);
        if (!split.empty()) merge(a, split, parts);
      }
    }
  }

 private:
  static constexpr bool kMayBeWide = kMixed && kDim == kWidestOfWarp;
  static constexpr int kRow = kMayBeWide ? kLargestMmaHeadDim : kDim;  // elements
  struct Attention {
    union {
      alignas(16) T queries[kDecodeHeads * kRow];  // until all warps have theirs; then, by turns,
      float4 scores[2][kDecodeWarps][kWarp];       // of warps that share tokens
    };
    alignas(16) T key[kRow];  // of the token, and its value
    alignas(16) T value[kRow];
    DecodeResults<kDim> results;  // each warp's of its columns
  };
  static constexpr int kTeamThreads = kDecodeWarps * kWarp;
  static constexpr int kTeams =
      2 * sizeof(Attention) <= kMaxInputBytes ? kConsumers / kDecodeWarps : 1;
  static_assert(sizeof(Attention) <= kMaxInputBytes);

  static __device__ int stages_of_turn(const AttendInstruction& a) {
    return kMayBeWide && are_wide(a.attention.kv.head_dim) ? 2 : 1;
  }

  // By this warp's team: an item, whose stages are those from `begin` on.
  __device__ void attend(const AttendInstruction& a, const Split& split, Attention& memory,
                         StageReader& stages, uint32_t begin) const {
    const AttentionArguments& attention = a.attention;
    const int dim = attention.kv.head_dim;
    const int team = warp() / kDecodeWarps;
    const int parts = stages_of_turn(a);  // and warps that share tokens
    const int sharing = warp() % kDecodeWarps / parts;
    const int first_column = warp() % parts * kDim;
    const auto synchronize_team = [&] { synchronize_threads(kTeam + team, kTeamThreads); };
    DecodeQueries<kDim> queries;
    queries.load(memory.queries, split.n_heads, dim, first_column);
    if (parts > 1) synchronize_team();
    DecodeSums<T, kDim, Rule> sums(attention, split);
    const int tokens = split.last - split.first;
    int turn = 0;
    for (int n = sharing; n * kDecodeTokens < tokens; n += kDecodeWarps / parts) {
      const uint32_t number = begin + n * parts;
      const int base = split.first + n * kDecodeTokens;
      T* keys = reinterpret_cast<T*>(stages.await(number).weights);
      T* values = keys + kDecodeTokens * dim;
      if (parts > 1) values = reinterpret_cast<T*>(stages.await(number + 1).weights);
      if (const int row = split.position - base; has_own(a) && row < kDecodeTokens) {
        // What the copies brought of the token itself is not what it has now.
        for (int i = first_column + lane(); i < min(dim, first_column + kDim); i += kWarp) {
          keys[row * dim + i] = memory.key[i];
          values[row * dim + i] = memory.value[i];
        }
        publish_shared_writes();
        __syncwarp();
      }
      DecodeTokens<kDim> loaded;
      loaded.load(
          attention.kv, keys, values, [&](int token) { return sums.is_seen(base + token); },
          first_column);
      sums.add(queries, loaded, base, [&](const float4& own) {
        if (parts == 1) return make_float4(0, 0, 0, 0);
        // The barrier also tells that both warps have loaded what the stages have.
        auto& scores = memory.scores[turn % 2];
        scores[warp()][lane()] = own;
        synchronize_threads(kPair + sharing, 2 * kWarp);
        return scores[warp() ^ 1][lane()];
      });
      ++turn;
      if (first_column > 0) continue;
      for (int i = 0; i < parts; ++i) StageReader::release(number + i);
    }
    sums.put(memory.results);
    synchronize_team();
    const auto store = [&](int head, int d, float first, float second) {
      store_output(a, split, head * dim + d, first, second);
    };
    const auto keep = [&](int head, int i, float first, float second) {
      publish(partial(a, split, head, split.part) + i, first, second);
    };
    const auto merged = [&](int h, int d) {
      const int part = parts > 1 ? d / kDim : 0;
      return merge_warps(memory.results, kDecodeWarps, h, d - part * kDim, part, parts);
    };
    store_merged<kDecodeWarps>(attention, a.splits, split, merged, store, keep);
  }

  // Whether the token's key and value are not in their page yet.
  static __device__ bool has_own(const AttendInstruction& a) {
    return !kMixed || a.keys.offset >= 0;
  }

  __device__ void store_output(const AttendInstruction& a, const Split& split, int in_row,
                               float first, float second) const {
    const int64_t index = split.sequence * a.attention.out.stride + in_row;
    const uint32_t pair = pack_pair<T>(first, second);
    if (a.result.offset >= 0) publish(static_cast<T*>(rows_.at(a.result)) + index, pair);
    T* out = static_cast<T*>(a.attention.out.data);
    if (out != nullptr) *reinterpret_cast<uint32_t*>(out + index) = pair;
  }

  // The pairs of a head's split: its maximum and weight, then its sums.
  [[nodiscard]] __device__ float2* partial(const AttendInstruction& a, const Split& split, int head,
                                           int part) const {
    const int pairs = 1 + a.attention.kv.head_dim / 2;
    const int64_t row = int64_t{split.sequence} * a.attention.n_heads + head;
    return static_cast<float2*>(rows_.at(a.partials)) + (row * a.splits.count + part) * pairs;
  }

  // What merge_head() computes, by the teams of all splits of a head tile together: each warp the
  // outputs of a head, or some of them, two of a lane.
  __device__ void merge(const AttendInstruction& a, const Split& split, int parts) const {
    constexpr int kParts = kMaxSplits / 2;  // at once
    static_assert(kMaxSplits <= kWarp);
    const int pairs = a.attention.kv.head_dim / 2;
    const int tasks_of_head = ceil_div(pairs, kWarp);
    for (int task = split.part + warp() % kDecodeWarps * parts;
         task < split.n_heads * tasks_of_head; task += kDecodeWarps * parts) {
      const int head = split.first_head + task / tasks_of_head;
      const int pair = task % tasks_of_head * kWarp + lane();
      float maximum = 0;
      float part_factor = 0;  // of part lane()
      float part_weight = 0;
      float weight = 0;
      float sums[2] = {};
      for (int first = 0; first < parts; first += kParts) {
        uint2 words[kParts + 1];
        bring(
            words, true,
            [&](int i) {
              return i == kParts ? first == 0 && lane() < parts : first + i < parts && pair < pairs;
            },
            [&](int i) {
              return i == kParts ? partial(a, split, head, lane())
                                 : partial(a, split, head, first + i) + 1 + pair;
            });
        if (first == 0) {
          const float part_maximum = lane() < parts ? __uint_as_float(words[kParts].x) : kLowest;
          maximum = warp_max(part_maximum);
          part_factor = exp2f(part_maximum - maximum);
          part_weight = __uint_as_float(words[kParts].y);
        }
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          if (first + i >= parts) break;
          const float factor = __shfl_sync(kAllLanes, part_factor, first + i);
          weight = __fmaf_rn(__shfl_sync(kAllLanes, part_weight, first + i), factor, weight);
          sums[0] = __fmaf_rn(__uint_as_float(words[i].x), factor, sums[0]);
          sums[1] = __fmaf_rn(__uint_as_float(words[i].y), factor, sums[1]);
        }
      }
      const float total = with_sink(a.attention, head, maximum, weight);
      if (pair < pairs) {
        store_output(a, split, 2 * (head * pairs + pair), sums[0] / total, sums[1] / total);
      }
    }
  }

  // Brings a head of a row, once it is there, to shared memory: by a warp. first: the element where
  // the token's row begins.
  __device__ void bring_head(const Row& row, int64_t first, int dim, int head, T* to) const {
    constexpr int kPiece = 8;  // elements; heads are of whole pieces
    constexpr int kEach = ceil_div(kRow, kPiece * kWarp);
    const T* from = static_cast<const T*>(rows_.at(row)) + first + int64_t{head} * dim;
    const auto element = [](int i) { return (i * kWarp + lane()) * kPiece; };
    uint4 pieces[kEach];
    bring(
        pieces, row.awaited, [&](int i) { return element(i) < dim; },
        [&](int i) { return from + element(i); });
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (element(i) < dim) *reinterpret_cast<uint4*>(to + element(i)) = pieces[i];
    }
    __syncwarp();
  }

  // By a warp: task h < n_heads brings the split's query h, the next two the token's key and value,
  // which those of the KV head's first queries also bring to their page. They are transformed where
  // they are: what a lane writes no other has to read any more.
  __device__ void transform(const AttendInstruction& a, const Split& split, int task,
                            Attention& memory) const {
    const AttentionArguments& attention = a.attention;
    const KvLayer& kv = attention.kv;
    const int dim = kv.head_dim;
    const bool is_query = task < split.n_heads;
    const bool is_key = task == split.n_heads;
    const int head = is_query ? split.first_head + task : split.kv_head;
    T* to = is_query ? memory.queries + task * dim : is_key ? memory.key : memory.value;
    T* in_page = nullptr;
    if (!is_query && (!kMixed || a.appends) && split.first_head == split.kv_head * a.group) {
      const int64_t page = attention.page_table[split.sequence * int64_t{attention.max_pages} +
                                                split.position / kPageTokens];
      in_page = static_cast<T*>(is_key ? kv.k : kv.v) +
                row_of_token(kv, page, split.kv_head, split.position) * dim;
    }
    const HeadTransform& transform = a.transform;
    HeadWeights weights;
    if (is_query) {
      weights = weights_of_head(transform.q_weight, transform.q_bias, head, dim);
    } else if (is_key) {
      weights = weights_of_head(transform.k_weight, transform.k_bias, head, dim);
    } else if (transform.v_weight != nullptr) {
      weights = weights_of_head(transform.v_weight, nullptr, head, dim);
    }
    const float factor = is_query ? query_factor(transform, split.position) : 1;
    const int rotated = is_query || is_key ? a.rotated_dims : 0;
    const float* cos_sin = a.cos_sin + split.sequence * a.rotated_dims;
    ask_for(cos_sin, rotated);
    if (transform.norm != NormKind::none && weights.weight != nullptr) ask_for(weights.weight, dim);
    bring_head(is_query ? a.queries
               : is_key ? a.keys
                        : a.values,
               split.sequence * attention.q.stride, dim, head, to);
    transform_head(to, dim, transform, weights, cos_sin, rotated, [&](int i, float value) {
      to[i] = from_float<T>(__fmul_rn(value, factor));
      if (in_page != nullptr) in_page[i] = to[i];
    });
  }
  RowMemory rows_;
};

}  // namespace faststream::step_kernel
