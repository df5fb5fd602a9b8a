#include "engine/mtp_drafter.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "engine/memory_plan.h"

namespace faststream {
namespace {

// Of a text whose beginning is known but for so many tokens, hidden states of others stand in for
// theirs: the last tokens of a text, as those of an answer, are seldom in both caches.
constexpr int32_t kMostStandIns = 4;

// What the predictor reads beside hidden states: of each the token that came next.
std::span<const int32_t> next_tokens(const SequenceGroup& group) {
  return std::span(group.tokens(0)).subspan(1);
}

}  // namespace

MtpDrafter::MtpDrafter(LoadedModel& model, bool prefix_sharing)
    : runner_(model.runner->executor().make_predictor(0, predictor_limits(model.runner->limits()))),
      predictor_(runner_.executor()),
      prefix_sharing_(prefix_sharing) {}

MtpDrafter::~MtpDrafter() { forget_all(); }

void MtpDrafter::forget_all() {
  for (auto& [group, text] : texts_) runner_.release(text.sequence);
  texts_.clear();
  n_kept_ = 0;
  runner_.caches().forget_texts();
}

void MtpDrafter::forget(const SequenceGroup& group) {
  const auto text = texts_.find(&group);
  if (text == texts_.end()) return;
  remember(group, text->second);
  runner_.release(text->second.sequence);
  texts_.erase(text);
}

void MtpDrafter::processed(std::span<const ProcessedTokens> tokens, int32_t most_texts) try {
  const std::vector<NewStates> states = new_states(tokens, most_texts);
  read_prompts(states);
  keep(states);
  // What ends is remembered as a whole.
  const auto has_ended = [](const NewStates& of_text) { return of_text.group->finished(); };
  if (prefix_sharing_ && std::ranges::any_of(states, has_ended)) {
    read_kept(
        [](const SequenceGroup& group) { return group.finished() ? Reading::all : Reading::none; });
  }
} catch (const std::exception&) {  // the device: texts go on without a draft
  forget_all();
}

// Of each text those that a token came after. Some may have come before: of a step of which the
// model's caches could not keep all.
std::vector<MtpDrafter::NewStates> MtpDrafter::new_states(std::span<const ProcessedTokens> tokens,
                                                          int32_t most_texts) {
  std::vector<NewStates> states;
  for (const ProcessedTokens& of_text : tokens) {
    const auto n_next = static_cast<int32_t>(next_tokens(*of_text.group).size());
    const int32_t end = std::min(of_text.first + of_text.n_tokens, n_next);
    Text* text = text_of(of_text, most_texts);
    if (text == nullptr || end <= text->n_known()) continue;
    states.push_back({.group = of_text.group,
                      .text = text,
                      .first_row = of_text.row - of_text.first,
                      .least_row = of_text.row,
                      .end = end});
  }
  return states;
}

// Reads those of pieces of prompts, but for a text's last one, of which logits may be wanted.
void MtpDrafter::read_prompts(std::span<const NewStates> states) {
  std::vector<NewTokens> inputs;
  std::vector<int32_t> rows;
  std::vector<PageCopy> copies;
  std::vector<const NewStates*> read;
  const auto read_all = [](const SequenceGroup& /*any*/) { return Reading::all; };
  for (const NewStates& of_text : states) {
    Text& text = *of_text.text;
    const std::span<const int32_t> next = next_tokens(*of_text.group);
    const int32_t first = text.n_known();
    const int32_t n = std::min(of_text.end, static_cast<int32_t>(next.size()) - 1) - first;
    if (of_text.end - first <= kMostProposed + 1 || n <= 0) continue;
    if (!text.kept.empty()) read_kept(read_all);
    if (!make_room(text.sequence, n, copies)) continue;
    inputs.push_back({.sequence = &text.sequence,
                      .tokens = next.subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
                      .logits = NewTokens::Logits::none});
    for (int32_t i = first; i < first + n; ++i) {
      rows.push_back(of_text.row(i));
    }
    read.push_back(&of_text);
  }
  if (inputs.empty()) return;
  if (!copies.empty()) runner_.copy_pages(copies);
  predictor_.take_hidden_states(rows);
  runner_.step(inputs);
  for (const NewStates* of_text : read) remember(*of_text->group, *of_text->text);
}

// Keeps the others; of rows that nearly follow each other what lies between them, too.
void MtpDrafter::keep(std::span<const NewStates> states) {
  struct Run {
    int32_t first = 0;
    int32_t end = 0;
    int32_t to = 0;  // from the first row on that is kept now
  };
  struct Part {
    const NewStates* states = nullptr;
    int32_t to = 0;  // what is added to rows
  };
  constexpr int32_t kNear = kMostProposed + 1;
  std::vector<Run> runs;
  std::vector<Part> parts;
  int32_t n_rows = 0;
  for (const NewStates& of_text : states) {
    const int32_t n = of_text.end - of_text.text->n_known();
    if (n <= 0 || n > kNear) continue;  // there was no room for what comes before
    const int32_t first = of_text.row(of_text.text->n_known());
    const int32_t end = of_text.row(of_text.end - 1) + 1;
    const bool is_near = !runs.empty() && first - runs.back().end <= kNear;
    const int32_t n_more = end - (is_near ? runs.back().end : first);
    if (n_rows + n_more > kMostKeptHidden) break;
    if (!is_near) runs.push_back({.first = first, .end = first, .to = n_rows});
    runs.back().end = end;
    n_rows += n_more;
    parts.push_back({.states = &of_text, .to = runs.back().to - runs.back().first});
  }
  if (n_kept_ + n_rows > kMostKeptHidden) {
    read_kept([](const SequenceGroup& /*any*/) { return Reading::all; });
  }
  for (const Run& run : runs) {
    predictor_.keep_hidden_states(run.first, run.end - run.first, n_kept_ + run.to);
  }
  for (const Part& part : parts) {
    Text& text = *part.states->text;
    while (text.n_known() < part.states->end) {
      text.kept.push_back(n_kept_ + part.to + part.states->row(text.n_known()));
    }
  }
  n_kept_ += n_rows;
}

void MtpDrafter::read_kept(const std::function<Reading(const SequenceGroup& group)>& how) {
  std::vector<NewTokens> inputs;
  std::vector<int32_t> rows;
  std::vector<PageCopy> copies;
  int32_t n_logits = 0;
  bool is_any_left = false;
  for (auto& [group, text] : texts_) {
    if (text.kept.empty()) continue;
    const Reading reading = how(*group);
    is_any_left |= reading == Reading::none;
    if (reading == Reading::none) continue;
    const auto first = static_cast<size_t>(text.n_read());
    const std::vector<int32_t> kept = std::exchange(text.kept, {});
    if (!make_room(text.sequence, static_cast<int32_t>(kept.size()), copies)) continue;
    const std::span<const int32_t> next = next_tokens(*group);
    const bool is_wanted = reading == Reading::with_logits && first + kept.size() == next.size();
    inputs.push_back({.sequence = &text.sequence,
                      .tokens = next.subspan(first, kept.size()),
                      .logits = is_wanted ? NewTokens::Logits::last : NewTokens::Logits::none});
    rows.insert(rows.end(), kept.begin(), kept.end());
    if (is_wanted) text.row = n_logits++;
  }
  if (!is_any_left) n_kept_ = 0;
  if (inputs.empty()) return;
  if (!copies.empty()) runner_.copy_pages(copies);
  predictor_.take_kept_states(rows);
  runner_.step(inputs);
}

// The text, begun again where hidden states between those that it has and these are missing; null
// where it is not to be followed.
MtpDrafter::Text* MtpDrafter::text_of(const ProcessedTokens& tokens, int32_t most_texts) {
  const auto known = texts_.find(tokens.group);
  if (known != texts_.end() && known->second.n_known() >= tokens.first) return &known->second;
  forget(*tokens.group);
  if (std::ssize(texts_) >= most_texts) return nullptr;
  Text& text = texts_[tokens.group];
  begin(text, tokens);
  return &text;
}

void MtpDrafter::begin(Text& text, const ProcessedTokens& tokens) {
  const std::span<const int32_t> next = next_tokens(*tokens.group);
  text.sequence = runner_.begin(static_cast<int64_t>(next.size()) + 1, tokens.group->adapter());
  text.begin = tokens.first;
  if (tokens.first == 0 || !prefix_sharing_) return;
  SequenceCaches& caches = runner_.caches();
  const SequenceCaches::Prefix prefix =
      caches.find(next.first(static_cast<size_t>(tokens.first)), text.sequence.kind);
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

void MtpDrafter::draft(std::span<const DraftTask> tasks) {
  std::vector<Draft> drafts;
  std::vector<Draft*> going_on;
  bool has_failed = false;
  try {
    read_kept([tasks](const SequenceGroup& group) {
      const auto is_of_group = [&](const DraftTask& task) { return task.group == &group; };
      return std::ranges::any_of(tasks, is_of_group) ? Reading::with_logits : Reading::all;
    });
    for (const DraftTask& task : tasks) {
      task.group->suppose({});
      const auto text = texts_.find(task.group);
      if (text == texts_.end()) continue;
      const int32_t row = std::exchange(text->second.row, -1);
      if (row >= 0) drafts.push_back({.task = task, .row = row});
    }
    for (Draft& draft : drafts) going_on.push_back(&draft);
    if (!going_on.empty()) draw(going_on);
    while (!going_on.empty()) go_on(going_on);
  } catch (const std::exception&) {  // the device: texts go on without a draft
    has_failed = true;
  }
  for (Draft& draft : drafts) {
    runner_.release(draft.fork);
    if (!has_failed) draft.task.group->suppose(draft.tokens);
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
  if (!copies.empty()) runner_.copy_pages(copies);
  predictor_.take_own_states(rows);
  runner_.step(inputs);
  draw(drafts);
}

}  // namespace faststream
