#include "engine/mtp_head.h"

#include <iterator>
#include <utility>

#include "engine/speculation.h"
#include "models/model.h"

namespace faststream {
namespace {

// Of a text whose beginning is known but for so many tokens, hidden states of others stand in for
// theirs: the last tokens of a text, as those of an answer, are seldom in both caches.
constexpr int32_t kMostStandIns = 4;
// Hidden states of a text that are kept, or left between some that are.
constexpr int32_t kMostKeptOfText = kMostProposed + 1;

MtpHead::Reading read_all(const SequenceGroup& /*any*/) { return MtpHead::Reading::all; }

}  // namespace

MtpHead::MtpHead(Executor& source, size_t number, const RunnerLimits& limits, bool prefix_sharing)
    : runner_(source.make_predictor(number, limits)),
      predictor_(runner_.executor()),
      number_(static_cast<int32_t>(number)),
      prefix_sharing_(prefix_sharing) {}

void MtpHead::set_next(MtpHead& next) {
  next_ = &next;
  next.reads_before_ = true;
}

// What it reads beside hidden states: of that of token i the i-th of these.
std::span<const int32_t> MtpHead::tokens_beside(const SequenceGroup& group) const {
  const std::span<const int32_t> tokens = group.tokens(0);
  return tokens.subspan(std::min(tokens.size(), static_cast<size_t>(number_) + 1));
}

void MtpHead::forget_all() {
  for (auto& [group, text] : texts_) runner_.release(text.sequence);
  texts_.clear();
  n_kept_ = 0;
  runner_.caches().forget_texts();
}

void MtpHead::forget(const SequenceGroup& group) {
  const auto text = texts_.find(&group);
  if (text == texts_.end()) return;
  remember(group, text->second);
  runner_.release(text->second.sequence);
  texts_.erase(text);
}

int32_t MtpHead::n_unread(const SequenceGroup& group) const {
  return static_cast<int32_t>(texts_.at(&group).kept.size());
}

int32_t MtpHead::n_unread() const {
  int32_t n = 0;
  for (const auto& [group, text] : texts_) n += static_cast<int32_t>(text.kept.size());
  return n;
}

void MtpHead::processed(std::span<const ProcessedTokens> tokens, int32_t most_texts) {
  const std::vector<NewStates> states = new_states(tokens, most_texts);
  read_prompts(states);
  keep(states);
  // What ends is remembered as a whole.
  const auto has_ended = [](const NewStates& of_text) { return of_text.group->finished(); };
  if (prefix_sharing_ && std::ranges::any_of(states, has_ended)) {
    read_kept(
        [](const SequenceGroup& group) { return group.finished() ? Reading::all : Reading::none; });
  }
}

// Of each text those that a token came after. Some may have come before: of a step of which the
// model's caches could not keep all.
std::vector<MtpHead::NewStates> MtpHead::new_states(std::span<const ProcessedTokens> tokens,
                                                    int32_t most_texts) {
  std::vector<NewStates> states;
  for (const ProcessedTokens& of_text : tokens) {
    const auto n_followed = static_cast<int32_t>(of_text.group->tokens(0).size()) - 1;
    const int32_t end = std::min(of_text.first + of_text.n_tokens, n_followed);
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
void MtpHead::read_prompts(std::span<const NewStates> states) {
  Pass pass;
  std::vector<const NewStates*> read;
  for (const NewStates& of_text : states) {
    Text& text = *of_text.text;
    const std::span<const int32_t> beside = tokens_beside(*of_text.group);
    const int32_t first = text.n_known();
    const int32_t n = std::min(of_text.end, static_cast<int32_t>(beside.size()) - 1) - first;
    if (of_text.end - first <= kMostKeptOfText || n <= 0) continue;
    if (!text.kept.empty()) read_kept(read_all);
    if (!text.kept.empty() || !runner_.caches().make_room(text.sequence, n, pass.copies)) continue;
    pass.add(*of_text.group, first,
             {.sequence = &text.sequence,
              .tokens = beside.subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
              .logits = NewTokens::Logits::none});
    for (int32_t i = first; i < first + n; ++i) pass.rows.push_back(of_text.row(i));
    read.push_back(&of_text);
  }
  run(pass, [&] { predictor_.take_hidden_states(pass.rows); });
  for (const NewStates* of_text : read) remember(*of_text->group, *of_text->text);
}

// Keeps the others; of rows that nearly follow each other what lies between them, too.
void MtpHead::keep(std::span<const NewStates> states) {
  struct Run {
    int32_t first = 0;
    int32_t end = 0;
    int32_t to = 0;  // from the first row on that is kept now
  };
  struct Part {
    const NewStates* states = nullptr;
    int32_t to = 0;  // what is added to rows
  };
  std::vector<Run> runs;
  std::vector<Part> parts;
  int32_t n_rows = 0;
  for (const NewStates& of_text : states) {
    const int32_t n = of_text.end - of_text.text->n_known();
    if (n <= 0 || n > kMostKeptOfText) continue;  // there was no room for what comes before
    const int32_t first = of_text.row(of_text.text->n_known());
    const int32_t end = of_text.row(of_text.end - 1) + 1;
    const bool is_near = !runs.empty() && first - runs.back().end <= kMostKeptOfText;
    const int32_t n_more = end - (is_near ? runs.back().end : first);
    if (n_rows + n_more > kMostKeptHidden) break;
    if (!is_near) runs.push_back({.first = first, .end = first, .to = n_rows});
    runs.back().end = end;
    n_rows += n_more;
    parts.push_back({.states = &of_text, .to = runs.back().to - runs.back().first});
  }
  if (!has_room_to_keep(n_rows)) return;
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

// Makes room for so many rows behind the others.
bool MtpHead::has_room_to_keep(int32_t n_rows) {
  if (n_kept_ + n_rows <= kMostKeptHidden) return true;
  read_kept(read_all);
  std::vector<int32_t> staying;
  for (auto& [group, text] : texts_) {
    for (int32_t& row : text.kept) {
      staying.push_back(row);
      row = static_cast<int32_t>(staying.size()) - 1;
    }
  }
  if (!staying.empty()) predictor_.compact_kept_states(staying);
  n_kept_ = static_cast<int32_t>(staying.size());
  return n_kept_ + n_rows <= kMostKeptHidden;
}

void MtpHead::read_kept(const ReadingOf& how) {
  Pass pass;
  bool is_any_left = false;
  int32_t n_logits = 0;
  for (auto& [group, text] : texts_) {
    if (text.kept.empty()) continue;
    const Reading reading = how(*group);
    const auto first = static_cast<size_t>(text.n_read());
    const std::span<const int32_t> beside = tokens_beside(*group);
    const size_t n = std::min(text.kept.size(), beside.size() - std::min(beside.size(), first));
    is_any_left |= reading == Reading::none || n < text.kept.size();
    if (reading == Reading::none || n == 0) continue;
    if (!runner_.caches().make_room(text.sequence, static_cast<int32_t>(n), pass.copies)) {
      text.kept.clear();
      continue;
    }
    const bool is_wanted = reading == Reading::with_logits && first + n == beside.size();
    pass.add(*group, static_cast<int32_t>(first),
             {.sequence = &text.sequence,
              .tokens = beside.subspan(first, n),
              .logits = is_wanted ? NewTokens::Logits::last : NewTokens::Logits::none});
    const auto end = text.kept.begin() + static_cast<std::ptrdiff_t>(n);
    pass.rows.insert(pass.rows.end(), text.kept.begin(), end);
    text.kept.erase(text.kept.begin(), end);
    if (is_wanted) text.row = n_logits++;
  }
  if (!is_any_left) n_kept_ = 0;
  run(pass, [&] { predictor_.take_kept_states(pass.rows); });
}

// Of a text what it begins with, from this token on.
void MtpHead::Pass::add(const SequenceGroup& group, int32_t first, const NewTokens& input) {
  processed.push_back(
      {.group = &group, .first = first, .row = n_tokens, .n_tokens = input.n_tokens()});
  add(input);
}

void MtpHead::Pass::add(const NewTokens& input) {
  inputs.push_back(input);
  n_tokens += input.n_tokens();
}

template <typename TakeStates>
void MtpHead::run(const Pass& pass, TakeStates take_states) {
  if (pass.inputs.empty()) return;
  if (!pass.copies.empty()) runner_.copy_pages(pass.copies);
  take_states();
  runner_.step(pass.inputs);
  if (next_ != nullptr && !pass.processed.empty()) {
    next_->processed(pass.processed, kMostSpeculating);
  }
}

// The text, begun again where hidden states between those that it has and these are missing; null
// where it is not to be followed.
MtpHead::Text* MtpHead::text_of(const ProcessedTokens& tokens, int32_t most_texts) {
  const auto known = texts_.find(tokens.group);
  if (known != texts_.end() && known->second.n_known() >= tokens.first) return &known->second;
  forget(*tokens.group);
  if (std::ssize(texts_) >= most_texts) return nullptr;
  Text& text = texts_[tokens.group];
  begin_text(text, tokens);
  return &text;
}

void MtpHead::begin_text(Text& text, const ProcessedTokens& tokens) {
  const std::span<const int32_t> beside = tokens_beside(*tokens.group);
  text.sequence = runner_.begin(std::ssize(tokens.group->tokens(0)), tokens.group->adapter());
  text.begin = tokens.first;
  if (tokens.first == 0 || !prefix_sharing_) return;
  SequenceCaches& caches = runner_.caches();
  const size_t n_before = std::min(beside.size(), static_cast<size_t>(tokens.first));
  const SequenceCaches::Prefix prefix = caches.find(beside.first(n_before), text.sequence.kind);
  if (prefix.n_tokens() + kMostStandIns < tokens.first) return;
  caches.start(text.sequence, prefix, [&](const PageCopy& copy) {
    runner_.copy_pages({&copy, 1});
  });
  text.begin = 0;
}

void MtpHead::remember(const SequenceGroup& group, Text& text) {
  if (prefix_sharing_ && text.begin == 0) {
    runner_.caches().remember(tokens_beside(group), text.sequence);
  }
}

void MtpHead::begin(std::vector<MtpDraft*>& drafts) {
  read_kept([&](const SequenceGroup& group) {
    const auto is_of_group = [&](const MtpDraft* draft) { return draft->task.group == &group; };
    return std::ranges::any_of(drafts, is_of_group) ? Reading::with_logits : Reading::all;
  });
  std::erase_if(drafts, [&](MtpDraft* draft) {
    const auto text = texts_.find(draft->task.group);
    if (text == texts_.end()) return true;
    draft->head = this;
    draft->row = std::exchange(text->second.row, -1);
    return draft->row < 0;
  });
}

// Reads beside the hidden states that are left of a text all that was drafted. Where those are the
// head's before, it made all but the first when it drew the last token.
void MtpHead::take_over(std::vector<MtpDraft*>& drafts) {
  read_kept(read_all);
  const int32_t n_kept = reads_before_ ? 1 : number_;
  const int32_t n_drawn = number_ - n_kept;
  if (!has_room_to_keep(static_cast<int32_t>(drafts.size()) * n_drawn)) drafts.clear();
  Pass pass;
  std::vector<int32_t> drawn;  // rows of the last pass of the head before
  std::erase_if(drafts, [&](MtpDraft* draft) {
    const auto found = texts_.find(draft->task.group);
    if (found == texts_.end()) return true;
    const Text& text = found->second;
    const std::vector<int32_t>& tokens = draft->task.group->tokens(0);
    const bool knows_text = std::ssize(text.kept) == n_kept &&
                            text.n_read() + number_ + 1 == static_cast<int32_t>(tokens.size());
    if (!knows_text) return true;
    draft->head->release(*draft);
    draft->head = this;
    draft->fork = runner_.fork(text.sequence);
    if (!runner_.caches().make_room(draft->fork, number_, pass.copies)) return true;
    pass.rows.insert(pass.rows.end(), text.kept.begin(), text.kept.end());
    for (int32_t i = 0; i < n_drawn; ++i) {
      pass.rows.push_back(n_kept_ + static_cast<int32_t>(drawn.size()));
      drawn.push_back(draft->first_token + i);
    }
    draft->row = static_cast<int32_t>(pass.inputs.size());
    draft->first_token = pass.n_tokens;
    pass.add({.sequence = &draft->fork, .tokens = draft->tokens});
    return false;
  });
  run(pass, [&] {
    keep_rows(drawn, n_kept_);
    predictor_.take_kept_states(pass.rows);
  });
}

// Rows that follow each other are kept together.
void MtpHead::keep_rows(std::span<const int32_t> rows, int32_t to) {
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    for (end = first + 1; end < rows.size() && rows[end] == rows[end - 1] + 1;) ++end;
    predictor_.keep_hidden_states(rows[first], static_cast<int32_t>(end - first),
                                  to + static_cast<int32_t>(first));
  }
}

void MtpHead::go_on(std::vector<MtpDraft*>& drafts) {
  Pass pass;
  std::erase_if(drafts, [&](MtpDraft* draft) {
    if (draft->fork.n_cached == 0) {
      draft->fork = runner_.fork(texts_.at(draft->task.group).sequence);
    }
    if (!runner_.caches().make_room(draft->fork, 1, pass.copies)) return true;
    pass.add({.sequence = &draft->fork, .tokens = std::span(draft->tokens).last(1)});
    pass.rows.push_back(std::exchange(draft->row, static_cast<int32_t>(pass.rows.size())));
    return false;
  });
  run(pass, [&] { predictor_.take_own_states(pass.rows); });
}

void MtpHead::draw(std::vector<MtpDraft*>& drafts, int32_t n_tokens, const Stopwatch& watch,
                   DraftDraws& draws) {
  if (drafts.empty()) return;
  std::vector<SamplingRow> rules(static_cast<size_t>(runner_.n_logits()));
  std::vector<DraftDraws::Place> places;
  for (MtpDraft* draft : drafts) {
    rules[static_cast<size_t>(draft->row)] = draft_row(*draft->task.group, draft->tokens);
    places.push_back({.tokens = &draft->tokens, .row = draft->row});
  }
  draws.begin(runner_, std::move(rules), places, n_tokens, watch);
  std::erase_if(drafts, [](const MtpDraft* draft) {
    return draft->tokens.size() == static_cast<size_t>(draft->task.n_tokens);
  });
}

void MtpHead::release(MtpDraft& draft) { runner_.release(draft.fork); }

}  // namespace faststream
