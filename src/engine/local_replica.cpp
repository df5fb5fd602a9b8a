#include "engine/local_replica.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/find_chat_template.h"
#include "engine/perplexity.h"
#include "engine/speculation.h"
#include "support/machine.h"
#include "support/name_list.h"
#include "support/printable.h"
#include "support/random_seed.h"
#include "text/tool_calls.h"

namespace faststream {
namespace {

// The host's processors are free between steps, and beside a device that has its own.
int scheduler_threads(const EngineOptions& options) {
  constexpr int kMost = 16;
  return std::min(options.threads > 0 ? options.threads : available_threads(), kMost);
}

// From so many rows on products are bound by arithmetic, not by reading weights: a step of twice as
// many takes twice as long.
constexpr int32_t kTurnSlots = 512;

SchedulerLimits scheduler_limits(const LoadedModel& model, Drafter* drafter,
                                 const EngineOptions& options) {
  SchedulerLimits limits{.slots = model.info.slots,
                         .max_step_tokens = model.runner->limits().batch.max_tokens,
                         .first_tokens = model.backend->first_tokens(),
                         .chunk = model.info.chunk,
                         // What a text's tokens give depends on its source.
                         .prefix_sharing = options.prefix_sharing && !model.config.encoder,
                         .threads = scheduler_threads(options),
                         .ends_together = options.ends_together,
                         .proposed_tokens = model.proposed_tokens,
                         .drafter = drafter,
                         .always_proposes = options.always_speculate,
                         .row_borders = model.backend->row_borders()};
  if (model.backend->runs_beside_host()) limits.turn_slots = kTurnSlots;
  limits.runs_ahead = may_run_ahead(*model.backend, model.runner->executor());
  limits.run_in_stages(options.stages);
  return limits;
}

std::unique_ptr<DraftModel> load_draft(const EngineOptions& options) {
  const Speculation speculation = speculation_from_name(options.speculate);
  if (speculation.kind != Speculation::Kind::draft) return nullptr;
  return std::make_unique<DraftModel>(speculation.draft, options);
}

std::unique_ptr<MtpDrafter> make_mtp_drafter(LoadedModel& model, bool prefix_sharing) {
  if (model.speculation.kind != Speculation::Kind::mtp) return nullptr;
  return std::make_unique<MtpDrafter>(model, prefix_sharing);
}

Drafter* one_of(DraftModel* draft, MtpDrafter* mtp) {
  if (mtp != nullptr) return mtp;
  return draft;
}

// What the draft model leaves of the memory that both may take.
EngineOptions beside(const DraftModel* draft, EngineOptions options) {
  if (draft != nullptr && options.memory > 0) {
    options.memory -= std::min(options.memory - 1, draft->bytes());
  }
  return options;
}

}  // namespace

LocalReplica::LocalReplica(const std::filesystem::path& path, const EngineOptions& options,
                           Rescue rescue)
    : draft_(load_draft(options)),
      model_(path, beside(draft_.get(), options), 1),
      mtp_(make_mtp_drafter(model_, options.prefix_sharing)),
      room_{.context = model_.info.context,
            .slots = model_.info.slots,
            .kv_tokens = model_.info.kv_tokens},
      rule_cache_(*model_.tokenizer, model_.config.vocab),
      context_option_(options.context == 0 && options.kv_tokens > 0 ? "--kv-tokens" : "--context"),
      rescue_(std::move(rescue)),
      scheduler_(*model_.runner,
                 scheduler_limits(model_, one_of(draft_.get(), mtp_.get()), options)),
      prefix_sharing_(options.prefix_sharing) {
  if (draft_) draft_->check_drafts_for(model_);
  try {
    chat_ = find_chat_template(options.chat_template, model_.file);
  } catch (const Error& error) {
    if (!options.chat_template.empty()) throw;
    chat_error_ = error.what();  // for those who want to chat
  }
  thread_ = std::thread([this] { run(); });
}

const ChatTemplate& LocalReplica::chat_template() const {
  if (chat_) return *chat_;
  if (!chat_error_.empty()) throw Error(chat_error_);
  throw UsageError(unknown_chat_template(model_.file));
}

void LocalReplica::check_fits(PromptLength length) const {
  if (model_.info.source_context > 0) {
    check_fits_encoder(length);
  } else {
    check_fits_context(length);
  }
}

void LocalReplica::check_fits_encoder(PromptLength length) const {
  const int64_t most = model_.info.source_context;
  if (length.tokens <= most) return;
  throw Error(
      "the prompt has " +
      (length.is_counted ? std::to_string(length.tokens) : "more than " + std::to_string(most)) +
      " tokens, but the model's encoder reads only " + std::to_string(most) +
      "; shorten it, or give it in parts");
}

void LocalReplica::check_fits_context(PromptLength length) const {
  const int64_t most = room_.context;
  if (length.tokens <= most) return;
  throw Error("the prompt has " +
              (length.is_counted ? std::to_string(length.tokens) + " tokens, but the context only "
                                 : "more tokens than the context, which has ") +
              std::to_string(most) + "; " + room_advice());
}

void LocalReplica::check_slots(int32_t beams) const {
  if (beams <= room_.slots) return;
  throw UsageError(std::to_string(beams) + " beams need as many slots, but there are only " +
                   std::to_string(room_.slots) + "; give fewer beams or more --slots");
}

std::string LocalReplica::room_advice() const {
  const EngineInfo& info = model_.info;
  if (room_.context == info.max_context) return "shorten the prompt, since " + info.context_end;
  return "shorten the prompt or give a larger " + context_option_ + " (the model's is " +
         std::to_string(info.max_context) + ")";
}

// Refuses what there is no room to answer.
void LocalReplica::check_answer_fits(const GenerationRules& rules) const {
  const auto n_prompt = static_cast<int64_t>(rules.prompt.size());
  if (n_prompt < rules.context || rules.max_tokens == 0) return;
  if (n_prompt < room_.context) {
    throw Error("the KV cache of " + std::to_string(room_.kv_tokens) + " tokens has no room for " +
                std::to_string(rules.search.beams) +
                " beams after the prompt; give fewer beams or more --kv-tokens");
  }
  if (!rules.source.empty()) {
    throw Error("a context of " + std::to_string(room_.context) + " tokens" +
                " has no room for an answer; give a larger " + context_option_);
  }
  throw Error("the prompt has " + std::to_string(n_prompt) +
              " tokens, which fill the context and leave no room for an answer; " + room_advice());
}

int64_t LocalReplica::context_for(const GenerationRules& rules) const {
  // The source and whole pages of the prompt are shared. Of others each beam has its own at worst.
  const auto shared = static_cast<int64_t>(rules.prompt.size()) / kPageTokens;
  const int64_t source = pages_for(static_cast<int64_t>(rules.source.size()));
  const int64_t own = (pages_for(room_.kv_tokens) - source - shared) / rules.search.beams;
  return std::min(room_.context, (shared + own) * kPageTokens);
}

std::vector<int32_t> LocalReplica::prompt_tokens(std::string_view text, bool parse_special) const {
  const Tokenizer& tokenizer = *model_.prompt_tokenizer;
  return parse_special ? tokenizer.encode_parsing_special(text) : tokenizer.encode(text);
}

// Answers are text again where prompts have other tokens.
ChatText LocalReplica::write(const ChatPrompt& prompt) const {
  if (model_.prompt_tokenizer == model_.tokenizer) return chat_template().write(prompt);
  ChatPrompt as_text = prompt;
  for (Message& message : as_text.messages) message.tokens.clear();
  return chat_template().write(as_text);
}

int32_t LocalReplica::adapter_number(const std::optional<std::string>& name) const {
  const std::vector<std::string>& names = model_.info.adapters;
  if (!name) return names.empty() ? 0 : 1;
  if (name->empty()) return 0;
  const auto found = std::ranges::find(names, *name);
  if (found != names.end()) return static_cast<int32_t>(found - names.begin()) + 1;
  std::string known;
  for (const std::string& each : names) add_name(known, each);
  throw UsageError(
      "\"adapter\" is " + in_quotes(*name) + ", but beside the model there " +
      (known.empty() ? "is none; give it with --adapter NAME=FILE" : "is only " + known));
}

void LocalReplica::make_jobs_for(const EngineInfo& other) {
  room_ = {.context = std::min(room_.context, other.context),
           .slots = std::min(room_.slots, other.slots),
           .kv_tokens = std::min(room_.kv_tokens, other.kv_tokens)};
}

std::unique_ptr<Job> LocalReplica::make_job(Request request, bool keeps) const {
  std::optional<Request> kept;
  if (keeps) kept = request;
  validate(request, model_.config.vocab, model_.config.prompt_vocab());
  check_slots(request.search.beams);
  if (request.search.beams > 1) request.best_of = 0;  // which is for samples
  GenerationRules rules;
  if (auto* prompt = std::get_if<ChatPrompt>(&request.prompt)) {
    const ChatTemplate& format = chat_template();
    const ChatText written = write(*prompt);
    if (!request.parse_special) {  // which can make few tokens of a long text
      check_fits({.tokens = written.min_tokens(*model_.prompt_tokenizer, room_.context)});
    }
    rules.prompt = written.encode(*model_.prompt_tokenizer, request.parse_special);
    rules.strip_start = true;
    if (!prompt->tools.empty()) rules.shown.some = tool_call_marks(*model_.tokenizer);
    rules.end_tokens = format.stop_tokens(*model_.tokenizer);
    request.stop.insert(request.stop.end(), format.stop().begin(), format.stop().end());
  } else if (auto* text = std::get_if<std::string>(&request.prompt)) {
    if (model_.answers && !request.target_language) {
      request.target_language = take_target_language(model_.answers->languages, *text);
    }
    if (!request.parse_special) {
      check_fits({.tokens = model_.prompt_tokenizer->min_tokens(*text, room_.context)});
    }
    rules.prompt = prompt_tokens(*text, request.parse_special);
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
  if (model_.answers && request.prompt_logprobs >= 0) {
    throw UsageError("the model answers to its prompts, and continues no text");
  }
  if (model_.answers) {
    read_as_source(*model_.answers, request, rules);
  } else if (request.source_language || request.target_language) {
    throw UsageError("only models with an encoder are told the language of the " +
                     std::string(request.source_language ? "source" : "answer") + "; leave it out");
  }
  check_fits({.tokens = static_cast<int64_t>(rules.asked().size()), .is_counted = true});
  rules.adapter = adapter_number(request.adapter);
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
    if (model_.answers) {
      throw UsageError("models that have an encoder follow no rule of output; leave it out");
    }
    rules.strip_start = false;  // the text is what the rule says
  }
  // Samples are compared by their likelihood.
  rules.logprobs = request.best_of > request.n ? std::max(request.logprobs, 0) : request.logprobs;
  rules.prompt_logprobs = request.prompt_logprobs;
  std::unique_ptr<Job> job = take_job(request, std::move(rules));
  job->request = std::move(kept);
  return job;
}

std::unique_ptr<Job> LocalReplica::take_job(const Request& request, GenerationRules rules) const {
  if (request.rule) rules.rule = rule_cache_.compile(*request.rule);
  return std::make_unique<Job>(request, std::move(rules), *model_.tokenizer,
                               speculation_of_request(request.speculate, model_.speculation.kind));
}

void LocalReplica::submit(std::unique_ptr<Job> job) {
  n_unfinished_ += static_cast<int64_t>(job->parts.size());
  {
    const std::lock_guard lock(mutex_);
    inbox_.submitted.push_back(std::move(job));
    ++stats_.waiting;
  }
  wake_.notify_one();
}

void LocalReplica::cancel(RequestId request) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.cancelled.push_back(request);
  }
  wake_.notify_one();
}

