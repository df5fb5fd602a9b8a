// What rank 0 has the others of a model do, as they are told it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "backend/batch.h"
#include "ranks/message.h"

namespace faststream {

template <typename SomeBatch, typename Visit>
requires std::is_same_v<std::remove_const_t<SomeBatch>, Batch>
void visit_members(SomeBatch& batch, Visit visit) {
  for (auto* values : {&batch.tokens, &batch.positions, &batch.sequence_of, &batch.query_start,
                       &batch.kv_len, &batch.rope_lengths, &batch.page_table, &batch.logit_rows,
                       &batch.segments, &batch.source_len, &batch.source_pages, &batch.state_from,
                       &batch.state_to, &batch.state_border, &batch.one_by_one}) {
    visit(*values);
  }
  for (auto* rows : {&batch.adapter_tokens, &batch.adapter_logits}) visit(*rows);
  for (auto* number : {&batch.max_pages, &batch.n_groups, &batch.max_source_pages,
                       &batch.states_first, &batch.states_end})
    visit(*number);
}

/// What a rank runs: the model, or its predictor of this number, counted from 1.
using RankPart = int32_t;
inline constexpr RankPart kModelPart = 0;
inline RankPart part_of_predictor(size_t predictor) { return static_cast<RankPart>(predictor) + 1; }

/// A part's, which follows the command; then comes, of those of a batch that, of copies the pages
/// of each cache, of rows of hidden states these.
enum class RankCommand : int32_t {
  read_sources,
  forward,
  finish,  ///< of stages: the number of a step, counted from 1
  copy,
  make_predictor,  ///< the part that is made, and its limits: it reads the hidden states of this
                   ///< one
  take_hidden_states,
  take_own_states,
  keep_hidden_states,  ///< the first one, how many, and the first row to keep them in
  take_kept_states,
  compact_kept_states,
  end
};

inline MessageWriter rank_message(RankCommand command, RankPart part = kModelPart) {
  return MessageWriter().put(command).put(part);
}

inline MessageWriter copy_message(RankPart part, std::span<const std::vector<PageCopy>> copies) {
  MessageWriter writer = rank_message(RankCommand::copy, part).put(uint64_t{copies.size()});
  for (const std::vector<PageCopy>& of_cache : copies) writer.put(of_cache);
  return writer;
}

}  // namespace faststream
