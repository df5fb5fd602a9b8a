// Values with an identity: namespaces, macros, loops, functions.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace faststream::jinja {

class Runtime;

/// What a call is given.
struct Arguments {
  std::vector<Value> positional = {};
  std::vector<std::pair<std::string, Value>> named = {};
};

/// Made by Runtime::make() and alive until the rendering ends, so objects may hold each other.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  [[nodiscard]] virtual std::string_view type_name() const = 0;
  /// What printing it shows.
  [[nodiscard]] virtual Text repr(Runtime& runtime) const;
  [[nodiscard]] virtual std::optional<Value> attribute(Runtime& runtime, std::string_view name);
  [[nodiscard]] virtual bool callable() const { return false; }
  /// Throws Failure where callable() is false.
  virtual Value call(Runtime& runtime, Arguments arguments);
};

class Namespace final : public Object {
 public:
  [[nodiscard]] std::string_view type_name() const override { return "Namespace"; }
  [[nodiscard]] Text repr(Runtime& runtime) const override;
  [[nodiscard]] std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  /// Throws Failure for a name that begins with an underscore.
  void set(std::string_view name, Value value);

 private:
  Dict members_;
};

/// A function of the host's, or a method with the value that it belongs to.
class Function final : public Object {
 public:
  using Body = std::function<Value(Runtime&, Arguments)>;
  Function(std::string_view type, Body body) : type_(type), body_(std::move(body)) {}

  [[nodiscard]] std::string_view type_name() const override { return type_; }
  [[nodiscard]] bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override {
    return body_(runtime, std::move(arguments));
  }

 private:
  std::string_view type_;
  Body body_;
};

}  // namespace faststream::jinja
