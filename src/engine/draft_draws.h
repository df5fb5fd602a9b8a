// What the passes of a draft choose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/drafter.h"
#include "engine/runner.h"
#include "engine/sequence_group.h"
#include "engine/speculation.h"
#include "engine/stopwatch.h"

namespace faststream {

/// Whether passes for these tasks need not wait for what the ones before chose: `executor`, of
/// `backend`, reads it by itself while the host goes on, and no group's rules depend on it. Where
/// operations run in their calls, a pass that is read late would seem to have taken as long.
[[nodiscard]] bool may_be_unread(const Backend& backend, const Executor& executor,
                                 std::span<const DraftTask> tasks);

/// How the token after a group's text and these is drawn, which are those of a draft so far, read
/// or not.
[[nodiscard]] SamplingRow draft_row(const SequenceGroup& group, std::span<const int32_t> tokens);

/// Draws of passes that follow each other. A token that is not read yet stands in its draft as
/// chosen_from() its row, of which the next pass of the same runner makes the same as of itself.
class DraftDraws {
 public:
  /// A draft whose next token comes of a row of logits.
  struct Place {
    std::vector<int32_t>* tokens = nullptr;
    int32_t row = 0;
  };

  /// Draws from the runner's last step, which began, for n_tokens tokens, with the stopwatch.
  /// rules: of each of its rows.
  void begin(Runner& runner, std::vector<SamplingRow> rules, std::span<const Place> places,
             int32_t n_tokens, const Stopwatch& watch);
  /// Reads all that is not read, and adds what each pass took.
  void read(std::vector<DraftPass>& passes);

 private:
  struct Draw {
    std::vector<SamplingRow> rules;
    std::unique_ptr<Choices> choices;  // by these
    std::vector<Place> places;
    std::vector<size_t> indices;  // of each place's token in its draft
    int32_t n_tokens = 0;
    Stopwatch watch;
  };
  std::deque<Draw> unread_;
  std::optional<Stopwatch> last_end_;  // since a pass was read
};

}  // namespace faststream
