#include "backend/batch.h"

#include <algorithm>

namespace faststream {

void Batch::add_sequence(std::span<const int32_t> new_tokens, int32_t position, int32_t rope_length,
                         bool is_one_by_one) {
  if (query_start.empty()) query_start.push_back(0);
  tokens.insert(tokens.end(), new_tokens.begin(), new_tokens.end());
  sequence_of.insert(sequence_of.end(), new_tokens.size(), n_sequences());
  for (size_t i = 0; i < new_tokens.size(); ++i) positions.push_back(position++);
  query_start.push_back(n_tokens());
  kv_len.push_back(position);
  rope_lengths.push_back(rope_length);
  one_by_one.push_back(is_one_by_one ? 1 : 0);
}

void Batch::set_adapter(int32_t adapter) {
  const auto add = [adapter](std::vector<AdapterRows>& all, int32_t first, int32_t end) {
    if (first == end) return;
    const bool goes_on = !all.empty() && all.back().adapter == adapter &&
                         all.back().first + all.back().count == first;
    if (!goes_on) all.push_back({.adapter = adapter, .first = first});
    all.back().count += end - first;
  };
  const int32_t first = query_start[query_start.size() - 2];
  const auto first_logit = std::ranges::lower_bound(logit_rows, first) - logit_rows.begin();
  add(adapter_tokens, first, n_tokens());
  add(adapter_logits, static_cast<int32_t>(first_logit), n_logits());
}

Batch divide_one_by_one(const Batch& batch) {
  if (std::ranges::find(batch.one_by_one, 1) == batch.one_by_one.end()) return {};
  const auto n_sequences = static_cast<size_t>(batch.n_sequences());
  Batch divided;
  divided.max_pages = batch.max_pages;
  divided.n_groups = batch.n_groups;
  std::vector<size_t> row_of;  // of the page table
  for (size_t s = 0; s < n_sequences; ++s) {
    const int32_t parts =
        batch.one_by_one[s] != 0 ? batch.query_start[s + 1] - batch.query_start[s] : 1;
    for (int32_t i = 0; i < parts; ++i) {
      divided.query_start.push_back(batch.query_start[s] + i);
      divided.kv_len.push_back(batch.kv_len[s] - (parts - 1 - i));
      row_of.push_back(s);
    }
  }
  if (row_of.size() == n_sequences || batch.page_table.empty()) return {};
  divided.query_start.push_back(batch.query_start.back());
  const auto width = static_cast<size_t>(batch.max_pages);
  divided.page_table.reserve(static_cast<size_t>(batch.n_groups) * row_of.size() * width);
  for (size_t group = 0; group < static_cast<size_t>(batch.n_groups); ++group) {
    for (const size_t s : row_of) {
      const int32_t* row = batch.page_table.data() + (group * n_sequences + s) * width;
      divided.page_table.insert(divided.page_table.end(), row, row + width);
    }
  }
  return divided;
}

BatchView measure(const Batch& batch) {
  BatchView view;
  view.host = &batch;
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
