// Reads what a call is given.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/object.h"

namespace faststream::jinja {

/// Binds arguments to parameters as Python does, and gives them one after the other.
class ArgumentReader {
 public:
  /// Throws Failure for too many positional or unknown named arguments.
  ArgumentReader(std::string_view function, Arguments arguments,
                 std::initializer_list<std::string_view> parameters);

  [[nodiscard]] bool has(size_t index) const { return index < given_.size() && given_[index]; }
  /// Throws Failure when it is missing.
  [[nodiscard]] const Value& at(size_t index) const;
  [[nodiscard]] Value get(size_t index, const Value& otherwise = Value()) const {
    return has(index) ? values_[index] : otherwise;
  }
  /// Throw Failure when it is of another type.
  [[nodiscard]] const Text& text(size_t index) const;
  [[nodiscard]] int64_t integer(size_t index) const;
  [[nodiscard]] int64_t integer(size_t index, int64_t otherwise) const {
    return has(index) ? integer(index) : otherwise;
  }
  [[nodiscard]] bool flag(size_t index, bool otherwise) const {
    return has(index) ? truth(values_[index]) : otherwise;
  }

 private:
  [[noreturn]] void fail(size_t index, const std::string& what) const;

  std::string function_;
  std::vector<std::string_view> parameters_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

}  // namespace faststream::jinja
