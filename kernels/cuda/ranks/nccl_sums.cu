#include "kernels/cuda/ranks/nccl_sums.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/ranks/meeting.h"
#include "kernels/cuda/types.cuh"
#include "support/error.h"

namespace faststream {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMostBlocks = 528;  // four a multiprocessor
// What ranks add up at once: larger sums are taken in pieces.
constexpr int64_t kSliceBytes = int64_t{8} << 20;
// Of larger ones of more than two ranks each adds up a piece.
constexpr int64_t kLargestOneShot = int64_t{256} << 10;
constexpr int64_t kEach = 8;                   // elements: pieces are of a multiple
constexpr int64_t kSlack = int64_t{64} << 10;  // bytes: what that adds, for 64 ranks
constexpr int64_t kInboxBytes = 2 * (kSliceBytes + kSlack);
constexpr int64_t kSecondHalf = kSliceBytes + kSlack;  // of the inbox, bytes

// A rank that has not come by then has died, or cannot be reached.
constexpr std::chrono::seconds kPatience(60);
constexpr std::chrono::seconds kGoodbye(10);

// Where a kernel that is the last of a turn says so; where another rank did not come in time, it
// fails, and so does all that waits for it.
struct Report {
  volatile uint32_t* done = nullptr;
  volatile const uint32_t* failed = nullptr;
  uint32_t turn = 0;
};
__device__ void report(const Report& report) {
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  if (*report.failed != 0) __trap();
  *report.done = report.turn;
}

template <typename F>
__device__ void for_all(int64_t n, const F& f) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads) {
    f(i);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) terms_kernel(const float* share, int64_t n, T* terms) {
  begin_kernel();
  for_all(n, [&](int64_t i) { terms[i] = from_float<T>(share[i]); });
}

// Element i of terms that lie `pitch` from each other, added up in the order of ranks and rounded.
template <typename T>
__device__ T sum_of(const T* terms, int64_t pitch, int count, int64_t i) {
  float sum = 0;
  for (int r = 0; r < count; ++r) sum += to_float(terms[r * pitch + i]);
  return from_float<T>(sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    piece_kernel(const T* terms, int64_t pitch, int count, T* sums) {
  begin_kernel();
  for_all(pitch, [&](int64_t i) { sums[i] = sum_of(terms, pitch, count, i); });
}

struct Result {
  float* data = nullptr;
  int64_t n = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  bool adds = false;
};
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const T* terms, int64_t pitch, int count, Result out, Report end) {
  begin_kernel();
  for_all(out.n, [&](int64_t i) {
    const float sum = to_float(sum_of(terms, pitch, count, i));
    float& element = out.data[i / out.cols * out.stride + i % out.cols];
    element = out.adds ? element + sum : sum;
  });
  report(end);
}

// Columns of m from `first` on, at most `each`, and rows of as many: from the one to the other.
struct Columns {
  Matrix m;
  int64_t first = 0;
  int64_t each = 0;
  float* rows = nullptr;
};
template <typename Copy>
__device__ void for_columns(const Columns& columns, const Copy& copy) {
  for_all(columns.m.rows * columns.each, [&](int64_t i) {
    const int64_t c = columns.first + i % columns.each;
    if (c >= columns.m.cols) return;
    auto* row = static_cast<float*>(columns.m.data) + i / columns.each * columns.m.stride;
    copy(row[c], columns.rows[i]);
  });
}
__global__ void __launch_bounds__(kThreads) pack_kernel(Columns columns) {
  begin_kernel();
  for_columns(columns, [](float& of_matrix, float& of_row) { of_row = of_matrix; });
}
__global__ void __launch_bounds__(kThreads) unpack_kernel(Columns columns) {
  begin_kernel();
  for_columns(columns, [](float& of_matrix, float& of_row) { of_matrix = of_row; });
}
__global__ void report_kernel(Report end) {
  begin_kernel();
  report(end);
}

Grid grid_of(int64_t elements) {
  const int64_t blocks = (elements + kThreads - 1) / kThreads;
  return {std::clamp<unsigned>(static_cast<unsigned>(std::min<int64_t>(blocks, kMostBlocks)), 1,
                               kMostBlocks),
          kThreads};
}

int64_t rounded_up(int64_t elements) { return (elements + kEach - 1) / kEach * kEach; }

// What a task gives that waits for other ranks; nothing where it is not done in time: then the
// thread that does it is left behind. It keeps what it needs.
template <typename Task>
auto within(std::chrono::seconds patience, Task task) -> std::optional<decltype(task())> {
  std::packaged_task<decltype(task())()> packaged(std::move(task));
  auto result = packaged.get_future();
  std::thread(std::move(packaged)).detach();
  if (result.wait_for(patience) != std::future_status::ready) return std::nullopt;
  return result.get();
}

// Of all ranks: what each says, which is of the same type.
template <typename T>
std::vector<T> gather(RankLink& link, const T& own) {
  std::vector<T> all(static_cast<size_t>(link.count()));
  std::memcpy(all.data(), link.gather(std::as_bytes(std::span(&own, 1))).data(),
              all.size() * sizeof own);
  return all;
}

// Of all ranks: versions of what they have found, 0: nothing. "" if these run together.
std::string why_they_cannot(std::span<const int> versions) {
  if (std::ranges::count(versions, 0) > 0) return "a rank has no NCCL";
  if (std::ranges::count(versions, versions.front()) < std::ssize(versions)) {
    return "ranks have different versions of NCCL";
  }
  return "";
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error("Sums over ranks by NCCL, which " + std::string(kNcclVariable) +
              " asks for, are not possible: " + why + "; unset it, or set it to \"off\".");
}

}  // namespace

