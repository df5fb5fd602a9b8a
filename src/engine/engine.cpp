// The engine's thread, and what stands between it and the others.
//
// Callers put jobs and cancellations into an inbox; the engine's thread takes them out between two
// steps of its scheduler. Only that thread touches the scheduler, the runner and jobs in work.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "engine/beam_search.h"
#include "engine/draft_model.h"
#include "engine/find_chat_template.h"
#include "engine/generation.h"
#include "engine/loaded_model.h"
#include "engine/perplexity.h"
#include "engine/rule_cache.h"
#include "engine/scheduler.h"
#include "engine/speculation.h"
#include "support/machine.h"
#include "support/random_seed.h"
#include "support/utf8.h"
#include "text/tool_calls.h"

namespace faststream {
namespace {

using Clock = std::chrono::steady_clock;

// How often generate() asks its caller whether to go on when there is no new text.
constexpr std::chrono::milliseconds kPollInterval(50);

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special) {
  return parse_special ? tokenizer.encode_parsing_special(text) : tokenizer.encode(text);
}

// How long a prompt is.
struct PromptLength {
  int64_t tokens = 0;
  bool is_counted = false;  // else it has so many at least
};

struct Job;

// What the scheduler runs for a job: a sample, or its beam search.
struct Part : Scheduler::Entry {
  Part(Job& owner, int32_t number, std::unique_ptr<SequenceGroup> what)
      : job(&owner), sample(number), owned(std::move(what)) {
    group = owned.get();
  }

  Job* job;
  int32_t sample;
  std::unique_ptr<SequenceGroup> owned;
};

// A request in work.
struct Job {
  Job(Request&& request, GenerationRules&& common, const Tokenizer& tokenizer,
      Speculation::Kind speculation)
      : rules(std::move(common)), n(request.n), logprobs(request.logprobs) {
    if (rules.search.beams > 1) {
      add(std::make_unique<BeamSearch>(rules, tokenizer), request.priority);
    }
    const int32_t n_samples = rules.search.beams > 1 ? 0 : std::max(request.n, request.best_of);
    for (int32_t i = 0; i < n_samples; ++i) {
      add(std::make_unique<SampleGroup>(rules, tokenizer, i, speculation), request.priority);
    }
  }

  void add(std::unique_ptr<SequenceGroup> group, int32_t priority) {
    parts.push_back(std::make_unique<Part>(*this, unfinished++, std::move(group)));
    parts.back()->priority = priority;
    parts.back()->most_tokens = rules.max_new_tokens();
  }
  [[nodiscard]] Result take_result();

