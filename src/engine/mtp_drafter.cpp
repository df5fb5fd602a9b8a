#include "engine/mtp_drafter.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "engine/memory_plan.h"

namespace faststream {
namespace {

std::unique_ptr<DeviceExecutor> first_predictor(const DeviceExecutor& model,
                                                DeviceExecutor*& predictor) {
  auto executor = model.make_predictor(0, predictor_limits(model.limits()));
  predictor = executor.get();
  return executor;
}

// Of a text whose beginning is known but for so many tokens, hidden states of others stand in for
// theirs: the last tokens of a text, as those of an answer, are seldom in both caches.
constexpr int32_t kMostStandIns = 4;

// What the predictor reads beside hidden states: of each the token that came next.
std::span<const int32_t> next_tokens(const SequenceGroup& group) {
  return std::span(group.tokens(0)).subspan(1);
}

}  // namespace

MtpDrafter::MtpDrafter(LoadedModel& model, bool prefix_sharing)
    : model_(*model.runner->executor().of_one_device()),
      runner_(first_predictor(model_, predictor_)),
      prefix_sharing_(prefix_sharing) {}

MtpDrafter::~MtpDrafter() { forget_all(); }

void MtpDrafter::forget_all() {
  for (auto& [group, text] : texts_) runner_.release(text.sequence);
  texts_.clear();
  runner_.caches().forget_texts();
}

void MtpDrafter::forget(const SequenceGroup& group) {
  const auto text = texts_.find(&group);
  if (text == texts_.end()) return;
  remember(group, text->second);
  runner_.release(text->second.sequence);
  texts_.erase(text);
}

void MtpDrafter::processed(std::span<const ProcessedTokens> tokens) try {
  for (auto& [group, text] : texts_) text.row = -1;
  read(tokens);
} catch (const std::exception&) {  // the device: texts go on without a draft
  forget_all();
}

// Hidden states that were read before may come again: of a step of which the model's caches could
// not keep all.
void MtpDrafter::read(std::span<const ProcessedTokens> tokens) {
  std::vector<NewTokens> inputs;
  std::vector<int32_t> rows;
  std::vector<PageCopy> copies;
  std::vector<std::pair<const SequenceGroup*, Text*>> in_prompt;
  int32_t n_logits = 0;
  for (const ProcessedTokens& of_text : tokens) {
    const SequenceGroup& group = *of_text.group;
    const std::span<const int32_t> next = next_tokens(group);
    const auto n_known = static_cast<int32_t>(next.size());
    const int32_t end = std::min(of_text.first + of_text.n_tokens, n_known);
    Text& text = text_of(of_text);
    const int32_t first = text.n_read();
    if (end <= first) continue;
    if (!make_room(text.sequence, end - first, copies)) {
      forget(group);
      continue;
    }
    const bool is_whole = end == n_known && !group.finished();
    inputs.push_back(
        {.sequence = &text.sequence,
         .tokens = next.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
         .logits = is_whole ? NewTokens::Logits::last : NewTokens::Logits::none});
    for (int32_t n = first; n < end; ++n) {
      rows.push_back(of_text.row + std::max(n - of_text.first, 0));
    }
    if (is_whole) text.row = n_logits++;
    if (end - first > kMostProposed + 1) in_prompt.emplace_back(&group, &text);
  }
  if (inputs.empty()) return;
  step(model_, inputs, rows, copies);
  for (const auto& [group, text] : in_prompt) remember(*group, *text);
}

// The text, begun again where hidden states between those that it has and these are missing.
MtpDrafter::Text& MtpDrafter::text_of(const ProcessedTokens& tokens) {
  const auto known = texts_.find(tokens.group);
  if (known != texts_.end() && known->second.n_read() >= tokens.first) return known->second;
  forget(*tokens.group);
  Text& text = texts_[tokens.group];
  begin(text, tokens);
  return text;
}

void MtpDrafter::begin(Text& text, const ProcessedTokens& tokens) {
  const std::span<const int32_t> next = next_tokens(*tokens.group);
  text.sequence = runner_.begin(static_cast<int64_t>(next.size()) + 1);
  text.begin = tokens.first;
  if (tokens.first == 0 || !prefix_sharing_) return;
  SequenceCaches& caches = runner_.caches();
  const SequenceCaches::Prefix prefix =
      caches.find(next.first(static_cast<size_t>(tokens.first)), text.sequence.rope_length);
  if (prefix.n_tokens() + kMostStandIns < tokens.first) return;
  caches.start(text.sequence, prefix, [&](const PageCopy& copy) {
    runner_.copy_pages({&copy, 1});
  });
  text.begin = 0;
}

void MtpDrafter::remember(const SequenceGroup& group, Text& text) {
  if (prefix_sharing_ && text.begin == 0) {
    runner_.caches().remember(next_tokens(group), text.sequence);
  }
}

bool MtpDrafter::make_room(Sequence& sequence, int32_t n_tokens, std::vector<PageCopy>& copies) {
  SequenceCaches& caches = runner_.caches();
  return caches.make_room(caches.missing(sequence, int64_t{sequence.n_cached} + n_tokens)) &&
         caches.take_pages(sequence, n_tokens, copies) == n_tokens;
}

// rows: of the hidden states that the last step of `of` left, for each of the inputs' tokens.
void MtpDrafter::step(const DeviceExecutor& of, std::span<const NewTokens> inputs,
                      std::span<const int32_t> rows, std::span<const PageCopy> copies) {
  if (!copies.empty()) runner_.copy_pages(copies);
  predictor_->take_hidden_states(of, rows);
  runner_.step(inputs);
}

void MtpDrafter::draft(std::span<const DraftTask> tasks) {
  std::vector<Draft> drafts;
  for (const DraftTask& task : tasks) {
    const auto text = texts_.find(task.group);
    if (text != texts_.end() && text->second.row >= 0) {
      drafts.push_back({.task = task, .row = text->second.row});
    } else {
      task.group->suppose({});
    }
  }
  for (auto& [group, text] : texts_) text.row = -1;  // logits are drawn from once
  std::vector<Draft*> going_on;
  for (Draft& draft : drafts) going_on.push_back(&draft);
  bool has_failed = false;
  try {
    if (!going_on.empty()) draw(going_on);
    while (!going_on.empty()) go_on(going_on);
  } catch (const std::exception&) {  // the device: texts go on without a draft
    has_failed = true;
  }
  for (Draft& draft : drafts) {
    runner_.release(draft.fork);
    if (has_failed) draft.tokens.clear();
    draft.task.group->suppose(draft.tokens);
  }
  if (has_failed) forget_all();
}

// A token for each draft from the step that was; those that go on are left.
void MtpDrafter::draw(std::vector<Draft*>& drafts) {
  std::vector<SamplingRow> rules(static_cast<size_t>(runner_.n_logits()));
  for (const Draft* draft : drafts) {
    const SequenceGroup& group = *draft->task.group;
    SamplingRow& row = rules[static_cast<size_t>(draft->row)];
    row = draft->tokens.empty() ? group.sampling_row(0) : group.sampling_row_after(draft->tokens);
    row.n_logprobs = -1;
  }
  runner_.sample(rules, sampled_);
  for (Draft* draft : drafts) {
    draft->tokens.push_back(sampled_[static_cast<size_t>(draft->row)].token);
  }
  std::erase_if(drafts, [](const Draft* draft) {
    return draft->tokens.size() == static_cast<size_t>(draft->task.n_tokens);
  });
}

// Reads the token that each draft ends with, beside the hidden state that it was drawn of.
void MtpDrafter::go_on(std::vector<Draft*>& drafts) {
  std::vector<NewTokens> inputs;
  std::vector<int32_t> rows;
  std::vector<PageCopy> copies;
  std::erase_if(drafts, [&](Draft* draft) {
    if (draft->fork.n_cached == 0) {
      draft->fork = runner_.fork(texts_.at(draft->task.group).sequence);
    }
    if (!make_room(draft->fork, 1, copies)) return true;
    inputs.push_back({.sequence = &draft->fork, .tokens = std::span(draft->tokens).last(1)});
    rows.push_back(std::exchange(draft->row, static_cast<int32_t>(rows.size())));
    return false;
  });
  if (inputs.empty()) return;
  step(*predictor_, inputs, rows, copies);
  draw(drafts);
}

}  // namespace faststream
