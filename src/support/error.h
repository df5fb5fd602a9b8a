// Errors that a user can act on.
#pragma once

#include <stdexcept>
#include <string>

namespace faststream {

/// A failure with one sentence for the user: what is wrong, where, and what to do. Programs print
/// `what()` to stderr and exit with 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The command line asks for something that makes no sense. Programs exit with 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

}  // namespace faststream
