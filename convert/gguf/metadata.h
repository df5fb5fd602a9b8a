// The key-value pairs of a GGUF file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace faststream::convert {

/// Types of values; the numbers are those of the format.
enum class GgufType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// Bytes of a number or a boolean; 0 for strings, arrays and unknown types.
size_t gguf_type_size(GgufType type);

struct GgufValue {
  GgufType type = GgufType::u8;
  GgufType element = GgufType::u8;   ///< of an array
  std::string bytes;                 ///< a string, a number, or an array of numbers, as in the file
  std::vector<std::string> strings;  ///< an array of strings; arrays of arrays are not kept
};

/// Values by key. Each accessor throws Error, naming file and key, when a value is of another kind
/// than asked for, or a number does not fit; a find_ returns nothing when there is no such key.
class GgufMetadata {
 public:
  /// `where` starts every message: the file's name.
  explicit GgufMetadata(std::string_view where) : where_(where) {}

  /// Returns false when the key is taken.
  bool add(std::string key, GgufValue value);

  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const std::map<std::string, GgufValue, std::less<>>& values() const {
    return values_;
  }
  [[nodiscard]] bool has(std::string_view key) const { return values_.contains(key); }
  /// Throws Error about the value of `key`; `what` goes on after its name: "is not a number".
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

  /// A whole number of any width. Of an array whose elements are all equal: that element, as
  /// per-layer counts are written for models whose layers are alike.
  [[nodiscard]] std::optional<int64_t> find_integer(std::string_view key) const;
  [[nodiscard]] int64_t integer(std::string_view key) const;
  /// A token id: a whole number from 0 to 2^31 - 1.
  [[nodiscard]] std::optional<int32_t> find_token(std::string_view key) const;
  /// Of any numeric type.
  [[nodiscard]] std::optional<double> find_number(std::string_view key) const;
  [[nodiscard]] double number(std::string_view key) const;
  [[nodiscard]] std::optional<bool> find_boolean(std::string_view key) const;
  /// UTF-8.
  [[nodiscard]] std::optional<std::string> find_text(std::string_view key) const;
  [[nodiscard]] std::string text(std::string_view key) const;

  /// Null when there is no such key. The elements may be any bytes.
  [[nodiscard]] const std::vector<std::string>* find_strings(std::string_view key) const;
  /// Arrays of whole numbers and of any numbers, which are finite unless they may be infinite;
  /// empty when there is no such key.
  [[nodiscard]] std::vector<int32_t> integers(std::string_view key) const;
  [[nodiscard]] std::vector<float> numbers(std::string_view key, bool infinite = false) const;
  /// An array of booleans, or of whole numbers of which 0 is false; empty when there is no such
  /// key.
  [[nodiscard]] std::vector<bool> booleans(std::string_view key) const;
  /// The bytes of an array of 8-bit numbers; empty when there is no such key.
  [[nodiscard]] std::string_view bytes(std::string_view key) const;

 private:
  [[nodiscard]] const GgufValue* find(std::string_view key) const;
  [[nodiscard]] const GgufValue* find_array(std::string_view key) const;
  [[noreturn]] void fail_missing(std::string_view key) const;

  std::string where_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

}  // namespace faststream::convert
