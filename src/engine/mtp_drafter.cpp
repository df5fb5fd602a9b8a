#include "engine/mtp_drafter.h"

#include <algorithm>
#include <exception>

#include "engine/memory_plan.h"
#include "engine/stopwatch.h"

namespace faststream {

MtpDrafter::MtpDrafter(LoadedModel& model, bool prefix_sharing) : backend_(*model.backend) {
  Executor& executor = model.runner->executor();
  const RunnerLimits limits = predictor_limits(executor.limits());
  for (size_t n = 0; n < model.config.predictors.size(); ++n) {
    MtpHead* before = reads_predictor(model.config, n) ? heads_.back().get() : nullptr;
    Executor& source = before != nullptr ? before->executor() : executor;
    heads_.push_back(std::make_unique<MtpHead>(source, n, limits, prefix_sharing));
    if (before != nullptr) {
      before->set_next(*heads_.back());
    } else {
      of_model_.push_back(heads_.back().get());
    }
  }
}

void MtpDrafter::forget_all() {
  for (const auto& head : heads_) head->forget_all();
}

void MtpDrafter::forget(const SequenceGroup& group) {
  for (const auto& head : heads_) head->forget(group);
}

void MtpDrafter::processed(std::span<const ProcessedTokens> tokens, int32_t most_texts) try {
  for (MtpHead* head : of_model_) head->processed(tokens, most_texts);
  heads_.front()->executor().wait();  // so that the caller sees what it takes
} catch (const std::exception&) {     // the device: texts go on without a draft
  forget_all();
}

std::vector<DraftPass> MtpDrafter::draft(std::span<const DraftTask> tasks) {
  std::vector<MtpDraft> drafts;
  for (const DraftTask& task : tasks) drafts.push_back({.task = task});
  std::vector<MtpDraft*> all;
  for (MtpDraft& draft : drafts) all.push_back(&draft);
  std::vector<DraftPass> passes;
  bool has_failed = false;
  try {
    passes = draw(all, !may_be_unread(backend_, heads_.back()->executor(), tasks));
  } catch (const std::exception&) {  // likewise
    has_failed = true;
  }
  for (MtpDraft& draft : drafts) {
    if (draft.head != nullptr) draft.head->release(draft);
    if (has_failed) draft.tokens.clear();
    draft.task.group->suppose(draft.tokens);
  }
  if (has_failed) forget_all();
  return passes;
}

std::vector<DraftPass> MtpDrafter::draw(std::vector<MtpDraft*> drafts, bool reads_each) {
  std::vector<DraftPass> passes;
  DraftDraws draws;
  for (size_t n = 0; !drafts.empty(); ++n) {
    // A head that takes over reads several tokens of a draft.
    if (reads_each || n < heads_.size()) draws.read(passes);
    const Stopwatch watch;
    const int32_t n_tokens =
        n == 0 ? heads_.front()->n_unread() : static_cast<int32_t>(drafts.size());
    if (n == 0) {
      heads_[n]->begin(drafts);
    } else if (n < heads_.size()) {
      heads_[n]->take_over(drafts);
    } else {
      heads_.back()->go_on(drafts);
    }
    heads_[std::min(n, heads_.size() - 1)]->draw(drafts, n_tokens, watch, draws);
  }
  draws.read(passes);
  return passes;
}

}  // namespace faststream
