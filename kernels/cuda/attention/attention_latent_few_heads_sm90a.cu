// Attention of one query a sequence over keys that have their values in them (latent attention), on
// Hopper, for 16 or 32 heads. Products have 64 rows, which 16 heads would leave empty: so rows are
// tokens, then the values' columns, and the heads are columns. A block's one warpgroup multiplies
//
//   scores [64 tokens, heads] = keys [64, 576] · queriesᵀ
//   sums [512, heads] += values [64 tokens, 512]ᵀ · probabilities [64 tokens, heads]
//
// for tiles that a warp copies into a ring of blocks of 64 columns. With 16 heads two blocks share
// a multiprocessor, and the one's products hide what the other waits for; where there is no more to
// do than one for each, it has a longer ring.
//
// Bytes and operations: a tile of 64 tokens of 576 elements is 74 kB, for which an H100 has 3.2 us
// for each of its multiprocessors. Shared memory reads it twice, at 128 bytes a cycle in 0.7 us,
// which no operand or accumulator adds much to: half of what 64 rows of heads would take.
#include <cfloat>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention/attention_latent_sm90a.cuh"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace faststream::latent {

namespace {

constexpr int kWarps = kWarpgroup / kWarp;  // that multiply
constexpr int kThreads = kWarpgroup + kWarp;
constexpr int kWarpTokens = kTokens / kWarps;
constexpr int kStepBytes = 16 * 2;  // of a row, of a product's step of 16
constexpr int kValueBlocks = kValueDim / kBlockColumns;
constexpr int kEverywhere = 1;  // the named barrier of the warps that multiply

/// Of heads, and of blocks that share a multiprocessor.
template <int kHeadCount, int kBlockCount>
struct Shape {
  static constexpr int kHeads = kHeadCount;
  static constexpr int kBlocks = kBlockCount;
  static constexpr int kHeadBlockBytes = kHeads * kBlockRowBytes;
  // Blocks of keys, in what the others leave of 227 KB.
  static constexpr int kRing = (227 * 1024 / kBlocks - static_cast<int>(kBlockAlignment) - 2048 -
                                (kKeyBlocks + 1) * kHeadBlockBytes) /
                               kBlockBytes;
};

template <typename S>
struct Shared {
  std::byte keys[S::kRing][kBlockBytes];
  std::byte queries[kKeyBlocks][S::kHeadBlockBytes];  // past the last head anything
  std::byte probabilities[S::kHeadBlockBytes];        // [kHeads, kTokens]
  float maxima[kWarps][S::kHeads];
  float weights[kWarps][S::kHeads];
  uint64_t queries_there;
  uint64_t queries_done;
  uint64_t keys_there[S::kRing];
  uint64_t keys_done[S::kRing];
};

/// One warp: copies the queries of the block's nth split and the blocks of its tiles. `filled`:
/// blocks before them.
template <typename S>
__device__ void copy_split(const AttentionArguments& a, const Maps& maps, const Split& split,
                           uint32_t nth, uint32_t& filled, Shared<S>& shared) {
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
  // Keys are read once; the results of splits are soon read again.
  const uint64_t policy = evict_first_policy();
  const int32_t* pages = a.page_table + static_cast<int64_t>(split.sequence) * a.max_pages;
  const int last_page = pages_for(split.last);
  for (int base = split.first / kPageTokens; base < last_page; base += kWarp) {
    const int32_t page = base + lane < last_page ? pages[base + lane] : 0;
    const int n_pages = min(last_page - base, kWarp);
    for (int tile = 0; tile < n_pages; tile += kTilePages, filled += kKeyBlocks) {
      const int n = min(n_pages - tile, kTilePages);
      int rows[kTilePages];  // of all pages, the first of each
#pragma unroll
      for (int i = 0; i < kTilePages; ++i) {
        rows[i] = __shfl_sync(kAllLanes, page, tile + i) * kPageTokens;
      }
      if (lane != 0) continue;
      for (uint32_t block = 0; block < kKeyBlocks; ++block) {
        const PipelinePlace<S::kRing> at(filled + block);
        wait_for_phase(shared.keys_done[at.stage], at.parity ^ 1U);
        uint64_t& there = shared.keys_there[at.stage];
        arrive_and_expect(there, n * kPageBlockBytes);
#pragma unroll
        for (int i = 0; i < kTilePages; ++i) {
          if (i >= n) break;
          copy_box(&shared.keys[at.stage][i * kPageBlockBytes], maps.keys,
                   static_cast<int>(block) * kBlockColumns, rows[i], there, policy);
        }
      }
    }
  }
}

/// The warpgroup that multiplies, in the block's nth split, before which there were `filled`
/// blocks. Of scores and sums, a thread with lane 4g + t of warp w has rows 16w + g and 16w + g + 8
/// and of each eight heads the 2t-th and the next.
template <typename T, typename S>
class Consumer {
  using Place = PipelinePlace<S::kRing>;
  static constexpr int kHeads = S::kHeads;

