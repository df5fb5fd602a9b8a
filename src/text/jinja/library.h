// What templates may call: filters, tests, methods and functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/failure.h"
#include "text/jinja/object.h"
#include "text/jinja/runtime.h"

namespace faststream::jinja {

/// Null for a name that none has. They are those of Jinja2 (3.1) that chat templates use, and some
/// that they might; tojson is Transformers'. Of Markup there is what "+" does.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

/// What to say about a name that none has.
Failure no_filter(std::string_view name);
Failure no_test(std::string_view name);

/// range, dict, namespace, raise_exception, strftime_now.
std::optional<Value> find_global(Runtime& runtime, std::string_view name);

/// A method of a text, list or dictionary, its value bound to it. Python's other ones, those that
/// change a list or dictionary and those of texts that templates have no use for, are undefined
/// with that reason.
std::optional<Value> find_method(Runtime& runtime, const Value& value, std::string_view name);
/// The same, called; `arguments` stay as they are when there is no such method.
std::optional<Value> call_method(Runtime& runtime, const Value& value, std::string_view name,
                                 Arguments& arguments);

/// object.name and object[key], as Jinja has them: undefined for what is not there. Throw Failure
/// for an undefined object.
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
Value get_item(Runtime& runtime, const Value& object, const Value& key);

/// The elements of anything that has some: of a text its characters, of a dictionary its keys.
/// Throws Failure, "a NoneType has no elements", for other values.
std::vector<Value> elements(Runtime& runtime, const Value& value);
/// len(). Throws Failure where Python has none.
int64_t length(const Value& value);

Value call(Runtime& runtime, const Value& callee, Arguments arguments);

// Texts of values.
// ---------------------------------------------------------------------------------

/// str(), repr() and json.dumps() of Python's.
Text to_text(Runtime& runtime, const Value& value);
Text to_repr(Runtime& runtime, const Value& value);
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<Text> indent = {};  ///< of one level
  Text item_separator = {};
  Text key_separator = {};
};
Text to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

/// "{} of {name}".format(...): no attributes, conversions and specifications.
Text format_braces(Runtime& runtime, const Text& format, const Arguments& arguments);
/// strftime(). Throws Failure for a directive that is unknown.
std::string format_time(const LocalTime& time, std::string_view format);

// Operators.
// ---------------------------------------------------------------------------------------

Value binary(Runtime& runtime, BinaryOp op, const Value& a, const Value& b);
bool compare(Runtime& runtime, CompareOp op, const Value& a, const Value& b);
Value slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
            const Value& step);

}  // namespace faststream::jinja
