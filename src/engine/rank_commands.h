// What rank 0 has the others of a model do, as they are told it.
#pragma once

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
                       &batch.state_to, &batch.state_border}) {
    visit(*values);
  }
  for (auto* rows : {&batch.adapter_tokens, &batch.adapter_logits}) visit(*rows);
  for (auto* number : {&batch.max_pages, &batch.n_groups, &batch.max_source_pages}) visit(*number);
}

/// What follows the command: of those of a batch that, of copies the pages of each cache.
enum class RankCommand : int32_t {
  read_sources,
  forward,
  finish,  ///< of stages: the number of a step, counted from 1
  copy,
  end
};

inline MessageWriter rank_message(RankCommand command) { return MessageWriter().put(command); }

inline MessageWriter copy_message(std::span<const std::vector<PageCopy>> copies) {
  MessageWriter writer = rank_message(RankCommand::copy).put(uint64_t{copies.size()});
  for (const std::vector<PageCopy>& of_cache : copies) writer.put(of_cache);
  return writer;
}

}  // namespace faststream
