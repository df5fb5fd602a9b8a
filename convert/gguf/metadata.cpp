#include "convert/gguf/metadata.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "support/error.h"
#include "support/printable.h"
#include "support/utf8.h"

namespace faststream::convert {
namespace {

template <typename T>
T load(std::string_view bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

// Element `index` of numbers of the type `type`; nothing when it is no whole number below 2^63.
std::optional<int64_t> whole_number(std::string_view bytes, GgufType type, size_t index) {
  switch (type) {
    case GgufType::u8:
      return load<uint8_t>(bytes, index);
    case GgufType::i8:
      return load<int8_t>(bytes, index);
    case GgufType::u16:
      return load<uint16_t>(bytes, index);
    case GgufType::i16:
      return load<int16_t>(bytes, index);
    case GgufType::u32:
      return load<uint32_t>(bytes, index);
    case GgufType::i32:
      return load<int32_t>(bytes, index);
    case GgufType::i64:
      return load<int64_t>(bytes, index);
    case GgufType::u64: {
      const auto value = load<uint64_t>(bytes, index);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> any_number(std::string_view bytes, GgufType type, size_t index) {
  if (type == GgufType::f32) return load<float>(bytes, index);
  if (type == GgufType::f64) return load<double>(bytes, index);
  if (const auto whole = whole_number(bytes, type, index)) return static_cast<double>(*whole);
  return std::nullopt;
}

}  // namespace

size_t gguf_type_size(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::string:
    case GgufType::array:
      return 0;
  }
  return 0;
}

bool GgufMetadata::add(std::string key, GgufValue value) {
  return values_.emplace(std::move(key), std::move(value)).second;
}

void GgufMetadata::fail(std::string_view key, const std::string& what) const {
  throw Error(where_ + ": " + in_quotes(key) + " " + what);
}

void GgufMetadata::fail_missing(std::string_view key) const {
  fail(key, "is missing from the metadata; the file is damaged or incomplete");
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const GgufValue* GgufMetadata::find_array(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value != nullptr && value->type != GgufType::array) fail(key, "is not an array");
  return value;
}

std::optional<int64_t> GgufMetadata::find_integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::array) {
    const auto number = whole_number(value->bytes, value->type, 0);
    if (!number) fail(key, "is not a whole number below 2^63");
    return number;
  }
  const size_t size = gguf_type_size(value->element);
  const auto first = size > 0 && !value->bytes.empty()
                         ? whole_number(value->bytes, value->element, 0)
                         : std::nullopt;
  if (!first) fail(key, "is not a whole number below 2^63");
  for (size_t i = 1; i < value->bytes.size() / size; ++i) {
    if (whole_number(value->bytes, value->element, i) != first) {
      fail(key, "differs from layer to layer, which is not supported");
    }
  }
  return first;
}

int64_t GgufMetadata::integer(std::string_view key) const {
  const auto found = find_integer(key);
  if (!found) fail_missing(key);
  return *found;
}

std::optional<int32_t> GgufMetadata::find_token(std::string_view key) const {
  const auto found = find_integer(key);
  if (!found) return std::nullopt;
  if (*found < 0 || *found > std::numeric_limits<int32_t>::max()) fail(key, "is no token id");
  return static_cast<int32_t>(*found);
}

std::optional<double> GgufMetadata::find_number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = any_number(value->bytes, value->type, 0);
  if (!number) fail(key, "is not a number");
  return number;
}

double GgufMetadata::number(std::string_view key) const {
  const auto found = find_number(key);
  if (!found) fail_missing(key);
  return *found;
}

std::optional<bool> GgufMetadata::find_boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::boolean) fail(key, "is neither true nor false");
  return value->bytes[0] != 0;
}

std::optional<std::string> GgufMetadata::find_text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::string) fail(key, "is not text");
  if (!is_valid_utf8(value->bytes)) fail(key, "is not UTF-8 text");
  return value->bytes;
}

std::string GgufMetadata::text(std::string_view key) const {
  auto found = find_text(key);
  if (!found) fail_missing(key);
  return std::move(*found);
}

const std::vector<std::string>* GgufMetadata::find_strings(std::string_view key) const {
  const GgufValue* value = find_array(key);
  if (value == nullptr) return nullptr;
  if (value->element != GgufType::string) fail(key, "is not an array of strings");
  return &value->strings;
}

std::vector<int32_t> GgufMetadata::integers(std::string_view key) const {
  std::vector<int32_t> numbers;
  const GgufValue* value = find_array(key);
  if (value == nullptr) return numbers;
  const size_t size = gguf_type_size(value->element);
  if (size == 0) fail(key, "is not an array of numbers");
  for (size_t i = 0; i < value->bytes.size() / size; ++i) {
    const auto number = whole_number(value->bytes, value->element, i);
    if (!number || *number < std::numeric_limits<int32_t>::min() ||
        *number > std::numeric_limits<int32_t>::max()) {
      fail(key, "is not an array of 32-bit numbers");
    }
    numbers.push_back(static_cast<int32_t>(*number));
  }
  return numbers;
}

std::vector<float> GgufMetadata::numbers(std::string_view key, bool infinite) const {
  std::vector<float> numbers;
  const GgufValue* value = find_array(key);
  if (value == nullptr) return numbers;
  const size_t size = gguf_type_size(value->element);
  if (size == 0) fail(key, "is not an array of numbers");
  for (size_t i = 0; i < value->bytes.size() / size; ++i) {
    const auto number = any_number(value->bytes, value->element, i);
    if (!number || std::isnan(*number) || (!infinite && std::isinf(*number))) {
      fail(key, infinite ? "has an element that is no number"
                         : "has an element that is no finite number");
    }
    numbers.push_back(static_cast<float>(*number));
  }
  return numbers;
}

std::vector<bool> GgufMetadata::booleans(std::string_view key) const {
  const GgufValue* value = find_array(key);
  if (value == nullptr) return {};
  std::vector<bool> booleans;
  if (value->element == GgufType::i32 || value->element == GgufType::u32) {
    for (const int32_t number : integers(key)) booleans.push_back(number != 0);
    return booleans;
  }
  if (value->element != GgufType::boolean) fail(key, "is not an array of booleans");
  for (const char byte : value->bytes) booleans.push_back(byte != 0);
  return booleans;
}

std::string_view GgufMetadata::bytes(std::string_view key) const {
  const GgufValue* value = find_array(key);
  if (value == nullptr) return {};
  if (value->element != GgufType::u8 && value->element != GgufType::i8) {
    fail(key, "is not an array of bytes");
  }
  return value->bytes;
}

}  // namespace faststream::convert
