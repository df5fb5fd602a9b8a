// Values of templates, as Python has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/text.h"

namespace faststream::jinja {

class Value;
struct List;
class Dict;
class Object;

struct None {};
/// What a name, attribute or element is that is not there. It prints as nothing and is false; all
/// else that is done with it fails for the reason.
struct Undefined {
  std::shared_ptr<const std::string> reason;
};

/// Cheap to copy. Texts, lists and dictionaries never change once made; objects belong to the
/// Runtime.
class Value {
 public:
  Value() : data_(None{}) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(Text value) : data_(std::make_shared<const Text>(std::move(value))) {}
  explicit Value(std::string_view value) : Value(Text(std::string(value))) {}
  explicit Value(List value);
  explicit Value(Dict value);
  explicit Value(Object* value) : data_(value) {}
  explicit Value(const char* value) = delete;

  static Value undefined(std::string reason);

  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(data_); }
  [[nodiscard]] bool is_bool() const { return std::holds_alternative<bool>(data_); }
  /// An int of Python's, which a bool is too.
  [[nodiscard]] bool is_integer() const {
    return is_bool() || std::holds_alternative<int64_t>(data_);
  }
  [[nodiscard]] bool is_real() const { return std::holds_alternative<double>(data_); }
  [[nodiscard]] bool is_number() const { return is_integer() || is_real(); }
  [[nodiscard]] bool is_text() const { return text() != nullptr; }

  /// Null where the value is of another kind.
  [[nodiscard]] const Text* text() const { return pointer<Text>(); }
  [[nodiscard]] const List* list() const { return pointer<List>(); }
  [[nodiscard]] const Dict* dict() const { return pointer<Dict>(); }
  [[nodiscard]] Object* object() const {
    const auto* object = std::get_if<Object*>(&data_);
    return object == nullptr ? nullptr : *object;
  }

  /// Of an integer (a bool is 0 or 1), and of any number.
  [[nodiscard]] int64_t integer() const;
  [[nodiscard]] double real() const;
  /// Of an undefined value.
  [[nodiscard]] const std::string& reason() const { return *std::get<Undefined>(data_).reason; }

  /// Whether both are the same in memory, as Python's `is` has it.
  [[nodiscard]] bool same_as(const Value& other) const;

  /// How deep lists and dictionaries are nested: 0 for what is neither.
  [[nodiscard]] int depth() const;
  /// What a walk through it costs: 1 for a value, more for a long text, all that is in a list.
  [[nodiscard]] size_t weight() const;

  /// "str", "dict", "NoneType" ...: as messages name it.
  [[nodiscard]] std::string_view type_name() const;

 private:
  template <typename T>
  [[nodiscard]] const T* pointer() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data_);
    return held == nullptr ? nullptr : held->get();
  }

  std::variant<None, Undefined, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, Object*>
      data_;
};

/// What is made of elements in order.
struct List {
  enum class Type { list, tuple, range, generator, keys, values, items };

  List() = default;
  explicit List(std::vector<Value> elements, Type kind = Type::list);

  /// Its elements, once: a generator has none left then.
  [[nodiscard]] std::vector<Value> take() const;
  /// Whether it has a length and elements by number.
  [[nodiscard]] bool is_sequence() const {
    return type == Type::list || type == Type::tuple || type == Type::range;
  }

  std::vector<Value> items;
  Type type = Type::list;
  int depth = 1;
  size_t weight = 1;
  struct {
    int64_t start = 0, stop = 0, step = 1;
  } range = {};
  mutable bool taken = false;  // of a generator
};

/// Keys with values, in the order of their first insertion.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  /// Throws Failure for a key that Python could not hash.
  void set(Value key, Value value);
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] int depth() const { return depth_; }
  [[nodiscard]] size_t weight() const { return weight_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> texts_;  // where keys that are texts are
  int depth_ = 1;
  size_t weight_ = 1;
};

/// Throws Failure when `value` cannot be a key.
void check_hashable(const Value& value);

// What all values have in common. --------------------------------------------------------------

bool truth(const Value& value);
/// ==, which no types refuse.
bool equal(const Value& a, const Value& b);
/// Less than 0, 0, or more; nothing for numbers that have no order. Throws Failure for types that
/// have none.
std::optional<int> compare(const Value& a, const Value& b, std::string_view operation);

}  // namespace faststream::jinja
