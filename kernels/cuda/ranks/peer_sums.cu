#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/ranks/meeting.h"
#include "kernels/cuda/ranks/peer_sums.h"
#include "kernels/cuda/ranks/terms.cuh"
#include "kernels/cuda/types.cuh"
#include "support/hash.h"

namespace faststream {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 264;  // two a multiprocessor
constexpr int kEach = 8;          // elements, for a thread
constexpr int kAtOnce = 4;        // of these, for a thread
// What a rank adds up at once: larger sums are taken in pieces. A prompt's 2,048 rows of 8,192.
constexpr int64_t kSliceBytes = int64_t{32} << 20;
// Of larger ones of more than two ranks each adds up a piece.
constexpr int64_t kLargestOneShot = int64_t{256} << 10;
// A rank's memory: for each phase, rank and block the last turn whose terms are there; then, for
// even turns and for odd ones, the terms. A rank writes terms of a turn after all have said that
// theirs of the turn before are there, and so have read those of the turn before that. Behind them
// is the ring of those that go word by word.
constexpr int64_t kFlagsBytes = 2 * kMostPeers * kMostBlocks * sizeof(uint32_t);
constexpr int64_t kSlack = kMostPeers * kEach * sizeof(float);  // by which pieces are longer
constexpr int64_t kInboxBytes = 2 * (kSliceBytes + kSlack);
constexpr int64_t kRingAt = kFlagsBytes + 2 * kInboxBytes;

__host__ __device__ std::byte* inbox_at(std::byte* memory, uint32_t turn) {
  return memory + kFlagsBytes + (turn % 2) * kInboxBytes;
}
// Sums that go word by word, of which a thread has one eight: they take a trip and no fence, but
// memory that is made unset again.
constexpr int kWordThreads = 128;
constexpr int64_t kMostWordBytes = int64_t{1} << 20;  // of a rank

struct Sum {
  PeerMemory peers;
  uint32_t turn = 0;
  const float* share = nullptr;  // null: its terms are sent
  int64_t eights = 0;            // of elements
  float* out = nullptr;
  int64_t cols = 0;
  int64_t stride = 0;  // of out
  bool adds = false;
};

__device__ uint32_t* flag_of(const Sum& sum, int owner, int phase, int rank) {
  auto* flags = reinterpret_cast<uint32_t*>(sum.peers.of_rank[owner]);
  return flags + ((phase * kMostPeers + rank) * kMostBlocks + static_cast<int>(blockIdx.x));
}

__device__ std::byte* inbox_of(const Sum& sum, int owner) {
  return inbox_at(sum.peers.of_rank[owner], sum.turn);
}

/// Tells this block of every rank that what this one has written to its memory is there, and waits
/// until all have said so.
__device__ void meet(const Sum& sum, int phase) {
  __syncthreads();
  if (threadIdx.x < static_cast<unsigned>(sum.peers.count)) {
    const int other = static_cast<int>(threadIdx.x);
    __threadfence_system();
    asm volatile(
        "st.release.sys.global.u32 [%0], %1;" ::"l"(flag_of(sum, other, phase, sum.peers.rank)),
        "r"(sum.turn)
        : "memory");
    const uint32_t* flag = flag_of(sum, sum.peers.rank, phase, other);
    const uint64_t begin = nanoseconds();
    uint32_t turn = 0;
    do {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(turn) : "l"(flag) : "memory");
      if (nanoseconds() - begin > kPatience) __trap();
    } while (static_cast<int32_t>(turn - sum.turn) < 0);
  }
  __syncthreads();
}

// The terms that lie `pitch` eights from each other, added up in the order of ranks and rounded.
template <typename T>
__device__ void sum_terms(const T* terms, int64_t at, int64_t pitch, int count,
                          float (&values)[kEach]) {
#pragma unroll
  for (float& value : values) value = 0;
  for (int r = 0; r < count; ++r) {
    alignas(16) T term[kEach];
    const auto* from = reinterpret_cast<const uint4*>(terms + (r * pitch + at) * kEach);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof term / sizeof(uint4)); ++i) {
      const uint4 raw = __ldcg(from + i);  // others have written it: not from the L1 cache
      memcpy(reinterpret_cast<std::byte*>(term) + i * sizeof raw, &raw, sizeof raw);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) values[i] += to_float(term[i]);
  }
