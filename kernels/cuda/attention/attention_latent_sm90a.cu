// Attention of one query a sequence over keys that have their values in them (latent attention), on
// Hopper. A block has 64 heads of a query and a split of its sequence's keys, which one warp copies
// into shared memory ahead. Two warpgroups share each tile of 64 tokens: both multiply the queries
// with half of the tokens, take each other's probabilities from shared memory, and sum half of the
// values' columns.
//
// Bytes and operations: a tile of 64 tokens of 576 elements is 74 kB, for which an H100 has 3.2 us
// for each of its multiprocessors; its 64 · 64 · (576 + 512) products take 1.6 us at 5.5 TFLOP/s,
// however many of the 64 heads there are. attention_latent_few_heads_sm90a.cu is for few.
#include <cfloat>

#include "kernels/cuda/attention/attention_latent_sm90a.cuh"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace faststream {

namespace {

using namespace latent;

constexpr int kRows = 64;  // heads
static_assert(kRows == kTokens, "blocks of queries, keys and probabilities have one size");

constexpr int kConsumers = 2;  // warpgroups
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kThreads = kConsumerThreads + kWarpgroup;
constexpr int kGroupTokens = kTokens / kConsumers;     // that a warpgroup scores
constexpr int kGroupColumns = kValueDim / kConsumers;  // that it sums, in
constexpr int kParts = 2;
constexpr int kPartColumns = kGroupColumns / kParts;
constexpr int kStages = 2;

// Named barriers.
constexpr int kMaximaThere = 1;
constexpr int kProbabilitiesThere = 2;
constexpr int kWeightsThere = 3;

struct Shared {
  std::byte queries[kKeyBlocks][kBlockBytes];  // past the last head anything
  std::byte keys[kStages][kKeyBlocks][kBlockBytes];
  std::byte probabilities[kBlockBytes];
  float maxima[kConsumers][kRows];
  float weights[kConsumers][kRows];
  uint64_t queries_there;
  uint64_t queries_done;
  uint64_t keys_there[kStages];
  uint64_t keys_done[kStages];
};

using Place = PipelinePlace<kStages>;

/// The lanes of one warp: each copies blocks of the queries of the block's nth split, and of its
/// tiles' pages. `filled`: tiles before it.
__device__ void copy_split(const AttentionArguments& a, const Maps& maps, const Split& split,
                           uint32_t nth, uint32_t& filled, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  wait_for_phase(shared.queries_done, nth % 2 ^ 1U);
  if (lane == 0) {
    arrive_and_expect(shared.queries_there, kKeyBlocks * maps.box_rows * kBlockRowBytes);
  }
  __syncwarp();
  if (lane < kKeyBlocks) {
    copy_box(shared.queries[lane], maps.queries, lane * kBlockColumns,
             static_cast<int>(split.query) * maps.query_rows + split.first_head,
             shared.queries_there);
  }
  const int32_t* pages = a.page_table + static_cast<int64_t>(split.sequence) * a.max_pages;
  const int in_page = lane / kKeyBlocks;
  const int block = lane % kKeyBlocks;
  for (int base = split.first; base < split.last; base += kTokens, ++filled) {
    const Place at(filled);
    const int n_pages = min(pages_for(split.last - base), kTilePages);
    const int page = in_page < n_pages ? pages[base / kPageTokens + in_page] : 0;
    wait_for_phase(shared.keys_done[at.stage], at.parity ^ 1U);
    uint64_t& there = shared.keys_there[at.stage];
    if (lane == 0) arrive_and_expect(there, n_pages * kKeyBlocks * kPageBlockBytes);
    __syncwarp();
    if (in_page < n_pages) {
      copy_box(&shared.keys[at.stage][block][in_page * kPageBlockBytes], maps.keys,
               block * kBlockColumns, page * kPageTokens, there);
    }
  }
}

/// A warpgroup's part of the block's nth split, before which its tiles were as many as `filled`.
template <typename T>
class Consumer {
 public:
  __device__ Consumer(const AttentionArguments& a, const Split& split, uint32_t nth,
                      uint32_t filled, Shared& shared)
      : a_(a),
        split_(split),
        nth_(nth),
        filled_(filled),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        group_(thread_ / kWarpgroup),
        lane_(thread_ % kWarp),
        first_row_(thread_ % kWarpgroup / kWarp * 16) {}

  /// Returns how many tiles there were.
  __device__ uint32_t run(const Splits& splits) {
    wait_for_phase(shared_.queries_there, nth_ % 2);
    uint32_t n = 0;
    for (int base = split_.first; base < split_.last; base += kTokens, ++n) {
      const Place at(filled_ + n);
      wait_for_phase(shared_.keys_there[at.stage], at.parity);
      if (split_.last - base < kTokens) clear_values(at.stage, split_.last - base);
      score(at.stage);
      if (split_.last - base <= kTokens && lane_ == 0) arrive(shared_.queries_done);
      weigh(base);
      add_values(at.stage);
      if (lane_ == 0) arrive(shared_.keys_done[at.stage]);
    }
    store(splits);
    return n;
  }

