#include "support/json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "support/error.h"
#include "support/printable.h"

namespace faststream {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;

// What Python's json calls numbers that JSON has no words for. Longer ones first.
struct NamedFloat {
  std::string_view name;
  double value;
};
constexpr auto kNamedFloats =
    std::to_array<NamedFloat>({{"-Infinity", -std::numeric_limits<double>::infinity()},
                               {"Infinity", std::numeric_limits<double>::infinity()},
                               {"NaN", std::numeric_limits<double>::quiet_NaN()}});
constexpr const char* kFloatMember = "__float__";

const NamedFloat* find_named_float(std::string_view text) {
  const auto* const found = std::ranges::find_if(
      kNamedFloats, [&](const NamedFloat& known) { return text.starts_with(known.name); });
  return found == kNamedFloats.end() ? nullptr : found;
}

// The number that an object stands for, if it does.
std::optional<double> float_of(const json& object) {
  const auto member = object.find(kFloatMember);
  if (object.size() != 1 || member == object.end() || !member->is_string()) return std::nullopt;
  const auto& name = member->get_ref<const std::string&>();
  const NamedFloat* known = find_named_float(name);
  if (known == nullptr || known->name != name) return std::nullopt;
  return known->value;
}

// The text with each bare name of a number as the object that stands for it.
std::string with_floats_as_objects(std::string_view text) {
  std::string result;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const NamedFloat* named = in_string ? nullptr : find_named_float(text.substr(i));
    if (named != nullptr) {
      result += std::string("{\"") + kFloatMember + "\":\"" + std::string(named->name) + "\"}";
      i += named->name.size() - 1;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    result += text[i];
    if (in_string && text[i] == '\\' && i + 1 < text.size()) result += text[++i];
  }
  return result;
}

// Builds a value from the parser's events. (The library's own builder has no limit on nesting, and
// the one with a callback looks through all earlier siblings at the end of each object.)
template <typename Json>
class Builder final : public nlohmann::json_sax<Json> {
  using typename nlohmann::json_sax<Json>::number_integer_t;
  using typename nlohmann::json_sax<Json>::number_unsigned_t;
  using typename nlohmann::json_sax<Json>::number_float_t;
  using typename nlohmann::json_sax<Json>::string_t;
  using typename nlohmann::json_sax<Json>::binary_t;

 public:
  Builder(std::string_view where, std::string_view advice, RepeatedMembers repeated,
          bool has_named_floats = false)
      : where_(where), advice_(advice), repeated_(repeated), has_named_floats_(has_named_floats) {}
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  ~Builder() override { dismantle(root_); }

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool key(string_t& name) override {
    if constexpr (kOrdered) {  // duplicates go at the end, as looking for them each time is slow
      auto& members = open_.back()->template get_ref<typename Json::object_t&>();
      member_ = &members.emplace_back(std::move(name), nullptr).second;
    } else {
      Json& object = *open_.back();
      if (repeated_ == RepeatedMembers::are_errors && object.contains(name)) {
        throw repetition(name);
      }
      member_ = &object[std::move(name)];
    }
    return true;
  }
  bool start_object(size_t /*size*/) override { return open(Json::object()); }
  bool start_array(size_t /*size*/) override { return open(Json::array()); }
  bool end_object() override {
    if constexpr (kOrdered) {
      drop_duplicates(open_.back()->template get_ref<typename Json::object_t&>());
    } else if (has_named_floats_) {
      if (const auto number = float_of(*open_.back())) *open_.back() = *number;
    }
    return close();
  }
  bool end_array() override { return close(); }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;  // json::out_of_range's id
    if (error.id == kNumberOverflow) throw failure("the JSON holds a number that is out of range");
    throw failure("not valid JSON (at byte " + std::to_string(position) + ")");
  }

 private:
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

