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

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "ranks/turns.h"
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

// Whoever waits for a step of others looks again so often before it gives others its core, and so
// often before it sleeps: ranks may be more than there are cores. For a message it sleeps sooner.
constexpr int kLooks = 100;
constexpr int kYields = 20'000;
constexpr std::chrono::microseconds kNap(100);
constexpr std::chrono::microseconds kLongNap(400);
// Processes that have not come to the end by then never will.
constexpr std::chrono::seconds kPatience(3);
// How often each process lets know that it is there, and after how many times that it has not been
// heard of meanwhile it counts as ended. Who was stopped for a while has not counted.
constexpr std::chrono::seconds kPulse(1);
constexpr int kSilentPulses = 10;

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

// Sends messages to any process, and keeps them until they are there. Called with MPI to itself.
class Outbox {
 public:
  void send(Bytes message, int to, MPI_Comm channel) {
    forget_sent();
    Sent& sent = sent_.emplace_back(Sent{.message = std::move(message)});
    check_mpi(MPI_Isend(sent.message.data(), size_for_mpi(sent.message.size()), MPI_BYTE, to, 0,
                        channel, &sent.request),
              "send");
  }
  // Of what is there, which MPI finds out.
  void forget_sent() {
    std::erase_if(sent_, [](Sent& each) { return is_done(each.request); });
  }

  static bool is_done(MPI_Request& request) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "go on");
    return done != 0;
  }

 private:
  struct Sent {
    Bytes message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::list<Sent> sent_;
};

// A message that comes. Called with MPI to itself.
class Arrival {
 public:
  // Whether a message of `from` on this channel is there as a whole.
  bool has_come(int from, MPI_Comm channel) {
    if (request_ == MPI_REQUEST_NULL) {
      int is_there = 0;
      MPI_Message handle = MPI_MESSAGE_NULL;
      MPI_Status status;
      check_mpi(MPI_Improbe(from, 0, channel, &is_there, &handle, &status), "receive");
      if (is_there == 0) return false;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      message_.resize(static_cast<size_t>(size));
      check_mpi(MPI_Imrecv(message_.data(), size, MPI_BYTE, &handle, &request_), "receive");
    }
    return Outbox::is_done(request_);
  }
  Bytes& message() { return message_; }

