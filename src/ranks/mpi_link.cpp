#include "ranks/mpi_link.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "support/error.h"
#include "support/hash.h"

#ifdef FASTSTREAM_HAS_MPI
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include <chrono>
#include <list>
#include <mutex>
#include <thread>
#endif

namespace faststream {
namespace {

// How many processes whoever started this one has started: 1 where nobody says.
int started_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
    if (const char* value = std::getenv(name)) return std::max(1, std::atoi(value));
  }
  // Slurm's srun, where it gives the processes of a step a place in MPI.
  const char* const tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (tasks != nullptr && std::getenv("PMIX_RANK") != nullptr) return std::max(1, std::atoi(tasks));
  return 1;
}

#ifdef FASTSTREAM_HAS_MPI

using Bytes = RankLink::Bytes;
using Clock = std::chrono::steady_clock;

// Whoever waits looks again so often before it gives others its core, and so often before it
// sleeps: ranks may be more than there are cores.
constexpr int kLooks = 100;
constexpr int kYields = 20'000;
constexpr std::chrono::microseconds kNap(100);
// Ranks that have not come to the end by then never will.
constexpr std::chrono::seconds kPatience(3);

void check_mpi(int status, const char* doing) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  throw Error(std::string("ranks cannot ") + doing + ": " + text.data());
}

int size_for_mpi(size_t bytes) {
  if (bytes > INT32_MAX) throw Error("a message between ranks is too long");
  return static_cast<int>(bytes);
}

class MpiLink final : public RankLink {
 public:
  MpiLink() {
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "start");
    if (provided < MPI_THREAD_SERIALIZED) throw Error("this MPI is not for programs with threads");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &count_);
    for (MPI_Comm* each : {&told_, &shared_}) {
      check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, each), "start");
      MPI_Comm_set_errhandler(*each, MPI_ERRORS_RETURN);
    }
  }
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;
  // Without MPI_Finalize() whoever started the processes ends the others.
  ~MpiLink() override {
    if (!failed_ && all_have_ended()) MPI_Finalize();
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int count() const override { return count_; }
  [[nodiscard]] bool is_in_process() const override { return false; }

  void tell(std::span<const std::byte> message) override {
    for (int to = 1; to < count_; ++to) send(message, to, told_);
  }
  Bytes listen() override { return receive(0, told_); }
  void fail(std::string_view /*why*/) override { failed_ = true; }

  std::span<const std::byte> gather(std::span<const std::byte> own) override {
    inbox_.resize(own.size() * static_cast<size_t>(count_));
    return share([&](MPI_Request& request) {
      const int size = size_for_mpi(own.size());
      return MPI_Iallgather(own.data(), size, MPI_BYTE, inbox_.data(), size, MPI_BYTE, shared_,
                            &request);
    });
  }
  std::span<const std::byte> exchange(std::span<const std::byte> pieces) override {
    inbox_.resize(pieces.size());
    return share([&](MPI_Request& request) {
      const int size = size_for_mpi(pieces.size() / static_cast<size_t>(count_));
      return MPI_Ialltoall(pieces.data(), size, MPI_BYTE, inbox_.data(), size, MPI_BYTE, shared_,
                           &request);
    });
  }

 private:
  struct Sent {
    Bytes message;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  // Calls is_done(), with MPI to itself, until it says so.
  template <typename IsDone>
  void wait_until(IsDone is_done) {
    for (int n = 0;; ++n) {
      {
        const std::scoped_lock lock(mutex_);
        if (is_done()) return;
      }
      if (n < kLooks) continue;
      if (n < kYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kNap);
      }
    }
  }

  void send(std::span<const std::byte> message, int to, MPI_Comm channel) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(sent_, [](Sent& each) { return is_done(each.request); });
    Sent& sent = sent_.emplace_back(Sent{.message = {message.begin(), message.end()}});
    check_mpi(MPI_Isend(sent.message.data(), size_for_mpi(message.size()), MPI_BYTE, to, 0, channel,
                        &sent.request),
              "send");
  }

  Bytes receive(int from, MPI_Comm channel) {
    Bytes message;
    wait_until([&] {
      int is_there = 0;
      MPI_Message handle = MPI_MESSAGE_NULL;
      MPI_Status status;
      check_mpi(MPI_Improbe(from, 0, channel, &is_there, &handle, &status), "receive");
      if (is_there == 0) return false;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      message.resize(static_cast<size_t>(size));
      check_mpi(MPI_Mrecv(message.data(), size, MPI_BYTE, &handle, &status), "receive");
      return true;
    });
    return message;
  }

  template <typename Begin>
  std::span<const std::byte> share(Begin begin) {
    MPI_Request request = MPI_REQUEST_NULL;
    {
      const std::scoped_lock lock(mutex_);
      check_mpi(begin(request), "add up");
    }
    wait_until([&] { return is_done(request); });
    return inbox_;
  }

  static bool is_done(MPI_Request& request) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "go on");
    return done != 0;
  }

  bool all_have_ended() {
    const auto begin = Clock::now();
    bool ended = false;
    try {
      MPI_Request request = MPI_REQUEST_NULL;
      const std::scoped_lock lock(mutex_);
      check_mpi(MPI_Ibarrier(shared_, &request), "end");
      while (!ended && Clock::now() - begin < kPatience) {
        ended = is_done(request);
        if (!ended) std::this_thread::sleep_for(kNap);
      }
    } catch (const Error&) {
      ended = false;
    }
    return ended;
  }

  int rank_ = 0;
  int count_ = 1;
  bool failed_ = false;
  MPI_Comm told_ = MPI_COMM_NULL;
  MPI_Comm shared_ = MPI_COMM_NULL;
  std::mutex mutex_;  // of MPI's calls
  std::list<Sent> sent_;
  Bytes inbox_;
};

#endif

}  // namespace

std::unique_ptr<RankLink> make_process_link() {
  const int processes = started_processes();
  if (processes == 1) return nullptr;
#ifdef FASTSTREAM_HAS_MPI
  return std::make_unique<MpiLink>();
#else
  throw Error("it was started as " + std::to_string(processes) +
              " processes, but built without MPI, so that they cannot work together; install "
              "libopenmpi-dev and build it again");
#endif
}

LocalPlace place_on_machine(RankLink& link) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const uint64_t own = stable_hash(host.data());
  std::vector<uint64_t> all(static_cast<size_t>(link.count()));
  std::memcpy(all.data(), link.gather(std::as_bytes(std::span(&own, 1))).data(),
              all.size() * sizeof own);
  LocalPlace place{.index = 0, .count = 0};
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] != own) continue;
    if (r < static_cast<size_t>(link.rank())) ++place.index;
    ++place.count;
  }
  return place;
}

}  // namespace faststream