EngineStats LocalReplica::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void LocalReplica::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    inbox_.stopping = true;
  }
  wake_.notify_one();
  thread_.join();
}

void LocalReplica::run() {
  publish();
  for (;;) {
    const Inbox work = begin_work();
    if (work.stopping || !work.cancelled.empty() || !failed_.empty()) end_early(work.cancelled);
    if (work.stopping) break;
    if (!to_score_.empty()) score_next();
    if (!scheduler_.idle()) step();
    if (scheduler_.idle()) deliver();
    publish();
  }
  // What is still there has a last word, and may submit more.
  do {
    while (!jobs_.empty()) end(*jobs_.begin()->second, FinishReason::cancelled, {});
    begin_work();
  } while (!jobs_.empty());
}

// Waits until there is something to do, and takes what came.
LocalReplica::Inbox LocalReplica::take_inbox() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] {
    return inbox_.stopping || !inbox_.submitted.empty() || !inbox_.cancelled.empty() ||
           !to_score_.empty() || !failed_.empty() || !scheduler_.idle();
  });
  Inbox taken{.stopping = inbox_.stopping};
  taken.submitted.swap(inbox_.submitted);
  taken.cancelled.swap(inbox_.cancelled);
  return taken;
}

// Waits until the device has nothing to do.
void LocalReplica::end_steps() {
  deliver();
  while (scheduler_.is_in_flight()) {
    outcomes_ = scheduler_.end_oldest_step();
    deliver();
  }
}