#pragma unroll
  for (float& value : values) value = to_float(from_float<T>(value));
}

__device__ float* place_of(const Sum& sum, int64_t at) {
  const int64_t element = at * kEach;
  return sum.out + element / sum.cols * sum.stride + element % sum.cols;
}
__device__ void add_before(const Sum& sum, int64_t at, float (&values)[kEach]) {
  if (!sum.adds) return;
  float before[kEach];
  load_floats(place_of(sum, at), before);
#pragma unroll
  for (int i = 0; i < kEach; ++i) values[i] = before[i] + values[i];
}

// Of `count` eights those of this block: load(i, values) some at once, then store(i, values).
template <typename Load, typename Store>
__device__ void for_own(int64_t count, const Load& load, const Store& store) {
  const int64_t each = (count + gridDim.x - 1) / gridDim.x;
  const int64_t first = blockIdx.x * each;
  const int64_t end = min(first + each, count);
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads * kAtOnce) {
    float values[kAtOnce][kEach];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (i + n * kThreads < end) load(i + n * kThreads, values[n]);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (i + n * kThreads < end) store(i + n * kThreads, values[n]);
    }
  }
}

// All terms go to all ranks.
template <typename T>
__global__ void __launch_bounds__(kThreads) one_shot_kernel(Sum sum) {
  begin_kernel();
  const PeerMemory& peers = sum.peers;
  for_own(
      sum.share == nullptr ? 0 : sum.eights,
      [&](int64_t i, float(&values)[kEach]) { load_floats(sum.share + i * kEach, values); },
      [&](int64_t i, const float(&values)[kEach]) {
        for (int n = 1; n <= peers.count; ++n) {
          const int to = (peers.rank + n) % peers.count;
          T* terms = reinterpret_cast<T*>(inbox_of(sum, to)) + peers.rank * sum.eights * kEach;
          store_floats(values, terms + i * kEach);
        }
      });
  meet(sum, 0);
  const T* terms = reinterpret_cast<const T*>(inbox_of(sum, peers.rank));
  for_own(
      sum.eights,
      [&](int64_t i, float(&values)[kEach]) {
        sum_terms(terms, i, sum.eights, peers.count, values);
        add_before(sum, i, values);
      },
      [&](int64_t i, const float(&values)[kEach]) { store_floats(values, place_of(sum, i)); });
}

// Each rank adds up a piece, which then goes to all. A block has the same part of all pieces.
template <typename T>
__global__ void __launch_bounds__(kThreads) two_shot_kernel(Sum sum) {
  begin_kernel();
  const PeerMemory& peers = sum.peers;
  const int64_t piece = (sum.eights + peers.count - 1) / peers.count;
  const auto sums_of = [&](int owner) {
    return reinterpret_cast<T*>(inbox_of(sum, owner) + kSliceBytes + kSlack);
  };
  const auto for_part = [&](int owner, const auto& load, const auto& store) {
    const int64_t own = min(piece, sum.eights - owner * piece);
    for_own(
        piece,
        [&](int64_t i, float(&values)[kEach]) {
          if (i < own) load(i, values);
        },
        [&](int64_t i, const float(&values)[kEach]) {
          if (i < own) store(i, values);
        });
  };
  for (int n = 1; n <= peers.count; ++n) {
    const int to = (peers.rank + n) % peers.count;
    T* terms = reinterpret_cast<T*>(inbox_of(sum, to)) + peers.rank * piece * kEach;
    for_part(
        to,
        [&](int64_t i, float(&values)[kEach]) {
          load_floats(sum.share + (to * piece + i) * kEach, values);
        },
        [&](int64_t i, const float(&values)[kEach]) { store_floats(values, terms + i * kEach); });
  }
  meet(sum, 0);
  const T* terms = reinterpret_cast<const T*>(inbox_of(sum, peers.rank));
  for_part(
      peers.rank,
      [&](int64_t i, float(&values)[kEach]) { sum_terms(terms, i, piece, peers.count, values); },
      [&](int64_t i, const float(&values)[kEach]) {
        for (int n = 1; n <= peers.count; ++n) {
          const int to = (peers.rank + n) % peers.count;
          store_floats(values, sums_of(to) + (peers.rank * piece + i) * kEach);
        }
      });
  meet(sum, 1);
  for (int owner = 0; owner < peers.count; ++owner) {
    for_part(
        owner,
        [&](int64_t i, float(&values)[kEach]) {
          sum_terms(sums_of(peers.rank), owner * piece + i, 0, 1, values);
          add_before(sum, owner * piece + i, values);
        },
        [&](int64_t i, const float(&values)[kEach]) {
          store_floats(values, place_of(sum, owner * piece + i));
        });
  }
}

