// Recurrences of few new tokens of each sequence.
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

/// Launches the kernel for such tokens of each sequence, one after the other, with the bits that
/// each has in a step of its own. False, with nothing done, where there is none for the shapes.
bool recur_token(const RecurArguments& arguments, Tokens tokens, const Queue& queue);

}  // namespace faststream
