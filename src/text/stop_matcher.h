// Ends a stream of text at stop strings.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace faststream {

/// Passes on the text before the first stop string, which may lie across the borders of the pieces
/// in which the text comes. The first match is the one that ends first; of several that end
/// together, the longest. Where pieces begin and end changes nothing but how soon text is passed
/// on.
///
/// Time is linear in the text and in the number of stop strings; what is held back is shorter than
/// the longest of them. Where stop strings and text are whole characters, so is each return value.
class StopMatcher {
 public:
  /// No stop string may be empty; there may be none.
  explicit StopMatcher(std::vector<std::string> stops);

  /// The next piece of the text. Returns what can no longer be part of the first match; always ""
  /// once there is one.
  std::string push(std::string_view text);
  /// The text is over: returns what was held back.
  std::string finish();

  /// The stop string that was found.
  [[nodiscard]] const std::optional<std::string>& matched() const { return matched_; }

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> border;  // see prefix_function()
    size_t n_matched = 0;        // bytes of `text` that the stream now ends with
  };

  static void advance(Stop& stop, char byte);

  std::vector<Stop> stops_;
  std::string held_;  // what was not passed on; ends with the beginnings of stop strings
  std::optional<std::string> matched_;
};

}  // namespace faststream
