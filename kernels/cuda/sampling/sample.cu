// Drawing tokens from logits, one launch for all such rows and rules, a block each; rankings for
// beam searches are in rank.cu.
//
// The vocabulary is not sorted. Up to 1024 candidates are collected and sorted: as many threads as
// candidates have each seen a logit that is at least the threshold, so two readings of the row
// suffice. More candidates are tallied in 2048 bins of equal width in logits; a bin that a rule or
// the draw asks for has a few hundred tokens, which are collected and sorted by one more reading. A
// bin of more than 1024 is first divided by further histograms. A row is read from the L2 cache
// after the first time.
#include <curand_kernel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/sampling/rows.cuh"
#include "kernels/cuda/sampling/sample_block.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace sampling {
namespace {

/// What draw_among() looks for.
struct Found {
  uint64_t key;
  uint64_t cumulative;  ///< mass
};

/// Sorted keys with their cumulative tallies, a key for each thread.
class SortedRun {
 public:
  /// above: the tally of larger keys.
  __device__ SortedRun(const SortedKeys& keys, const Softmax& softmax, const Tally& above,
                       Storage& storage)
      : storage_(storage), key_(keys.own) {
    Tally own;
    if (thread_index() < keys.n) {
      octaves_ = softmax.octaves(key_logit(key_));
      own = {softmax.mass(key_logit(key_)), 1};
    }
    TallyScan(storage.scan).ExclusiveScan(own, before_, Tally{}, AddTallies{}, all_);
    before_ = above + before_;
    cumulative_ = before_ + own;
    all_ = above + all_;
    __syncthreads();
  }

  /// Of all keys.
  __device__ Tally all() const { return all_; }

  /// The first where `reached` becomes true of the cumulative tally. There must be one.
  template <typename Reached>
  __device__ Found find(const Reached& reached) {
    if (reached(cumulative_) && !reached(before_)) {
      storage_.found_key = key_;
      storage_.found = cumulative_;
    }
    __syncthreads();
    const Found found{storage_.found_key, storage_.found.mass};
    __syncthreads();
    return found;
  }

  /// Cumulative mass of the keys at most so far below the largest, which must be among them.
  __device__ uint64_t mass_within(float octaves) {
    const int n = __syncthreads_count(octaves_ <= octaves ? 1 : 0);
    if (thread_index() == n - 1) storage_.found = cumulative_;
    __syncthreads();
    const uint64_t mass = storage_.found.mass;
    __syncthreads();
    return mass;
  }

 private:
  Storage& storage_;
  uint64_t key_;
  float octaves_ = std::numeric_limits<float>::quiet_NaN();  // in threads without a key
  Tally before_;
  Tally cumulative_;
  Tally all_;
};

/// Candidates of draw_among() that are few enough to be sorted.
class FewCandidates {
 public:
  __device__ FewCandidates(SortedKeys keys, int kept, const Softmax& softmax, Storage& storage)
      : run_({keys.own, min(keys.n, kept)}, softmax, {}, storage) {}

  __device__ uint64_t total() const { return run_.all().mass; }
  __device__ uint64_t mass_within(float octaves) { return run_.mass_within(octaves); }
  __device__ Found find(uint64_t mass) {
    return run_.find([=](const Tally& tally) { return tally.mass >= mass; });
  }

 private:
  SortedRun run_;
};

/// Candidates of draw_among() in any number: a histogram of the tokens that have a mass.
class ManyCandidates {
 public:
  __device__ ManyCandidates(const Row& row, int kept, const Softmax& softmax, const Survey& survey,
                            Storage& storage)
      : row_(row), kept_(kept), softmax_(softmax), storage_(storage), best_(survey.best) {
    const float range = fminf(softmax.largest - survey.lowest, kMassOctaves / softmax.scale);
    bins_per_unit_ = fminf(kCoarseBins / range, std::numeric_limits<float>::max());
    lowest_ = token_key(survey.lowest, row.vocab - 1);
    storage_.coarse.clear();
    __syncthreads();
    row_.for_each<2>([&](int /*id*/, float logit) {
      if (softmax_.has_mass(logit)) storage_.coarse.add(bin_of(logit), softmax_.mass(logit));
    });
    __syncthreads();
    all_ = storage_.coarse.scan({}, storage_.scan);
    __syncthreads();
  }