// Scores the prompt of the next job that wants it, between two steps, where there is room; one at a
// time, so that other jobs go on.
void LocalReplica::score_next() {
  end_steps();
  Job& job = *to_score_.front();
  if (!can_score(job)) return;
  job.started = Job::Clock::now();
  const bool goes_on = job.rules.max_tokens != 0;
  try {
    job.prompt_logprobs = score_tokens(model_, job.rules.prompt, job.rules.adapter,
                                       job.rules.prompt_logprobs, prefix_sharing_ && goes_on);
  } catch (const std::exception& error) {
    return end(job, FinishReason::cancelled, {.error = error.what(), .is_of_device = true});
  }
  to_score_.pop_front();
  generate(job);
}

// Whether there is a slot, and pages.
bool LocalReplica::can_score(const Job& job) const {
  if (scheduler_.idle()) return true;
  const PagePool& pages = model_.runner->pages();
  return scheduler_.n_running() < model_.info.slots &&
         pages.n_free() + pages.n_idle() >=
             pages_for(static_cast<int64_t>(job.rules.prompt.size()));
}

// Takes what came, and begins it.
LocalReplica::Inbox LocalReplica::begin_work() {
  Inbox work = take_inbox();
  for (auto& job : work.submitted) start(std::move(job));
  return work;
}

