// What Nemotron-H is, whatever kind of file describes it.
#pragma once

#include <vector>

#include "convert/families/modules.h"
#include "models/config.h"

namespace faststream::convert {

/// What each of its layers is alone.
enum class NemotronBlock { state_space, attention, feed_forward, experts };

struct NemotronBlocks {
  std::vector<NemotronBlock> order;
  StateSpaceConfig state_space;
  FeedForwardConfig feed_forward;
  ExpertsConfig experts;  ///< where there are some
};

/// Makes a Nemotron-H of a plain decoder, whose attention and norms stay: a mixer and the
/// feed-forward or the experts after it, if there are any, are one layer here. Returns false when a
/// feed-forward follows no mixer, which no model has.
bool make_nemotron_h(const NemotronBlocks& blocks, ModelConfig& model, Modules& modules);

}  // namespace faststream::convert
