#include "convert/pytorch/zip_archive.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr uint32_t kNot32 = 0xffffffffU;  // the number is in a field of 64 bits
constexpr uint16_t kNot16 = 0xffffU;

class ZipDirectory {
 public:
  ZipDirectory(const ReadBytes& read, uint64_t size, std::string_view where)
      : read_(read), size_(size), where_(where) {}

  std::map<std::string, ArchivedFile, std::less<>> files() {
    const Place place = find_directory();
    const std::vector<std::byte> bytes = bytes_at(place.offset, place.size);
    std::map<std::string, ArchivedFile, std::less<>> files;
    uint64_t at = 0;
    for (uint64_t i = 0; i < place.entries; ++i) {
      constexpr uint64_t kFixed = 46;
      const auto entry = part(bytes, at, kFixed);
      if (number<uint32_t>(entry, 0) != 0x02014b50U) damaged();
      const uint64_t name_size = number<uint16_t>(entry, 28);
      const uint64_t extra_size = number<uint16_t>(entry, 30);
      const uint64_t comment_size = number<uint16_t>(entry, 32);
      const auto text = part(bytes, at + kFixed, name_size);
      const std::string name(reinterpret_cast<const char*>(text.data()), text.size());
      const ArchivedFile file =
          entry_of(entry, part(bytes, at + kFixed + name_size, extra_size), name);
      if (!files.emplace(name, file).second) damaged();
      at += kFixed + name_size + extra_size + comment_size;
    }
    return files;
  }

 private:
  struct Place {
    uint64_t entries = 0;
    uint64_t offset = 0;
    uint64_t size = 0;
  };
  using Bytes = std::span<const std::byte>;

  [[noreturn]] void damaged() const {
    throw Error(where_ + ": is a damaged archive; download it again");
  }

  template <typename T>
  [[nodiscard]] T number(Bytes bytes, uint64_t at) const {
    T value;
    std::memcpy(&value, part(bytes, at, sizeof value).data(), sizeof value);
    return value;
  }

  [[nodiscard]] Bytes part(Bytes bytes, uint64_t at, uint64_t size) const {
    if (at > bytes.size() || size > bytes.size() - at) damaged();
    return bytes.subspan(at, size);
  }

  [[nodiscard]] std::vector<std::byte> bytes_at(uint64_t offset, uint64_t size) const {
    constexpr uint64_t kMostBytes = uint64_t{64} << 20;  // of a directory: half a million files
    if (offset > size_ || size > size_ - offset || size > kMostBytes) damaged();
    std::vector<std::byte> bytes(size);
    read_(offset, bytes);
    return bytes;
  }

  // What stands at the end of the archive, before a comment of any length.
  [[nodiscard]] Place find_directory() const {
    constexpr uint64_t kFixed = 22;
    const uint64_t tail_size = std::min<uint64_t>(size_, kFixed + kNot16);
    const std::vector<std::byte> tail = bytes_at(size_ - tail_size, tail_size);
    for (uint64_t left = kFixed; left <= tail_size; ++left) {
      const uint64_t at = tail_size - left;
      if (number<uint32_t>(tail, at) != 0x06054b50U ||
          number<uint16_t>(tail, at + 20) != left - kFixed) {
        continue;
      }
      const Place place{number<uint16_t>(tail, at + 10), number<uint32_t>(tail, at + 16),
                        number<uint32_t>(tail, at + 12)};
      if (place.entries != kNot16 && place.offset != kNot32 && place.size != kNot32) return place;
      return find_large_directory(size_ - left);
    }
    throw Error(where_ + ": is a truncated archive; download it again");
  }

  // end: where the end of central directory record begins, before which its position stands.
  [[nodiscard]] Place find_large_directory(uint64_t end) const {
    constexpr uint64_t kLocator = 20;
    constexpr uint64_t kFixed = 56;
    if (end < kLocator) damaged();
    const std::vector<std::byte> locator = bytes_at(end - kLocator, kLocator);
    if (number<uint32_t>(locator, 0) != 0x07064b50U) damaged();
    const std::vector<std::byte> record = bytes_at(number<uint64_t>(locator, 8), kFixed);
    if (number<uint32_t>(record, 0) != 0x06064b50U) damaged();
    return {number<uint64_t>(record, 32), number<uint64_t>(record, 48),
            number<uint64_t>(record, 40)};
  }

  [[nodiscard]] ArchivedFile entry_of(Bytes entry, Bytes extra, const std::string& name) const {
    constexpr uint16_t kEncrypted = 1;
    if ((number<uint16_t>(entry, 8) & kEncrypted) != 0 || number<uint16_t>(entry, 10) != 0) {
      throw Error(where_ + ": " + in_quotes(name) +
                  " in it is compressed or encrypted, which torch.save() does not do");
    }
    uint64_t stored = number<uint32_t>(entry, 20);
    uint64_t size = number<uint32_t>(entry, 24);
    uint64_t header = number<uint32_t>(entry, 42);
    read_large_numbers(extra, {&size, &stored, &header});
    constexpr uint64_t kFixed = 30;
    const std::vector<std::byte> local = bytes_at(header, kFixed);
    if (number<uint32_t>(local, 0) != 0x04034b50U || size != stored) damaged();
    const uint64_t before =
        kFixed + number<uint16_t>(local, 26) + uint64_t{number<uint16_t>(local, 28)};
    if (before > size_ - header || size > size_ - header - before) damaged();
    return {header + before, size};
  }

  // The numbers that did not fit into 32 bits, in this order, from the extra field that has them.
  void read_large_numbers(Bytes extra, std::initializer_list<uint64_t*> numbers) const {
    const bool any = std::ranges::any_of(numbers, [](const uint64_t* n) { return *n == kNot32; });
    for (uint64_t at = 0; any && at < extra.size();) {
      const uint64_t size = number<uint16_t>(extra, at + 2);
      const Bytes field = part(extra, at + 4, size);
      at += 4 + size;
      if (number<uint16_t>(extra, at - 4 - size) != 1) continue;
      uint64_t next = 0;
      for (uint64_t* n : numbers) {
        if (*n != kNot32) continue;
        *n = number<uint64_t>(field, next);
        next += sizeof *n;
      }
      return;
    }
    if (any) damaged();
  }

  const ReadBytes& read_;
  uint64_t size_;
  std::string where_;
};

}  // namespace

std::map<std::string, ArchivedFile, std::less<>> read_zip_directory(const ReadBytes& read,
                                                                    uint64_t size,
                                                                    std::string_view where) {
  return ZipDirectory(read, size, where).files();
}

}  // namespace faststream::convert