 private:
  // Those of tokens that are not there may be anything: zero times NaN would be NaN.
  __device__ void clear_values(uint32_t stage, int n_tokens) {
    constexpr int kPieces = kBlockRowBytes / 16;
    const int unseen = kTokens - n_tokens;
    for (int i = thread_; i < (kKeyBlocks - 1) * unseen * kPieces; i += kConsumerThreads) {
      const int row = n_tokens + i / kPieces % unseen;
      const int block = 1 + i / kPieces / unseen;
      *reinterpret_cast<uint4*>(
          &shared_.keys[stage][block][row * kBlockRowBytes + i % kPieces * 16]) =
          make_uint4(0, 0, 0, 0);
    }
    publish_shared_writes();  // for all when they have met, before values are added
  }

  // scores_ = queries · keysᵀ of this group's tokens.
  __device__ void score(uint32_t stage) {
    begin_products();
#pragma unroll
    for (int column = 0; column < kKeyDim; column += 16) {
      const int block = column / kBlockColumns;
      const int offset = column % kBlockColumns * 2;
      multiply_rows<T, kGroupTokens>(
          scores_, matrix_descriptor(&shared_.queries[block][offset], 16),
          matrix_descriptor(
              &shared_.keys[stage][block][group_ * kGroupTokens * kBlockRowBytes + offset], 16),
          column > 0);
    }
    end_group();
    wait_for_groups<0>();
    pin(scores_);
  }

  // Scores to powers of two, relative to the row's new maximum of all tokens, and those of both
  // groups to probabilities_.
  __device__ void weigh(int base) {
    const int row = first_row_ + lane_ / 4;
    const int seen = split_.last - base - group_ * kGroupTokens;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = kLowest;
#pragma unroll
      for (int i = 2 * half; i < kGroupTokens / 2; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int token = i / 4 * 8 + lane_ % 4 * 2 + j;
          scores_[i + j] = token < seen ? scores_[i + j] * a_.scale_log2 : -INFINITY;
          maximum = fmaxf(maximum, scores_[i + j]);
        }
      }
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
      if (lane_ % 4 == 0) shared_.maxima[group_][row + 8 * half] = maximum;
    }
    synchronize_threads(kMaximaThere, kConsumerThreads);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float maximum = fmaxf(maxima_[half], fmaxf(shared_.maxima[0][row + 8 * half],
                                                       shared_.maxima[1][row + 8 * half]));
      corrections_[half] = exp2f(maxima_[half] - maximum);
      maxima_[half] = maximum;
      float total = 0;
#pragma unroll
      for (int i = 2 * half; i < kGroupTokens / 2; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          scores_[i + j] = exp2f(scores_[i + j] - maximum);
          total += scores_[i + j];
        }
      }
      weights_[half] = weights_[half] * corrections_[half] + total;
    }
    const int written_row = first_row_ + lane_ % 16;
#pragma unroll
    for (int j = 0; j < kGroupTokens / 8; j += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i] = pack_pair<T>(scores_[4 * j + 2 * i], scores_[4 * j + 2 * i + 1]);
      }
      const int column = group_ * kGroupTokens + 8 * j + lane_ / 16 * 8;
      store_matrices<false>(shared_.probabilities + swizzled(written_row, column), pairs);
    }
    synchronize_threads(kProbabilitiesThere, kConsumerThreads);
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      load_matrices<false>(
          probabilities_[step],
          shared_.probabilities + swizzled(first_row_ + lane_ % 16, step * 16 + lane_ / 16 * 8));
    }
  }

  // sums_ += probabilities · this group's columns of the values.
  __device__ void add_values(uint32_t stage) {
#pragma unroll
    for (auto& part : sums_) {
#pragma unroll
      for (int i = 0; i < kPartColumns / 2; ++i) part[i] *= corrections_[i / 2 % 2];
      pin(part);
    }
    begin_products();
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int block = 1 + (group_ * kParts + part) * (kPartColumns / kBlockColumns);
        multiply_add_rows<T>(
            sums_[part], probabilities_[step],
            matrix_descriptor(&shared_.keys[stage][block][step * 16 * kBlockRowBytes],
                              kBlockBytes));
      }
    }
    end_group();
    wait_for_groups<0>();
