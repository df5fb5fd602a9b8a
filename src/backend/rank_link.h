// What ranks, which compute each step together, tell each other: threads of a process, or processes
// (src/ranks).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace faststream {

/// One rank's end of it. Rank 0 decides, the others follow. Errors: when a rank ends, or fails,
/// every call of the others throws Error, now and from then on.
///
/// gather() and exchange() are of all ranks, which call them in the same order; what they return
/// holds until the next call. tell() and listen() go beside them, and so do pass() and take(). One
/// thread at a time may use gather() and exchange(), and one each of the others.
class RankLink {
 public:
  using Bytes = std::vector<std::byte>;

  RankLink() = default;
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;
  virtual ~RankLink() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int count() const = 0;
  /// Whether all ranks are threads of this process.
  [[nodiscard]] virtual bool is_in_process() const = 0;

  /// Of rank 0: tells all others, and does not wait until they hear it.
  virtual void tell(std::span<const std::byte> message) = 0;
  /// Of the others: waits for what rank 0 tells next.
  virtual Bytes listen() = 0;

  /// Gives a rank a message, and does not wait until it takes it.
  virtual void pass(int to, Bytes message) = 0;
  /// Waits for the next message that a rank passes to this one.
  virtual Bytes take(int from) = 0;

  /// Of all ranks together: this one's end of a link among its part of them, which are divided into
  /// so many parts of equal size, each of ranks that follow each other. This must outlive it. What
  /// fails here does not fail there, and the other way round.
  virtual std::unique_ptr<RankLink> divide(int parts) = 0;

  /// Has every call of all ranks throw Error(why) from now on.
  virtual void fail(std::string_view why) = 0;

  /// What each rank gives, of equal size, one after the other.
  virtual std::span<const std::byte> gather(std::span<const std::byte> own) = 0;
  /// Each rank gives a piece for each rank, of equal size, in their order; returns the pieces that
  /// the ranks have given for this one.
  virtual std::span<const std::byte> exchange(std::span<const std::byte> pieces) = 0;
};

}  // namespace faststream