 public:
  __device__ Consumer(const AttentionArguments& a, const Split& split, uint32_t nth,
                      uint32_t filled, Shared<S>& shared)
      : a_(a),
        split_(split),
        nth_(nth),
        filled_(filled),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {
#pragma unroll
    for (float& maximum : maxima_) maximum = kLowest;
  }

  /// Returns how many blocks there were.
  __device__ uint32_t run(const Splits& splits) {
    wait_for_phase(shared_.queries_there, nth_ % 2);
    const uint32_t before = filled_;
    for (int base = split_.first; base < split_.last; base += kTokens, filled_ += kKeyBlocks) {
      const int n_tokens = split_.last - base;
      if (n_tokens < kTokens) clear_values(n_tokens);
      score();
      if (n_tokens <= kTokens && lane_ == 0) arrive(shared_.queries_done);
      release(0, 1);
      weigh(n_tokens);
      add_values();
      release(1, kKeyBlocks);
    }
    store(splits);
    return filled_ - before;
  }

 private:
  static constexpr int kPairs = kHeads / 8;  // of heads of a thread
  static constexpr int kThreadHeads = 2 * kPairs;

  [[nodiscard]] __device__ std::byte* keys(uint32_t block) {
    return shared_.keys[Place(filled_ + block).stage];
  }
  __device__ void wait_for(uint32_t block) {
    const Place at(filled_ + block);
    wait_for_phase(shared_.keys_there[at.stage], at.parity);
  }
  __device__ void release(uint32_t first, uint32_t last) {
    if (lane_ != 0) return;
    for (uint32_t block = first; block < last; ++block) {
      arrive(shared_.keys_done[Place(filled_ + block).stage]);
    }
  }

  // Those of tokens that are not there may be anything: zero times NaN would be NaN.
  __device__ void clear_values(int n_tokens) {
    constexpr int kPieces = kBlockRowBytes / 16;
    const int pieces = (kTokens - n_tokens) * kPieces;
    for (uint32_t block = 1; block < kKeyBlocks; ++block) {
      wait_for(block);
      std::byte* rows = keys(block) + n_tokens * kBlockRowBytes;
      for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kWarpgroup) {
        *reinterpret_cast<uint4*>(rows + i * 16) = make_uint4(0, 0, 0, 0);
      }
    }
    publish_shared_writes();  // for all when they have met, before values are added
  }

  // scores_ = keys · queriesᵀ.
  __device__ void score() {
#pragma unroll
    for (uint32_t block = 0; block < kKeyBlocks; ++block) {
      wait_for(block);
      begin_products();
      const std::byte* rows = keys(block);
#pragma unroll
      for (int offset = 0; offset < kBlockRowBytes; offset += kStepBytes) {
        multiply_rows<T, kHeads>(scores_, matrix_descriptor(rows + offset, 16),
                                 matrix_descriptor(&shared_.queries[block][offset], 16),
                                 block > 0 || offset > 0);
      }
      end_group();
    }
    wait_for_groups<0>();
    pin(scores_);
  }

