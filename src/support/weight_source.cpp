#include "support/weight_source.h"

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "support/error.h"
#include "support/io.h"

namespace faststream {
namespace {

void read_bytes(const WeightSource& source, uint64_t from, std::span<std::byte> out) {
  if (source.make) return source.make(from, out);
  if (source.fd < 0) {
    std::memcpy(out.data(), source.bytes.data() + from, out.size());
    return;
  }
  const ssize_t n = read_at(source.fd, source.offset + from, out);
  if (n < 0) {
    throw Error(std::string("The model file cannot be read: ") + std::strerror(errno) +
                "; check the disk, or copy the file anew.");
  }
  if (static_cast<size_t>(n) < out.size()) {
    throw Error("The model file ended while it was read; do not change it while it is loading.");
  }
}

}  // namespace

void WeightSource::read(uint64_t place, std::span<std::byte> out) const {
  if (slices.empty()) return read_bytes(*this, place, out);
  const uint64_t stop = place + out.size();
  auto slice = std::ranges::upper_bound(slices, place, {}, &WeightSlice::end);
  for (; slice != slices.end() && slice->to < stop; ++slice) {
    const uint64_t until = std::min(stop, slice->end());
    for (uint64_t at = std::max(place, slice->to); at < until;) {
      const uint64_t row = (at - slice->to) / slice->row_bytes;
      const uint64_t column = (at - slice->to) % slice->row_bytes;
      const uint64_t count = std::min(slice->row_bytes - column, until - at);
      read_bytes(*this, slice->from + row * slice->pitch + column, out.subspan(at - place, count));
      at += count;
    }
  }
}

}  // namespace faststream
