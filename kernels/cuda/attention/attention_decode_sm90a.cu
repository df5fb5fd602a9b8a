// Attention of one query a sequence on Hopper: what attention_decode_mma.cuh computes, of keys and
// values that come through shared memory. A split is 128 kB (head_dim 128), 6 us of a
// multiprocessor's share of the memory; a block that began with each would wait half as long for
// the sequence's length, its pages, the queries and the first tokens, and again at its end, with
// nothing on its way. So blocks stay, and go from split to split: one warp of each says what is
// next, and copies its queries, keys and values ahead, while the others work on what is there. (As
// copies by each of the others for itself, what is next took them 5 us for each split.)
//
// A page's tokens of one KV head are one piece of memory, so that a copy is one instruction.
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention/attention_decode_mma.cuh"
#include "kernels/cuda/attention/item_finder.cuh"
#include "kernels/cuda/barriers.cuh"

namespace faststream {

namespace {

constexpr int kConsumerThreads = kDecodeWarps * kWarp;
constexpr int kThreads = kConsumerThreads + kWarp;
constexpr int kTurnTokens = kDecodeWarps * kDecodeTokens;  // of the warps, side by side
constexpr int kTurnPages = kTurnTokens / kPageTokens;
static_assert(kTurnTokens % kPageTokens == 0, "turns begin where pages do");
constexpr int kSplits = 4;  // that are known ahead

// Named barriers.
constexpr int kResultsFree = 1;
constexpr int kResultsThere = 2;

template <typename T, int kDim, KvFormat kFormat>
struct Shared {
  // Codes take half of the memory, and more instructions: another block's warps do some meanwhile.
  static constexpr bool kIsCoded = kFormat != KvFormat::plain;
  static constexpr int kBlocks = kDim <= 64    ? 3
                                 : kDim <= 128 ? (kIsCoded ? 3 : 2)
                                               : 1;  // of a multiprocessor
  static constexpr int kStages = kDim <= 64 ? (kIsCoded ? 6 : 3) : kDim > 128 && kIsCoded ? 4 : 2;
  static constexpr int kPageBytes = head_bytes<T, kFormat>(kDim);  // at most

  struct Stage {  // pages, each from a multiple of its bytes on
    alignas(16) std::byte keys[kTurnPages * kPageBytes];
    alignas(16) std::byte values[kTurnPages * kPageBytes];
  };
  struct Work {
    T queries[kDecodeHeads * kDim];
    Split split;  // empty: there is no more
  };
  alignas(16) Stage stages[kStages];
  alignas(16) Work work[kSplits];
  DecodeResults<kDim> results;
  uint64_t stage_there[kStages];
  uint64_t stage_done[kStages];
  uint64_t work_there[kSplits];
  uint64_t work_done[kSplits];
};

/// Deals the splits of a batch, each to the block that wants one first: their lengths differ.
class SplitDealer {
 public:
  __device__ SplitDealer(const AttentionArguments& a, const Splits& splits, int n_sequences,
                         unsigned* dealt)
      : count_{a, a.kv.n_kv_heads * splits.head_tiles},
        splits_(splits),
        items_(n_sequences, count_),
        dealt_(dealt),
        wanted_(blockIdx.x) {}

  /// This block's next split. False, once, when there is none. For whole warps.
  __device__ bool next(Split& split) {
    const auto wanted = static_cast<int>(__shfl_sync(kAllLanes, wanted_, 0));
    const bool leads = threadIdx.x % kWarp == 0;
    ItemFinder::Item item;
    if (!items_.find(wanted, count_, item)) {
      // The last block leaves zeros.
      if (leads && atomicInc(&dealt_[1], gridDim.x - 1) == gridDim.x - 1) dealt_[0] = 0;
      return false;
    }
    if (leads) wanted_ = gridDim.x + atomicAdd(&dealt_[0], 1);  // is there when it is looked at
    const AttentionArguments& a = count_.a;
    const OneQuery one{item.sequence, a.query_start[item.sequence], a.kv_len[item.sequence]};
    split = split_of(a, splits_, kDecodeHeads, one, item.nth % count_.head_tiles,
                     item.nth / count_.head_tiles);
    return true;
  }

 private:
  struct Count {
    const AttentionArguments& a;
    int head_tiles;  // of all KV heads

    __device__ int operator()(int sequence) const {
      const int n_queries = a.query_start[sequence + 1] - a.query_start[sequence];
      return n_queries == 1 ? parts_of(a, a.kv_len[sequence]) * head_tiles : 0;
    }
  };

