// The packed batch: what one forward pass works on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace faststream {

/// Tokens of a KV page. A sequence's cache is a table of page numbers, one for each kPageTokens
/// positions.
inline constexpr int32_t kPageTokens = 32;

/// Tokens of a sequence in a step that may be one by one, see Batch.
inline constexpr int32_t kMostOneByOne = 16;

/// Pages that hold so many tokens.
constexpr int32_t pages_for(int64_t tokens) {
  return static_cast<int32_t>((tokens + kPageTokens - 1) / kPageTokens);
}

/// In the place of a token that nobody knows yet: the one that a backend chose last from this row.
constexpr int32_t chosen_from(int32_t row) { return -1 - row; }
/// The row of such a token; negative of one that is known.
constexpr int32_t row_of_choice(int32_t token) { return -1 - token; }

/// Rows of sequences that follow each other and have the same adapter.
struct AdapterRows {
  int32_t adapter = 0;  ///< counted from 0
  int32_t first = 0;
  int32_t count = 0;
};

/// The tokens of any number of sequences packed into one [tokens, hidden] matrix without padding,
/// some sequences in prefill (several tokens), some in decode (one token). Host memory.
///
/// Sequence s owns rows [query_start[s], query_start[s+1]), at consecutive positions that end with
/// kv_len[s] - 1; all earlier positions are in its pages already, and its pages have room for
/// these.
struct Batch {
  /// [n_tokens] token ids, each below the vocabulary's size, or what chosen_from() is
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;    ///< [n_tokens] position of each token in its sequence
  std::vector<int32_t> sequence_of;  ///< [n_tokens] index of the sequence that owns the row
  std::vector<int32_t>
      query_start;              ///< [n_sequences + 1] first row of each sequence; then n_tokens
  std::vector<int32_t> kv_len;  ///< [n_sequences] cached tokens after this pass
  std::vector<int32_t> rope_lengths;  ///< [n_sequences] see Rope; or empty: all 0
  /// [n_sequences] 1: its tokens, kMostOneByOne at most, find in the text before them the bits that
  /// each would as the only one of a step, as those that a text generates one after the other; 0:
  /// those that parts of a prompt do, however that is divided among steps, if no step has a single
  /// token of several.
  std::vector<int32_t> one_by_one;
  /// [n_groups, n_sequences, max_pages] page numbers; entries that no operation reads are 0.
  std::vector<int32_t> page_table;
  std::vector<int32_t> logit_rows;  ///< [n_logits] rows whose logits are wanted, ascending
  std::vector<int32_t> segments;    ///< [n_tokens] see Embedding; or empty: all 0
  /// Of a decoder with cross attention: [n_sequences] tokens of the source that each looks at, and
  /// [n_sequences, max_source_pages] the pages of their keys and values.
  std::vector<int32_t> source_len;
  std::vector<int32_t> source_pages;
  /// Of a model with recurrent layers: [n_sequences] the state that each goes on from, the one that
  /// is written after its tokens, and the one after those before its border, see border_of(); 0:
  /// none.
  std::vector<int32_t> state_from;
  std::vector<int32_t> state_to;
  std::vector<int32_t> state_border;
  /// Of sequences with an adapter: their tokens, and their rows of logits.
  std::vector<AdapterRows> adapter_tokens;
  std::vector<AdapterRows> adapter_logits;
  int32_t max_pages = 0;         ///< columns of page_table
  int32_t n_groups = 1;          ///< of layers, whose pages have numbers of their own
  int32_t max_source_pages = 0;  ///< columns of source_pages
  /// Of a model with predictors: the rows whose last hidden states these read. Where there are
  /// none, they read at most those of rows whose logits are wanted, which are there anyway.
  int32_t states_first = 0;
  int32_t states_end = std::numeric_limits<int32_t>::max();  ///< or more than there are rows

  /// Adds a sequence's new tokens, the first of which is at `position`: all that has an entry for
  /// each token or sequence, but pages, logit_rows, segments and sources.
  void add_sequence(std::span<const int32_t> new_tokens, int32_t position, int32_t rope_length = 0,
                    bool one_by_one = false);

  /// The sequence that was added last, whose rows of logits are in logit_rows, has this adapter,
  /// counted from 0.
  void set_adapter(int32_t adapter);

