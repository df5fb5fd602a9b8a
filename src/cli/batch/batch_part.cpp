#include "cli/batch/batch_part.h"

#include <charconv>
#include <system_error>
namespace faststream::cli {

std::optional<BatchPart> batch_part_of(std::string_view text) {
  constexpr uint64_t kMostParts = 1'000'000;
  BatchPart part;
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, part.number);
  if (number.ec != std::errc() || number.ptr == end || *number.ptr != '/') return {};
  const auto count = std::from_chars(number.ptr + 1, end, part.count);
  const bool is_whole = count.ec == std::errc() && count.ptr == end;
  if (!is_whole || part.number < 1 || part.number > part.count || part.count > kMostParts) {
    return {};
  }
  return part;
}

}  // namespace faststream::cli
