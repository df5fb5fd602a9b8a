// What the kernels of recurrences share.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/scratch.h"

namespace faststream {

struct RecurArguments {
  BatchView batch;
  Matrix q;
  Matrix k;
  Matrix v;
  Matrix gates;
  Recurrence recurrence;
  StateLayer states;
  Matrix out;
};

/// Tokens of a sequence's piece: [begin, end).
struct TokenSpan {
  int32_t begin = 0;
  int32_t end = 0;
};

/// Those of `count` new tokens, the last of a text of kv_len, that fill pages: chunks of
/// kPageTokens tokens. If none do, empty at the piece's end.
constexpr TokenSpan whole_pages(int32_t kv_len, int32_t count) {
  const int32_t before = kv_len - count;
  const int32_t begin = pages_for(before) * kPageTokens - before;
  const int32_t end = kv_len / kPageTokens * kPageTokens - before;
  return begin < end ? TokenSpan{begin, end} : TokenSpan{count, count};
}

/// Which of each sequence's new tokens a launch goes over.
enum class Tokens {
  before_pages,  ///< those before the piece's first whole page, or all
  pages,
  after_pages,
};
constexpr TokenSpan span_of(Tokens tokens, int32_t kv_len, int32_t count) {
  const TokenSpan pages = whole_pages(kv_len, count);
  if (tokens == Tokens::before_pages) return {0, pages.begin};
  return tokens == Tokens::pages ? pages : TokenSpan{pages.end, count};
}

/// Whether recur_chunks() takes such matrices: 16-bit ones of one type, rows at multiples of 16
/// bytes, keys and values of 16 elements and more at a time, at most 256 keys, for which a
/// block has enough shared memory (GPUs with 100 KB have for 128), none of which decays by itself.
bool chunks_fit(const RecurArguments& arguments);

/// Of so many chunks that a batch may have for `heads` heads, those done at a time and their
/// memory.
ScratchPiece chunks_piece(int64_t chunks, int64_t heads);

/// Goes on over each sequence's whole pages. scratch: what chunks_piece() says. is_hopper: the GPU
/// has the instructions of sm_90a.
void recur_chunks(const RecurArguments& arguments, std::byte* scratch, bool is_hopper,
                  const Queue& queue);

}  // namespace faststream