  // Scores to powers of two, relative to the new maximum of each head, and to probabilities.
  __device__ void weigh(int n_tokens) {
    const int seen = n_tokens - warp_ * kWarpTokens - lane_ / 4;
#pragma unroll
    for (int n = 0; n < kThreadHeads; ++n) {
      float maximum = kLowest;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& score = score_of(n, half);
        score = 8 * half < seen ? score * a_.scale_log2 : -INFINITY;
        maximum = fmaxf(maximum, score);
      }
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, step));
      }
      if (lane_ < 4) shared_.maxima[warp_][head_of(n)] = maximum;
    }
    synchronize_threads(kEverywhere, kWarpgroup);
#pragma unroll
    for (int n = 0; n < kThreadHeads; ++n) {
      float maximum = maxima_[n];
#pragma unroll
      for (const auto& of_warp : shared_.maxima) maximum = fmaxf(maximum, of_warp[head_of(n)]);
      corrections_[n] = exp2f(maxima_[n] - maximum);
      maxima_[n] = maximum;
      float total = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        score_of(n, half) = exp2f(score_of(n, half) - maximum);
        total += score_of(n, half);
      }
      weights_[n] = weights_[n] * corrections_[n] + total;
    }
#pragma unroll
    for (int j = 0; j < kPairs; j += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i] = pack_pair<T>(scores_[4 * j + 2 * i], scores_[4 * j + 2 * i + 1]);
      }
      const int head = 8 * (j + lane_ / 16) + lane_ % 8;
      const int token = warp_ * kWarpTokens + lane_ / 8 % 2 * 8;
      store_matrices<true>(shared_.probabilities + swizzled(head, token), pairs);
    }
    publish_shared_writes();
    synchronize_threads(kEverywhere, kWarpgroup);
  }

  // sums_ += valuesᵀ · probabilities.
  __device__ void add_values() {
#pragma unroll
    for (auto& sums : sums_) {
#pragma unroll
      for (int i = 0; i < kHeads / 2; ++i) sums[i] *= corrections_[i / 4 * 2 + i % 2];
      pin(sums);
    }
    begin_products();
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
#pragma unroll
      for (uint32_t block = 0; block < kValueBlocks; ++block) {
        multiply_columns<T, kHeads>(
            sums_[block], matrix_descriptor(keys(1 + block) + step * 16 * kBlockRowBytes, 16),
            matrix_descriptor(&shared_.probabilities[step * kStepBytes], 16));
      }
    }
    end_group();
    wait_for_groups<0>();
#pragma unroll
    for (auto& sums : sums_) pin(sums);
  }

  __device__ void store(const Splits& splits) {
#pragma unroll
    for (int n = 0; n < kThreadHeads; ++n) {
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) {
        weights_[n] += __shfl_xor_sync(kAllLanes, weights_[n], step);
      }
      if (lane_ < 4) shared_.weights[warp_][head_of(n)] = weights_[n];
    }
    synchronize_threads(kEverywhere, kWarpgroup);
    const bool is_whole = split_.alone || splits.count == 1;
