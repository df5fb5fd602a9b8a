#include "engine/draft_model.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "engine/ranks.h"
#include "engine/stopwatch.h"
#include "support/bit_mask.h"
#include "support/error.h"

namespace faststream {
namespace {

// Of the device's memory: the rest is for the model that is drafted for.
constexpr double kMemoryPart = 0.2;
// Tokens of a text that a draft's first pass reads at most: more are to be paid for before.
constexpr int32_t kMostUnread = kMostProposed + 1;
static_assert(kMostUnread <= kMostOneByOne);

// Texts that it may have to draft for.
int32_t most_texts(const EngineOptions& options) {
  return options.slots > 0 ? std::min(options.slots, kMostSpeculating) : kMostSpeculating;
}

EngineOptions options_beside(const EngineOptions& options) {
  return {.device = device_names(options.device).front(),
          .threads = options.threads,
          .slots = 2 * most_texts(options),  // a text's sequence and its fork
          .kv = options.kv,
          .memory = static_cast<size_t>(static_cast<double>(options.memory) * kMemoryPart),
          .memory_part = options.memory_part * kMemoryPart,
          .speculate = "off",
          .check_interrupted = options.check_interrupted};
}

}  // namespace

DraftModel::DraftModel(const std::filesystem::path& path, const EngineOptions& options)
    : model_(path, options_beside(options), most_texts(options), UntakenKv::is_left_out) {}

DraftModel::~DraftModel() {
  for (auto& [group, sequence] : texts_) model_.runner->release(sequence);
}

void DraftModel::check_drafts_for(const LoadedModel& model) const {
  const Tokenizer& own = *model_.tokenizer;
  const Tokenizer& other = *model.tokenizer;
  bool is_same = own.vocab_size() == other.vocab_size();
  for (int32_t token = 0; is_same && token < own.vocab_size(); ++token) {
    is_same = own.token_bytes(token) == other.token_bytes(token);
  }
  if (is_same && !model_.config.encoder) return;
  throw Error(model_.file.name() + " cannot draft for " + model.file.name() +
              ", whose tokenizer is another; give a decoder with the same one");
}

int32_t DraftModel::n_followed() const {
  return static_cast<int32_t>(
      std::ranges::count_if(texts_, [&](const auto& text) { return follows(*text.first); }));
}

bool DraftModel::follows(const SequenceGroup& group) const {
  return texts_.contains(&group) && n_unread(group) <= kMostUnread;
}

int32_t DraftModel::n_unread(const SequenceGroup& group) const {
  return static_cast<int32_t>(group.tokens(0).size()) - texts_.at(&group).n_cached;
}

std::vector<DraftPass> DraftModel::read(const SequenceGroup& group) {
  passes_.clear();
  const bool is_new = !texts_.contains(&group);
  if (is_new && static_cast<int32_t>(texts_.size()) >= model_.info.slots / 2) return {};
  try {
    read_but_last(group);
  } catch (const std::exception&) {  // the device
    forget(group);
  }
  return passes_;
}

void DraftModel::read_but_last(const SequenceGroup& group) {
  const std::span<const int32_t> tokens = group.tokens(0);
  const auto n_tokens = static_cast<int32_t>(tokens.size());
  const auto [text, is_new] = texts_.try_emplace(&group);
  Sequence& sequence = text->second;
  if (is_new) sequence = model_.runner->begin(n_tokens);
  std::vector<Draft*> none;
  DraftDraws no_draws;
  while (fits(group, sequence) && sequence.n_cached < n_tokens - 1) {
    const int32_t n =
        std::min(n_tokens - 1 - sequence.n_cached, model_.runner->limits().batch.max_tokens);
    std::vector<PageCopy> copies;
    if (!model_.runner->caches().make_room(sequence, n, copies)) break;
    const NewTokens piece{
        .sequence = &sequence,
        .tokens = tokens.subspan(static_cast<size_t>(sequence.n_cached), static_cast<size_t>(n)),
        .logits = NewTokens::Logits::none};
    run({&piece, 1}, copies, none, no_draws);
  }
  if (sequence.n_cached < n_tokens - 1) forget(group);
}

std::vector<DraftPass> DraftModel::draft(std::span<const DraftTask> tasks) {
  passes_.clear();
  std::vector<Draft> drafts;
  for (const DraftTask& task : tasks) drafts.push_back({.task = task});
  std::vector<Draft*> going_on;
  for (Draft& draft : drafts) going_on.push_back(&draft);
  DraftDraws draws;
  const bool reads_each = !may_be_unread(*model_.backend, model_.runner->executor(), tasks);
  try {
    begin(going_on, draws);
    while (!going_on.empty()) {
      if (reads_each) draws.read(passes_);
      go_on(going_on, draws);
    }
    draws.read(passes_);
  } catch (const std::exception&) {  // the device: texts go on without a draft
    for (Draft& draft : drafts) {
      draft.tokens.clear();
      forget(*draft.task.group);
    }
  }
  for (Draft& draft : drafts) {
    model_.runner->release(draft.fork);
    draft.task.group->suppose(draft.tokens);
  }
  return passes_;
}

void DraftModel::forget(const SequenceGroup& group) {
  const auto text = texts_.find(&group);
  if (text == texts_.end()) return;
  model_.runner->release(text->second);
  texts_.erase(text);
}

// Whether a draft has room behind the text.
bool DraftModel::fits(const SequenceGroup& group, const Sequence& sequence) const {
  const auto n_tokens = static_cast<int32_t>(group.tokens(0).size()) + kMostProposed;
  return n_tokens <= model_.info.context &&
         !model_.config.outgrows(sequence.kind.rope_length, n_tokens);
}

// A pass, of which each of the drafts, if any, gets a token; those that go on are left.
void DraftModel::run(std::span<const NewTokens> inputs, std::span<const PageCopy> copies,
                     std::vector<Draft*>& drafts, DraftDraws& draws) {
  if (inputs.empty()) return;
  const Stopwatch watch;
  int32_t n_tokens = 0;
  for (const NewTokens& input : inputs) n_tokens += input.n_tokens();
  if (!copies.empty()) model_.runner->copy_pages(copies);
  model_.runner->step(inputs);
  if (drafts.empty()) {
    model_.runner->wait();  // so that this tells what it takes
    passes_.push_back({.n_tokens = n_tokens, .seconds = watch.seconds()});
    return;
  }
  std::vector<DraftDraws::Place> places;
  std::vector<SamplingRow> rules;
  for (Draft* draft : drafts) {
    places.push_back({.tokens = &draft->tokens, .row = static_cast<int32_t>(rules.size())});
    rules.push_back(draft_row(*draft->task.group, draft->tokens));
    // Of another number of rows: what does not fit the rule of output is not proposed.
    if (rules.back().mask.size() != mask_words(model_.config.vocab)) rules.back().mask = {};
  }
  draws.begin(*model_.runner, std::move(rules), places, n_tokens, watch);
  std::erase_if(drafts, [](const Draft* draft) {
    return draft->tokens.size() == static_cast<size_t>(draft->task.n_tokens);
  });
}

// Reads what each text has got since the last draft.
void DraftModel::begin(std::vector<Draft*>& drafts, DraftDraws& draws) {
  const int32_t most = model_.runner->limits().batch.max_tokens;
  int32_t n_tokens = 0;
  std::vector<NewTokens> inputs;
  std::vector<PageCopy> copies;
  std::erase_if(drafts, [&](const Draft* draft) {
    const SequenceGroup& group = *draft->task.group;
    Sequence& sequence = texts_.at(&group);
    const int32_t n = n_unread(group);
    n_tokens += n;
    if (n_tokens > most || !fits(group, sequence) ||
        !model_.runner->caches().make_room(sequence, n, copies))
      return true;
    const std::span<const int32_t> tokens = group.tokens(0);
    inputs.push_back(
        {.sequence = &sequence, .tokens = tokens.last(static_cast<size_t>(n)), .one_by_one = true});
    return false;
  });
  run(inputs, copies, drafts, draws);
  for (Draft* draft : drafts) draft->fork = model_.runner->fork(texts_.at(draft->task.group));
}

// Reads the token that each draft ends with.
void DraftModel::go_on(std::vector<Draft*>& drafts, DraftDraws& draws) {
  std::vector<NewTokens> inputs;
  std::vector<PageCopy> copies;
  std::erase_if(drafts, [&](Draft* draft) {
    if (draft->tokens.back() >= model_.config.vocab ||
        !model_.runner->caches().make_room(draft->fork, 1, copies)) {
      return true;
    }
    inputs.push_back({.sequence = &draft->fork, .tokens = std::span(draft->tokens).last(1)});
    return false;
  });
  run(inputs, copies, drafts, draws);
}

}  // namespace faststream
