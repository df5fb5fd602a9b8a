#include "text/jinja/value.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/object.h"

namespace faststream::jinja {
namespace {

// Objects that hold each other could be compared without end.
constexpr int kDeepestValue = 100;

int depth_above(const Value& inner, int depth) {
  depth = std::max(depth, inner.depth() + 1);
  if (depth > kDeepestValue) throw Failure("lists and dictionaries are nested too deep");
  return depth;
}

// Values may be shared, so that a walk meets far more of them than there are in memory.
size_t add_weights(size_t a, size_t b) {
  constexpr size_t kMost = size_t{1} << 40U;
  return std::min(a + b, kMost);
}

// Whether a double equals an integer, and their order; exact, as Python compares them.
std::optional<int> compare_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  }
  if (a.is_integer()) {
    const auto turned = compare_numbers(b, a);
    return turned ? std::optional(-*turned) : std::nullopt;
  }
  const double x = a.real();
  if (std::isnan(x) || (b.is_real() && std::isnan(b.real()))) return std::nullopt;
  if (b.is_real()) return x < b.real() ? -1 : x > b.real() ? 1 : 0;
  constexpr double kTwo63 = 9223372036854775808.0;
  if (x >= kTwo63) return 1;
  if (x < -kTwo63) return -1;
  const auto whole = static_cast<int64_t>(x);
  if (whole != b.integer()) return whole < b.integer() ? -1 : 1;
  const double rest = x - static_cast<double>(whole);
  return rest < 0 ? -1 : rest > 0 ? 1 : 0;
}

bool same_entries(const Dict& a, const Dict& b) {
  return a.size() == b.size() &&
         std::all_of(a.entries().begin(), a.entries().end(), [&](const Dict::Entry& entry) {
           const Value* found = b.find(entry.first);
           return found != nullptr && equal(entry.second, *found);
         });
}

// Ranges, tuples and lists equal their own kind only.
bool comparable(const List& a, const List& b) { return a.is_sequence() && a.type == b.type; }

}  // namespace

Value::Value(List value) : data_(std::make_shared<const List>(std::move(value))) {}
Value::Value(Dict value) : data_(std::make_shared<const Dict>(std::move(value))) {}

Value Value::undefined(std::string reason) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(reason))};
  return value;
}

int64_t Value::integer() const {
  const bool* truth = std::get_if<bool>(&data_);
  return truth != nullptr ? static_cast<int64_t>(*truth) : std::get<int64_t>(data_);
}

double Value::real() const {
  return is_real() ? std::get<double>(data_) : static_cast<double>(integer());
}

bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (text() != nullptr) return text() == other.text() || text()->bytes() == other.text()->bytes();
  if (list() != nullptr) return list() == other.list();
  if (dict() != nullptr) return dict() == other.dict();
  if (object() != nullptr) return object() == other.object();
  return is_none() || (!is_undefined() && equal(*this, other));
}

int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  return dict() != nullptr ? dict()->depth() : 0;
}

size_t Value::weight() const {
  if (text() != nullptr) return 1 + text()->size() / 64;
  if (list() != nullptr) return list()->weight;
  return dict() != nullptr ? dict()->weight() : 1;
}

std::string_view Value::type_name() const {
  if (list() != nullptr) {
    constexpr std::array<std::string_view, 7> kNames = {
        "list", "tuple", "range", "generator", "dict_keys", "dict_values", "dict_items"};
    return kNames[static_cast<size_t>(list()->type)];
  }
  if (object() != nullptr) return object()->type_name();
  constexpr std::array<std::string_view, 8> kNames = {"NoneType", "Undefined", "bool", "int",
                                                      "float",    "str",       "",     "dict"};
  return kNames[data_.index()];
}

List::List(std::vector<Value> elements, Type kind) : items(std::move(elements)), type(kind) {
  for (const Value& item : items) {
    depth = depth_above(item, depth);
    weight = add_weights(weight, item.weight());
  }
}

std::vector<Value> List::take() const {
  if (type != Type::generator) return items;
  if (std::exchange(taken, true)) return {};
  return items;
}

void check_hashable(const Value& value) {
  const List* list = value.list();
  if (list != nullptr && list->type == List::Type::tuple) {
    for (const Value& item : list->items) check_hashable(item);
  } else if (value.dict() != nullptr || (list != nullptr && list->type != List::Type::range)) {
    throw Failure("a " + std::string(value.type_name()) + " cannot be a key");
  }
}

void Dict::set(Value key, Value value) {
  check_hashable(key);
  depth_ = depth_above(key, depth_above(value, depth_));
  weight_ = add_weights(weight_, add_weights(key.weight(), value.weight()));
  if (const Value* old = find(key)) {
    const_cast<Value&>(*old) = std::move(value);  // NOLINT: one of entries_
    return;
  }
  if (const Text* text = key.text()) texts_.emplace(text->view(), entries_.size());
  entries_.emplace_back(std::move(key), std::move(value));
}

const Value* Dict::find(std::string_view key) const {
  const auto found = texts_.find(key);
  return found == texts_.end() ? nullptr : &entries_[found->second].second;
}

const Value* Dict::find(const Value& key) const {
  if (const Text* text = key.text()) return find(text->view());
  if (texts_.size() == entries_.size()) return nullptr;
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return equal(entry.first, key); });
  return found == entries_.end() ? nullptr : &found->second;
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_integer()) return value.integer() != 0;
  if (value.is_real()) return value.real() != 0;
  if (const Text* text = value.text()) return !text->empty();
  if (const List* list = value.list()) {
    return list->type == List::Type::generator || !list->items.empty();
  }
  if (const Dict* dict = value.dict()) return dict->size() > 0;
  return true;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.is_text() && b.is_text()) return a.text()->bytes() == b.text()->bytes();
  if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr) {
    return x == y || (comparable(*x, *y) && std::equal(x->items.begin(), x->items.end(),
                                                       y->items.begin(), y->items.end(), equal));
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    return a.dict() == b.dict() || same_entries(*a.dict(), *b.dict());
  }
  if (a.object() != nullptr) return a.object() == b.object();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

std::optional<int> compare(const Value& a, const Value& b, std::string_view operation) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_text() && b.is_text()) return a.text()->bytes().compare(b.text()->bytes());
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) throw Failure(value->reason());
  }
  const List* x = a.list();
  const List* y = b.list();
  if (x != nullptr && y != nullptr && comparable(*x, *y) && x->type != List::Type::range) {
    for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      if (!equal(x->items[i], y->items[i])) return compare(x->items[i], y->items[i], operation);
    }
    return x->items.size() < y->items.size() ? -1 : x->items.size() > y->items.size() ? 1 : 0;
  }
  throw Failure("\"" + std::string(operation) + "\" is not possible between " +
                std::string(a.type_name()) + " and " + std::string(b.type_name()));
}

}  // namespace faststream::jinja