 private:
  Bytes message_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

// All processes that were started together, and who of them is still there. Each tells process 0
// now and then that it is, and that all others who is not: where MPI is told to leave the others
// running (mpirun --enable-recovery), it does not say.
class MpiProcesses {
 public:
  MpiProcesses() {
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "start");
    if (provided < MPI_THREAD_SERIALIZED) throw Error("this MPI is not for programs with threads");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &count_);
    for (MPI_Comm* each : {&pulses_, &messages_}) *each = copy_of(MPI_COMM_WORLD);
    is_gone_ = std::vector<std::atomic<bool>>(static_cast<size_t>(count_));
    silent_.resize(static_cast<size_t>(count_));
    pulse_ = std::thread([this] { keep_pulse(); });
  }
  MpiProcesses(const MpiProcesses&) = delete;
  MpiProcesses& operator=(const MpiProcesses&) = delete;
  // Without MPI_Finalize() whoever started the processes ends the others.
  ~MpiProcesses() {
    {
      const std::scoped_lock lock(stop_mutex_);
      stopping_ = true;
    }
    stop_.notify_one();
    pulse_.join();
    if (!failed_ && all_have_ended()) MPI_Finalize();
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] MPI_Comm messages() const { return messages_; }
  void fail() { failed_ = true; }

  static MPI_Comm copy_of(MPI_Comm channel) {
    MPI_Comm copy = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(channel, &copy), "start");
    MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
    return copy;
  }

  // Calls work() with MPI to itself.
  template <typename Work>
  auto alone(Work work) {
    const std::scoped_lock lock(turns_);
    return work();
  }

  // Calls is_done(), with MPI to itself, until it says so. Throws Error where one of `others` has
  // ended.
  template <typename IsDone>
  void wait_until(std::span<const int> others, bool is_for_step, IsDone is_done) {
    for (int n = 0; !alone(is_done); ++n) {
      if (n < kLooks) continue;
      check_are_there(others);
      if (!is_for_step) {
        std::this_thread::sleep_for(kLongNap);
      } else if (n < kYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kNap);
      }
    }
  }

  // Process 0 besides, without which there is nothing to do.
  void check_are_there(std::span<const int> others) const {
    check_is_there(0);
    for (const int other : others) check_is_there(other);
  }
  void check_is_there(int other) const {
    if (!is_gone_[static_cast<size_t>(other)]) return;
    throw Error("process " + std::to_string(other) + " has ended, or was not heard of for " +
                std::to_string(kSilentPulses) + " s");
  }
  void give_up(int other) { is_gone_[static_cast<size_t>(other)] = true; }

 private:
  void keep_pulse() {
    std::unique_lock lock(stop_mutex_);
    while (!stop_.wait_for(lock, kPulse, [this] { return stopping_; })) {
      alone([this] {
        send_pulse();
        read_pulses();
      });
      count_silence();
    }
  }

  // Who is heard of: process 0 of all, all others of it.
  [[nodiscard]] int first_heard() const { return rank_ == 0 ? 1 : 0; }
  [[nodiscard]] int end_heard() const { return rank_ == 0 ? count_ : 1; }

  void send_pulse() {
    Bytes gone(is_gone_.size());
    std::ranges::transform(is_gone_, gone.begin(), [](const std::atomic<bool>& is) {
      return std::byte{static_cast<unsigned char>(is ? 1 : 0)};
    });
    for (int to = first_heard(); to < end_heard(); ++to) {
      if (is_gone_[static_cast<size_t>(to)]) continue;
      try {
        outboxes_[to].send(gone, to, pulses_);
      } catch (const Error&) {
        give_up(to);
      }
    }
  }

  void read_pulses() {
    for (int from = first_heard(); from < end_heard(); ++from) {
      try {
        while (arrivals_[from].has_come(from, pulses_)) {
          silent_[static_cast<size_t>(from)] = 0;
          const Bytes& gone = arrivals_[from].message();
          for (size_t i = 0; from == 0 && i < gone.size(); ++i) {
            if (gone[i] != std::byte{}) is_gone_[i] = true;
          }
        }
      } catch (const Error&) {
        give_up(from);
      }
    }
  }

  void count_silence() {
    for (int of = first_heard(); of < end_heard(); ++of) {
      if (++silent_[static_cast<size_t>(of)] > kSilentPulses) give_up(of);
    }
  }

  bool all_have_ended() {
    for (const std::atomic<bool>& is_gone : is_gone_) {
      if (is_gone) return false;
    }
    const auto begin = Clock::now();
    bool ended = false;
    try {
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Ibarrier(messages_, &request), "end");
      while (!ended && Clock::now() - begin < kPatience) {
        ended = Outbox::is_done(request);
        if (!ended) std::this_thread::sleep_for(kNap);
      }
    } catch (const Error&) {
      ended = false;
    }
    return ended;
  }

  int rank_ = 0;
  int count_ = 1;
  std::atomic<bool> failed_ = false;
  MPI_Comm pulses_ = MPI_COMM_NULL;
  MPI_Comm messages_ = MPI_COMM_NULL;
  Turns turns_;  // in MPI
  std::vector<std::atomic<bool>> is_gone_;

  // The pulse's:
  std::vector<int> silent_;  // pulses since each was heard of
  std::map<int, Outbox> outboxes_;
  std::map<int, Arrival> arrivals_;
  std::mutex stop_mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by it
  std::thread pulse_;      // last: it uses all others
};