  RequestId id = 0;
  GenerationRules rules;
  int32_t n;
  int32_t logprobs;
  Callbacks callbacks;
  std::vector<std::unique_ptr<Part>> parts;
  int32_t unfinished = 0;  // of parts
  Clock::time_point submitted = Clock::now();
  std::optional<Clock::time_point> started = {};
  std::optional<Clock::time_point> first_token = {};
  Clock::time_point last_token = {};
};

Result Job::take_result() {
  Result result;
  for (const auto& part : parts) {
    std::ranges::move(part->group->take_outputs(), std::back_inserter(result.outputs));
  }
  if (result.outputs.size() > static_cast<size_t>(n)) {
    std::stable_sort(
        result.outputs.begin(), result.outputs.end(),
        [](const Output& a, const Output& b) { return a.mean_logprob > b.mean_logprob; });
    result.outputs.resize(static_cast<size_t>(n));
  }
  if (logprobs < 0) {
    for (Output& output : result.outputs) output.logprobs.clear();
  }
  result.prompt_tokens = static_cast<int64_t>(rules.asked().size());
  result.cached_tokens = std::max<int64_t>(parts.front()->cached_tokens, 0);
  result.seed = rules.sampling.seed.value_or(0);
  if (started) result.queue_seconds = seconds_between(submitted, *started);
  if (first_token) {
    result.prompt_seconds = seconds_between(submitted, *first_token);
    result.generation_seconds = seconds_between(*first_token, last_token);
  }
  return result;
}

// Beside a device that computes in its own processors the host's are free.
int scheduler_threads(const LoadedModel& model, const EngineOptions& options) {
  constexpr int kMost = 16;
  if (!model.backend->runs_beside_host()) return 1;
  return std::min(options.threads > 0 ? options.threads : available_threads(), kMost);
}

// From so many rows on products are bound by arithmetic, not by reading weights: a step of twice as
// many takes twice as long.
constexpr int32_t kTurnSlots = 512;

SchedulerLimits scheduler_limits(const LoadedModel& model, DraftModel* draft,
                                 const EngineOptions& options) {
  SchedulerLimits limits{.slots = model.info.slots,
                         .max_step_tokens = model.runner->limits().batch.max_tokens,
                         .first_tokens = model.backend->first_tokens(),
                         .chunk = model.info.chunk,
                         // What a text's tokens give depends on its source.
                         .prefix_sharing = options.prefix_sharing && !model.config.encoder,
                         .threads = scheduler_threads(model, options),
                         .ends_together = options.ends_together,
                         .proposed_tokens = model.proposed_tokens,
                         .drafter = draft,
                         .always_proposes = options.always_speculate,
                         .row_borders = model.backend->row_borders()};
  if (model.backend->runs_beside_host()) limits.turn_slots = kTurnSlots;
  return limits;
}

// Tokens to be scored, for a caller who waits.
struct Scoring {
  int64_t n_tokens = 0;
  std::packaged_task<std::vector<float>()> work;
};

std::unique_ptr<DraftModel> load_draft(const EngineOptions& options) {
  const Speculation speculation = speculation_from_name(options.speculate);
  if (speculation.kind != Speculation::Kind::draft) return nullptr;
  return std::make_unique<DraftModel>(speculation.draft, options);
}

// What the draft model leaves of the memory that both may take.
EngineOptions beside(const DraftModel* draft, EngineOptions options) {
  if (draft != nullptr && options.memory > 0) {
    options.memory -= std::min(options.memory - 1, draft->bytes());
  }
  return options;
}

// What other threads want of the engine's.
struct Inbox {
  std::vector<std::unique_ptr<Job>> submitted = {};
  std::vector<RequestId> cancelled = {};
  std::vector<Scoring> scorings = {};
  bool stopping = false;
};

}  // namespace