NcclSums::NcclSums(NcclLibrary nccl, RankLink& link)
    : nccl_(std::move(nccl)),
      rank_(link.rank()),
      count_(link.count()),
      terms_(allocate_device(kSliceBytes + kSlack)),
      inbox_(allocate_device(kInboxBytes)),
      progress_memory_(allocate_pinned(sizeof(Progress))),
      progress_(new (progress_memory_.get()) Progress) {}

std::unique_ptr<NcclSums> NcclSums::make(RankLink& link, bool is_asked_for) {
  std::unique_ptr<NcclSums> sums;
  const bool can_run = all_agree(link, !(link.is_in_process() && loads_kernels_late()));
  const std::string why =
      can_run ? connect(link, sums) : "ranks that are threads need CUDA_MODULE_LOADING=EAGER";
  if (!why.empty() && is_asked_for) refuse(why);
  if (sums) sums->try_out();
  return sums;
}

// Of all ranks: makes theirs, or none of them has any; then why not.
std::string NcclSums::connect(RankLink& link, std::unique_ptr<NcclSums>& sums) {
  std::optional<NcclLibrary> nccl;
  std::string why;
  try {
    nccl = find_nccl();
  } catch (const Error& error) {
    why = error.what();
  }
  const std::string why_others = why_they_cannot(gather(link, nccl ? nccl->version : 0));
  if (!why.empty()) throw Error(why);
  if (!why_others.empty()) return why_others;

  NcclLibrary::Id id{};
  const bool has_id = link.rank() > 0 || nccl->get_unique_id(&id) == NcclLibrary::kSuccess;
  id = gather(link, id).front();
  if (!all_agree(link, has_id)) return "it finds no network (NCCL_DEBUG=INFO says more)";
  auto own = std::unique_ptr<NcclSums>(new NcclSums(*std::move(nccl), link));
  why = own->connect(id);
  if (!all_agree(link, why.empty())) return why.empty() ? "another rank cannot connect" : why;
  sums = std::move(own);
  return "";
}