// Carries messages between the ranks of a channel while these compute: MPI gets on with a large one
// only in calls, of both sides.
class Carrier {
 public:
  Carrier(MpiProcesses& processes, MPI_Comm channel, int count)
      : processes_(processes),
        channel_(channel),
        arrivals_(static_cast<size_t>(count)),
        come_(arrivals_.size()),
        thread_([this](const std::stop_token& stop) { carry(stop); }) {}

  void pass(int to, Bytes message) {
    processes_.alone([&] { outbox_.send(std::move(message), to, channel_); });
  }
  // Called with MPI to itself, as read() is.
  bool has_come(int from) {
    if (failed_) throw Error(*failed_);
    return !come_[static_cast<size_t>(from)].empty();
  }
  Bytes next(int from) {
    return processes_.alone([&] {
      std::deque<Bytes>& messages = come_[static_cast<size_t>(from)];
      Bytes message = std::move(messages.front());
      messages.pop_front();
      return message;
    });
  }

 private:
  void carry(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const bool has_some = processes_.alone([this] {
        try {
          return !failed_ && read();
        } catch (const Error& error) {
          failed_ = error.what();
          return false;
        }
      });
      if (!has_some) std::this_thread::sleep_for(kNap);
    }
  }
  bool read() {
    outbox_.forget_sent();
    bool has_some = false;
    for (size_t from = 0; from < arrivals_.size(); ++from) {
      if (!arrivals_[from].has_come(static_cast<int>(from), channel_)) continue;
      come_[from].push_back(std::move(arrivals_[from].message()));
      has_some = true;
    }
    return has_some;
  }

  MpiProcesses& processes_;
  MPI_Comm channel_;
  // With MPI to oneself:
  Outbox outbox_;
  std::vector<Arrival> arrivals_;
  std::vector<std::deque<Bytes>> come_;
  std::optional<std::string> failed_;
  std::jthread thread_;  // last: it uses all others
};

class MpiLink final : public RankLink {
 public:
  // Of the processes of `channel`, which are `count` from `first` on.
  MpiLink(std::shared_ptr<MpiProcesses> processes, MPI_Comm channel, int first, int count)
      : processes_(std::move(processes)),
        members_(static_cast<size_t>(count)),
        told_(MpiProcesses::copy_of(channel)),
        shared_(MpiProcesses::copy_of(channel)),
        passed_(MpiProcesses::copy_of(channel)) {
    std::iota(members_.begin(), members_.end(), first);
  }

  [[nodiscard]] int rank() const override { return processes_->rank() - members_.front(); }
  [[nodiscard]] int count() const override { return static_cast<int>(members_.size()); }
  [[nodiscard]] bool is_in_process() const override { return false; }

  void tell(std::span<const std::byte> message) override {
    processes_->alone([&] {
      for (int to = 1; to < count(); ++to) {
        outbox_.send({message.begin(), message.end()}, to, told_);
      }
    });
  }
  Bytes listen() override {
    processes_->wait_until(members_, true, [&] { return arrival_.has_come(0, told_); });
    return std::move(arrival_.message());
  }
  void fail(std::string_view /*why*/) override { processes_->fail(); }

  void pass(int to, Bytes message) override { carrier().pass(to, std::move(message)); }
  Bytes take(int from) override {
    Carrier& passed = carrier();
    processes_->wait_until(members_, true, [&] { return passed.has_come(from); });
    return passed.next(from);
  }

  // All come here first, so that none waits long for one that has ended, with MPI to itself.
  std::unique_ptr<RankLink> divide(int parts) override {
    gather({});
    const int each = count() / parts;
    const int first = members_.front() + rank() / each * each;
    return processes_->alone([&] {
      MPI_Comm part = MPI_COMM_NULL;
      check_mpi(MPI_Comm_split(told_, first, rank(), &part), "start");
      return std::make_unique<MpiLink>(processes_, part, first, each);
    });
  }

