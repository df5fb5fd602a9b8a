// A line for each request.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
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
  std::string failure;  ///< of the device, for who runs the server; mostly none
};

enum class LogFormat { none, text, json };

/// The line, without a newline; nothing in it is a control character.
std::string access_line(const AccessRecord& record, LogFormat format,
                        std::chrono::system_clock::time_point when);

/// Writes lines to standard error by a thread of its own: who has something to say does not wait.
/// When lines come faster than they are taken there, some are left out, and how many is said.
/// Nothing else may write there meanwhile: it may be a pipe that nobody reads.
class AccessLog {
 public:
  explicit AccessLog(LogFormat format);
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;
  /// Writes what is there, as far as it is taken within a second.
  ~AccessLog();

  /// A request's line; without a format only those of failures. Any thread, as the next.
  void add(const AccessRecord& record);
  /// A line about the server, without a newline.
  void say(std::string line);

 private:
  using Clock = std::chrono::steady_clock;

  void write_lines();
  void write(std::string_view text);
  bool wait_for_room();

  LogFormat format_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::string> lines_;  // guarded by mutex_, as are the next
  size_t n_left_out_ = 0;
  bool ending_ = false;
  Clock::time_point give_up_ = {};  // once it is ending
  std::thread thread_;              // last: it uses all others
};

}  // namespace faststream::server