#pragma unroll
    for (int n = 0; n < kThreadHeads; ++n) {
      if (head_of(n) >= split_.n_heads) continue;
      const int head = split_.first_head + head_of(n);
      float weight = 0;
#pragma unroll
      for (const auto& of_warp : shared_.weights) weight += of_warp[head_of(n)];
      if (is_whole) {
        const float factor = 1.0F / with_sink(a_, head, maxima_[n], weight);
        T* out = static_cast<T*>(a_.out.data) + split_.query * a_.out.stride +
                 static_cast<int64_t>(head) * kValueDim;
        for_each_column(n,
                        [&](int column, float sum) { out[column] = from_float<T>(sum * factor); });
      } else {
        float* partial =
            splits.partials + partial_index(a_, splits, split_.sequence, head, split_.part);
        if (warp_ == 0 && lane_ < 4) {
          *reinterpret_cast<float2*>(partial) = make_float2(maxima_[n], weight);
        }
        for_each_column(n, [&](int column, float sum) { partial[2 + column] = sum; });
      }
    }
  }

  // store(column, sum) of this thread's n-th head.
  template <typename Store>
  __device__ void for_each_column(int n, const Store& store) const {
#pragma unroll
    for (int block = 0; block < kValueBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store(block * kBlockColumns + warp_ * 16 + half * 8 + lane_ / 4,
              sums_[block][n / 2 * 4 + half * 2 + n % 2]);
      }
    }
  }

  [[nodiscard]] __device__ int head_of(int n) const { return n / 2 * 8 + lane_ % 4 * 2 + n % 2; }
  __device__ float& score_of(int n, int half) { return scores_[n / 2 * 4 + half * 2 + n % 2]; }

  const AttentionArguments& a_;
  const Split& split_;
  uint32_t nth_;
  uint32_t filled_;
  Shared<S>& shared_;
  int warp_;
  int lane_;
  float scores_[kHeads / 2];
  float sums_[kValueBlocks][kHeads / 2] = {};
  float maxima_[kThreadHeads];
  float weights_[kThreadHeads] = {};  // of this thread's tokens
  float corrections_[kThreadHeads];
};

template <typename T, typename S>
__global__ __launch_bounds__(kThreads, S::kBlocks) void few_heads_kernel(
    const __grid_constant__ Maps maps, const __grid_constant__ AttentionArguments a,
    const __grid_constant__ Splits splits, int n_sequences) {
  extern __shared__ std::byte memory[];
  auto& shared = aligned<Shared<S>>(memory);
  begin_barriers(shared, kWarps);
  begin_kernel();
  Split split;
  uint32_t nth = 0;
  uint32_t filled = 0;  // blocks
  SplitDealer dealer(a, splits, S::kHeads, n_sequences);
  if (threadIdx.x >= kWarpgroup) {
    for (; dealer.next(split); ++nth) copy_split(a, maps, split, nth, filled, shared);
  } else {
    for (; dealer.next(split); ++nth) {
      filled += Consumer<T, S>(a, split, nth, filled, shared).run(splits);
    }
  }
}

template <typename T, typename S>
void launch(const AttentionArguments& a, int32_t n_sequences, const Splits& splits, int64_t blocks,
            const Queue& queue) {
  constexpr size_t kSharedBytes = sizeof(Shared<S>) + kBlockAlignment;
  const auto kernel = few_heads_kernel<T, S>;
  allow_shared_memory(kernel, kSharedBytes);
  queue.launch("computing latent attention", kernel,
               {static_cast<unsigned>(blocks), kThreads, kSharedBytes},
               describe_latents(a, S::kHeads), a, splits, static_cast<int>(n_sequences));
}

}  // namespace

void attention_of_few_heads(const AttentionArguments& a, int32_t n_sequences, const Splits& splits,
                            const Queue& queue) {
  const int64_t most = int64_t{n_sequences} * splits.count;
  const int64_t places = gpu_attribute(cudaDevAttrMultiProcessorCount);
  const auto run = [&]<typename T>(T /*zero*/) {
    if (a.n_heads > 16) {
      launch<T, Shape<kFewHeads, 1>>(a, n_sequences, splits, std::min(most, places), queue);
    } else if (most <= places) {
      launch<T, Shape<16, 1>>(a, n_sequences, splits, most, queue);
    } else {
      launch<T, Shape<16, 2>>(a, n_sequences, splits, std::min(most, 2 * places), queue);
    }
  };
  a.kv.dtype == DType::f16 ? run(__half{}) : run(__nv_bfloat16{});
}

}  // namespace faststream::latent