  __device__ uint64_t total() {
    if (kept_ >= all_.count) return all_.mass;
    const int kept = kept_;
    return find_where([=](const Tally& tally) { return tally.count >= kept; }).cumulative;
  }

  __device__ uint64_t mass_within(float octaves) {
    Tally own;
    row_.for_each<2>([&](int /*id*/, float logit) {
      if (softmax_.octaves(logit) <= octaves) own.mass += softmax_.mass(logit);
    });
    Tally before;
    Tally all;
    TallyScan(storage_.scan).ExclusiveScan(own, before, Tally{}, AddTallies{}, all);
    __syncthreads();
    return all.mass;
  }

  __device__ Found find(uint64_t mass) {
    return find_where([=](const Tally& tally) { return tally.mass >= mass; });
  }

 private:
  /// Never falls as logits fall.
  __device__ int bin_of(float logit) const {
    return min(kCoarseBins - 1, static_cast<int>((softmax_.largest - logit) * bins_per_unit_));
  }

  template <typename Reached>
  __device__ Found find_where(const Reached& reached) {
    storage_.coarse.find(reached, storage_.bin);
    __syncthreads();
    const int bin = storage_.bin;
    __syncthreads();
    Span span;
    if (bin > 0) span.above = storage_.coarse[bin - 1];
    span.count = storage_.coarse[bin].count - span.above.count;
    span.interval = interval_of(bin);
    while (span.count > kMaxKeys) span = narrow(row_, softmax_, span, reached, storage_);
    return SortedRun(collect(row_, span.interval, storage_), softmax_, span.above, storage_)
        .find(reached);
  }

  /// The keys with a mass in a bin.
  __device__ Interval interval_of(int bin) const {
    const auto down_to = [&](int last) {
      return lowest_key(softmax_.largest, [&](float logit) {
        return softmax_.has_mass(logit) && bin_of(logit) <= last;
      });
    };
    const uint64_t low = down_to(bin);
    return {low > lowest_ ? low : lowest_, bin > 0 ? down_to(bin - 1) - 1 : best_};
  }

