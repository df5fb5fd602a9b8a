#include "text/jinja/arguments.h"

#include <algorithm>
#include <utility>

#include "support/printable.h"
#include "text/jinja/failure.h"

namespace faststream::jinja {

ArgumentReader::ArgumentReader(std::string_view function, Arguments arguments,
                               std::initializer_list<std::string_view> parameters)
    : function_(function),
      parameters_(parameters),
      values_(parameters.size()),
      given_(parameters.size()) {
  if (arguments.positional.size() > parameters_.size()) {
    throw Failure(function_ + " takes at most " + std::to_string(parameters_.size()) +
                  (parameters_.size() == 1 ? " argument" : " arguments"));
  }
  std::move(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  std::fill_n(given_.begin(), arguments.positional.size(), true);
  for (auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters_.begin(), parameters_.end(), name);
    if (found == parameters_.end()) {
      throw Failure(function_ + " has no argument named " + in_quotes(name));
    }
    const auto index = static_cast<size_t>(found - parameters_.begin());
    if (given_[index]) throw Failure(function_ + " is given its " + name + " twice");
    values_[index] = std::move(value);
    given_[index] = true;
  }
}

void ArgumentReader::fail(size_t index, const std::string& what) const {
  throw Failure(function_ + ": its argument \"" + std::string(parameters_[index]) + "\" " + what);
}

const Value& ArgumentReader::at(size_t index) const {
  if (!has(index)) fail(index, "is missing");
  return values_[index];
}

const Text& ArgumentReader::text(size_t index) const {
  const Value& value = at(index);
  if (value.is_undefined()) throw Failure(value.reason());
  if (!value.is_text()) fail(index, "is a " + std::string(value.type_name()) + ", not a str");
  return *value.text();
}

int64_t ArgumentReader::integer(size_t index) const {
  const Value& value = at(index);
  if (value.is_undefined()) throw Failure(value.reason());
  if (!value.is_integer()) fail(index, "is a " + std::string(value.type_name()) + ", not an int");
  return value.integer();
}

}  // namespace faststream::jinja
