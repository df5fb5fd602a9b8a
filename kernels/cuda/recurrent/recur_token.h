// Recurrences of sequences that have one new token each.
#pragma once

#include "kernels/cuda/queue.h"
#include "kernels/cuda/recurrent/recur.h"

namespace faststream {

/// How sums over keys are made, so that a token has the same bits by whatever kernel: of so many
/// parts, in order, which have so many keys in a row each.
constexpr int token_parts(const Recurrence& recurrence) {
  constexpr int kNarrow = 64;
  return recurrence.value_dim <= kNarrow ? 16 : 8;
}
constexpr int token_keys_of_part(const Recurrence& recurrence) {
  int keys = 4;
  while (token_parts(recurrence) * keys < recurrence.key_dim) keys *= 2;
  return keys;
}

/// Whether recur_token() takes matrices of such shapes.
bool recur_token_fits(const Recurrence& recurrence, const StateLayer& states);

/// Launches the kernel for them; false where there is none for the shapes, or where a sequence has
/// more than one token.
bool recur_token(const Queue& queue, const RecurArguments& arguments);

}  // namespace faststream