// Words are sent and found as the step's kernel does it. No block waits for others of its rank, so
// they need not all run at once.
__global__ void __launch_bounds__(kWordThreads) words_kernel(Sum sum, Terms terms, UsedTerms used) {
  begin_kernel();
  const int64_t eight = int64_t{blockIdx.x} * kWordThreads + threadIdx.x;
  const bool exists = eight < sum.eights;
  float values[1][kEach] = {};
  if (exists && sum.share != nullptr) {
    load_floats(sum.share + eight * kEach, values[0]);
    send_eight(terms, eight * kEach, values[0]);
  }
  bring_sums(
      terms, [&](int) { return exists; }, [&](int) { return eight * kEach; }, values);
  if (exists) {
    add_before(sum, eight, values[0]);
    store_floats(values[0], place_of(sum, eight));
  }
  for (const step_kernel::Pieces& pieces : used) unset(pieces);
}

// Columns that ranks from 1 on send to rank 0, where they take the place of terms.
struct Columns {
  float* data = nullptr;
  int64_t stride = 0;
  int64_t each = 0;   // of a rank
  int64_t fours = 0;  // of elements of a rank, of all rows
};
__global__ void __launch_bounds__(kWordThreads)
    columns_kernel(Columns columns, Terms terms, UsedTerms used) {
  begin_kernel();
  constexpr int kFour = 4;
  const PeerMemory& places = terms.places;
  const int64_t four = int64_t{blockIdx.x} * kWordThreads + threadIdx.x;
  const int64_t row = four * kFour / columns.each;
  const int64_t column = four * kFour % columns.each;
  const auto at = [&](int rank) { return rank * columns.each + column; };
  const auto exists = [&](int rank) { return four < columns.fours && at(rank) < columns.stride; };
  const auto place = [&](int rank) {
    return places.of_rank[0] + int64_t{rank} * terms.rank_bytes + four * int64_t{sizeof(uint4)};
  };
  const auto element = [&](int rank) {
    return reinterpret_cast<uint4*>(columns.data + row * columns.stride + at(rank));
  };
  if (places.rank > 0) {
    if (exists(places.rank)) {
      store_far(place(places.rank), step_kernel::made_set(*element(places.rank)));
    }
  } else {
    for (int rank = 1; rank < places.count; ++rank) {
      uint4 words[1];
      bring_far(
          words, [&](int) { return exists(rank); }, [&](int) { return FarWords{place(rank)}; });
      if (exists(rank)) *element(rank) = words[0];
    }
  }
  for (const step_kernel::Pieces& pieces : used) unset(pieces);
}

template <typename T>
void launch(const Queue& queue, const Sum& sum) {
  const int64_t bytes = sum.eights * kEach * static_cast<int64_t>(sizeof(T));
  const bool one_shot = sum.peers.count == 2 || bytes <= kLargestOneShot;
  const int64_t each = one_shot ? sum.eights : (sum.eights + sum.peers.count - 1) / sum.peers.count;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>((each + kThreads - 1) / kThreads, kMostBlocks));
  queue.launch("adding up over ranks", one_shot ? one_shot_kernel<T> : two_shot_kernel<T>,
               {blocks, kThreads}, sum);
}

// What ranks tell each other of their memory.
struct Introduction {
  uint64_t process = 0;  // hash of the host and the process
  uint64_t host = 0;
  uint64_t gpu = 0;  // hash of the GPU's name on its bus, and of the host
  std::byte* address = nullptr;
  int32_t device = 0;
  cudaIpcMemHandle_t handle{};
};

int64_t bytes_of_terms(int64_t elements, DType type) {
  return elements * static_cast<int64_t>(dtype_size(type));
}

bool go_word_by_word(int64_t elements, DType type) {
  return bytes_of_terms(elements, type) <= kMostWordBytes;
}