  // Of members of the same name, the first one's place and the last one's value stay.
  template <typename Members>
  void drop_duplicates(Members& members) const {
    std::unordered_map<std::string_view, size_t> places;
    size_t n = 0;
    for (auto& member : members) {
      const auto [place, is_new] = places.emplace(member.first, n);
      if (!is_new) {
        if (repeated_ == RepeatedMembers::are_errors) throw repetition(member.first);
        (members.begin() + static_cast<std::ptrdiff_t>(place->second))->second =
            std::move(member.second);
        continue;
      }
      ++n;
    }
    if (n == members.size()) return;
    Members unique;
    unique.reserve(n);
    for (auto& member : members) {
      if (unique.size() < n && places.at(member.first) == unique.size()) {
        unique.emplace_back(member.first, std::move(member.second));
      }
    }
    members = std::move(unique);
  }

  // Places stay valid: an array or object grows only while none of its elements is open.
  Json* place(Json value) {
    Json* target = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      target = &open_.back()->emplace_back();
    } else if (!open_.empty()) {
      target = member_;
    }
    *target = std::move(value);
    return target;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kMaxDepth) {
      throw failure("the JSON is nested more than " + std::to_string(kMaxDepth) + " deep");
    }
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  [[nodiscard]] Error repetition(std::string_view name) const {
    return failure("the member " + in_quotes(name) + " is there twice");
  }
  [[nodiscard]] Error failure(const std::string& what) const {
    return Error(std::string(where_) + ": " + what + "; " + std::string(advice_));
  }

  std::string_view where_;
  std::string_view advice_;
  RepeatedMembers repeated_;
  bool has_named_floats_;
  Json root_;
  std::vector<Json*> open_;  // the arrays and objects around what comes next, outermost first
  Json* member_ = nullptr;   // where the value of the last key goes
};

// The value, which must be an object.
json object(json value, std::string_view where) {
  if (value.is_object()) return value;
  dismantle(value);
  throw Error(std::string(where) + ": the JSON is not an object as it must be");
}

// The number, if it is a whole one in the range.
template <typename T>
std::optional<T> whole_number(const json& value, T least, T most) {
  const auto in_range = [&](auto number) -> std::optional<T> {
    if (std::cmp_less(number, least) || std::cmp_greater(number, most)) return std::nullopt;
    return static_cast<T>(number);
  };
  if (value.is_number_unsigned()) return in_range(value.get<uint64_t>());
  if (value.is_number_integer()) return in_range(value.get<int64_t>());
  return std::nullopt;
}

}  // namespace

json parse_json(std::string_view text, std::string_view where, std::string_view advice,
                RepeatedMembers repeated) {
  Builder<json> builder(where, advice, repeated);
  json::sax_parse(text, &builder);
  return builder.take();
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where,
                                          std::string_view advice, RepeatedMembers repeated) {
  Builder<nlohmann::ordered_json> builder(where, advice, repeated);
  nlohmann::ordered_json::sax_parse(text, &builder);
  return builder.take();
}

json parse_json_object(std::string_view text, std::string_view where, std::string_view advice,
                       RepeatedMembers repeated) {
  return object(parse_json(text, where, advice, repeated), where);
}

json parse_python_json_object(std::string_view text, std::string_view where,
                              std::string_view advice) {
  Builder<json> builder(where, advice, RepeatedMembers::last_counts, true);
  const bool has_bare_ones = text.find("Infinity") != text.npos || text.find("NaN") != text.npos;
  json::sax_parse(has_bare_ones ? with_floats_as_objects(text) : std::string(text), &builder);
  return object(builder.take(), where);
}

void dismantle(json& value) noexcept {
  if (auto* array = value.get_ptr<json::array_t*>()) {
    for (; !array->empty(); array->pop_back()) dismantle(array->back());
  } else if (auto* object = value.get_ptr<json::object_t*>()) {
    for (; !object->empty(); object->erase(object->begin())) dismantle(object->begin()->second);
  }
}

void dismantle(nlohmann::ordered_json& value) noexcept {
  if (auto* array = value.get_ptr<nlohmann::ordered_json::array_t*>()) {
    for (; !array->empty(); array->pop_back()) dismantle(array->back());
  } else if (auto* object = value.get_ptr<nlohmann::ordered_json::object_t*>()) {
    for (; !object->empty(); object->pop_back()) dismantle(object->back().second);
  }
}

