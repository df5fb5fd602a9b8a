// Why a template cannot be parsed or rendered.
#pragma once

#include <stdexcept>
#include <string>

namespace faststream::jinja {

/// One sentence without a place; Template adds that and throws an Error.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a template says with raise_exception(): Template says of which one it is.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace faststream::jinja
