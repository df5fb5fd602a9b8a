// A line for each request.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace faststream::server {

/// What is known of a request that has ended.
struct AccessRecord {
  std::string peer;
  std::string method = "-";
  std::string path = "-";
  int status = 0;      ///< 0: the client went away before
  bool cut = false;    ///< the answer was not sent whole
  size_t bytes = 0;    ///< of the answer
  double seconds = 0;  ///< from the request's first byte to the end of the answer
  std::string model;   ///< empty where none was asked
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

enum class LogFormat { none, text, json };

/// The line, without a newline; nothing in it is a control character.
std::string access_line(const AccessRecord& record, LogFormat format,
                        std::chrono::system_clock::time_point when);

/// Writes lines to standard error by a thread of its own: who has something to say does not wait.
/// When lines come faster than they are taken there, some are left out, and how many is said.
class AccessLog {
 public:
  explicit AccessLog(LogFormat format);
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;
  /// Writes what is there.
  ~AccessLog();

  /// Any thread.
  void add(const AccessRecord& record);

 private:
  void write_lines();

  LogFormat format_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::string> lines_;  // guarded by mutex_, as are the next
  size_t n_left_out_ = 0;
  bool ending_ = false;
  std::thread thread_;  // last: it uses all others
};

}  // namespace faststream::server
