// A libnccl for tests: ranks are threads of one process, and may have the same GPU. What they send
// is copied while all of them wait. FAKE_NCCL_VERSION: what it says of itself. FAKE_NCCL_FAILS: the
// name of a function that fails, of rank FAKE_NCCL_FAILS_OF alone if that is set.
#include <dlfcn.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kFailure = 2;

// Of the driver, which is not there where the loader alone is tested.
template <typename Function>
Function* driver(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
void wait_for(void* stream) {
  static auto* const synchronize = driver<int(void*)>("cuStreamSynchronize");
  synchronize(stream);
}
void copy(void* to, const void* from, size_t bytes, void* stream) {
  static auto* const copy_memory =
      driver<int(uintptr_t, uintptr_t, size_t, void*)>("cuMemcpyAsync");
  copy_memory(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from), bytes, stream);
}

bool fails(std::string_view function, int rank) {
  const char* failing = std::getenv("FAKE_NCCL_FAILS");
  const char* of = std::getenv("FAKE_NCCL_FAILS_OF");
  return failing != nullptr && failing == function && (of == nullptr || std::atoi(of) == rank);
}

struct Team {
  explicit Team(int ranks)
      : sent(static_cast<size_t>(ranks), std::vector<const void*>(static_cast<size_t>(ranks))),
        barrier(ranks) {}
  std::vector<std::vector<const void*>> sent;  // by whom, to whom
  std::barrier<> barrier;
};

struct Communicator {
  std::shared_ptr<Team> team;
  size_t rank = 0;
  struct Received {
    void* to;
    size_t bytes;
    size_t from;
  };
  std::vector<Received> received;  // of a group
  void* stream = nullptr;

  int carry() {
    wait_for(stream);
    team->barrier.arrive_and_wait();
    for (const Received& one : received) {
      copy(one.to, team->sent[one.from][rank], one.bytes, stream);
    }
    wait_for(stream);
    team->barrier.arrive_and_wait();
    received.clear();
    return kSuccess;
  }
};

thread_local Communicator* of_group = nullptr;

}  // namespace

// Names are NCCL's.
// NOLINTBEGIN(readability-identifier-naming)
#pragma GCC visibility push(default)
extern "C" {

struct ncclUniqueId {
  uint64_t number[16];
};

const char* ncclGetErrorString(int /*result*/) { return "it was told to fail"; }

int ncclGetVersion(int* version) {
  const char* told = std::getenv("FAKE_NCCL_VERSION");
  *version = told != nullptr ? std::atoi(told) : 22703;
  return kSuccess;
}

int ncclGetUniqueId(ncclUniqueId* id) {
  static uint64_t number = 0;
  *id = {};
  id->number[0] = ++number;
  return kSuccess;
}

int ncclCommInitRank(void** communicator, int ranks, ncclUniqueId id, int rank) {
  static std::mutex mutex;
  static std::map<uint64_t, std::shared_ptr<Team>> teams;
  if (fails("ncclCommInitRank", rank)) return kFailure;
  const std::scoped_lock lock(mutex);
  std::shared_ptr<Team>& team = teams[id.number[0]];
  if (!team) team = std::make_shared<Team>(ranks);
  *communicator = new Communicator{.team = team, .rank = static_cast<size_t>(rank), .received = {}};
  return kSuccess;
}

int ncclCommDestroy(void* communicator) {
  delete static_cast<Communicator*>(communicator);
  return kSuccess;
}
int ncclCommAbort(void* /*communicator*/) { return kSuccess; }

int ncclSend(const void* from, size_t /*bytes*/, int /*type*/, int peer, void* communicator,
             void* stream) {
  of_group = static_cast<Communicator*>(communicator);
  of_group->stream = stream;
  of_group->team->sent[of_group->rank][static_cast<size_t>(peer)] = from;
  return kSuccess;
}

int ncclRecv(void* to, size_t bytes, int /*type*/, int peer, void* communicator, void* stream) {
  of_group = static_cast<Communicator*>(communicator);
  of_group->stream = stream;
  of_group->received.push_back({to, bytes, static_cast<size_t>(peer)});
  return kSuccess;
}

int ncclGroupStart() { return kSuccess; }
int ncclGroupEnd() { return std::exchange(of_group, nullptr)->carry(); }

int ncclAllGather(const void* from, void* to, size_t bytes, int type, void* communicator,
                  void* stream) {
  auto* own = static_cast<Communicator*>(communicator);
  if (fails("ncclAllGather", static_cast<int>(own->rank))) return kFailure;
  const int ranks = static_cast<int>(own->team->sent.size());
  for (int r = 0; r < ranks; ++r) {
    ncclSend(from, bytes, type, r, communicator, stream);
    ncclRecv(static_cast<std::byte*>(to) + static_cast<size_t>(r) * bytes, bytes, type, r,
             communicator, stream);
  }
  return ncclGroupEnd();
}

}  // extern "C"
#pragma GCC visibility pop
// NOLINTEND(readability-identifier-naming)
