// What keywords say of arrays.
#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "support/error.h"
#include "support/printable.h"
#include "text/rules/json_text.h"
#include "text/rules/schema_compiler.h"

namespace faststream::rules {
namespace {

constexpr int64_t kMostItems = 1 << 30;
constexpr int64_t kMaxFirst = 10000;
constexpr int64_t kMaxCountedStates = 20000;  // of items that are counted
constexpr size_t kMaxContained = 5;           // "contains" at once: every set of them is a way
constexpr size_t kMaxUniqueValues = 10;       // of items that are unique: every set is a state

const SchemaJson* keyword_of(const SchemaJson& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

int32_t as_count(int64_t count) { return static_cast<int32_t>(std::min(count, kMostItems)); }

// The schemas of the first items, and of the others; null: any.
struct Items {
  const SchemaJson* first = nullptr;
  const SchemaJson* others = nullptr;
  [[nodiscard]] size_t n_first() const { return first == nullptr ? 0 : first->size(); }
  [[nodiscard]] const SchemaJson* at(size_t i) const {
    return i < n_first() ? &(*first)[i] : others;
  }
};

Items items_of(const SchemaJson& schema) {
  Items items{.first = keyword_of(schema, "prefixItems"), .others = keyword_of(schema, "items")};
  if (items.others != nullptr && items.others->is_array()) {  // until 2019-09
    items.first = items.others;
    items.others = keyword_of(schema, "additionalItems");
  }
  return items;
}

// An item that comes after `n` others.
Expr item_after(int64_t n, const Expr& item) {
  return n == 0 ? item : sequence({json_comma(), item});
}

Expr empty_list() { return sequence({literal("["), json_space(), literal("]")}); }

}  // namespace

// The schemas of an item, by what each says of its index.
SchemaCompiler::All SchemaCompiler::item_schemas(const Schemas& schemas,
                                                 const std::vector<Unevaluated>& unevaluated,
                                                 size_t i) {
  All all;
  for (const SchemaJson* schema : schemas) {
    if (const SchemaJson* of = items_of(*schema).at(i)) all.schemas.insert(of);
  }
  for (const Unevaluated& each : unevaluated) {
    Schemas ways = {each.value};
    bool is_evaluated = false;
    for (const SchemaJson* other : each.others) {
      const Items items = items_of(*other);
      is_evaluated = is_evaluated || i < items.n_first() || items.others != nullptr ||
                     (other != each.owner && other->contains("unevaluatedItems"));
      const SchemaJson* contained = keyword_of(*other, "contains");
      if (contained != nullptr && document_.contains_evaluates()) ways.push_back(contained);
    }
    if (is_evaluated) continue;
    const SchemaJson*& way = any_of_[ways];
    if (way == nullptr) {
      SchemaJson list = SchemaJson::array();
      for (const SchemaJson* one : ways) list.push_back(*one);
      way = ways.size() == 1 ? each.value : &document_.keep({{"anyOf", std::move(list)}});
    }
    all.schemas.insert(way);
  }
  return all;
}

// What "contains" says, and our own keyword.
std::vector<SchemaCompiler::Contained> SchemaCompiler::contained_items(
    const Schemas& schemas) const {
  std::vector<Contained> found;
  for (const SchemaJson* schema : schemas) {
    if (const SchemaJson* some = keyword_of(*schema, kSomeItem)) {
      found.push_back({.schema = &some->at("items"),
                       .from = some->at("from").get<size_t>(),
                       .least = 1,
                       .most = kUnbounded});
    }
    const SchemaJson* contained = keyword_of(*schema, "contains");
    if (contained == nullptr) continue;
    const int64_t least = count(*schema, "minContains").value_or(1);
    const int64_t most = count(*schema, "maxContains").value_or(kUnbounded);
    if (least == 0 && most == kUnbounded) continue;
    found.push_back({.schema = contained, .from = 0, .least = least, .most = most});
  }
  return found;
}

Expr SchemaCompiler::build_arrays(const Schemas& schemas, const All& all) {
  ListBounds bounds{.least = 0, .most = kMostItems, .n_first = 0};
  bool is_unique = false;
  const auto others = unevaluated(schemas, all, "unevaluatedItems");
  for (const SchemaJson* s : schemas) {
    if (!s->is_object()) continue;
    bounds.least = std::max(bounds.least, count(*s, "minItems").value_or(0));
    bounds.most = std::min(bounds.most, count(*s, "maxItems").value_or(bounds.most));
    bounds.n_first = std::max(bounds.n_first, items_of(*s).n_first());
    const SchemaJson* unique = keyword_of(*s, "uniqueItems");
    is_unique = is_unique || (unique != nullptr && *unique == SchemaJson(true));
  }
  for (const Unevaluated& each : others) {
    for (const SchemaJson* other : each.others) {
      bounds.n_first = std::max(bounds.n_first, items_of(*other).n_first());
    }
  }
  if (static_cast<int64_t>(bounds.n_first) > kMaxFirst) {
    refuse(*schemas.front(), "too many first items");
  }
  if (bounds.most < bounds.least) return nothing();
  std::vector<All> items;  // the first ones, and the others
  for (size_t i = 0; i <= bounds.n_first; ++i) items.push_back(item_schemas(schemas, others, i));
  const std::vector<Contained> contained = contained_items(schemas);
  if (is_unique && bounds.most > 1) {
    if (!contained.empty())
      refuse(*schemas.front(), "\"uniqueItems\" beside \"contains\", which is not supported");
    return build_unique_array(schemas, bounds, items);
  }
  if (!contained.empty()) return build_counted_array(schemas, bounds, items, contained);
  return build_plain_array(bounds, items);
}

Expr SchemaCompiler::build_plain_array(const ListBounds& bounds, const std::vector<All>& items) {
  const int64_t least = bounds.least;
  const int64_t most = bounds.most;
  const size_t n_first = bounds.n_first;
  const auto n = static_cast<int64_t>(n_first);
  Net net(static_cast<int32_t>(n + 2));
  const auto end = static_cast<int32_t>(n + 1);
  for (int64_t i = 0; i < std::min(n, most); ++i) {
    const Expr one = rule_of(items[static_cast<size_t>(i)]);
    const auto from = static_cast<int32_t>(i);
    net.add(from, from + 1, i == 0 ? one : sequence({json_comma(), one}));
    if (i >= least && i > 0) net.add(from, end, literal(""));
  }
  if (most >= n) {
    const auto last = static_cast<int32_t>(n);
    const int64_t least_left = std::max<int64_t>(least - n, 0);
    const Expr one = most > n ? rule_of(items.back()) : nothing();
    const Expr more = sequence({json_comma(), one});
    const auto left = [&](int64_t taken) {
      const int32_t n_most = most >= kMostItems ? kUnbounded : as_count(most - n - taken);
      return repeat(more, as_count(std::max<int64_t>(least_left - taken, 0)), n_most);
    };
    if (n > 0) {
      net.add(last, end, left(0));
    } else if (!is_nothing(one)) {
      net.add(0, end, sequence({one, left(1)}));
    }
  } else if (most > 0) {
    net.add(static_cast<int32_t>(most), end, literal(""));
  }
  const Expr some = json_list('[', std::move(net).expr(), ']');
  return least == 0 ? choice({empty_list(), some}) : some;
}

// A net of states by how many items there were, and how many of each that are counted, as far as
// these numbers matter.
Expr SchemaCompiler::build_counted_array(const Schemas& schemas, const ListBounds& bounds,
                                         const std::vector<All>& items,
                                         const std::vector<Contained>& contained) {
  const bool is_bounded = bounds.most < kMostItems;
  int64_t n_items = std::max<int64_t>({1, bounds.least, static_cast<int64_t>(bounds.n_first)});
  if (is_bounded) n_items = std::max(n_items, bounds.most);
  int64_t n_counts = 1;
  std::vector<int64_t> caps;
  for (const Contained& each : contained) {
    if (each.most != kUnbounded && each.most < each.least) return nothing();
    n_items = std::max(n_items, static_cast<int64_t>(each.from));
    caps.push_back(each.most == kUnbounded ? each.least : each.most);
    n_counts = std::min(n_counts * (caps.back() + 1), kMaxCountedStates + 1);
  }
  const size_t n_sets = size_t{1} << contained.size();
  if (contained.size() > kMaxContained || n_items > kMaxCountedStates ||
      (n_items + 1) * n_counts * static_cast<int64_t>(n_sets) > kMaxCountedStates) {
    refuse(*schemas.front(), "\"contains\" beside too large numbers of items, or too many others");
  }
  // The rule of an item that is in a set of those that are counted, and in no other one whose
  // number is bounded above.
  std::map<std::pair<size_t, size_t>, Expr> rules;
  const auto item_of = [&](int64_t i, size_t set) {
    const size_t place = std::min(static_cast<size_t>(i), bounds.n_first);
    const auto [found, is_new] = rules.try_emplace({place, set});
    if (!is_new) return found->second;
    All all = items[place];
    for (size_t c = 0; c < contained.size(); ++c) {
      const Contained& each = contained[c];
      const bool is_in = (set >> c & 1U) != 0;
      const bool counts = static_cast<size_t>(i) >= each.from;
      if (is_in) all.schemas.insert(each.schema);
      if (!is_in && counts && each.most != kUnbounded) {
        all.schemas.insert(&negation(*each.schema, *each.schema));
      }
    }
    return rules[{place, set}] = rule_of(all);
  };
  const auto state = [&](int64_t i, int64_t counts) {
    return static_cast<int32_t>(i * n_counts + counts);
  };
  const int32_t end = state(n_items, n_counts - 1) + 1;
  Net net(end + 1);
  bool may_be_empty = bounds.least == 0;
  for (int64_t i = 0; i <= n_items; ++i) {
    for (int64_t counts = 0; counts < n_counts; ++counts) {
      bool may_end = i >= bounds.least;
      std::vector<int64_t> n;
      int64_t left = counts;
      for (size_t c = 0; c < contained.size(); ++c) {
        n.push_back(left % (caps[c] + 1));
        left /= caps[c] + 1;
        may_end = may_end && n[c] >= contained[c].least;
      }
      if (may_end && i > 0) net.add(state(i, counts), end, literal(""));
      if (i == 0 && counts == 0) may_be_empty = may_be_empty && may_end;
      if (is_bounded && i >= bounds.most) continue;
      for (size_t set = 0; set < n_sets; ++set) {
        int64_t after = counts;
        int64_t scale = 1;
        bool is_allowed = true;
        for (size_t c = 0; c < contained.size(); ++c) {
          const bool is_full = n[c] == caps[c];
          if ((set >> c & 1U) != 0) {
            is_allowed = is_allowed && !is_full && static_cast<size_t>(i) >= contained[c].from;
            after += scale;
          }
          scale *= caps[c] + 1;
        }
        if (!is_allowed) continue;
        const Expr one = item_of(i, set);
        if (is_nothing(one)) continue;
        net.add(state(i, counts), state(std::min(i + 1, n_items), after), item_after(i, one));
      }
    }
  }
  const Expr some = json_list('[', std::move(net).expr(), ']');
  return may_be_empty ? choice({empty_list(), some}) : some;
}

// A net of states by the values that were.
Expr SchemaCompiler::build_unique_array(const Schemas& schemas, const ListBounds& bounds,
                                        const std::vector<All>& items) {
  const auto refuse_values = [&] {
    refuse(*schemas.front(), "\"uniqueItems\" of items that are not of at most " +
                                 std::to_string(kMaxUniqueValues) +
                                 " values, which is not supported");
  };
  std::vector<SchemaJson> values;
  std::vector<std::vector<size_t>> of_place;  // indices of values
  for (const All& all : items) {
    const Schemas flat = flatten(all);
    std::vector<size_t>& indices = of_place.emplace_back();
    const bool is_no =
        std::ranges::any_of(flat, [](const SchemaJson* s) { return *s == SchemaJson(false); });
    if (is_no) continue;
    if (find_choice(flat, all)) refuse_values();
    auto found = values_of(flat);
    if (!found) {
      if ((types(flat) & ~(kNull | kBoolean)) != 0) refuse_values();
      found.emplace();
      for (const SchemaJson& value : {SchemaJson(nullptr), SchemaJson(false), SchemaJson(true)}) {
        const bool fits = std::ranges::all_of(
            flat, [&](const SchemaJson* schema) { return valid(value, *schema, false); });
        if (fits) found->push_back(value);
      }
    }
    for (const SchemaJson& value : *found) {
      const auto known = std::ranges::find_if(
          values, [&](const SchemaJson& other) { return is_same_json(value, other); });
      indices.push_back(static_cast<size_t>(known - values.begin()));
      if (known == values.end()) values.push_back(value);
    }
  }
  if (values.size() > kMaxUniqueValues) refuse_values();
  const size_t n_sets = size_t{1} << values.size();
  const auto end = static_cast<int32_t>(n_sets);
  Net net(end + 1);
  for (size_t set = 0; set < n_sets; ++set) {
    const int64_t n = std::popcount(set);
    if (n > 0 && n >= bounds.least) net.add(static_cast<int32_t>(set), end, literal(""));
    if (n >= bounds.most) continue;
    const size_t place = std::min(static_cast<size_t>(n), bounds.n_first);
    for (const size_t value : of_place[place]) {
      const size_t with = set | size_t{1} << value;
      if (with == set) continue;
      net.add(static_cast<int32_t>(set), static_cast<int32_t>(with),
              item_after(n, json_value(values[value])));
    }
  }
  const Expr some = json_list('[', std::move(net).expr(), ']');
  return bounds.least == 0 ? choice({empty_list(), some}) : some;
}

bool SchemaCompiler::valid_array(const SchemaJson& value, const SchemaJson& schema, int depth) {
  const auto n = static_cast<int64_t>(value.size());
  if (n < count(schema, "minItems").value_or(0)) return false;
  if (n > count(schema, "maxItems").value_or(n)) return false;
  const Items items = items_of(schema);
  for (size_t i = 0; i < value.size(); ++i) {
    const SchemaJson* of = items.at(i);
    if (of != nullptr && !valid(value[i], *of, true, depth + 1)) return false;
  }
  if (keyword_of(schema, "unevaluatedItems") != nullptr && items.others == nullptr) {
    const SchemaJson& others = *keyword_of(schema, "unevaluatedItems");
    for (size_t i = items.n_first(); i < value.size(); ++i) {
      if (!valid(value[i], others, true, depth + 1)) return false;
    }
  }
  const SchemaJson* unique = keyword_of(schema, "uniqueItems");
  if (unique != nullptr && *unique == SchemaJson(true)) {
    for (size_t i = 0; i < value.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (is_same_json(value[i], value[j])) return false;
      }
    }
  }
  for (const Contained& each : contained_items({&schema})) {
    int64_t found = 0;
    for (size_t i = each.from; i < value.size(); ++i) {
      found += valid(value[i], *each.schema, true, depth + 1) ? 1 : 0;
    }
    if (found < each.least || (each.most != kUnbounded && found > each.most)) return false;
  }
  return true;
}

}  // namespace faststream::rules
