// A backend that fails when it is told to.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "backend/forwarding_backend.h"
#include "support/error.h"

namespace faststream {

/// Passes every operation on to another backend, after asking whether it should fail instead.
class FailingBackend final : public ForwardingBackend {
 public:
  /// `fails` is asked before each operation, by its name.
  FailingBackend(std::unique_ptr<Backend> backend, std::function<bool(const std::string&)> fails)
      : ForwardingBackend(std::move(backend)), fails_(std::move(fails)) {}

 private:
  void before(std::string_view operation) override {
    if (fails_(std::string(operation))) {
      throw Error("the device failed in " + std::string(operation));
    }
  }

  std::function<bool(const std::string&)> fails_;
};

}  // namespace faststream
