#include "bench/report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "program/output.h"

namespace faststream::bench {

void Report::add(const char* kind, const nlohmann::ordered_json& figures,
                 const std::string& text) const {
  if (!json_) {
    print(text + '\n');
    return;
  }
  nlohmann::ordered_json object = {{"measurement", kind}};
  object.update(common_);
  object.update(figures);
  print(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n');
}

nlohmann::ordered_json share_figures(const StepWork& work, const Ceilings& ceilings,
                                     double seconds) {
  const Share share = share_of(work, ceilings);
  return {{"weight_bytes", work.weight_bytes},
          {"kv_bytes", work.kv_bytes},
          {"weight_operations", work.weight_ops},
          {"activation_operations", work.activation_ops},
          {"ceiling_seconds", share.ceiling_seconds},
          {"ceiling", share.by_memory ? "memory" : "arithmetic"},
          {"share", share.ceiling_seconds / seconds}};
}

std::string share_text(const StepWork& work, const Ceilings& ceilings, double seconds) {
  const Share share = share_of(work, ceilings);
  return format("%.0f%% of %s", 100 * share.ceiling_seconds / seconds,
                share.by_memory ? "memory speed" : "arithmetic");
}

std::string format(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  char text[512];
  const int length = std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return std::string(text, static_cast<size_t>(std::clamp<int>(length, 0, sizeof text - 1)));
}

}  // namespace faststream::bench
