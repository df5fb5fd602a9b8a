// The threads that connections live on.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

namespace faststream::server {

class Connection;

/// A thread with an event loop. A connection belongs to one, and nothing of it is touched by
/// another thread: who has something for it, an engine's thread above all, posts it.
class IoThread {
 public:
  /// Throws std::system_error when the system gives no thread.
  IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;
  ~IoThread();

  /// Has `work` done by this thread, in the order of the calls. Any thread may call it, and never
  /// waits: for others that post, and for the taking of what they posted, a moment at most. Only
  /// the first of what waits wakes the thread.
  void post(std::function<void()> work);
  /// The same for a thread that makes more than this one may be able to take: waits while much is
  /// posted that is not taken yet. Not for the threads of connections.
  void post_when_room(std::function<void()> work);

  boost::asio::io_context& context() { return context_; }

  /// Ends the thread; nothing that is posted later is done.
  void stop();

  /// This thread's alone: connections, whose deadlines are looked at now and then.
  std::unordered_set<Connection*>& connections() { return connections_; }

 private:
  void post(std::unique_lock<std::mutex> lock, std::function<void()> work);
  void run();
  void take_posted();
  [[nodiscard]] bool has_posted() const;
  void look_at_deadlines();

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_;
  boost::asio::steady_timer timer_;
  std::unordered_set<Connection*> connections_;
  std::vector<std::function<void()>> work_;  // that was posted, and what of it comes next
  size_t next_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable taken_;
  // Guarded by mutex_:
  std::vector<std::function<void()>> posted_;
  bool stopped_ = false;

  std::thread thread_;  // last: it uses all others
};

}  // namespace faststream::server