  Count count_;
  const Splits& splits_;
  ItemFinder items_;
  unsigned* dealt_;
  unsigned wanted_;  // of lane 0
};

/// The warp that brings what the others work on.
template <typename T, int kDim, KvFormat kFormat>
class Producer {
 public:
  __device__ Producer(const AttentionArguments& a, const Splits& splits, int n_sequences,
                      unsigned* dealt, Shared<T, kDim, kFormat>& shared)
      : a_(a),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        policy_(evict_first_policy()),
        dealer_(a, splits, n_sequences, dealt) {}

  __device__ void run() {
    Split split;
    int page = prepare_next(split);
    for (uint32_t nth = 0;; ++nth) {
      const Split now = split;
      const int now_page = page;
      if (!now.empty()) page = prepare_next(split);  // its pages are on their way meanwhile
      announce(nth, now);
      if (now.empty()) return;
      copy(now, now_page);
    }
  }

 private:
  // An empty split if there is no more. Returns its pages.
  __device__ int prepare_next(Split& split) {
    if (!dealer_.next(split)) split = Split();
    return pages_from(split, split.first);
  }

  // The lanes' pages, 32 in a row.
  __device__ int pages_from(const Split& split, int token) const {
    const int32_t* pages = a_.page_table + static_cast<int64_t>(split.sequence) * a_.max_pages;
    const int mine = token + lane_ * kPageTokens;
    return mine < split.last ? pages[mine / kPageTokens] : 0;
  }

  __device__ void announce(uint32_t nth, const Split& split) {
    const PipelinePlace<kSplits> at(nth);
    auto& work = shared_.work[at.stage];
    wait_for_phase(shared_.work_done[at.stage], at.parity ^ 1U);
    if (lane_ != 0) return;
    work.split = split;
    uint64_t& there = shared_.work_there[at.stage];
    if (split.empty()) return arrive(there);
    const int dim = a_.kv.head_dim;
    const auto bytes = static_cast<uint32_t>(split.n_heads * dim * sizeof(T));
    const T* queries = static_cast<const T*>(a_.q.data) + split.query * a_.q.stride +
                       static_cast<int64_t>(split.first_head) * dim;
    arrive_and_expect(there, bytes);
    copy_bulk(shared_address(work.queries), queries, bytes, there, policy_);
  }

  __device__ void copy(const Split& split, int page) {
    // Lane 2 p brings the keys of the turn's page p, lane 2 p + 1 its values.
    const bool is_key = lane_ % 2 == 0;
    const int dim = is_key ? a_.kv.head_dim : a_.kv.v_head_dim;
    const auto bytes_of = [](int width) {
      return static_cast<uint32_t>(head_bytes<T, kFormat>(width));
    };
    int first_page = split.first / kPageTokens;  // lane 0's
    for (int base = split.first; base < split.last; base += kTurnTokens, ++n_) {
      if (base / kPageTokens - first_page >= kWarp) {
        first_page = base / kPageTokens;
        page = pages_from(split, base);
      }
      const PipelinePlace<Shared<T, kDim, kFormat>::kStages> at(n_);
      auto& stage = shared_.stages[at.stage];
      uint64_t& there = shared_.stage_there[at.stage];
      const int n_pages = min(kTurnPages, pages_for(split.last - base));
      const int nth = lane_ / 2;
      const int from =
          __shfl_sync(kAllLanes, page, (base / kPageTokens - first_page + nth) % kWarp);
      wait_for_phase(shared_.stage_done[at.stage], at.parity ^ 1U);
      if (lane_ == 0) {
        arrive_and_expect(there, n_pages * (bytes_of(a_.kv.head_dim) + bytes_of(a_.kv.v_head_dim)));
      }
      __syncwarp();
      if (nth >= n_pages) continue;
      std::byte* to = is_key ? stage.keys : stage.values;
      copy_bulk(
          shared_address(to + nth * bytes_of(dim)),
          head_in_page<T, kFormat>(a_.kv, is_key ? a_.kv.k : a_.kv.v, dim, from, split.kv_head),
          bytes_of(dim), there, policy_);
    }
    __syncwarp();
  }