  Row row_;
  int kept_;
  Softmax softmax_;
  Storage& storage_;
  uint64_t best_;
  uint64_t lowest_ = 0;  // a bound of all finite logits' keys
  float bins_per_unit_ = 0;
  Tally all_;
};

__device__ int draw(const Row& row, const RowRule& rule, const Survey& survey, Storage& storage) {
  const DrawRule& draw = rule.draw;
  const Softmax softmax{key_logit(survey.best), draw.scale};
  curandStatePhilox4_32_10_t state;
  curand_init(rule.seed, rule.sequence, 4 * rule.position, &state);
  const float uniform = static_cast<float>(curand(&state) >> 8) * 0x1p-24F;

  SortedKeys few{.own = 0, .n = kMaxKeys + 1};
  if (draw.kept <= kMaxKeys) {
    few = collect_largest(row, softmax, survey, draw.kept, storage);
  } else if (draw.top_p >= 1 && draw.min_p_octaves < kMassOctaves) {
    // Where min-p alone decides, what it drops is of no importance.
    const uint64_t low = lowest_key(
        softmax.largest, [&](float logit) { return softmax.octaves(logit) <= draw.min_p_octaves; });
    few = collect(row, {low, survey.best}, storage);
  }
  if (few.n <= kMaxKeys) {
    FewCandidates candidates(few, draw.kept, softmax, storage);
    return draw_among(candidates, draw, uniform);
  }
  ManyCandidates candidates(row, draw.kept, softmax, survey, storage);
  return draw_among(candidates, draw, uniform);
}

/// The logit of a token before the edits. Known to at least one thread, which writes it.
__device__ void write_unedited(const Row& row, int token, const LogitEdit* edits, int n_edits,
                               const float* unedited, float& logit) {
  bool mine = false;
  for (int i = thread_index(); i < n_edits; i += kThreads) {
    if (edits[i].token != token) continue;
    logit = unedited[i];
    mine = true;
  }
  if (__syncthreads_or(mine ? 1 : 0) == 0 && thread_index() == 0) logit = row.logits[token];
}

/// The block's rule, which may lie in the host's memory, read once.
__device__ const RowRule& read_rule(const RowRule* rules) {
  constexpr int kWords = sizeof(RowRule) / sizeof(uint64_t);
  static_assert(kWords <= kThreads && sizeof(RowRule) % sizeof(uint64_t) == 0);
  __shared__ uint64_t words[kWords];
  const auto* from = reinterpret_cast<const uint64_t*>(rules + blockIdx.x);
  if (thread_index() < kWords) words[thread_index()] = from[thread_index()];
  __syncthreads();
  return reinterpret_cast<const RowRule&>(words);
}

__global__ __launch_bounds__(kThreads) void sample_kernel(const Arguments arguments) {
  alignas(16) __shared__ unsigned char memory[sizeof(Storage)];
  Storage& storage = *reinterpret_cast<Storage*>(memory);
  allow_next_kernel();
  const RowRule& rule = read_rule(arguments.rules);
  wait_for_inputs();
  const Row row{arguments.logits + rule.row * arguments.stride, arguments.vocab};
  const LogitEdit* edits = arguments.edits + rule.first_edit;
  const bool wants_logprobs = rule.n_logprobs >= 0;
  float* unedited = wants_logprobs ? arguments.unedited + rule.first_edit : nullptr;
  RowResult* out = arguments.result(rule.row);

  RowResult result;
  Survey seen;
  if (wants_logprobs) {
    seen = survey(row, storage);
    if (seen.fault == DrawFault::none) {
      describe(row, seen, rule.n_logprobs, result, reinterpret_cast<uint64_t*>(out + 1), storage);
    }
  }
  const bool is_masked = rule.first_mask >= 0;
  if (is_masked) apply(row, arguments.masks + rule.first_mask);
  if (rule.n_edits > 0) apply(row, edits, rule.n_edits, unedited);
  if (rule.n_edits > 0 || is_masked || !wants_logprobs) seen = survey(row, storage);
  result.fault = seen.fault;
  if (seen.fault == DrawFault::none) {
    result.token = rule.draw.scale > 0 ? draw(row, rule, seen, storage) : key_id(seen.best);
  }
  if (thread_index() == 0) {
    *out = result;
    arguments.chosen[rule.row] = result.token;
  }
  __syncthreads();
  if (wants_logprobs && seen.fault == DrawFault::none) {
    write_unedited(row, result.token, edits, rule.n_edits, unedited, out->logit);
  }
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Results in host memory, which the kernels write.
class CudaChoices final : public Choices {
 public:
  /// Takes memory from `idle`, which gets it back.
  CudaChoices(std::vector<ChoiceMemory>& idle, std::span<const SamplingRow> rules, int64_t vocab)
      : idle_(idle), rules_(rules), vocab_(vocab) {
    if (idle_.empty()) {
      memory_.chosen = make_event();
      return;
    }
    memory_ = std::move(idle_.back());
    idle_.pop_back();
  }
  CudaChoices(const CudaChoices&) = delete;
  CudaChoices& operator=(const CudaChoices&) = delete;
  ~CudaChoices() override {
    cudaEventSynchronize(memory_.chosen.get());  // the kernels may still write
    idle_.push_back(std::move(memory_));
  }

  std::byte* host_memory(size_t bytes) { return memory_.host.at_least(bytes); }
  /// Kernels of these arguments, launched in `stream`, choose.
  void are_launched(const Arguments& arguments, cudaStream_t stream) {
    arguments_ = arguments;
    cuda_check(cudaEventRecord(memory_.chosen.get(), stream), "sampling");
  }

  void wait() override {
    cuda_check(cudaEventSynchronize(memory_.chosen.get()), "waiting for the GPU");
    for (size_t r = 0; r < rules_.size(); ++r) check_draw(result(r).fault);
  }

  void read(size_t r, SampledToken& to) override {
    const RowResult& result = this->result(r);
    to.token = result.token;
    to.logprob = to.renormalization = 0;
    to.top.clear();
    to.candidates.clear();
    const SamplingRow& rule = rules_[r];
    if (rule.n_logprobs < 0 && rule.n_candidates == 0) return;
    const LogSoftmax model(result.largest, result.total);
    to.logprob = model(result.logit);
    const auto* keys = reinterpret_cast<const uint64_t*>(&result + 1);
    const auto list = [&](int64_t n, std::vector<LogProbability>& tokens) {
      n = std::clamp<int64_t>(n, 0, vocab_);
      tokens.reserve(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        tokens.push_back({key_id(keys[i]), model(key_logit(keys[i]))});
      }
    };
    list(rule.n_logprobs, to.top);
    if (rule.edits.empty()) {
      list(rule.n_candidates, to.candidates);
    } else {
      keys = reinterpret_cast<const uint64_t*>(reinterpret_cast<const std::byte*>(&result) +
                                               arguments_.candidates_at);
      if (rule.renormalizes && result.n_candidates > 0) {
        const LogSoftmax edited(result.edited_largest, result.edited_total);
        to.renormalization = edited(0);
      }
      to.candidates.reserve(static_cast<size_t>(result.n_candidates));
      for (int32_t i = 0; i < result.n_candidates; ++i) {
        to.candidates.push_back({key_id(keys[i]), key_logit(keys[i]) + to.renormalization});
      }
    }
    std::erase_if(to.candidates, [](const LogProbability& p) { return std::isinf(p.value); });
  }

 private:
  [[nodiscard]] const RowResult& result(size_t r) const {
    return *reinterpret_cast<const RowResult*>(arguments_.results +
                                               r * static_cast<size_t>(arguments_.result_bytes));
  }

  std::vector<ChoiceMemory>& idle_;
  ChoiceMemory memory_;
  std::span<const SamplingRow> rules_;
  int64_t vocab_;
  Arguments arguments_{};
};

}  // namespace
}  // namespace sampling

