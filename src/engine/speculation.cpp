#include "engine/speculation.h"

#include "support/error.h"
#include "support/printable.h"

namespace faststream {

Speculation speculation_from_name(std::string_view name) {
  constexpr std::string_view kDraft = "draft=";
  if (name == "off") return {};
  if (name == "auto" || name == "lookup") return {.kind = Speculation::Kind::lookup};
  if (name == "mtp") return {.kind = Speculation::Kind::mtp};
  if (name.starts_with(kDraft) && name.size() > kDraft.size()) {
    Speculation speculation{.kind = Speculation::Kind::draft};
    speculation.draft = name.substr(kDraft.size());
    return speculation;
  }
  throw UsageError(in_quotes(name) +
                   " is no way to speculate; give auto, off, lookup, mtp or draft=FILE");
}

Speculation::Kind speculation_of_request(std::string_view asked, Speculation::Kind kind) {
  using enum Speculation::Kind;
  if (asked.empty()) return kind;
  if (asked == "off") return off;
  Speculation::Kind wanted = lookup;
  if (asked == "mtp") {
    wanted = mtp;
  } else if (asked == "draft") {
    wanted = draft;
  } else if (asked != "lookup") {
    throw UsageError("speculate is " + in_quotes(asked) + "; give off, lookup, mtp or draft");
  }
  if (kind == off || (wanted != lookup && wanted != kind)) {
    throw UsageError(
        "speculate is " + in_quotes(asked) +
        ", for which the engine was not started; leave it out, or start it with --speculate " +
        std::string(asked) + (wanted == draft ? "=FILE" : ""));
  }
  return wanted;
}

}  // namespace faststream
