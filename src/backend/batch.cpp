#include "backend/batch.h"

#include <algorithm>

namespace faststream {

BatchView measure(const Batch& batch) {
  BatchView view;
  view.n_tokens = batch.n_tokens();
  view.n_sequences = batch.n_sequences();
  view.n_logits = batch.n_logits();
  view.max_pages = batch.max_pages;
  for (size_t s = 0; s < batch.kv_len.size(); ++s) {
    view.max_query_len =
        std::max(view.max_query_len, batch.query_start[s + 1] - batch.query_start[s]);
    view.max_kv_len = std::max(view.max_kv_len, batch.kv_len[s]);
  }
  view.max_source_pages = batch.max_source_pages;
  for (const int32_t length : batch.source_len) {
    view.max_source_len = std::max(view.max_source_len, length);
  }
  return view;
}

}  // namespace faststream