  [[nodiscard]] int32_t n_tokens() const { return static_cast<int32_t>(tokens.size()); }
  [[nodiscard]] int32_t n_sequences() const { return static_cast<int32_t>(kv_len.size()); }
  [[nodiscard]] int32_t n_logits() const { return static_cast<int32_t>(logit_rows.size()); }
  [[nodiscard]] int32_t n_states() const {
    return std::max(std::min(states_end, n_tokens()) - states_first, 0);
  }
};

/// A batch as attention may take it: each token of a sequence whose tokens are one by one is a
/// sequence of its own, whose cache ends with it. It has what attention reads of sequences,
/// query_start, kv_len and page_table, and no sequences where none is divided.
Batch divide_one_by_one(const Batch& batch);

/// A Batch in a backend's memory (same shapes); the counts and maxima stay on the host so that
/// launches can be sized without reading back.
struct BatchView {
  const int32_t* tokens = nullptr;
  const int32_t* chosen = nullptr;  ///< of each row that tokens were chosen from last
  const int32_t* positions = nullptr;
  const int32_t* sequence_of = nullptr;
  const int32_t* query_start = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* rope_lengths = nullptr;  ///< or null: all 0
  const int32_t* page_table = nullptr;    ///< of group 0; see view_of_group()
  const int32_t* logit_rows = nullptr;
  const int32_t* segments = nullptr;  ///< or null: all 0
  const int32_t* source_len = nullptr;
  const int32_t* source_pages = nullptr;
  const int32_t* state_from = nullptr;  ///< these three or null
  const int32_t* state_to = nullptr;
  const int32_t* state_border = nullptr;
  int32_t n_tokens = 0;
  int32_t n_sequences = 0;
  int32_t n_logits = 0;
  int32_t max_pages = 0;
  int32_t max_query_len = 0;  ///< rows of the sequence with the most rows
  int32_t max_kv_len = 0;     ///< the largest kv_len
  int32_t max_source_pages = 0;
  int32_t max_source_len = 0;
  const Batch* host = nullptr;  ///< what this is the copy of

  /// That of divide_one_by_one(); see view_of_queries().
  struct Divided {
    const int32_t* query_start = nullptr;
    const int32_t* kv_len = nullptr;
    const int32_t* page_table = nullptr;  ///< of the group
    int32_t max_query_len = 0;
    const Batch* host = nullptr;  ///< null: no sequence is divided
  } divided;
};

/// The id of a row's token.
constexpr int32_t token_of(const BatchView& batch, int64_t row) {
  const int32_t token = batch.tokens[row];
  return token >= 0 ? token : batch.chosen[row_of_choice(token)];
}

/// The length of a token that a Rope's frequencies may depend on.
constexpr int32_t rope_length(const BatchView& batch, int64_t token) {
  const int32_t length = batch.positions[token] + 1;
  if (batch.rope_lengths == nullptr) return length;
  return std::max(length, batch.rope_lengths[batch.sequence_of[token]]);
}

/// Tokens of a sequence of so many before the last page border that is not its end.
constexpr int32_t border_of(int32_t kv_len) { return (kv_len - 1) / kPageTokens * kPageTokens; }

/// The view whose page_table is that of a group.
inline BatchView view_of_group(BatchView batch, int32_t group) {
  if (batch.page_table != nullptr) {
    batch.page_table += int64_t{group} * batch.n_sequences * batch.max_pages;
  }
  if (batch.divided.host != nullptr) {
    batch.divided.page_table +=
        int64_t{group} * batch.divided.host->n_sequences() * batch.max_pages;
  }
  return batch;
}

/// The view whose sequences, but for sequence_of, are those of divide_one_by_one().
inline BatchView view_of_queries(BatchView batch) {
  if (batch.divided.host == nullptr) return batch;
  batch.query_start = batch.divided.query_start;
  batch.kv_len = batch.divided.kv_len;
  batch.page_table = batch.divided.page_table;
  batch.n_sequences = batch.divided.host->n_sequences();
  batch.max_query_len = batch.divided.max_query_len;
  batch.host = batch.divided.host;
  return batch;
}

/// The same tokens where they look at their sources: what is cached are these.
inline BatchView view_of_sources(BatchView batch) {
  batch.kv_len = batch.source_len;
  batch.page_table = batch.source_pages;
  batch.max_pages = batch.max_source_pages;
  batch.max_kv_len = batch.max_source_len;
  batch.divided = {};
  return batch;
}

/// A view without memory: a batch's counts and maxima. Backends add where their copy is.
BatchView measure(const Batch& batch);

}  // namespace faststream
