#include "engine/text_pages.h"

#include <algorithm>

namespace faststream {

// Whoever plans steps has taken most of them before.
void TextPages::begin(Sequence& sequence, int32_t n_new) {
  const int64_t n_tokens = int64_t{sequence.n_cached} + n_new;
  while (sequence.missing_pages(n_tokens) > 0) sequence.pages.push_back(pool_.take());
}

void TextPages::fork(const Sequence& sequence, Sequence& fork) {
  fork.pages = sequence.pages;
  for (const int32_t page : fork.pages) pool_.retain(page);
}

void TextPages::release(Sequence& sequence) {
  for (const int32_t page : sequence.pages) pool_.release(page);
  sequence.pages.clear();
}

void TextPages::replaced(Sequence& /*sequence*/, size_t /*i*/, int32_t old) { pool_.release(old); }

void TextPages::pack(std::span<const NewTokens> inputs, Batch& batch) const {
  int32_t* row = add_page_rows(batch, inputs.size());
  for (const NewTokens& input : inputs) {
    std::ranges::copy(input.sequence->pages, row);
    row += batch.max_pages;
  }
}

int32_t* add_page_rows(Batch& batch, size_t n_sequences) {
  const size_t begin = batch.page_table.size();
  batch.page_table.resize(begin + n_sequences * static_cast<size_t>(batch.max_pages));
  return batch.page_table.data() + begin;
}

}  // namespace faststream
