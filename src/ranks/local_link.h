// Ranks that are threads of one process.
#pragma once

#include <memory>
#include <vector>

#include "backend/rank_link.h"

namespace faststream {

/// The ends of so many ranks, in their order. Any thread may use an end, see RankLink. When one is
/// destroyed, its rank has ended.
std::vector<std::unique_ptr<RankLink>> make_local_links(int count);

}  // namespace faststream
