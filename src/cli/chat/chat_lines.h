// Where the lines of a chat come from.
#pragma once

#include <string>

namespace faststream::cli {

class LineSource {
 public:
  enum class Event {
    line,         ///< there is one
    end,          ///< there are no more: Ctrl-D, or the end of the file
    interrupted,  ///< Ctrl-C or SIGTERM: interrupted() says so
  };
  virtual ~LineSource() = default;

  /// The next line, without its newline. `continues`: it goes on with the last one. A line that was
  /// edited as a whole may hold newlines. Throws Error when it cannot be read.
  virtual Event next(bool continues, std::string& line) = 0;
  /// Puts a text into the history, where there is one.
  virtual void remember(const std::string& text) = 0;
};

/// The lines of a file descriptor, the first without a byte order mark; there is no history.
class ScriptLines : public LineSource {
 public:
  explicit ScriptLines(int fd) : fd_(fd) {}

  Event next(bool continues, std::string& line) override;
  void remember(const std::string& /*text*/) override {}

 private:
  int fd_;
  std::string buffer_;  // read, and from `start_` on not yet returned
  size_t start_ = 0;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace faststream::cli
