// What the evaluation of one template shares: its limits, its objects, its clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/object.h"
#include "text/jinja/value.h"

namespace faststream::jinja {

/// A date and time as clocks on the wall show it.
struct LocalTime {
  int year = 1970;
  int month = 1;  ///< 1 to 12
  int day = 1;    ///< 1 to 31
  int hour = 0;
  int minute = 0;
  int second = 0;
};
LocalTime local_time_now();

class Runtime {
 public:
  /// `input_bytes`: of what is rendered; a template may make a multiple of it.
  Runtime(LocalTime now, size_t input_bytes);

  [[nodiscard]] const LocalTime& now() const { return now_; }

  /// Counts work and memory, before it is done or used. Throw Failure where a template does more
  /// than any honest one.
  void spend_steps(size_t n);
  void spend_bytes(size_t n);
  /// The steps of a search for `wanted` bytes in a text, which may compare them at every place.
  void spend_search(size_t text, size_t wanted);

  /// Counts how deep functions call each other; throws Failure where a stack could end.
  class Depth {
   public:
    explicit Depth(Runtime& runtime);
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    ~Depth() { --runtime_.depth_; }

   private:
    Runtime& runtime_;
  };

  // Values, counted. ----------------------------------------------------------------------------

  Value text(Text text);
  Value text(std::string_view bytes) { return text(Text(std::string(bytes))); }
  Value list(std::vector<Value> items, List::Type type = List::Type::list);
  Value tuple(std::vector<Value> items) { return list(std::move(items), List::Type::tuple); }
  Value generator(std::vector<Value> items) {
    return list(std::move(items), List::Type::generator);
  }
  /// An object that lives as long as the Runtime.
  template <typename T, typename... Args>
  T* make(Args&&... args) {
    spend_bytes(sizeof(T));
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* plain = object.get();
    objects_.push_back(std::move(object));
    return plain;
  }

 private:
  void check_clock();

  LocalTime now_;
  size_t steps_left_;
  size_t steps_at_check_;    // of steps_left_, when the clock is looked at next
  double seconds_at_start_;  // of the thread's processor time
  double seconds_;           // that it may take
  size_t bytes_left_;
  int depth_ = 0;
  std::deque<std::unique_ptr<Object>> objects_;
};

}  // namespace faststream::jinja