// Ends jobs that were cancelled, and those that failed, between two steps.
void LocalReplica::end_early(std::span<const RequestId> cancelled) {
  end_steps();
  for (const RequestId id : cancelled) {
    failed_.insert_or_assign(id, Failure{});  // nobody is to answer it any more
    // Who has it now may have been told before it came there.
    if (const auto rescued = rescued_.find(id); rescued != rescued_.end()) {
      rescued->second->cancel(id);
    }
  }
  for (const auto& [id, failure] : std::exchange(failed_, {})) {
    const auto job = jobs_.find(id);
    if (job != jobs_.end()) end(*job->second, FinishReason::cancelled, failure);
  }
}

void LocalReplica::start(std::unique_ptr<Job> new_job) {
  Job& job = *new_job;
  jobs_.emplace(job.id, std::move(new_job));
  if (job.rules.prompt_logprobs < 0) return generate(job);
  to_score_.push_back(&job);
}

void LocalReplica::generate(Job& job) {
  if (job.rules.max_tokens == 0) return end(job, FinishReason::length, {});
  // Jobs' numbers are in the order in which the engine got them: one that comes here because
  // another replica failed it does not wait behind all that came later.
  constexpr uint64_t kMostParts = 128;
  for (size_t i = 0; i < job.parts.size(); ++i) {
    job.parts[i]->arrival = job.id * kMostParts + i;
    scheduler_.add(*job.parts[i]);
  }
}