struct Engine::Impl {
  Impl(const std::filesystem::path& path, const EngineOptions& options)
      : draft(load_draft(options)),
        model(path, beside(draft.get(), options), 1),
        rule_cache(*model.tokenizer, model.config.vocab),
        context_option(options.context == 0 && options.kv_tokens > 0 ? "--kv-tokens" : "--context"),
        scheduler(*model.runner, scheduler_limits(model, draft.get(), options)) {
    if (draft) draft->check_drafts_for(model);
    try {
      chat = find_chat_template(options.chat_template, model.file);
    } catch (const Error& error) {
      if (!options.chat_template.empty()) throw;
      chat_error = error.what();  // for those who want to chat
    }
    thread = std::thread([this] { run(); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { stop(); }

  // Any thread. ----------------------------------------------------------------------------------

  [[nodiscard]] const ChatTemplate& chat_template() const {
    if (chat) return *chat;
    if (!chat_error.empty()) throw Error(chat_error);
    throw UsageError(unknown_chat_template(model.file));
  }
  [[nodiscard]] ChatText write(const ChatPrompt& prompt) const;
  [[nodiscard]] std::unique_ptr<Job> make_job(Request request) const;
  // Each throws Error where the model cannot do it.
  void check_fits(PromptLength length) const;
  void check_fits_encoder(PromptLength length) const;
  void check_fits_context(PromptLength length) const;
  void check_slots(int32_t beams) const;
  void check_answer_fits(const GenerationRules& rules) const;
  [[nodiscard]] std::string room_advice() const;
  /// Tokens of prompt and answer: with beams no more than the KV cache holds for all of them.
  [[nodiscard]] int64_t context_for(const GenerationRules& rules) const;
  RequestId submit(std::unique_ptr<Job> job);
  void stop();

  // The engine's thread. --------------------------------------------------------------------------

  void run();
  [[nodiscard]] Inbox take_inbox();
  Inbox begin_work();
  void end_steps();
  void score();
  [[nodiscard]] bool can_score(int64_t n_tokens) const;
  void end_early(std::span<const RequestId> cancelled);
  void start(std::unique_ptr<Job> job);
  void step();
  void deliver();
  static void on_prompt(const Part& part, int64_t n_done);
  static void on_token(const Part& part, Clock::time_point now);
  void end_part(const Part& part);
  void end(Job& job, FinishReason reason, const std::string& error);
  void publish();

  std::unique_ptr<DraftModel> draft;  // before the model, which takes what is left of memory
  LoadedModel model;
  mutable RuleCache rule_cache;
  std::string context_option;  // which made the context smaller than the model's
  std::optional<ChatTemplate> chat;
  std::string chat_error;  // why the model's own template is none
  Scheduler scheduler;
  std::unordered_map<RequestId, std::unique_ptr<Job>> jobs;  // in work
  std::vector<Scheduler::Outcome> outcomes;                  // of the last step, to be delivered
  std::unordered_map<RequestId, std::string> failed;         // jobs to be ended, and why
  std::deque<Scoring> scorings;                              // that there was no room for yet
  int64_t n_finished = 0;
  uint64_t n_arrivals = 0;

  std::mutex mutex;
  std::condition_variable wake;
  // Guarded by `mutex`:
  Inbox inbox;
  RequestId next_id = 1;
  EngineStats stats;

  std::thread thread;  // last: it uses all others
};

void Engine::Impl::check_fits(PromptLength length) const {
  if (model.info.source_context > 0) {
    check_fits_encoder(length);
  } else {
    check_fits_context(length);
  }
}

void Engine::Impl::check_fits_encoder(PromptLength length) const {
  const int64_t most = model.info.source_context;
  if (length.tokens <= most) return;
  throw Error(
      "the prompt has " +
      (length.is_counted ? std::to_string(length.tokens) : "more than " + std::to_string(most)) +
      " tokens, but the model's encoder reads only " + std::to_string(most) +
      "; shorten it, or give it in parts");
}

void Engine::Impl::check_fits_context(PromptLength length) const {
  const int64_t most = model.info.context;
  if (length.tokens <= most) return;
  throw Error("the prompt has " +
              (length.is_counted ? std::to_string(length.tokens) + " tokens, but the context only "
                                 : "more tokens than the context, which has ") +
              std::to_string(most) + "; " + room_advice());
}

void Engine::Impl::check_slots(int32_t beams) const {
  if (beams <= model.info.slots) return;
  throw UsageError(std::to_string(beams) + " beams need as many slots, but there are only " +
                   std::to_string(model.info.slots) + "; give fewer beams or more --slots");
}

std::string Engine::Impl::room_advice() const {
  const EngineInfo& info = model.info;
  if (info.context == info.max_context) return "shorten the prompt, since the model has no more";
  return "shorten the prompt or give a larger " + context_option + " (the model's is " +
         std::to_string(info.max_context) + ")";
}

// Refuses what there is no room to answer.
void Engine::Impl::check_answer_fits(const GenerationRules& rules) const {
  const EngineInfo& info = model.info;
  const auto n_prompt = static_cast<int64_t>(rules.prompt.size());
  if (n_prompt < rules.context || rules.max_tokens == 0) return;
  if (n_prompt < info.context) {
    throw Error("the KV cache of " + std::to_string(info.kv_tokens) + " tokens has no room for " +
                std::to_string(rules.search.beams) +
                " beams after the prompt; give fewer beams or more --kv-tokens");
  }
  if (!rules.source.empty()) {
    throw Error("a context of " + std::to_string(info.context) + " tokens" +
                " has no room for an answer; give a larger " + context_option);
  }
  throw Error("the prompt has " + std::to_string(n_prompt) +
              " tokens, which fill the context and leave no room for an answer; " + room_advice());
}

int64_t Engine::Impl::context_for(const GenerationRules& rules) const {
  // The source and whole pages of the prompt are shared. Of others each beam has its own at worst.
  const auto shared = static_cast<int64_t>(rules.prompt.size()) / kPageTokens;
  const int64_t source = pages_for(static_cast<int64_t>(rules.source.size()));
  const int64_t own = (pages_for(model.info.kv_tokens) - source - shared) / rules.search.beams;
  return std::min(model.info.context, (shared + own) * kPageTokens);
}

// Answers are text again where prompts have other tokens.
ChatText Engine::Impl::write(const ChatPrompt& prompt) const {
  if (model.prompt_tokenizer == model.tokenizer) return chat_template().write(prompt);
  ChatPrompt as_text = prompt;
  for (Message& message : as_text.messages) message.tokens.clear();
  return chat_template().write(as_text);
}

std::unique_ptr<Job> Engine::Impl::make_job(Request request) const {
  validate(request, model.config.vocab, model.config.prompt_vocab());
  check_slots(request.search.beams);
  if (request.search.beams > 1) request.best_of = 0;  // which is for samples
  GenerationRules rules;
  if (auto* prompt = std::get_if<ChatPrompt>(&request.prompt)) {
    const ChatTemplate& format = chat_template();
    const ChatText written = write(*prompt);
    if (!request.parse_special) {  // which can make few tokens of a long text
      check_fits({.tokens = written.min_tokens(*model.prompt_tokenizer, model.info.context)});
    }
    rules.prompt = written.encode(*model.prompt_tokenizer, request.parse_special);
    rules.strip_start = true;
    if (!prompt->tools.empty()) rules.shown.some = tool_call_marks(*model.tokenizer);
    rules.end_tokens = format.stop_tokens(*model.tokenizer);
    request.stop.insert(request.stop.end(), format.stop().begin(), format.stop().end());
  } else if (auto* text = std::get_if<std::string>(&request.prompt)) {
    if (model.answers && !request.target_language) {
      request.target_language = take_target_language(model.answers->languages, *text);
    }
    if (!request.parse_special) {
      check_fits({.tokens = model.prompt_tokenizer->min_tokens(*text, model.info.context)});
    }
    rules.prompt = encode(*model.prompt_tokenizer, *text, request.parse_special);
  } else {
    rules.prompt = std::get<std::vector<int32_t>>(std::move(request.prompt));
  }
  if (rules.prompt.empty()) {
    if (std::holds_alternative<std::vector<int32_t>>(request.prompt)) {
      throw Error("the prompt is an empty list of tokens; give at least one");
    }
    throw Error(
        "the prompt is empty, and the model has no begin-of-sequence token to start from; "
        "give some text");
  }
  if (model.answers) {
    read_as_source(*model.answers, request, rules);
  } else if (request.source_language || request.target_language) {
    throw UsageError("only models with an encoder are told languages; leave them out");
  }
  check_fits({.tokens = static_cast<int64_t>(rules.asked().size()), .is_counted = true});
  rules.search = request.search;
  rules.n_best = request.n;
  rules.sampling = request.sampling;
  if (!rules.sampling.seed) rules.sampling.seed = random_seed();
  rules.max_tokens = request.max_tokens;
  rules.min_tokens = request.min_tokens;
  rules.context = context_for(rules);
  check_answer_fits(rules);
  rules.ignore_eos = request.ignore_eos;
  rules.shown.all = request.show_special;
  rules.stop = request.stop;
  rules.stop_tokens = request.stop_tokens;
  if (request.rule) {
    if (model.answers) {
      throw UsageError("models that have an encoder follow no rule of output; leave it out");
    }
    rules.rule = rule_cache.compile(*request.rule);
    rules.strip_start = false;  // the text is what the rule says
  }
  // Samples are compared by their likelihood.
  rules.logprobs = request.best_of > request.n ? std::max(request.logprobs, 0) : request.logprobs;
  return std::make_unique<Job>(std::move(request), std::move(rules), *model.tokenizer,
                               model.speculation.kind);
}

RequestId Engine::Impl::submit(std::unique_ptr<Job> job) {
  RequestId id = 0;
  {
    const std::lock_guard lock(mutex);
    id = job->id = next_id++;
    inbox.submitted.push_back(std::move(job));
    ++stats.waiting;
  }
  wake.notify_one();
  return id;
}

// Returns when all requests are finished. Callbacks may use the engine until then.
void Engine::Impl::stop() {
  if (!thread.joinable()) return;
  {
    const std::lock_guard lock(mutex);
    inbox.stopping = true;
  }
  wake.notify_one();
  thread.join();
}

void Engine::Impl::run() {
  for (;;) {
    const Inbox work = begin_work();
    if (!scorings.empty()) score();
    if (work.stopping || !work.cancelled.empty() || !failed.empty()) end_early(work.cancelled);
    if (work.stopping) break;
    if (!scheduler.idle()) step();
    if (scheduler.idle()) deliver();
    publish();
  }
  // What is still there has a last word, and may submit more.
  do {
    while (!jobs.empty()) end(*jobs.begin()->second, FinishReason::cancelled, "");
    begin_work();
  } while (!jobs.empty());
  for (Scoring& scoring : scorings) scoring.work();
}

// Waits until there is something to do, and takes what came.
Inbox Engine::Impl::take_inbox() {
  std::unique_lock lock(mutex);
  wake.wait(lock, [this] {
    return inbox.stopping || !inbox.submitted.empty() || !inbox.cancelled.empty() ||
           !inbox.scorings.empty() || !failed.empty() || !scheduler.idle();
  });
  Inbox taken{.stopping = inbox.stopping};
  taken.submitted.swap(inbox.submitted);
  taken.cancelled.swap(inbox.cancelled);
  taken.scorings.swap(inbox.scorings);
  return taken;
}

// Waits until the device has nothing to do.
void Engine::Impl::end_steps() {
  deliver();
  outcomes = scheduler.end_all_steps();
  deliver();
}

// Scores what there is room for between two steps: a slot, and pages.
void Engine::Impl::score() {
  end_steps();
  while (!scorings.empty() && can_score(scorings.front().n_tokens)) {
    scorings.front().work();
    scorings.pop_front();
  }
}

bool Engine::Impl::can_score(int64_t n_tokens) const {
  if (scheduler.idle()) return true;
  const PagePool& pages = model.runner->pages();
  return scheduler.n_running() < model.info.slots &&
         pages.n_free() + pages.n_idle() >= pages_for(n_tokens);
}

// Takes what came, and begins it.
Inbox Engine::Impl::begin_work() {
  Inbox work = take_inbox();
  for (auto& job : work.submitted) start(std::move(job));
  std::ranges::move(work.scorings, std::back_inserter(scorings));
  return work;
}

// Ends jobs that were cancelled, and those that failed, between two steps.
void Engine::Impl::end_early(std::span<const RequestId> cancelled) {
  end_steps();
  for (const RequestId id : cancelled) failed.try_emplace(id);
  for (const auto& [id, error] : std::exchange(failed, {})) {
    const auto job = jobs.find(id);
    if (job != jobs.end()) end(*job->second, FinishReason::cancelled, error);
  }
}

void Engine::Impl::start(std::unique_ptr<Job> new_job) {
  Job& job = *new_job;
  jobs.emplace(job.id, std::move(new_job));
  if (job.rules.max_tokens == 0) return end(job, FinishReason::length, "");
  for (const auto& part : job.parts) {
    part->arrival = n_arrivals++;
    scheduler.add(*part);
  }
}

// While the device computes a step, what came of the one before is delivered.
void Engine::Impl::step() {
  scheduler.begin_step();
  deliver();
  outcomes = scheduler.end_step();
  if (!model.backend->runs_beside_host()) deliver();  // else it would wait for a whole step
}

// Tells requests what came of a step. Those that fail are ended later, with all their parts, some
// of which may be in the step that runs.
void Engine::Impl::deliver() {
  const Clock::time_point now = Clock::now();
  for (const Scheduler::Outcome& outcome : std::exchange(outcomes, {})) {
    auto& part = static_cast<Part&>(*outcome.entry);
    if (!part.job->started) part.job->started = now;
    if (!outcome.error.empty()) {
      part.group->finish(FinishReason::cancelled);
      failed.emplace(part.job->id, outcome.error);
    }
    if (failed.contains(part.job->id)) continue;
    try {
      if (outcome.has_token) {
        on_token(part, now);
      } else {
        on_prompt(part, outcome.n_cached);
      }
    } catch (const std::exception& error) {  // the request's own callback
      failed.emplace(part.job->id, error.what());
      continue;
    }
    if (part.group->finished()) end_part(part);
  }
}

void Engine::Impl::on_prompt(const Part& part, int64_t n_done) {
  const Job& job = *part.job;
  if (!job.callbacks.on_prompt || job.first_token || part.sample != 0) return;
  job.callbacks.on_prompt({.done = n_done, .total = static_cast<int64_t>(job.rules.prompt.size())});
}

void Engine::Impl::on_token(const Part& part, Clock::time_point now) {
  Job& job = *part.job;
  job.last_token = now;
  if (!job.first_token) job.first_token = now;
  if (!job.callbacks.on_delta) return;
  const std::string_view text = part.group->write();
  job.callbacks.on_delta({.sample = part.sample,
                          .token = part.group->newest_token(),
                          .text = text,
                          .logprobs = job.logprobs < 0 ? std::span<const PositionLogprobs>()
                                                       : part.group->logprobs()});
}

void Engine::Impl::end_part(const Part& part) {
  if (--part.job->unfinished == 0) end(*part.job, FinishReason::length, "");
}

// Ends a job, and with `reason` those of its parts that have not ended by themselves.
void Engine::Impl::end(Job& job, FinishReason reason, const std::string& error) {
  for (const auto& part : job.parts) {
    if (part->group->finished()) continue;
    if (job.rules.max_tokens != 0) scheduler.remove(*part);
    part->group->finish(reason);
  }
  const auto holder = jobs.extract(job.id);
  ++n_finished;
  publish();
  if (job.callbacks.on_finish) job.callbacks.on_finish(job.take_result(), error);
}

void Engine::Impl::publish() {
  const SchedulerCounts& counts = scheduler.counts();
  const PagePool& pages = model.runner->pages();
  const std::lock_guard lock(mutex);
  stats = {.steps = counts.steps,
           .prompt_tokens = counts.prompt_tokens,
           .cached_tokens = counts.cached_tokens,
           .generated_tokens = counts.generated_tokens,
           .proposed_tokens = counts.proposed_tokens,
           .accepted_tokens = counts.accepted_tokens,
           .preemptions = counts.preemptions,
           .finished = n_finished,
           .running = scheduler.n_running(),
           .waiting = scheduler.n_waiting() + static_cast<int32_t>(inbox.submitted.size()),
           .free_tokens = int64_t{pages.n_free() + pages.n_idle()} * kPageTokens,
           .device_seconds = counts.device_seconds};
}

Engine::Engine(const std::filesystem::path& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
Engine::Engine(Engine&&) noexcept = default;

Engine& Engine::operator=(Engine&& other) noexcept {
  if (this == &other) return *this;
  if (impl_ != nullptr) impl_->stop();  // impl_ stays as it is for callbacks
  impl_ = std::move(other.impl_);
  return *this;
}

Engine::~Engine() {
  if (impl_ != nullptr) impl_->stop();
}

const EngineInfo& Engine::info() const { return impl_->model.info; }

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

std::vector<int32_t> Engine::tokenize(std::string_view text, bool parse_special) const {
  return encode(*impl_->model.prompt_tokenizer, text, parse_special);
}

std::vector<int32_t> Engine::tokenize(const ChatPrompt& prompt, bool parse_special) const {
  return impl_->write(prompt).encode(*impl_->model.prompt_tokenizer, parse_special);
}

std::string Engine::detokenize(std::span<const int32_t> tokens) const {
  Detokenizer detokenizer(*impl_->model.tokenizer, false);
  std::string text;
  for (const int32_t token : tokens) text += detokenizer.push(token);
  return text + detokenizer.finish();
}

std::string Engine::chat_text(const ChatPrompt& prompt) const {
  return impl_->write(prompt).text();
}

std::string Engine::token_text(int32_t token) const {
  return valid_utf8(impl_->model.tokenizer->token_bytes(token));
}

std::string Engine::token_bytes(int32_t token) const {
  return impl_->model.tokenizer->token_bytes(token);
}

bool Engine::can_chat() const { return impl_->chat.has_value(); }

bool Engine::chat_template_mentions(std::string_view variable) const {
  return impl_->chat && impl_->chat->mentions(variable);
}

std::vector<float> Engine::score(std::span<const int32_t> tokens) {
  LoadedModel& model = impl_->model;
  if (model.answers) {
    throw UsageError("the model answers to its prompts, and continues no text");
  }
  impl_->check_fits({.tokens = static_cast<int64_t>(tokens.size()), .is_counted = true});
  for (const int32_t token : tokens) {
    if (token >= 0 && token < model.config.vocab) continue;
    throw Error("the token " + std::to_string(token) + " is none of the model's tokens, 0 to " +
                std::to_string(model.config.vocab - 1));
  }
  Scoring scoring{.n_tokens = static_cast<int64_t>(tokens.size()),
                  .work = std::packaged_task<std::vector<float>()>(
                      [&model, tokens] { return score_tokens(model, tokens); })};
  std::future<std::vector<float>> scores = scoring.work.get_future();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->inbox.scorings.push_back(std::move(scoring));
  }
  impl_->wake.notify_one();
  return scores.get();
}

std::vector<float> Engine::score(std::string_view text, const std::function<void()>& between) {
  std::vector<float> all;
  for (const auto& window : text_windows(*impl_->model.tokenizer, text, info().context)) {
    const std::vector<float> scores = score(window);
    all.insert(all.end(), scores.begin(), scores.end());
    if (between) between();
  }
  return all;
}

RequestId Engine::submit(Request request, Callbacks callbacks) {
  std::unique_ptr<Job> job = impl_->make_job(std::move(request));
  job->callbacks = std::move(callbacks);
  return impl_->submit(std::move(job));
}

std::future<Result> Engine::submit(Request request) {
  auto promise = std::make_shared<std::promise<Result>>();
  submit(std::move(request), {.on_finish = [promise](Result result, const std::string& error) {
           if (error.empty()) {
             promise->set_value(std::move(result));
           } else {
             promise->set_exception(std::make_exception_ptr(Error(error)));
           }
         }});
  return promise->get_future();
}

void Engine::cancel(RequestId request) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->inbox.cancelled.push_back(request);
  }
  impl_->wake.notify_one();
}

Result Engine::generate(Request request, const std::function<bool(std::string_view)>& on_text,
                        const std::function<void(const PromptProgress&)>& on_prompt) {
  // Shared with the engine's thread, which may outlast this call if `on_text` throws.
  struct Stream {
    std::mutex mutex;
    std::condition_variable wake;
    std::optional<PromptProgress> prompt;  // not yet passed on
    std::string text;                      // likewise
    std::optional<Result> result;
    std::string error;
  };
  const auto stream = std::make_shared<Stream>();
  const RequestId id =
      submit(std::move(request), {.on_prompt =
                                      [stream](const PromptProgress& progress) {
                                        const std::lock_guard lock(stream->mutex);
                                        stream->prompt = progress;
                                        stream->wake.notify_one();
                                      },
                                  .on_delta =
                                      [stream](const Delta& delta) {
                                        if (delta.sample != 0) return;
                                        const std::lock_guard lock(stream->mutex);
                                        stream->text += delta.text;
                                        stream->wake.notify_one();
                                      },
                                  .on_finish =
                                      [stream](Result result, const std::string& error) {
                                        const std::lock_guard lock(stream->mutex);
                                        stream->result = std::move(result);
                                        stream->error = error;
                                        stream->wake.notify_one();
                                      }});
  // Cancels what is left behind by an exception; a finished request is no longer known.
  const auto cancel_at_end = [this](const RequestId* left) { cancel(*left); };
  const std::unique_ptr<const RequestId, decltype(cancel_at_end)> guard(&id, cancel_at_end);

  size_t passed_on = 0;
  for (;;) {
    std::optional<PromptProgress> prompt;
    std::string text;
    bool done = false;
    {
      std::unique_lock lock(stream->mutex);
      stream->wake.wait_for(lock, kPollInterval, [&] {
        return stream->prompt || !stream->text.empty() || stream->result;
      });
      prompt.swap(stream->prompt);
      text.swap(stream->text);
      done = stream->result.has_value();
    }
    if (prompt && on_prompt) on_prompt(*prompt);
    passed_on += text.size();
    if (!done) {
      if (!on_text(text)) cancel(id);
      continue;
    }
    if (!stream->error.empty()) throw Error(stream->error);
    // A cancelled text ends with what was held back.
    if (!stream->result->outputs.empty() && stream->result->outputs.front().text.size() > passed_on)
      text += std::string_view(stream->result->outputs.front().text).substr(passed_on);
    if (!text.empty()) (void)on_text(text);
    return std::move(*stream->result);
  }
}

Request recommended_request(const EngineInfo& info) {
  return {.prompt = {},
          .max_tokens = info.max_tokens,
          .min_tokens = info.min_tokens,
          .sampling = info.sampling,
          .search = info.search};
}

std::vector<int32_t> tokenize(const std::filesystem::path& model, std::string_view text,
                              bool parse_special, const std::function<void()>& check_interrupted) {
  const ModelFile file = ModelFile::open(model);
  const ModelConfig config = read_config(file);
  const auto tokenizer = make_prompt_tokenizer(
      file, config, make_tokenizer(file, config, check_interrupted), check_interrupted);
  return encode(*tokenizer, text, parse_special);
}

}  // namespace faststream
