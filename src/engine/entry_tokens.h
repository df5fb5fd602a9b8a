// Which tokens of an entry of the scheduler are processed, and which are to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/scheduling_policy.h"

namespace faststream {

/// Whether one sequence is to become several: what they have in common is processed once, then each
/// goes on by itself. So begins a group again that was preempted.
[[nodiscard]] bool is_joint(const SchedulerEntry& entry);
/// Tokens of each sequence of an entry's group.
[[nodiscard]] int64_t text_length(const SchedulerEntry& entry);
/// What all sequences of a group begin with.
[[nodiscard]] std::span<const int32_t> common_tokens(const SequenceGroup& group);
/// What sequence i is to have in its pages.
[[nodiscard]] std::span<const int32_t> wanted_tokens(const SchedulerEntry& entry, size_t i);
/// Tokens that are not processed yet: one for a sequence in decode.
[[nodiscard]] int32_t pending(const SchedulerEntry& entry, size_t i);
[[nodiscard]] bool in_decode(const SchedulerEntry& entry);
/// Pages that the entry will take for the tokens it has, at most.
[[nodiscard]] int32_t missing_pages(const SchedulerEntry& entry);

}  // namespace faststream
