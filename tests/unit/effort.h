// How much tests do. Sanitized code takes ten times as long, so there they try each kind of case,
// but fewer of them: all are the release tests'.
#pragma once

#include <cstddef>

namespace faststream {

#ifdef FASTSTREAM_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// `count` repetitions, or a fifth.
constexpr size_t repetitions(size_t count) { return kSanitized ? (count + 4) / 5 : count; }

}  // namespace faststream
