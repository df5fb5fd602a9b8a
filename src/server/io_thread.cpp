#include "server/io_thread.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <utility>

#include "server/connection.h"

namespace faststream::server {
namespace {

constexpr std::chrono::milliseconds kLookInterval(250);
constexpr size_t kMuch = 1024;  // what is posted and not taken

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

void IoThread::take_posted() {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  taken_.notify_all();
  for (const auto& one : work) {
    try {
      one();
    } catch (const std::exception&) {  // no memory, of one connection: others go on
    }
  }
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