// Returns why not, or "".
std::string NcclSums::connect(const NcclLibrary::Id& id) {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "reading the current GPU");
  struct Connected {
    int result;
    NcclLibrary::Communicator communicator;
  };
  const auto connected =
      within(kPatience, [nccl = nccl_, count = count_, rank = rank_, id, device] {
        Connected own{};
        cudaSetDevice(device);
        own.result = nccl.init_rank(&own.communicator, count, id, rank);
        return own;
      });
  if (!connected) return "not all ranks have come within a minute (NCCL_DEBUG=INFO says more)";
  if (connected->result != NcclLibrary::kSuccess) {
    return std::string(nccl_.error_string(connected->result)) + " (NCCL_DEBUG=INFO says more)";
  }
  communicator_ = connected->communicator;
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  return "";
}

// NCCL connects when it is first used, which must not be within a step. Nothing is allocated here
// either: that might wait for the other ranks' kernels, which wait for this rank.
void NcclSums::try_out() {
  const Stream stream = make_stream();
  const Queue queue{stream.get(), false};
  cuda_check(cudaMemsetAsync(terms_.get(), 0, kSliceBytes, stream.get()), "clearing memory");
  for (const int64_t n : {kEach, kLargestOneShot}) {
    const Matrix share(terms_.get(), DType::f32, 1, n);
    add_up(queue, share, OutputMode::store, share, DType::f32);
    gather_columns(queue, share, std::max<int64_t>(1, n / count_));
  }
  cuda_check(cudaStreamSynchronize(stream.get()), "adding up over ranks by NCCL");
}

NcclSums::~NcclSums() {
  if (watcher_.joinable()) {
    watcher_.request_stop();
    watcher_.join();
  }
  const bool has_failed = std::atomic_ref(progress_->failed).load() != 0;
  if (communicator_ == nullptr || has_failed) return;
  // Which may wait for the others.
  static_cast<void>(within(kGoodbye, [nccl = nccl_, communicator = communicator_] {
    return nccl.destroy(communicator);
  }));
}

std::string NcclSums::description() const { return "NCCL " + version_name(nccl_); }

void NcclSums::check(int result) const {
  if (result == NcclLibrary::kSuccess) return;
  throw Error(std::string("NCCL failed while adding up over ranks: ") + nccl_.error_string(result) +
              "; try again with " + kNcclVariable + "=off, or with NCCL_DEBUG=INFO to learn more.");
}

// A rank that has died leaves NCCL's kernels of the others waiting forever.
void NcclSums::watch(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  uint32_t seen = 0;
  Clock::time_point since = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    is_over_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
    const uint32_t done = std::atomic_ref(progress_->done).load();
    if (done != seen || done == begun_.load()) {
      seen = done;
      since = Clock::now();
    } else if (Clock::now() - since > kPatience) {
      std::atomic_ref(progress_->failed).store(1);
      static_cast<void>(nccl_.abort(communicator_));
      return;
    }
  }
}

// A turn: what is between its beginning and its report is waited for.
class NcclSums::Turn {
 public:
  explicit Turn(NcclSums& sums) : sums_(sums), turn_(sums.begun_.load() + 1) {
    sums_.begun_.store(turn_);
  }
  [[nodiscard]] Report end() const {
    return {.done = &sums_.progress_->done, .failed = &sums_.progress_->failed, .turn = turn_};
  }

 private:
  NcclSums& sums_;
  uint32_t turn_;
};

bool NcclSums::takes(const Matrix& share) {
  return share.cols * static_cast<int64_t>(sizeof(float)) <= kSliceBytes;
}

void NcclSums::add_up(const Queue& queue, const Matrix& share, OutputMode output, const Matrix& out,
                      DType type) {
  const int64_t element = static_cast<int64_t>(dtype_size(type));
  const int64_t rows = std::max<int64_t>(1, kSliceBytes / element / share.cols);
  for (int64_t first = 0; first < share.rows; first += rows) {
    const int64_t n = std::min(rows, share.rows - first);
    const bool adds = output == OutputMode::add;
    if (type == DType::bf16) {
      add_up_rows<__nv_bfloat16>(queue, share.row_range(first, n), adds, out.row_range(first, n));
    } else {
      add_up_rows<float>(queue, share.row_range(first, n), adds, out.row_range(first, n));
    }
  }
}