int64_t rows_of_slice(int64_t cols, DType type) {
  return std::max<int64_t>(1, kSliceBytes / bytes_of_terms(cols, type));
}

Introduction introduce(int device, std::byte* memory) {
  const std::string host = host_name();
  Introduction own{.process = stable_hash(host + ' ' + std::to_string(getpid())),
                   .host = stable_hash(host),
                   .gpu = stable_hash(gpu_name(device)),
                   .address = memory,
                   .device = device,
                   .handle = {}};
  if (cudaIpcGetMemHandle(&own.handle, memory) != cudaSuccess) cudaGetLastError();
  return own;
}

// Where another rank's memory is for this one; null: out of reach.
std::byte* reach(const Introduction& own, const Introduction& other) {
  if (other.host != own.host || other.gpu == own.gpu) return nullptr;
  if (other.process == own.process) {
    int can = 0;
    cuda_check(cudaDeviceCanAccessPeer(&can, own.device, other.device),
               "reading what GPUs reach each other");
    if (can == 0) return nullptr;
    const cudaError_t status = cudaDeviceEnablePeerAccess(other.device, 0);
    cudaGetLastError();
    const bool is_on = status == cudaSuccess || status == cudaErrorPeerAccessAlreadyEnabled;
    return is_on ? other.address : nullptr;
  }
  void* mapped = nullptr;
  const cudaError_t status =
      cudaIpcOpenMemHandle(&mapped, other.handle, cudaIpcMemLazyEnablePeerAccess);
  cudaGetLastError();
  return status == cudaSuccess ? static_cast<std::byte*>(mapped) : nullptr;
}

}  // namespace

std::unique_ptr<PeerSums> PeerSums::make(RankLink& link, DType type) {
  if (link.count() > kMostPeers) return nullptr;
  int device = 0;
  cuda_check(cudaGetDevice(&device), "reading the current GPU");
  auto sums = std::unique_ptr<PeerSums>(new PeerSums(type, link.count()));
  const auto ring_bytes = static_cast<size_t>(sums->ring_.bytes());
  sums->own_ = allocate_device(kRingAt + ring_bytes);
  cuda_check(cudaMemset(sums->own_.get(), 0, kFlagsBytes), "clearing memory");
  cuda_check(cudaMemset(sums->own_.get() + kRingAt, 0xff, ring_bytes), "clearing memory");
  cuda_check(cudaDeviceSynchronize(), "clearing memory");
  const Introduction own = introduce(device, sums->own_.get());
  std::vector<Introduction> all(static_cast<size_t>(link.count()));
  std::memcpy(all.data(), link.gather(std::as_bytes(std::span(&own, 1))).data(),
              all.size() * sizeof(Introduction));
  PeerMemory& peers = sums->peers_;
  peers.rank = link.rank();
  peers.count = link.count();
  bool reaches_all = !(link.is_in_process() && loads_kernels_late());
  for (size_t r = 0; r < all.size(); ++r) {
    const bool is_own = r == static_cast<size_t>(peers.rank);
    peers.of_rank[r] = is_own ? sums->own_.get() : reach(own, all[r]);
    sums->is_mapped_[r] = peers.of_rank[r] != nullptr && all[r].process != own.process;
    reaches_all = reaches_all && peers.of_rank[r] != nullptr;
  }
  if (!all_agree(link, reaches_all)) return nullptr;
  return sums;
}

PeerSums::~PeerSums() {
  for (size_t r = 0; r < is_mapped_.size(); ++r) {
    if (is_mapped_[r]) cudaIpcCloseMemHandle(peers_.of_rank[r]);
  }
}

bool PeerSums::takes(const Matrix& share, const Matrix& out) {
  return share.cols % kEach == 0 && out.stride % kEach == 0 &&
         reinterpret_cast<uintptr_t>(out.data) % sizeof(uint4) == 0;
}

bool PeerSums::has_place_for(int64_t elements) const {
  return ring_.has_room(peers_.count * bytes_of_terms(elements, type_));
}

Terms PeerSums::reserve(int64_t elements) { return reserve(elements, type_); }

Terms PeerSums::reserve(int64_t elements, DType dtype) {
  const int64_t rank_bytes = bytes_of_terms(elements, dtype);
  Terms terms{.places = peers_, .rank_bytes = static_cast<int32_t>(rank_bytes), .dtype = dtype};
  const int64_t at = kRingAt + ring_.reserve(peers_.count * rank_bytes);
  for (int rank = 0; rank < peers_.count; ++rank) terms.places.of_rank[rank] += at;
  return terms;
}

