// What ranks with GPUs find out of each other before they add up.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/rank_link.h"

namespace faststream {

/// Of all ranks together: whether all say yes.
bool all_agree(RankLink& link, bool own);

/// The name of this machine; the same with a GPU's on its bus.
std::string host_name();
std::string gpu_name(int device);

/// Whether kernels are loaded when they are first used, which waits for those that run. Ranks that
/// are threads would wait for each other forever.
bool loads_kernels_late();

}  // namespace faststream