  const AttentionArguments& a_;
  Shared<T, kDim, kFormat>& shared_;
  int lane_;
  uint64_t policy_;
  SplitDealer dealer_;
  uint32_t n_ = 0;  // turns
};

/// The other warps.
template <typename T, int kDim, typename Rule, KvFormat kFormat>
__device__ void consume(const AttentionArguments& a, const Splits& splits,
                        Shared<T, kDim, kFormat>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  uint32_t n = 0;  // turns
  for (uint32_t nth = 0;; ++nth) {
    const PipelinePlace<kSplits> work_at(nth);
    const auto& work = shared.work[work_at.stage];
    wait_for_phase(shared.work_there[work_at.stage], work_at.parity);
    const Split split = work.split;
    if (split.empty()) return;
    DecodeQueries<kDim> queries;
    queries.load(work.queries, split.n_heads, a.kv.head_dim);

    // What was loaded is released when it has been used: arriving at a barrier does not wait for
    // loads that are still on their way.
    DecodeSums<T, kDim, Rule> sums(a, split);
    for (int first = split.first; first < split.last; first += kTurnTokens, ++n) {
      const PipelinePlace<Shared<T, kDim, kFormat>::kStages> at(n);
      const auto& stage = shared.stages[at.stage];
      const int in_stage = warp * kDecodeTokens;
      const int base = first + in_stage;
      wait_for_phase(shared.stage_there[at.stage], at.parity);
      if (base < split.last) {
        DecodeTokens<kDim, kFormat> tokens;
        const auto rows = [&](const std::byte* pages, int dim) {
          return KvRows<T, kFormat>(pages + in_stage / kPageTokens * head_bytes<T, kFormat>(dim),
                                    dim, in_stage % kPageTokens);
        };
        tokens.load(rows(stage.keys, a.kv.head_dim), rows(stage.values, a.kv.v_head_dim),
                    [&](int token) { return sums.is_seen(base + token); });
        sums.add(queries, tokens, base);
      }
      arrive(shared.stage_done[at.stage]);
    }
    synchronize_threads(kResultsFree, kConsumerThreads);
    sums.put(shared.results);
    synchronize_threads(kResultsThere, kConsumerThreads);
    store_split(a, splits, split, shared.results);
    arrive(shared.work_done[work_at.stage]);
  }
}

template <typename T, int kDim, typename Rule, KvFormat kFormat>
__global__
__launch_bounds__(kThreads, Shared<T, kDim, kFormat>::kBlocks) void attention_decode_sm90a_kernel(
    const __grid_constant__ AttentionArguments a, const __grid_constant__ Splits splits,
    int n_sequences, unsigned* dealt) {
  extern __shared__ std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<T, kDim, kFormat>*>(memory);
  if (threadIdx.x == 0) {
    for (uint64_t& there : shared.stage_there) init_barrier(there, 1);
    for (uint64_t& there : shared.work_there) init_barrier(there, 1);
    for (uint64_t& done : shared.stage_done) init_barrier(done, kConsumerThreads);
    for (uint64_t& done : shared.work_done) init_barrier(done, kConsumerThreads);
    publish_barriers();
  }
  __syncthreads();
  begin_kernel();
  if (threadIdx.x < kConsumerThreads) {
    consume<T, kDim, Rule, kFormat>(a, splits, shared);
  } else {
    Producer<T, kDim, kFormat>(a, splits, n_sequences, dealt, shared).run();
  }
}

}  // namespace

bool attention_decode_sm90a(const AttentionArguments& a, int32_t n_sequences, int64_t seen,
                            Splits splits, unsigned* dealt, const Queue& queue) {
  splits.head_tiles = ceil_div(a.n_heads / a.kv.n_kv_heads, kDecodeHeads);
  const int64_t most = int64_t{n_sequences} * splits.count * a.kv.n_kv_heads * splits.head_tiles;
  bool done = false;
  with_decode_shape(a, [&]<typename T, int kDim, KvFormat kFormat>() {
    if constexpr (kDecodeParts < kDim >> 1) return;
    const int64_t stay =
        int64_t{gpu_attribute(cudaDevAttrMultiProcessorCount)} * Shared<T, kDim, kFormat>::kBlocks;
    done = seen > kTurnTokens && most > 2 * stay;
    if (!done) return;
    with_rule_of_last(a, [&]<typename Rule>() {
      const auto kernel = attention_decode_sm90a_kernel<T, kDim, Rule, kFormat>;
      allow_shared_memory(kernel, sizeof(Shared<T, kDim, kFormat>));
      queue.launch("computing attention", kernel,
                   {static_cast<unsigned>(stay), kThreads, sizeof(Shared<T, kDim, kFormat>)}, a,
                   splits, n_sequences, dealt);
    });
  });
  return done;
}

}  // namespace faststream
