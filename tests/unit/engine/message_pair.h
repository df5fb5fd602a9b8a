// Two ends of a way for messages, in one process.
#pragma once

#include <condition_variable>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "ranks/message_link.h"
#include "support/error.h"

namespace faststream {

class MessagePair {
 public:
  MessageLink& here() { return here_; }
  MessageLink& there() { return there_; }
  /// The way ends once `here` has received so many messages.
  explicit MessagePair(int64_t lasts = std::numeric_limits<int64_t>::max()) : n_left_(lasts) {}
  void cut() {
    const std::scoped_lock lock(mutex_);
    is_cut_ = true;
    wake_.notify_all();
  }

 private:
  class End final : public MessageLink {
   public:
    End(MessagePair& pair, std::deque<Bytes>& out, std::deque<Bytes>& in)
        : pair_(pair), out_(out), in_(in) {}
    [[nodiscard]] std::string other() const override { return "the other end"; }
    void send(std::span<const std::byte> message) override {
      const std::scoped_lock lock(pair_.mutex_);
      pair_.check();
      out_.emplace_back(message.begin(), message.end());
      pair_.wake_.notify_all();
    }
    Bytes receive() override {
      std::unique_lock lock(pair_.mutex_);
      if (this == &pair_.here_ && pair_.n_left_-- == 0) {
        pair_.is_cut_ = true;
        pair_.wake_.notify_all();
      }
      pair_.wake_.wait(lock, [this] { return !in_.empty() || pair_.is_cut_; });
      pair_.check();
      Bytes message = std::move(in_.front());
      in_.pop_front();
      return message;
    }

   private:
    MessagePair& pair_;
    std::deque<Bytes>& out_;
    std::deque<Bytes>& in_;
  };

  void check() const {
    if (is_cut_) throw Error("the other end has ended");
  }

  int64_t n_left_;
  bool is_cut_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<MessageLink::Bytes> to_here_;
  std::deque<MessageLink::Bytes> to_there_;
  End here_{*this, to_there_, to_here_};
  End there_{*this, to_here_, to_there_};
};

}  // namespace faststream