JsonView::JsonView(const json& value, std::string_view where, std::string_view advice)
    : value_(&value),
      sentence_(std::make_shared<Sentence>(
          Sentence{.where = std::string(where), .advice = std::string(advice)})) {}

void JsonView::fail(const std::string& what) const {
  std::string text;
  if (!sentence_->where.empty()) text = sentence_->where + ": ";
  if (!path_.empty()) text += in_quotes(path_) + " ";
  text += what;
  if (!sentence_->advice.empty()) text += "; " + sentence_->advice;
  throw Error(text);
}

bool JsonView::has(std::string_view key) const { return lookup(key) != nullptr; }

std::optional<JsonView> JsonView::find(std::string_view key) const {
  const json* found = lookup(key);
  if (found == nullptr || found->is_null()) return std::nullopt;
  return JsonView(*this, *found, path_of(key));
}

JsonView JsonView::member(std::string_view key) const {
  auto found = find(key);
  if (!found) JsonView(*this, *value_, path_of(key)).fail("is missing");
  return *std::move(found);
}

void JsonView::allow_only(std::span<const std::string_view> keys) const {
  if (!value_->is_object()) fail("is not a JSON object");
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      JsonView(*this, value, path_of(key)).fail("is unknown; remove it or correct its name");
    }
  }
}

template <>
bool JsonView::as<bool>() const {
  if (!value_->is_boolean()) fail("is not true or false");
  return value_->get<bool>();
}

template <>
double JsonView::as<double>() const {
  if (!value_->is_number()) fail("is not a number");
  return value_->get<double>();
}

template <>
float JsonView::as<float>() const {
  if (!value_->is_number()) fail("is not a number");
  const auto value = value_->get<double>();
  if (std::abs(value) > double{std::numeric_limits<float>::max()}) fail("is out of range");
  return static_cast<float>(value);
}

template <>
std::string JsonView::as<std::string>() const {
  if (!value_->is_string()) fail("is not a string");
  return value_->get<std::string>();
}

template <typename T>
T JsonView::as(T least, T most) const {
  if (const auto number = whole_number(*value_, least, most)) return *number;
  const bool any = least == std::numeric_limits<T>::min() && most == std::numeric_limits<T>::max();
  if (any && !value_->is_number_integer()) fail("is not a whole number");
  fail("is not a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

template <typename T>
std::vector<T> JsonView::integers(T least, T most) const {
  if (!value_->is_array()) fail("is not a list");
  std::vector<T> numbers;
  numbers.reserve(value_->size());
  for (const json& value : *value_) {
    const auto number = whole_number(value, least, most);
    numbers.push_back(number ? *number : element(numbers.size()).as(least, most));  // throws
  }
  return numbers;
}

template <>
int32_t JsonView::as<int32_t>() const {
  return as(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
}
template <>
int64_t JsonView::as<int64_t>() const {
  return as(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
}
template <>
uint64_t JsonView::as<uint64_t>() const {
  return as(std::numeric_limits<uint64_t>::min(), std::numeric_limits<uint64_t>::max());
}
template int32_t JsonView::as(int32_t, int32_t) const;
template int64_t JsonView::as(int64_t, int64_t) const;
template uint64_t JsonView::as(uint64_t, uint64_t) const;
template std::vector<int32_t> JsonView::integers(int32_t, int32_t) const;
template std::vector<int64_t> JsonView::integers(int64_t, int64_t) const;
template std::vector<uint64_t> JsonView::integers(uint64_t, uint64_t) const;

std::vector<JsonView> JsonView::elements() const {
  if (!value_->is_array()) fail("is not a list");
  std::vector<JsonView> all;
  all.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) all.push_back(element(i));
  return all;
}

JsonView JsonView::element(size_t index) const {
  return JsonView(*this, (*value_)[index], path_ + "[" + std::to_string(index) + "]");
}

const json* JsonView::lookup(std::string_view key) const {
  if (!value_->is_object()) fail("is not a JSON object");
  const auto found = value_->find(key);
  return found == value_->end() ? nullptr : &*found;
}

std::string JsonView::path_of(std::string_view key) const {
  return path_ + (path_.empty() ? "" : ".") + std::string(key);
}

}  // namespace faststream
