// Positions that are not learned, as rows of a table.
#pragma once

#include <cstdint>

#include "convert/families/family.h"

namespace faststream::convert {

/// Has positions be rows of a table that is computed, what `value` gives for a position and one of
/// `hidden` columns, unless the checkpoint has one.
void compute_positions(FamilyModel& model,
                       double (*value)(int64_t position, int64_t column, int64_t hidden));

/// The sines of all even places of arXiv:1706.03762, then the cosines of all odd ones.
double sinusoid(int64_t position, int64_t column, int64_t hidden);

/// fairseq's, of which `hidden` is at least 4: frequencies reach 1/10000, and the first position is
/// 2.
double fairseq_sinusoid(int64_t position, int64_t column, int64_t hidden);

}  // namespace faststream::convert
