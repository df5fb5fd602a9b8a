// What processes tell each other, as bytes: values one after the other, strings and vectors each
// behind its size. Whoever reads a message is the same program, on a machine of the same kind.
//
// A class that is no plain bytes has, in its namespace, a function visit_members(value, visit) that
// calls visit(member) for each of its members, in the same order for const values and others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/error.h"

namespace faststream {

namespace messages {

struct Ignore {
  void operator()(const auto& /*member*/) const {}
};
template <typename T>
concept HasMembers = requires(T& value) {
  visit_members(value, Ignore());
};
template <typename T>
concept Plain = std::is_trivially_copyable_v<T> && !HasMembers<T>;

}  // namespace messages

/// Makes a message.
class MessageWriter {
 public:
  template <typename T>
  MessageWriter& put(const T& value) {
    if constexpr (messages::HasMembers<const T>) {
      visit_members(value, [this](const auto& member) { this->put(member); });
    } else {
      static_assert(messages::Plain<T> && !std::is_pointer_v<T>);
      append(&value, sizeof value);
    }
    return *this;
  }
  template <typename T>
  MessageWriter& put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
    return *this;
  }
  MessageWriter& put(const std::string& text) { return put_all(std::span(text)); }
  template <typename T>
  MessageWriter& put(const std::vector<T>& values) {
    return put_all(std::span(values));
  }

  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  template <typename T>
  MessageWriter& put_all(std::span<const T> values) {
    put(uint64_t{values.size()});
    if constexpr (messages::Plain<T>) {
      append(values.data(), values.size_bytes());
    } else {
      for (const T& value : values) put(value);
    }
    return *this;
  }
  void append(const void* data, size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }

  std::vector<std::byte> bytes_;
};

/// Reads what a MessageWriter has put, in the same order. Throws Error where there is less.
class MessageReader {
 public:
  explicit MessageReader(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  void take(T& value) {
    if constexpr (messages::HasMembers<T>) {
      visit_members(value, [this](auto& member) { this->take(member); });
    } else {
      static_assert(messages::Plain<T> && !std::is_pointer_v<T>);
      copy(&value, sizeof value);
    }
  }
  template <typename T>
  void take(std::optional<T>& value) {
    value.reset();
    if (take<bool>()) take(value.emplace());
  }
  void take(std::string& text) { take_all(text); }
  template <typename T>
  void take(std::vector<T>& values) {
    take_all(values);
  }
  template <typename T>
  T take() {
    T value{};
    take(value);
    return value;
  }

 private:
  template <typename Values>
  void take_all(Values& values) {
    using T = typename Values::value_type;
    const auto count = take<uint64_t>();
    if (count > bytes_.size() - at_) fail();  // no value takes less than a byte
    values.resize(count);
    if constexpr (messages::Plain<T>) {
      copy(values.data(), count * sizeof(T));
    } else {
      for (T& value : values) take(value);
    }
  }
  void copy(void* to, size_t size) {
    if (size > bytes_.size() - at_) fail();
    if (size > 0) std::memcpy(to, bytes_.data() + at_, size);
    at_ += size;
  }
  [[noreturn]] static void fail() { throw Error("a message between processes is incomplete"); }

  std::vector<std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace faststream