std::unique_ptr<Choices> CudaBackend::choose(const Matrix& logits,
                                             std::span<const SamplingRow> rules) {
  using namespace sampling;
  const Queue queue = this->queue();
  auto choices = std::make_unique<CudaChoices>(choice_memory_, rules, logits.cols);
  if (rules.empty()) {
    choices->are_launched({}, queue.stream);
    return choices;
  }
  const size_t rows = rules.size();
  size_t n_edits = 0;
  size_t n_mask_words = 0;
  int32_t n_logprobs = 0;
  int32_t n_candidates = 0;
  for (const SamplingRow& rule : rules) {
    require_rule(rule, logits.cols);
    n_edits += rule.edits.size();
    n_mask_words += rule.mask.size();
    n_logprobs = std::max(n_logprobs, rule.n_logprobs);
    n_candidates = std::max(n_candidates, rule.n_candidates);
  }

  // Rules, edits and masks are uploaded. The results lie behind them in host memory, where the
  // kernel writes them itself: a copy would be a pause of 10 us.
  const size_t edits_at = aligned(rows * sizeof(RowRule));
  const size_t masks_at = edits_at + aligned(n_edits * sizeof(LogitEdit));
  const size_t upload_bytes = masks_at + aligned(n_mask_words * sizeof(uint32_t));
  const auto n_described = static_cast<size_t>(std::max(n_logprobs, n_candidates));
  const size_t candidates_at = sizeof(RowResult) + n_described * sizeof(uint64_t);
  const size_t result_bytes = candidates_at + static_cast<size_t>(n_candidates) * sizeof(uint64_t);
  std::byte* host = choices->host_memory(upload_bytes + rows * result_bytes);
  std::byte* results = host + upload_bytes;
  std::byte* device = scratch_.at_least(upload_bytes + n_edits * sizeof(float));

  // Rules of draws come first, then those of rankings by several readings, then by one.
  const auto way_of = [](const SamplingRow& rule) -> size_t {
    return rule.n_candidates == 0 ? 0 : ranks_at_once(rule) ? 2 : 1;
  };
  std::array<size_t, 3> counts{};
  for (const SamplingRow& rule : rules) ++counts[way_of(rule)];
  auto* first = reinterpret_cast<RowRule*>(host);
  std::array<RowRule*, 3> next = {first, first + counts[0], first + counts[0] + counts[1]};
  size_t first_edit = 0;
  size_t first_mask = 0;
  for (size_t r = 0; r < rows; ++r) {
    const SamplingRow& rule = rules[r];
    *next[way_of(rule)]++ = {
        .row = static_cast<int64_t>(r),
        .draw = draw_rule(rule, logits.cols),
        .n_logprobs = rule.n_logprobs,
        .n_candidates = rule.n_candidates,
        .n_edits = static_cast<int32_t>(rule.edits.size()),
        .first_edit = static_cast<int64_t>(first_edit),
        .first_mask = rule.mask.empty() ? -1 : static_cast<int64_t>(first_mask),
        .seed = rule.seed,
        .sequence = rule.sequence,
        .position = rule.position};
    if (!rule.mask.empty()) {
      std::memcpy(host + masks_at + first_mask * sizeof(uint32_t), rule.mask.data(),
                  rule.mask.size_bytes());
      first_mask += rule.mask.size();
    }
    if (rule.edits.empty()) continue;
    std::memcpy(host + edits_at + first_edit * sizeof(LogitEdit), rule.edits.data(),
                rule.edits.size_bytes());
    first_edit += rule.edits.size();
  }
  // Rules of draws alone, which are read once, are read where they are: a copy takes longer.
  const bool are_copied = n_edits > 0 || n_mask_words > 0 || counts[0] < rows;
  if (are_copied) {
    cuda_check(cudaMemcpyAsync(device, host, upload_bytes, cudaMemcpyHostToDevice, queue.stream),
               "copying sampling rules");
  }
  Arguments arguments{
      .logits = static_cast<float*>(logits.data),
      .stride = logits.stride,
      .vocab = static_cast<int>(logits.cols),
      .rules = reinterpret_cast<const RowRule*>(are_copied ? device : host),
      .edits = reinterpret_cast<const LogitEdit*>(device + edits_at),
      .masks = reinterpret_cast<const uint32_t*>(device + masks_at),
      .unedited = reinterpret_cast<float*>(device + upload_bytes),
      .chosen = reinterpret_cast<int32_t*>(chosen_.at_least(rows * sizeof(int32_t))),
      .results = results,
      .result_bytes = static_cast<int64_t>(result_bytes),
      .candidates_at = static_cast<int64_t>(candidates_at)};
  if (counts[0] > 0) {
    const Grid grid{static_cast<unsigned>(counts[0]), kThreads};
    queue.launch("sampling", sample_kernel, grid, arguments);
  }
  arguments.rules += counts[0];
  if (counts[1] > 0) rank(arguments, counts[1], queue);
  arguments.rules += counts[1];
  if (counts[2] > 0) rank_at_once(arguments, counts[2], queue);
  choices->are_launched(arguments, queue.stream);
  return choices;
}

}  // namespace faststream