UsedTerms PeerSums::end_kernel() {
  UsedTerms used;
  const std::array parts = ring_.launch();
  for (size_t i = 0; i < parts.size(); ++i) {
    used[i] = {reinterpret_cast<uint4*>(own_.get() + kRingAt + parts[i].at),
               parts[i].bytes / static_cast<int64_t>(sizeof(uint4))};
  }
  return used;
}

void PeerSums::add_up_words(const Queue& queue, const Matrix& share, bool adds, const Matrix& out,
                            DType type) {
  const Sum sum{
      .peers = {},
      .share = std::exchange(is_sent_, false) ? nullptr : static_cast<const float*>(share.data),
      .eights = share.rows * share.cols / kEach,
      .out = static_cast<float*>(out.data),
      .cols = share.cols,
      .stride = out.stride,
      .adds = adds};
  const Terms next = std::exchange(next_terms_, {});
  const Terms terms = next.exist() ? next : reserve(share.rows * share.cols, type);
  const auto blocks = static_cast<unsigned>((sum.eights + kWordThreads - 1) / kWordThreads);
  queue.launch("adding up over ranks", words_kernel, {blocks, kWordThreads}, sum, terms,
               end_kernel());
}

bool PeerSums::takes_columns(const Matrix& m, int64_t each) {
  return bytes_of_terms(m.rows * each, DType::f32) <= kMostWordBytes && m.stride % 4 == 0 &&
         each % 4 == 0 && reinterpret_cast<uintptr_t>(m.data) % sizeof(uint4) == 0;
}

void PeerSums::gather_columns(const Queue& queue, const Matrix& m, int64_t each) {
  const Columns columns{.data = static_cast<float*>(m.data),
                        .stride = m.stride,
                        .each = each,
                        .fours = m.rows * each / 4};
  const Terms terms = reserve(m.rows * each, DType::f32);
  const auto blocks = static_cast<unsigned>((columns.fours + kWordThreads - 1) / kWordThreads);
  queue.launch("gathering columns", columns_kernel, {blocks, kWordThreads}, columns, terms,
               end_kernel());
}

std::optional<TermPlaces> PeerSums::next_places(int64_t rows, int64_t cols) {
  if (peers_.count != 2 || cols % kEach != 0) return std::nullopt;
  const int own = peers_.rank;
  const int far = 1 - own;
  if (go_word_by_word(rows * cols, type_)) {
    if (!next_terms_.exist()) next_terms_ = reserve(rows * cols);
    const auto place = [&](int rank) {
      return next_terms_.places.of_rank[rank] + int64_t{own} * next_terms_.rank_bytes;
    };
    return TermPlaces{place(own), place(far), type_};
  }
  if (rows > rows_of_slice(cols, type_)) return std::nullopt;
  const auto place = [&](int rank) {
    return inbox_at(peers_.of_rank[rank], turn_ + 1) + own * bytes_of_terms(rows * cols, type_);
  };
  return TermPlaces{place(own), place(far), type_};
}

void PeerSums::add_up(const Queue& queue, const Matrix& share, OutputMode output, const Matrix& out,
                      DType type) {
  const bool adds = output == OutputMode::add;
  if (go_word_by_word(share.rows * share.cols, type)) {
    return add_up_words(queue, share, adds, out, type);
  }
  const bool is_sent = std::exchange(is_sent_, false);
  const int64_t rows = rows_of_slice(share.cols, type);
  for (int64_t first = 0; first < share.rows; first += rows) {
    const Matrix some = share.row_range(first, std::min(rows, share.rows - first));
    const Sum sum{.peers = peers_,
                  .turn = ++turn_,
                  .share = is_sent ? nullptr : static_cast<const float*>(some.data),
                  .eights = some.rows * some.cols / kEach,
                  .out = static_cast<float*>(out.row_range(first, some.rows).data),
                  .cols = some.cols,
                  .stride = out.stride,
                  .adds = adds};
    if (type == DType::bf16) {
      launch<__nv_bfloat16>(queue, sum);
    } else {
      launch<float>(queue, sum);
    }
  }
}

}  // namespace faststream