template <typename T>
void NcclSums::add_up_rows(const Queue& queue, const Matrix& share, bool adds, const Matrix& out) {
  const Turn turn(*this);
  const char* doing = "adding up over ranks";
  const int64_t n = share.rows * share.cols;
  const bool one_shot = count_ == 2 || n * static_cast<int64_t>(sizeof(T)) <= kLargestOneShot;
  const int64_t piece = rounded_up(one_shot ? n : (n + count_ - 1) / count_);
  const auto bytes = static_cast<size_t>(piece) * sizeof(T);
  auto* terms = reinterpret_cast<T*>(terms_.get());
  auto* all = reinterpret_cast<T*>(inbox_.get());
  queue.launch(doing, terms_kernel<T>, grid_of(n), static_cast<const float*>(share.data), n, terms);
  if (!one_shot) {
    check(nccl_.group_start());
    for (int r = 0; r < count_; ++r) {
      check(nccl_.send(terms + r * piece, bytes, NcclLibrary::kBytes, r, communicator_,
                       queue.stream));
      check(nccl_.receive(all + r * piece, bytes, NcclLibrary::kBytes, r, communicator_,
                          queue.stream));
    }
    check(nccl_.group_end());
    queue.launch(doing, piece_kernel<T>, grid_of(piece), static_cast<const T*>(all), piece, count_,
                 terms);
    all = reinterpret_cast<T*>(inbox_.get() + kSecondHalf);
  }
  check(nccl_.all_gather(terms, all, bytes, NcclLibrary::kBytes, communicator_, queue.stream));
  const Result result{.data = static_cast<float*>(out.data),
                      .n = n,
                      .cols = share.cols,
                      .stride = out.stride,
                      .adds = adds};
  queue.launch(doing, sum_kernel<T>, grid_of(n), static_cast<const T*>(all), piece,
               one_shot ? count_ : 1, result, turn.end());
}

// As many as there is room for.
int64_t NcclSums::rows_of_columns(int64_t each) const {
  const int64_t bytes = each * static_cast<int64_t>(sizeof(float));
  return std::min(kSliceBytes / bytes, kInboxBytes / (bytes * (count_ - 1)));
}

bool NcclSums::takes_columns(int64_t each) const { return rows_of_columns(each) > 0; }

void NcclSums::gather_columns(const Queue& queue, const Matrix& m, int64_t each) {
  const int64_t rows = rows_of_columns(each);
  for (int64_t first = 0; first < m.rows; first += rows) {
    gather_rows_of_columns(queue, m.row_range(first, std::min(rows, m.rows - first)), each);
  }
}

void NcclSums::gather_rows_of_columns(const Queue& queue, const Matrix& m, int64_t each) {
  const Turn turn(*this);
  const char* doing = "gathering columns";
  const int64_t n = m.rows * each;
  const auto bytes = static_cast<size_t>(n) * sizeof(float);
  const auto columns = [&](int rank, std::byte* rows) {
    return Columns{
        .m = m, .first = rank * each, .each = each, .rows = reinterpret_cast<float*>(rows)};
  };
  const auto inbox = [&](int rank) { return inbox_.get() + static_cast<size_t>(rank - 1) * bytes; };
  if (rank_ > 0) {
    queue.launch(doing, pack_kernel, grid_of(n), columns(rank_, terms_.get()));
    check(nccl_.group_start());
    check(nccl_.send(terms_.get(), bytes, NcclLibrary::kBytes, 0, communicator_, queue.stream));
    check(nccl_.group_end());
  } else {
    check(nccl_.group_start());
    for (int r = 1; r < count_; ++r) {
      check(nccl_.receive(inbox(r), bytes, NcclLibrary::kBytes, r, communicator_, queue.stream));
    }
    check(nccl_.group_end());
    for (int r = 1; r < count_; ++r) {
      queue.launch(doing, unpack_kernel, grid_of(n), columns(r, inbox(r)));
    }
  }
  queue.launch(doing, report_kernel, {1, 1}, turn.end());
}

}  // namespace faststream
