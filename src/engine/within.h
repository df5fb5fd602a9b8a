// Ranges of a request's members.
#pragma once

namespace faststream {

/// False for NaN.
inline bool within(float value, float least, float most) { return value >= least && value <= most; }

}  // namespace faststream
