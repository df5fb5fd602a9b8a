// JSON from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace faststream {

inline constexpr std::string_view kDamagedFile = "the file is damaged or of another kind";

/// What it means that an object has two members of the same name.
enum class RepeatedMembers {
  are_errors,
  last_counts,  ///< as most programs have it that write and read checkpoints
};

/// Parses one JSON value in time linear in its length. Throws Error, starting with `where`, when
/// `text` is not JSON, not UTF-8, has a number that no double holds, or is nested more than 64
/// deep: copying and printing a value recurse, and a hostile file must not choose how far.
/// `advice` ends the sentence.
nlohmann::json parse_json(std::string_view text, std::string_view where,
                          std::string_view advice = kDamagedFile,
                          RepeatedMembers repeated = RepeatedMembers::are_errors);

/// The same, with the members of objects in their order in the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where,
                                          std::string_view advice = kDamagedFile,
                                          RepeatedMembers repeated = RepeatedMembers::last_counts);

/// parse_json(), and the value must be an object.
nlohmann::json parse_json_object(std::string_view text, std::string_view where,
                                 std::string_view advice = kDamagedFile,
                                 RepeatedMembers repeated = RepeatedMembers::are_errors);

/// The same of an object as Python's json writes and reads it: also Infinity, -Infinity and NaN,
/// bare or, as Transformers 5 has it, {"__float__": "Infinity"}, are numbers; of members of the
/// same name the last counts.
nlohmann::json parse_python_json_object(std::string_view text, std::string_view where,
                                        std::string_view advice = kDamagedFile);

/// Empties an array or object of parse_json() without asking for memory. The library's destructor
/// asks for some in proportion to the elements, and where there is none ends the program: for
/// values of a size that may just fit.
void dismantle(nlohmann::json& value) noexcept;
void dismantle(nlohmann::ordered_json& value) noexcept;

/// Whether an object has the member, and it is not null.
template <typename Json>
bool has_value(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

/// A JSON value with its place, to read members and elements of known types from. What is not as
/// asked for throws Error: `WHERE: "rope.theta" is not a number; ADVICE`. Cheap to copy.
class JsonView {
 public:
  /// `value` must outlive the view and those made from it. `where` starts every message and
  /// `advice` ends it; each may be empty.
  JsonView(const nlohmann::json& value, std::string_view where, std::string_view advice = "");

  [[nodiscard]] const nlohmann::json& value() const { return *value_; }
  /// `value` in this one's place, as where a file is completed: it must outlive the view.
  [[nodiscard]] JsonView with(const nlohmann::json& value) const { return {*this, value, path_}; }
  /// Throws Error about this value; `what` goes on after its name: "is not a known type".
  [[noreturn]] void fail(const std::string& what) const;

  // Of an object; anything else throws. -------------------------------------------------------

  /// Whether there is such a member, null or not. Everywhere else a member that is null is absent.
  [[nodiscard]] bool has(std::string_view key) const;
  /// The member `key`, if it is there.
  [[nodiscard]] std::optional<JsonView> find(std::string_view key) const;
  /// The member `key`, which must be there.
  [[nodiscard]] JsonView member(std::string_view key) const;
  /// Throws unless each member is one of `keys`.
  void allow_only(std::span<const std::string_view> keys) const;
  void allow_only(std::initializer_list<std::string_view> keys) const {
    allow_only(std::span(keys.begin(), keys.size()));
  }

  /// The value of a member that must be there, and of one that need not. T: as as() has it.
  template <typename T>
  [[nodiscard]] T get(std::string_view key) const {
    return member(key).as<T>();
  }
  template <typename T>
  [[nodiscard]] T get(std::string_view key, T otherwise) const {
    const auto found = find(key);
    return found ? found->as<T>() : std::move(otherwise);
  }

  // Of this value. ----------------------------------------------------------------------------

  /// T: bool, int32_t, int64_t, uint64_t, float, double or std::string. Nothing is converted: "1",
  /// 1.0 and true are no whole numbers; a whole number is a float or double too.
  template <typename T>
  [[nodiscard]] T as() const;
  /// A whole number in a range. T: int32_t, int64_t or uint64_t.
  template <typename T>
  [[nodiscard]] T as(T least, T most) const;
  /// The elements of an array of whole numbers in a range.
  template <typename T>
  [[nodiscard]] std::vector<T> integers(T least, T most) const;
  /// The elements of an array.
  [[nodiscard]] std::vector<JsonView> elements() const;

 private:
  struct Sentence {
    std::string where;
    std::string advice;
  };

  JsonView(const JsonView& parent, const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)), sentence_(parent.sentence_) {}

  [[nodiscard]] JsonView element(size_t index) const;
  [[nodiscard]] const nlohmann::json* lookup(std::string_view key) const;
  [[nodiscard]] std::string path_of(std::string_view key) const;

  const nlohmann::json* value_;
  std::string path_;  // "messages[2].role"; empty for the outermost value
  std::shared_ptr<const Sentence> sentence_;
};

}  // namespace faststream
