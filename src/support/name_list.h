// Lists in messages.
#pragma once

#include <string>
#include <string_view>

namespace faststream {

/// Adds a name to a list that may be empty yet: "a, b".
inline void add_name(std::string& list, std::string_view name) {
  if (!list.empty()) list += ", ";
  list += name;
}

}  // namespace faststream
