// What faststream-bench prints.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/step_work.h"

namespace faststream::bench {

/// One measurement: its text for people, or its figures, as one line of JSON.
class Report {
 public:
  /// common: members of every object.
  Report(bool json, nlohmann::ordered_json common) : json_(json), common_(std::move(common)) {}

  /// Prints at once. `kind` is the object's "measurement".
  void add(const char* kind, const nlohmann::ordered_json& figures, const std::string& text) const;

 private:
  bool json_;
  nlohmann::ordered_json common_;
};

/// The work of a measurement and how its seconds compare with the ceiling's: members of an object.
nlohmann::ordered_json share_figures(const StepWork& work, const Ceilings& ceilings,
                                     double seconds);
/// The same for people: "74% of memory speed".
std::string share_text(const StepWork& work, const Ceilings& ceilings, double seconds);

/// Formats as printf() does.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace faststream::bench
