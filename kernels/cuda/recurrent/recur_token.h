// Recurrences of sequences that have one new token each.
#pragma once

#include "kernels/cuda/queue.h"
#include "kernels/cuda/recurrent/recur.h"

namespace faststream {

/// Launches the kernel for them; false where there is none for the shapes, or where a sequence has
/// more than one token.
bool recur_token(const Queue& queue, const RecurArguments& arguments);

}  // namespace faststream