  std::span<const std::byte> gather(std::span<const std::byte> own) override {
    inbox_.resize(own.size() * members_.size());
    return share([&](MPI_Request& request) {
      const int size = size_for_mpi(own.size());
      return MPI_Iallgather(own.data(), size, MPI_BYTE, inbox_.data(), size, MPI_BYTE, shared_,
                            &request);
    });
  }
  std::span<const std::byte> exchange(std::span<const std::byte> pieces) override {
    inbox_.resize(pieces.size());
    return share([&](MPI_Request& request) {
      const int size = size_for_mpi(pieces.size() / members_.size());
      return MPI_Ialltoall(pieces.data(), size, MPI_BYTE, inbox_.data(), size, MPI_BYTE, shared_,
                           &request);
    });
  }

 private:
  Carrier& carrier() {
    std::call_once(carries_, [this] { carrier_.emplace(*processes_, passed_, count()); });
    return *carrier_;
  }

  template <typename Begin>
  std::span<const std::byte> share(Begin begin) {
    MPI_Request request = MPI_REQUEST_NULL;
    processes_->alone([&] { check_mpi(begin(request), "add up"); });
    processes_->wait_until(members_, true, [&] { return Outbox::is_done(request); });
    return inbox_;
  }

  std::shared_ptr<MpiProcesses> processes_;
  std::vector<int> members_;
  MPI_Comm told_;
  MPI_Comm shared_;
  MPI_Comm passed_;
  Outbox outbox_;
  Arrival arrival_;
  Bytes inbox_;
  std::once_flag carries_;
  std::optional<Carrier> carrier_;  // once something is passed
};

class MpiMessageLink final : public MessageLink {
 public:
  MpiMessageLink(std::shared_ptr<MpiProcesses> processes, int other)
      : processes_(std::move(processes)), other_(other) {}

  [[nodiscard]] std::string other() const override { return "process " + std::to_string(other_); }
  void send(std::span<const std::byte> message) override {
    processes_->check_are_there({&other_, 1});
    try {
      processes_->alone([&] {
        outbox_.send({message.begin(), message.end()}, other_, processes_->messages());
      });
    } catch (const Error&) {
      processes_->give_up(other_);
      throw;
    }
  }
  Bytes receive() override {
    processes_->wait_until({&other_, 1}, false,
                           [&] { return arrival_.has_come(other_, processes_->messages()); });
    return std::move(arrival_.message());
  }

 private:
  std::shared_ptr<MpiProcesses> processes_;
  int other_;
  Outbox outbox_;
  Arrival arrival_;
};

ProcessLinks divide(int replicas) {
  const auto processes = std::make_shared<MpiProcesses>();
  const int rank = processes->rank();
  const int count = processes->count();
  ProcessLinks links{.all = std::make_unique<MpiLink>(processes, MPI_COMM_WORLD, 0, count)};
  const int size = count / replicas;
  if (count % replicas != 0) return links;
  const int first = rank / size * size;
  if (size > 1) {
    MPI_Comm own = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(MPI_COMM_WORLD, first, rank, &own), "start");
    links.ranks = std::make_unique<MpiLink>(processes, own, first, size);
  }
  if (rank == 0) {
    for (int other = size; other < count; other += size) {
      links.replicas.push_back(std::make_unique<MpiMessageLink>(processes, other));
    }
  } else if (rank == first) {
    links.lead = std::make_unique<MpiMessageLink>(processes, 0);
  }
  return links;
}

#endif

}  // namespace

std::optional<ProcessLinks> make_process_links([[maybe_unused]] int replicas) {
  const int processes = started_processes();
  if (processes == 1) return std::nullopt;
#ifdef FASTSTREAM_HAS_MPI
  return divide(replicas);
#else
  throw Error("it was started as " + std::to_string(processes) +
              " processes, but built without MPI, so that they cannot work together; install "
              "libopenmpi-dev and build it again");
#endif
}

LocalPlace place_on_machine(RankLink& link, const std::string& what) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const uint64_t own = stable_hash(std::string(host.data()) + ' ' + what);
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
