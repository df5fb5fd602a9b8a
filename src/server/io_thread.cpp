#include "server/io_thread.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <utility>

#include "server/connection.h"

namespace faststream::server {
namespace {

constexpr std::chrono::milliseconds kLookInterval(250);
constexpr size_t kMuch = 1024;  // what is posted and not taken
constexpr size_t kAtOnce = 8;  // of that, before connections that have sent something are looked at

}  // namespace

IoThread::IoThread()
    : guard_(boost::asio::make_work_guard(context_)), timer_(context_), thread_([this] {
        look_at_deadlines();
        run();
      }) {}

IoThread::~IoThread() { stop(); }

void IoThread::run() {
  while (!context_.stopped()) {
    try {
      context_.run();
    } catch (const std::exception&) {  // no memory; what it was about ends by its deadline
    }
  }
}

void IoThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  taken_.notify_all();
  context_.stop();
  if (thread_.joinable()) thread_.join();
}

void IoThread::post(std::function<void()> work) { post(std::unique_lock(mutex_), std::move(work)); }

void IoThread::post_when_room(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  taken_.wait(lock, [this] { return posted_.size() < kMuch || stopped_; });
  post(std::move(lock), std::move(work));
}

void IoThread::post(std::unique_lock<std::mutex> lock, std::function<void()> work) {
  const bool first = posted_.empty();
  posted_.push_back(std::move(work));
  lock.unlock();
  if (first) boost::asio::post(context_, [this] { take_posted(); });
}

// Takes a part of it: what a step of an engine brings to a thousand connections is no reason for
// the next request to wait.
void IoThread::take_posted() {
  if (next_ == work_.size()) {
    work_.clear();
    next_ = 0;
    {
      const std::lock_guard lock(mutex_);
      work_.swap(posted_);
    }
    taken_.notify_all();
  }
  const size_t end = std::min(work_.size(), next_ + kAtOnce);
  for (; next_ < end; ++next_) {
    const std::function<void()> one = std::move(work_[next_]);
    try {
      one();
    } catch (const std::exception&) {  // no memory, of one connection: others go on
    }
  }
  const bool has_more = next_ < work_.size() || has_posted();
  if (has_more) boost::asio::post(context_, [this] { take_posted(); });
}

bool IoThread::has_posted() const {
  const std::lock_guard lock(mutex_);
  return !posted_.empty();
}

void IoThread::look_at_deadlines() {
  const auto now = std::chrono::steady_clock::now();
  const std::vector<Connection*> all(connections_.begin(), connections_.end());
  for (Connection* connection : all) {
    // One may have taken others with it.
    if (connections_.contains(connection)) connection->check_deadline(now);
  }
  timer_.expires_after(kLookInterval);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) look_at_deadlines();
  });
}

}  // namespace faststream::server
