#include "engine/entry_tokens.h"

#include <algorithm>

namespace faststream {

bool is_joint(const SchedulerEntry& entry) {
  return entry.sequences.size() < entry.group->n_sequences();
}

int64_t text_length(const SchedulerEntry& entry) {
  return static_cast<int64_t>(entry.group->tokens(0).size());
}

std::span<const int32_t> common_tokens(const SequenceGroup& group) {
  std::span<const int32_t> common = group.tokens(0);
  for (size_t i = 1; i < group.n_sequences(); ++i) {
    const auto end = std::ranges::mismatch(common, group.tokens(i)).in1;
    common = common.first(static_cast<size_t>(end - common.begin()));
  }
  return common;
}

std::span<const int32_t> wanted_tokens(const SchedulerEntry& entry, size_t i) {
  return is_joint(entry) ? common_tokens(*entry.group) : entry.group->tokens(i);
}

int32_t pending(const SchedulerEntry& entry, size_t i) {
  return static_cast<int32_t>(wanted_tokens(entry, i).size()) - entry.sequences[i].n_cached;
}

bool in_decode(const SchedulerEntry& entry) {
  if (!entry.has_tokens || is_joint(entry)) return false;
  for (size_t i = 0; i < entry.sequences.size(); ++i) {
    if (pending(entry, i) != 1) return false;
  }
  return true;
}

int32_t missing_pages(const SchedulerEntry& entry) {
  const SequenceGroup& group = *entry.group;
  if (!is_joint(entry)) {
    int32_t missing = 0;
    for (size_t i = 0; i < group.n_sequences(); ++i) {
      missing += entry.sequences[i].missing_pages(static_cast<int64_t>(group.tokens(i).size()));
    }
    return missing;
  }
  const auto n_common = static_cast<int64_t>(common_tokens(group).size());
  const auto n_whole = static_cast<int32_t>(n_common / kPageTokens);
  const int32_t n_held =
      entry.sequences.empty() ? 0 : static_cast<int32_t>(entry.sequences[0].pages.size());
  int32_t missing = std::max(n_whole - n_held, 0);
  for (size_t i = 0; i < group.n_sequences(); ++i) {
    missing += pages_for(static_cast<int64_t>(group.tokens(i).size())) - n_whole;
  }
  return missing;
}

}  // namespace faststream
