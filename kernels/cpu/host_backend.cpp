#include "kernels/cpu/host_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "support/error.h"
#include "support/machine.h"

namespace faststream {
namespace {

constexpr size_t kBufferAlignment = 256;
// Buffers of at least this size start on a huge page and ask for huge pages: a decode step touches
// every byte of weights and cache once, so that page walks would otherwise cost some of the
// bandwidth.
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPiece = size_t{64} << 20;  // of weights, between calls of `progress`

/// Makes the pages of [first, first + bytes) present; false where the kernel cannot do it by
/// itself.
bool populate([[maybe_unused]] std::byte* first, [[maybe_unused]] size_t bytes) {
#ifdef MADV_POPULATE_READ
  return madvise(first, bytes, MADV_POPULATE_READ) == 0;
#else
  return false;
#endif
}

/// What was chosen before they were asked for.
class MadeChoices final : public Choices {
 public:
  explicit MadeChoices(std::vector<SampledToken>&& sampled) : sampled_(std::move(sampled)) {}
  void wait() override {}
  void read(size_t r, SampledToken& to) override { to = std::move(sampled_[r]); }

 private:
  std::vector<SampledToken> sampled_;
};

}  // namespace

size_t HostBackend::free_memory() const { return available_memory(); }

Buffer HostBackend::allocate(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kBufferAlignment;
  void* memory = nullptr;
  if (bytes <= std::numeric_limits<size_t>::max() - alignment) {
    const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    memory = std::aligned_alloc(alignment, rounded);
  }
  if (memory == nullptr) {
    throw Error("a buffer of " + std::to_string(bytes >> 20) +
                " MiB does not fit into memory; give a smaller --context, or convert the model to "
                "a smaller type (--dtype)");
  }
  if (alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);  // only advice
  return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
}

const std::byte* HostBackend::load_weights(const WeightSource& source,
                                           const std::function<void(size_t)>& progress) {
  if (!source.slices.empty()) return copy_slices(source, progress);
  const size_t total = source.bytes.size();
  if (source.fd < 0) {
    if (progress) progress(total);
    return source.bytes.data();
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // The mapping is the file's; madvise only changes when its pages are read.
  auto* bytes = const_cast<std::byte*>(source.bytes.data());
  const size_t lead = reinterpret_cast<uintptr_t>(bytes) % page;  // madvise wants whole pages
  if (total > 0) madvise(bytes - lead, total + lead, MADV_WILLNEED);
  for (size_t done = 0; done < total;) {
    const size_t piece = std::min(kPiece, total - done);
    std::byte* first = bytes + done;
    const size_t before = reinterpret_cast<uintptr_t>(first) % page;
    if (!populate(first - before, piece + before)) {
      for (size_t i = 0; i < piece; i += page) {
        static_cast<void>(static_cast<const volatile std::byte*>(first)[i]);
      }
    }
    done += piece;
    if (progress) progress(done);
  }
  return source.bytes.data();
}

const std::byte* HostBackend::copy_slices(const WeightSource& source,
                                          const std::function<void(size_t)>& progress) {
  const size_t total = source.size();
  weights_.push_back(allocate(total));
  std::byte* to = weights_.back().get();
  for (size_t done = 0; done < total;) {
    const size_t piece = std::min(kPiece, total - done);
    source.read(done, {to + done, piece});
    done += piece;
    if (progress) progress(done);
  }
  return to;
}

void HostBackend::copy_to_device(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void HostBackend::copy_to_host(void* host, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void HostBackend::join(RankLink& link, DType sums) {
  sums_.emplace(link, sums);
  float_sums_.emplace(link, DType::f32);
}

void HostBackend::sum_over_ranks(const Matrix& share, OutputMode output, const Matrix& out) {
  require(sums_.has_value(), "sum_over_ranks: the backend has not joined others");
  sums_->add_up(share, output, out);
}

void HostBackend::gather_columns(const Matrix& m, int64_t each) {
  require(sums_.has_value(), "gather_columns: the backend has not joined others");
  sums_->gather_columns(m, each);
}

void HostBackend::sum_floats_over_ranks(const Matrix& m) {
  require(float_sums_.has_value(), "sum_floats_over_ranks: the backend has not joined others");
  require(m.dtype == DType::f32, "sum_floats_over_ranks: m must be f32");
  float_sums_->add_up(m);
}

void HostBackend::norm_over_ranks(std::span<const SharedNorm> norms) {
  require(float_sums_.has_value(), "norm_over_ranks: the backend has not joined others");
  require(!norms.empty(), "norm_over_ranks: there are no rows");
  const int64_t rows = norms.front().x.rows;
  const int64_t groups = norms.front().share.groups;
  squares_.assign(static_cast<size_t>(rows * groups), 0.0F);
  const Matrix sums(squares_.data(), DType::f32, rows, groups);
  for (const auto& [x, norm, share] : norms) {
    require(x.rows == rows && share.groups == groups && share.group < groups,
            "norm_over_ranks: all must have as many rows and groups");
    require(norm.kind == NormKind::rms && share.columns >= x.cols,
            "norm_over_ranks: an RMS norm is of no more columns than all ranks have");
    if (share.counts) sum_squares(x, sums.columns(share.group, 1));
  }
  float_sums_->add_up(squares_);
  for (const auto& [x, norm, share] : norms) {
    norm_by_squares(x, norm, sums.columns(share.group, 1), share.columns);
  }
}

BatchView HostBackend::upload(const Batch& batch) {
  const auto n_tokens = batch.tokens.size();
  const auto n_sequences = batch.kv_len.size();
  require(batch.positions.size() == n_tokens && batch.sequence_of.size() == n_tokens,
          "upload: positions and sequence_of must have an entry for each token");
  require(batch.query_start.size() == n_sequences + 1 &&
              batch.page_table.size() == static_cast<size_t>(batch.n_groups) * n_sequences *
                                             static_cast<size_t>(batch.max_pages),
          "upload: query_start and page_table must match the number of sequences");
  require(batch.rope_lengths.empty() || batch.rope_lengths.size() == n_sequences,
          "upload: rope_lengths must have an entry for each sequence, or none");
  require(batch.segments.empty() || batch.segments.size() == n_tokens,
          "upload: segments must have an entry for each token, or none");
  require(batch.source_pages.size() ==
                  batch.source_len.size() * static_cast<size_t>(batch.max_source_pages) &&
              (batch.source_len.empty() || batch.source_len.size() == n_sequences),
          "upload: source_len and source_pages must match the number of sequences");
  require(batch.state_from.size() == batch.state_to.size() &&
              batch.state_from.size() == batch.state_border.size() &&
              (batch.state_from.empty() || batch.state_from.size() == n_sequences),
          "upload: states must have an entry for each sequence, or none");
  BatchView view = measure(batch);
  view.tokens = batch.tokens.data();
  view.chosen = chosen_.data();
  view.positions = batch.positions.data();
  view.sequence_of = batch.sequence_of.data();
  view.query_start = batch.query_start.data();
  view.kv_len = batch.kv_len.data();
  view.page_table = batch.page_table.data();
  view.logit_rows = batch.logit_rows.data();
  view.source_len = batch.source_len.data();
  view.source_pages = batch.source_pages.data();
  if (!batch.state_from.empty()) {
    view.state_from = batch.state_from.data();
    view.state_to = batch.state_to.data();
    view.state_border = batch.state_border.data();
  }
  if (!batch.segments.empty()) view.segments = batch.segments.data();
  if (!batch.rope_lengths.empty()) view.rope_lengths = batch.rope_lengths.data();
  return view;
}

std::unique_ptr<Choices> HostBackend::choose(const Matrix& logits,
                                             std::span<const SamplingRow> rules) {
  std::vector<SampledToken> sampled(rules.size());
  if (!rules.empty()) sample_rows(logits, rules, sampled);
  return made_choices(std::move(sampled));
}

std::unique_ptr<Choices> HostBackend::made_choices(std::vector<SampledToken>&& sampled) {
  chosen_.clear();
  for (const SampledToken& each : sampled) chosen_.push_back(each.token);
  return std::make_unique<MadeChoices>(std::move(sampled));
}

void HostBackend::note_time() { noted_.push_back(std::chrono::steady_clock::now()); }

std::vector<double> HostBackend::take_times() {
  std::vector<double> seconds;
  for (size_t i = 1; i < noted_.size(); ++i) {
    seconds.push_back(std::chrono::duration<double>(noted_[i] - noted_[i - 1]).count());
  }
  noted_.clear();
  return seconds;
}

}  // namespace faststream