#pragma unroll
    for (auto& part : sums_) pin(part);
  }

  __device__ void store(const Splits& splits) {
    const int row = first_row_ + lane_ / 4;
    float weights[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      weights[half] = weights_[half];
      weights[half] += __shfl_xor_sync(kAllLanes, weights[half], 1);
      weights[half] += __shfl_xor_sync(kAllLanes, weights[half], 2);
      if (lane_ % 4 == 0) shared_.weights[group_][row + 8 * half] = weights[half];
    }
    synchronize_threads(kWeightsThere, kConsumerThreads);
    const bool is_whole = split_.alone || splits.count == 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head_row = row + 8 * half;
      if (head_row >= split_.n_heads) continue;
      const int head = split_.first_head + head_row;
      const float weight = shared_.weights[0][head_row] + shared_.weights[1][head_row];
      const int first_column = group_ * kGroupColumns + lane_ % 4 * 2;
      if (is_whole) {
        const float factor = 1.0F / with_sink(a_, head, maxima_[half], weight);
        T* out = static_cast<T*>(a_.out.data) + split_.query * a_.out.stride +
                 static_cast<int64_t>(head) * kValueDim + first_column;
        for_each_pair(half, [&](int column, float first, float second) {
          *reinterpret_cast<uint32_t*>(out + column) =
              pack_pair<T>(first * factor, second * factor);
        });
      } else {
        float* partial =
            splits.partials + partial_index(a_, splits, split_.sequence, head, split_.part);
        if (first_column == 0) {
          *reinterpret_cast<float2*>(partial) = make_float2(maxima_[half], weight);
        }
        for_each_pair(half, [&](int column, float first, float second) {
          *reinterpret_cast<float2*>(partial + 2 + first_column + column) =
              make_float2(first, second);
        });
      }
    }
  }

  // store(columns after the thread's first one of the group, two sums).
  template <typename Store>
  __device__ void for_each_pair(int half, const Store& store) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int j = 0; j < kPartColumns / 8; ++j) {
        const int i = 4 * j + 2 * half;
        store(part * kPartColumns + 8 * j, sums_[part][i], sums_[part][i + 1]);
      }
    }
  }

  const AttentionArguments& a_;
  const Split& split_;
  uint32_t nth_;
  uint32_t filled_;
  Shared& shared_;
  int thread_;
  int group_;
  int lane_;
  int first_row_;  // of this warp's 16
  float scores_[kGroupTokens / 2];
  float sums_[kParts][kPartColumns / 2] = {};
  uint32_t probabilities_[kTokens / 16][4];
  float maxima_[2] = {kLowest, kLowest};  // of this thread's rows, the second 8 below the first
  float weights_[2] = {};                 // of this lane's columns
  float corrections_[2];
};

template <typename T>
__global__ __launch_bounds__(kThreads, 1) void latent_wgmma_kernel(
    const __grid_constant__ Maps maps, const __grid_constant__ AttentionArguments a,
    const __grid_constant__ Splits splits, int n_sequences) {
  extern __shared__ std::byte memory[];
  auto& shared = aligned<Shared>(memory);
  begin_barriers(shared, kConsumerThreads / kWarp);
  begin_kernel();
  Split split;
  uint32_t nth = 0;
  uint32_t filled = 0;  // tiles
  SplitDealer dealer(a, splits, kRows, n_sequences);
  if (threadIdx.x >= kConsumerThreads) {
    give_back_registers<40>();
    if (threadIdx.x >= kConsumerThreads + kWarp) return;
    for (; dealer.next(split); ++nth) copy_split(a, maps, split, nth, filled, shared);
  } else {
    take_registers<232>();
    for (; dealer.next(split); ++nth) {
      filled += Consumer<T>(a, split, nth, filled, shared).run(splits);
    }
  }
}

template <typename T>
void launch(const AttentionArguments& a, int32_t n_sequences, const Splits& splits,
            const Queue& queue) {
  constexpr size_t kSharedBytes = sizeof(Shared) + kBlockAlignment;
  const int64_t most = int64_t{n_sequences} * splits.count * splits.head_tiles;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(most, gpu_attribute(cudaDevAttrMultiProcessorCount)));
  const Maps maps = describe_latents(a, kRows);
  const auto kernel = latent_wgmma_kernel<T>;
  allow_shared_memory(kernel, kSharedBytes);
  queue.launch("computing latent attention", kernel, {blocks, kThreads, kSharedBytes}, maps, a,
               splits, static_cast<int>(n_sequences));
}

void attention_of_many_heads(const AttentionArguments& a, int32_t n_sequences, Splits splits,
                             const Queue& queue) {
  splits.head_tiles = ceil_div(a.n_heads, kRows);
  a.kv.dtype == DType::f16 ? launch<__half>(a, n_sequences, splits, queue)
                           : launch<__nv_bfloat16>(a, n_sequences, splits, queue);
}

}  // namespace

bool attention_latent_decode_sm90a(const AttentionArguments& a, int32_t n_sequences, Splits splits,
                                   const Queue& queue) {
  const bool pairs = a.out.dtype == a.kv.dtype && a.out.stride % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(a.out.data) % 4 == 0;
  if (a.kv.head_dim != kKeyDim || a.kv.v_head_dim != kValueDim || !pairs ||
      a.q.stride % kKeyDim != 0) {
    return false;
  }
  a.n_heads <= kFewHeads ? attention_of_few_heads(a, n_sequences, splits, queue)
                         : attention_of_many_heads(a, n_sequences, splits, queue);
  return true;
}

}  // namespace faststream
