#include "text/jinja/from_json.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

namespace faststream::jinja {

Value from_json(const nlohmann::ordered_json& json, Origin origin) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
        return Value(json.get<double>());
      }
      return Value(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return Value(Text(json.get_ref<const std::string&>(), origin));
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(from_json(item, origin));
      return Value(List(std::move(items)));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [name, value] : json.items()) {
        dict.set(Value(Text(name, origin)), from_json(value, origin));
      }
      return Value(std::move(dict));
    }
    default:
      return {};
  }
}

}  // namespace faststream::jinja
