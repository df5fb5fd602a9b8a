#include "ranks/local_link.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "support/error.h"

namespace faststream {
namespace {

using Bytes = RankLink::Bytes;

// Whoever waits looks again so often before it gives others its core, and so often before it
// sleeps: what a rank waits for comes soon where each has cores of its own, and where they have
// not, from a rank that needs this one's.
constexpr int kLooks = 200;
constexpr int kYields = 2000;
constexpr std::chrono::microseconds kNap(50);

/// Returns when holds() does.
template <typename Holds>
void wait_until(Holds holds) {
  for (int n = 0; !holds(); ++n) {
    if (n < kLooks) continue;
    if (n < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

// Messages from one rank to another.
class Channel {
 public:
  void put(Bytes message) {
    const std::scoped_lock lock(mutex_);
    messages_.push_back(std::move(message));
    n_waiting_.fetch_add(1, std::memory_order_release);
  }
  [[nodiscard]] bool is_empty() const { return n_waiting_.load(std::memory_order_acquire) == 0; }
  Bytes take() {
    const std::scoped_lock lock(mutex_);
    Bytes message = std::move(messages_.front());
    messages_.pop_front();
    n_waiting_.fetch_sub(1, std::memory_order_release);
    return message;
  }

 private:
  std::mutex mutex_;
  std::deque<Bytes> messages_;  // guarded by it
  std::atomic<int> n_waiting_ = 0;
};

// What all ends share.
struct Team {
  explicit Team(int n)
      : count(n), told(static_cast<size_t>(n)), passed(static_cast<size_t>(n) * told.size()) {
    for (auto& of_turn : outboxes) of_turn.resize(static_cast<size_t>(n));
  }

  // Waits until all ranks have come here as often.
  void meet() {
    const uint64_t turn = turns.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
      arrived.store(0, std::memory_order_relaxed);
      turns.store(turn + 1, std::memory_order_release);
      return;
    }
    wait_until([&] { return turns.load(std::memory_order_acquire) != turn || has_ended(); });
    if (turns.load(std::memory_order_acquire) == turn) refuse();
  }

  [[nodiscard]] bool has_ended() const { return ended.load(std::memory_order_acquire); }
  [[noreturn]] void refuse() {
    const std::scoped_lock lock(mutex);
    throw Error(reason);
  }
  void end(std::string_view why) {
    const std::scoped_lock lock(mutex);
    if (ended.load(std::memory_order_relaxed)) return;
    reason = why;
    ended.store(true, std::memory_order_release);
  }

  // The team of each of so many parts: the same for all who ask.
  std::shared_ptr<Team> part(int index, int parts) {
    const std::scoped_lock lock(mutex);
    std::vector<std::weak_ptr<Team>>& teams = divided[parts];
    teams.resize(static_cast<size_t>(parts));
    std::weak_ptr<Team>& known = teams[static_cast<size_t>(index)];
    std::shared_ptr<Team> team = known.lock();
    if (!team) known = team = std::make_shared<Team>(count / parts);
    return team;
  }

  const int count;
  std::vector<Channel> told;    // to each rank
  std::vector<Channel> passed;  // from each rank to each
  // What each rank gives in a turn: written before all meet, read until they meet again.
  std::array<std::vector<Bytes>, 2> outboxes;
  std::atomic<int> arrived = 0;
  std::atomic<uint64_t> turns = 0;
  std::atomic<bool> ended = false;
  std::mutex mutex;
  std::string reason;                                       // guarded by it
  std::map<int, std::vector<std::weak_ptr<Team>>> divided;  // likewise
};

class LocalLink final : public RankLink {
 public:
  LocalLink(std::shared_ptr<Team> team, int rank) : team_(std::move(team)), rank_(rank) {}
  LocalLink(const LocalLink&) = delete;
  LocalLink& operator=(const LocalLink&) = delete;
  ~LocalLink() override { team_->end("rank " + std::to_string(rank_) + " has ended"); }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int count() const override { return team_->count; }
  [[nodiscard]] bool is_in_process() const override { return true; }

  void tell(std::span<const std::byte> message) override {
    if (team_->has_ended()) team_->refuse();
    for (size_t r = 1; r < team_->told.size(); ++r) {
      team_->told[r].put({message.begin(), message.end()});
    }
  }
  Bytes listen() override { return next(team_->told[static_cast<size_t>(rank_)]); }

  void pass(int to, Bytes message) override {
    if (team_->has_ended()) team_->refuse();
    channel(rank_, to).put(std::move(message));
  }
  Bytes take(int from) override { return next(channel(from, rank_)); }

  // Nobody's end is gone before all have theirs.
  std::unique_ptr<RankLink> divide(int parts) override {
    const int each = team_->count / parts;
    auto part = std::make_unique<LocalLink>(team_->part(rank_ / each, parts), rank_ % each);
    team_->meet();
    return part;
  }

  void fail(std::string_view why) override { team_->end(why); }

  std::span<const std::byte> gather(std::span<const std::byte> own) override {
    return share(own, 0, own.size());
  }
  std::span<const std::byte> exchange(std::span<const std::byte> pieces) override {
    const size_t piece = pieces.size() / static_cast<size_t>(team_->count);
    return share(pieces, static_cast<size_t>(rank_) * piece, piece);
  }

 private:
  // `count` bytes from `first` on of what each rank gives.
  std::span<const std::byte> share(std::span<const std::byte> own, size_t first, size_t count) {
    std::vector<Bytes>& outboxes = team_->outboxes[turn_++ % 2];
    outboxes[static_cast<size_t>(rank_)].assign(own.begin(), own.end());
    team_->meet();
    inbox_.resize(outboxes.size() * count);
    std::byte* to = inbox_.data();
    for (const Bytes& outbox : outboxes) {
      if (outbox.size() != own.size()) team_->end("ranks have different parts of a sum");
      if (team_->has_ended()) team_->refuse();
      to = std::copy_n(outbox.data() + first, count, to);
    }
    return inbox_;
  }

  Channel& channel(int from, int to) {
    return team_->passed[static_cast<size_t>(from) * static_cast<size_t>(team_->count) +
                         static_cast<size_t>(to)];
  }

  Bytes next(Channel& channel) {
    wait_until([&] { return !channel.is_empty() || team_->has_ended(); });
    if (channel.is_empty()) team_->refuse();
    return channel.take();
  }

  std::shared_ptr<Team> team_;
  int rank_;
  size_t turn_ = 0;
  Bytes inbox_;
};

}  // namespace

std::vector<std::unique_ptr<RankLink>> make_local_links(int count) {
  const auto team = std::make_shared<Team>(count);
  std::vector<std::unique_ptr<RankLink>> links;
  for (int rank = 0; rank < count; ++rank) {
    links.push_back(std::make_unique<LocalLink>(team, rank));
  }
  return links;
}

}  // namespace faststream
