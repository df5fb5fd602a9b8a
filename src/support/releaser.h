// Ends of objects of C libraries.
#pragma once

namespace faststream {

/// A deleter that calls a function: std::unique_ptr<FILE, Releaser<fclose>>.
template <auto release>
struct Releaser {
  template <typename T>
  void operator()(T* object) const {
    release(object);
  }
};

}  // namespace faststream