// While the device computes a step, what came of the one before is delivered.
void LocalReplica::step() {
  scheduler_.begin_step();
  deliver();
  outcomes_ = scheduler_.end_step();
  if (!model_.backend->runs_beside_host()) deliver();  // else it would wait for a whole step
}

// Tells requests what came of a step. Those that fail are ended later, with all their parts, some
// of which may be in the step that runs.
void LocalReplica::deliver() {
  const Job::Clock::time_point now = Job::Clock::now();
  std::vector<Scheduler::Outcome> outcomes = std::exchange(outcomes_, {});
  // Where there are a thousand others, each of which takes its time, who waits for an answer's
  // beginning waits for none of them.
  std::stable_partition(outcomes.begin(), outcomes.end(), [](const Scheduler::Outcome& outcome) {
    return outcome.has_token && !static_cast<const Part&>(*outcome.entry).job->first_token;
  });
  for (const Scheduler::Outcome& outcome : outcomes) {
    auto& part = static_cast<Part&>(*outcome.entry);
    if (!part.job->started) part.job->started = now;
    if (!outcome.error.empty()) {
      part.group->finish(FinishReason::cancelled);
      failed_.emplace(part.job->id, Failure{outcome.error, outcome.is_of_device});
    }
    if (failed_.contains(part.job->id)) continue;
    try {
      if (outcome.has_token) {
        on_token(part, now);
      } else {
        on_prompt(part, outcome.n_cached);
      }
    } catch (const std::exception& error) {  // the request's own callback
      failed_.emplace(part.job->id, Failure{.error = error.what()});
      continue;
    }
    if (part.group->finished()) end_part(part);
  }
}

void LocalReplica::on_prompt(const Part& part, int64_t n_done) {
  const Job& job = *part.job;
  if (!job.callbacks.on_prompt || job.first_token || part.sample != 0) return;
  job.callbacks.on_prompt({.done = n_done, .total = static_cast<int64_t>(job.rules.prompt.size())});
}

void LocalReplica::on_token(const Part& part, Job::Clock::time_point now) {
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

void LocalReplica::end_part(const Part& part) {
  if (--part.job->unfinished == 0) end(*part.job, FinishReason::length, {});
}

// Ends a job, and with `reason` those of its parts that have not ended by themselves.
void LocalReplica::end(Job& job, FinishReason reason, const Failure& failure) {
  const bool is_scheduled = std::erase(to_score_, &job) == 0 && job.rules.max_tokens != 0;
  for (const auto& part : job.parts) {
    if (part->group->finished()) continue;
    if (is_scheduled) scheduler_.remove(*part);
    part->group->finish(reason);
  }
  const auto holder = jobs_.extract(job.id);
  n_unfinished_ -= static_cast<int64_t>(job.parts.size());
  if (failure.is_of_device) {
    has_failed_ = true;
    Replica* other = rescue_ ? rescue_(job) : nullptr;
    if (other != nullptr) {
      rescued_.emplace(job.id, other);
      return;
    }
  }
  ++n_finished_;
  publish();
  if (job.callbacks.on_finish) job.callbacks.on_finish(job.take_result(), failure.error);
}

void LocalReplica::publish() {
  const SchedulerCounts& counts = scheduler_.counts();
  const PagePool& pages = model_.runner->pages();
  size_t n_waiting = static_cast<size_t>(scheduler_.n_waiting());
  for (const Job* job : to_score_) n_waiting += job->parts.size();
  const std::lock_guard lock(mutex_);
  stats_ = {.steps = counts.steps,
            .prompt_tokens = counts.prompt_tokens,
            .cached_tokens = counts.cached_tokens,
            .generated_tokens = counts.generated_tokens,
            .proposed_tokens = counts.proposed_tokens,
            .accepted_tokens = counts.accepted_tokens,
            .preemptions = counts.preemptions,
            .finished = n_finished_,
            .running = scheduler_.n_running(),
            .waiting = static_cast<int32_t>(n_waiting + inbox_.submitted.size()),
            .free_tokens = int64_t{pages.n_free() + pages.n_idle()} * kPageTokens,
            .device_seconds = counts.device_seconds};
}

}  // namespace faststream
