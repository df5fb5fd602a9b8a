// A way between two processes, on which each tells the other what it likes when it likes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace faststream {

/// One end of it. When the other end has ended or is not heard of any more, both members throw
/// Error, from then on.
class MessageLink {
 public:
  using Bytes = std::vector<std::byte>;

  MessageLink() = default;
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;
  virtual ~MessageLink() = default;

  /// Who is at the other end, for people: "process 3".
  [[nodiscard]] virtual std::string other() const = 0;
  /// Does not wait until the other end has it. Any thread.
  virtual void send(std::span<const std::byte> message) = 0;
  /// Waits for the next message of the other end. One thread at a time.
  virtual Bytes receive() = 0;
};

}  // namespace faststream
