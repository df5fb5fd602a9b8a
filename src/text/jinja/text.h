// Text that knows where each of its bytes came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace faststream::jinja {

/// Who wrote a byte: the template, or one of those whose data it prints. Numbers from kFromUser on
/// are the caller's to choose.
using Origin = uint32_t;
constexpr Origin kFromTemplate = 0;
constexpr Origin kFromUser = 1;

/// Bytes with their origins. What is cut out of a text, or put together of several, keeps them.
class Text {
 public:
  /// A stretch of bytes of one origin, from where the one before it ends.
  struct Run {
    size_t end = 0;
    Origin origin = kFromTemplate;
  };

  Text() = default;
  explicit Text(std::string bytes, Origin origin = kFromTemplate);

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::string_view view() const { return bytes_; }
  [[nodiscard]] size_t size() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }

  /// Of all bytes, neighbours of different origins; none for a text that the template wrote alone.
  [[nodiscard]] std::span<const Run> runs() const { return runs_; }
  [[nodiscard]] Origin origin_at(size_t at) const;

  /// Whether it counts as HTML, so that what is added to it is escaped (Jinja's Markup): the
  /// filters safe and escape say so. A part of it does not.
  [[nodiscard]] bool is_markup() const { return is_markup_; }
  void set_markup() { is_markup_ = true; }

  void append(std::string_view bytes, Origin origin = kFromTemplate);
  void append(const Text& other) { append(other, 0, other.size()); }
  /// Appends `size` bytes of `other` from `at` on, which must be there.
  void append(const Text& other, size_t at, size_t size);

  /// The bytes from `at` to the end or at most `size` of them.
  [[nodiscard]] Text substr(size_t at, size_t size = std::string::npos) const;
  /// What `part`, a view into bytes(), is with its origins.
  [[nodiscard]] Text part(std::string_view part) const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
  bool is_markup_ = false;
};

}  // namespace faststream::jinja
