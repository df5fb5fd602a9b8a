#include "engine/remote_replica.h"

#include <algorithm>
#include <exception>
#include <type_traits>
#include <utility>

#include "engine/local_replica.h"
#include "support/error.h"

namespace faststream {

// What messages are made of
// ----------------------------------------------------------------------------------------

template <typename Some, typename T>
concept SomeOf = std::is_same_v<std::remove_const_t<Some>, T>;

void visit_members(SomeOf<AdapterOption> auto& adapter, auto visit) {
  for (auto* text : {&adapter.name, &adapter.path}) visit(*text);
}

void visit_members(SomeOf<SamplingParams> auto& sampling, auto visit) {
  for (auto* number :
       {&sampling.temperature, &sampling.top_p, &sampling.min_p, &sampling.repetition_penalty,
        &sampling.presence_penalty, &sampling.frequency_penalty}) {
    visit(*number);
  }
  visit(sampling.top_k);
  visit(sampling.logit_bias);
  visit(sampling.no_repeat_ngram);
  visit(sampling.seed);
}

void visit_members(SomeOf<EngineInfo> auto& info, auto visit) {
  for (auto* text : {&info.device, &info.context_end}) visit(*text);
  for (auto* number :
       {&info.context, &info.max_context, &info.kv_tokens, &info.vocab, &info.kv_layers,
        &info.kv_in_eight, &info.source_context, &info.max_tokens, &info.min_tokens}) {
    visit(*number);
  }
  for (auto* number : {&info.slots, &info.chunk}) visit(*number);
  for (auto* bytes : {&info.weight_bytes, &info.kv_bytes}) visit(*bytes);
  visit(info.load_seconds);
  visit(info.adapters);
  visit(info.sampling);
  visit(info.search);
}

void visit_members(SomeOf<OutputRule> auto& rule, auto visit) {
  visit(rule.kind);
  for (auto* text : {&rule.text, &rule.name}) visit(*text);
}

void visit_members(SomeOf<ShownSpecial> auto& shown, auto visit) {
  visit(shown.all);
  visit(shown.some);
}

// But for the rule of output.
void visit_members(SomeOf<GenerationRules> auto& rules, auto visit) {
  for (auto* tokens : {&rules.source, &rules.prompt, &rules.stop_tokens, &rules.end_tokens}) {
    visit(*tokens);
  }
  for (auto* number : {&rules.adapter, &rules.n_best, &rules.logprobs, &rules.prompt_logprobs})
    visit(*number);
  for (auto* number : {&rules.max_tokens, &rules.min_tokens, &rules.context}) visit(*number);
  for (auto* token : {&rules.first, &rules.last}) visit(*token);
  for (auto* is : {&rules.ignore_eos, &rules.renormalizes, &rules.strip_start}) visit(*is);
  visit(rules.sampling);
  visit(rules.search);
  visit(rules.shown);
  visit(rules.stop);
  visit(rules.never);
}

void visit_members(SomeOf<PositionLogprobs> auto& logprobs, auto visit) {
  visit(logprobs.chosen);
  visit(logprobs.top);
}

void visit_members(SomeOf<Output> auto& output, auto visit) {
  for (auto* text : {&output.text, &output.stop}) visit(*text);
  for (auto* number : {&output.mean_logprob, &output.score}) visit(*number);
  visit(output.tokens);
  visit(output.finish_reason);
  visit(output.logprobs);
}

void visit_members(SomeOf<Result> auto& result, auto visit) {
  visit(result.outputs);
  visit(result.prompt_logprobs);
  for (auto* number : {&result.prompt_tokens, &result.cached_tokens}) visit(*number);
  for (auto* time : {&result.queue_seconds, &result.prompt_seconds, &result.generation_seconds}) {
    visit(*time);
  }
  visit(result.seed);
}

namespace {

using Bytes = MessageLink::Bytes;

// Of process 0, and of the other.
enum class Order : int32_t { load, submit, cancel, end, dismiss };
enum class News : int32_t { loaded, refused, progress, delta, finished, ended };

// What a replica is told of its options: all but where it runs, and what is of process 0 alone.
template <SomeOf<EngineOptions> Options>
void visit_told(Options& options, auto visit) {
  for (auto* is : {&options.exact_sums, &options.slots_for_search, &options.prefix_sharing,
                   &options.always_speculate, &options.ends_together}) {
    visit(*is);
  }
  for (auto* number : {&options.context, &options.kv_tokens}) visit(*number);
  for (auto* number : {&options.slots, &options.chunk}) visit(*number);
  for (auto* text : {&options.kv, &options.speculate}) visit(*text);
  visit(options.memory);
  visit(options.adapters);
}

// What Job reads of a request.
template <SomeOf<Request> SomeRequest>
void visit_read_by_job(SomeRequest& request, auto visit) {
  visit(request.speculate);
  for (auto* number : {&request.n, &request.best_of, &request.logprobs, &request.priority}) {
    visit(*number);
  }
  visit(request.rule);
}

std::string absolute_path(const std::filesystem::path& path) {
  return std::filesystem::absolute(path).string();
}

// A failure of the other process, as it is to be thrown here.
void put_failure(MessageWriter& writer, const std::exception& error) {
  writer.put(dynamic_cast<const UsageError*>(&error) != nullptr).put(std::string(error.what()));
}

std::exception_ptr take_failure(MessageReader& message, const std::string& where) {
  const bool is_of_usage = message.take<bool>();
  const std::string why = where + message.take<std::string>();
  if (is_of_usage) return std::make_exception_ptr(UsageError(why));
  return std::make_exception_ptr(Error(why));
}

}  // namespace

// Here
// ----------------------------------------------------------------------------------------

RemoteReplica::RemoteReplica(MessageLink& link, const std::filesystem::path& path,
                             const EngineOptions& options, Rescue rescue)
    : link_(link), rescue_(std::move(rescue)) {
  EngineOptions told = options;
  for (AdapterOption& adapter : told.adapters) adapter.path = absolute_path(adapter.path);
  MessageWriter order;
  order.put(Order::load).put(absolute_path(path));
  visit_told(std::as_const(told), [&](const auto& member) { order.put(member); });
  link_.send(order.bytes());
  MessageReader answer(link_.receive());
  if (answer.take<News>() == News::refused) {
    std::rethrow_exception(take_failure(answer, link_.other() + ": "));
  }
  answer.take(info_);
  thread_ = std::thread([this] { run(); });
}

EngineStats RemoteReplica::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void RemoteReplica::send(const MessageWriter& order) {
  try {
    link_.send(order.bytes());
  } catch (const Error&) {
    static_cast<void>(0);  // the thread hears of it, too
  }
}

void RemoteReplica::submit(std::unique_ptr<Job> job) {
  n_unfinished_ += static_cast<int64_t>(job->parts.size());
  const RequestId id = job->id;
  MessageWriter order;
  order.put(Order::submit).put(id);
  order.put(job->callbacks.on_prompt != nullptr).put(job->callbacks.on_delta != nullptr);
  visit_read_by_job(std::as_const(*job->request), [&](const auto& member) { order.put(member); });
  order.put(job->rules);
  {
    const std::lock_guard lock(mutex_);
    work_.emplace(id, Work{.job = std::move(job)});
    send(order);
  }
  wake_.notify_one();
}

void RemoteReplica::cancel(RequestId request) {
  Replica* other = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto work = work_.find(request); work != work_.end()) {
      work->second.is_cancelled = true;
      send(MessageWriter().put(Order::cancel).put(request));
    } else if (const auto moved = moved_.find(request); moved != moved_.end()) {
      moved->second.is_cancelled = true;
      other = moved->second.to;
    }
  }
  if (other != nullptr) other->cancel(request);
}

void RemoteReplica::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    send(MessageWriter().put(Order::end));
  }
  wake_.notify_one();
  thread_.join();
}

void RemoteReplica::run() {
  std::string why;
  try {
    while (hear()) continue;
  } catch (const std::exception& error) {
    has_failed_ = true;
    why = error.what();
  }
  // Nothing more is heard: of a process that has ended, what it had and what still comes.
  std::unique_lock lock(mutex_);
  while (true) {
    while (!work_.empty()) {
      const RequestId id = work_.begin()->first;
      lock.unlock();
      fail(id, why);
      lock.lock();
    }
    if (stopping_) return;
    wake_.wait(lock, [this] { return stopping_ || !work_.empty(); });
  }
}

// False: there is nothing more to hear.
bool RemoteReplica::hear() {
  MessageReader message(link_.receive());
  switch (message.take<News>()) {
    case News::progress:
      hear_progress(message);
      break;
    case News::delta:
      hear_delta(message);
      break;
    case News::finished:
      hear_end(message);
      break;
    case News::loaded:
    case News::refused:
    case News::ended:
      return false;
  }
  return true;
}

// The work of a job that still wants to hear of it; only this thread removes it.
RemoteReplica::Work* RemoteReplica::find(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto work = work_.find(id);
  return work == work_.end() || !work->second.error.empty() ? nullptr : &work->second;
}

// Calls a request's own callback, whose exceptions end it.
void RemoteReplica::tell(Work& work, const std::function<void(const Callbacks&)>& call) {
  try {
    call(work.job->callbacks);
  } catch (const std::exception& error) {
    work.error = error.what();
    cancel(work.job->id);
  }
}

void RemoteReplica::hear_progress(MessageReader& message) {
  Work* const work = find(message.take<RequestId>());
  if (work == nullptr) return;
  const auto progress = message.take<PromptProgress>();
  tell(*work, [&](const Callbacks& callbacks) { callbacks.on_prompt(progress); });
}

void RemoteReplica::hear_delta(MessageReader& message) {
  Work* const work = find(message.take<RequestId>());
  if (work == nullptr) return;
  Delta delta;
  message.take(delta.sample);
  message.take(delta.token);
  const auto text = message.take<std::string>();
  std::vector<PositionLogprobs>& logprobs = work->logprobs[delta.sample];
  std::ranges::move(message.take<std::vector<PositionLogprobs>>(), std::back_inserter(logprobs));
  delta.text = text;
  delta.logprobs = logprobs;
  if (!work->job->first_token) work->job->first_token = Job::Clock::now();
  tell(*work, [&](const Callbacks& callbacks) { callbacks.on_delta(delta); });
}

void RemoteReplica::hear_end(MessageReader& message) {
  const auto id = message.take<RequestId>();
  const bool is_of_device = message.take<bool>();
  const auto error = message.take<std::string>();
  auto result = message.take<Result>();
  Work work;
  {
    const std::lock_guard lock(mutex_);
    message.take(stats_);
    if (!work_.contains(id)) return;
    if (!is_of_device) work = std::move(work_.extract(id).mapped());
  }
  if (is_of_device) {
    has_failed_ = true;
    return fail(id, error);
  }
  end(std::move(work), std::move(result), error);
}

// Ends a job that the other process has failed, unless another replica answers it.
void RemoteReplica::fail(RequestId id, const std::string& why) {
  Work work;
  bool is_cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    work = std::move(work_.extract(id).mapped());
    is_cancelled = work.is_cancelled || stopping_;
    if (!is_cancelled) moved_.emplace(id, Moved());
  }
  Replica* const other = is_cancelled || !rescue_ ? nullptr : rescue_(*work.job);
  if (!is_cancelled) {
    const std::lock_guard lock(mutex_);
    const auto moved = moved_.find(id);
    moved->second.to = other;
    is_cancelled = moved->second.is_cancelled;
    if (other == nullptr) moved_.erase(moved);
  }
  if (other != nullptr) {
    n_unfinished_ -= static_cast<int64_t>(work.job->parts.size());
    if (is_cancelled) other->cancel(id);
    return;
  }
  for (const auto& part : work.job->parts) part->group->finish(FinishReason::cancelled);
  Result result = work.job->take_result();
  end(std::move(work), std::move(result), is_cancelled ? "" : why);
}

void RemoteReplica::end(Work work, Result result, const std::string& error) {
  n_unfinished_ -= static_cast<int64_t>(work.job->parts.size());
  const Callbacks& callbacks = work.job->callbacks;
  if (callbacks.on_finish) {
    callbacks.on_finish(std::move(result), work.error.empty() ? error : work.error);
  }
}

// There
// ----------------------------------------------------------------------------------------

namespace {

// A replica for another process.
class Servant {
 public:
  Servant(MessageLink& link, const std::string& path, const EngineOptions& options)
      : link_(link), replica_(path, options, {}) {
    link_.send(MessageWriter().put(News::loaded).put(replica_.info()).bytes());
  }

  // Until process 0 has no more for it: whether it may have another model.
  bool serve() {
    while (true) {
      MessageReader order(link_.receive());
      switch (order.take<Order>()) {
        case Order::submit:
          submit(order);
          break;
        case Order::cancel:
          replica_.cancel(order.take<RequestId>());
          break;
        case Order::end:
          replica_.stop();
          link_.send(MessageWriter().put(News::ended).bytes());
          return true;
        case Order::load:
        case Order::dismiss:
          return false;
      }
    }
  }

 private:
  void submit(MessageReader& order) {
    const auto id = order.take<RequestId>();
    try {
      Callbacks callbacks;
      if (order.take<bool>()) {
        callbacks.on_prompt = [this, id](const PromptProgress& progress) {
          link_.send(MessageWriter().put(News::progress).put(id).put(progress).bytes());
        };
      }
      if (order.take<bool>()) callbacks.on_delta = sender_of_deltas(id);
      callbacks.on_finish = [this, id](const Result& result, const std::string& error) {
        finish(id, !error.empty() && replica_.has_failed(), error, result);
      };
      Request request;
      visit_read_by_job(request, [&](auto& member) { order.take(member); });
      std::unique_ptr<Job> job = replica_.take_job(request, order.take<GenerationRules>());
      job->id = id;
      job->callbacks = std::move(callbacks);
      replica_.submit(std::move(job));
    } catch (const std::exception& error) {  // which process 0 would have found, were it the job's
      finish(id, true, error.what(), {});
    }
  }

  // Logprobs are of all tokens so far: those are sent that were not before.
  std::function<void(const Delta&)> sender_of_deltas(RequestId id) {
    return [this, id, n_sent = std::map<int32_t, size_t>()](const Delta& delta) mutable {
      size_t& n = n_sent[delta.sample];
      const std::vector<PositionLogprobs> logprobs(
          delta.logprobs.begin() + static_cast<ptrdiff_t>(std::min(n, delta.logprobs.size())),
          delta.logprobs.end());
      n = delta.logprobs.size();
      link_.send(MessageWriter()
                     .put(News::delta)
                     .put(id)
                     .put(delta.sample)
                     .put(delta.token)
                     .put(std::string(delta.text))
                     .put(logprobs)
                     .bytes());
    };
  }

  void finish(RequestId id, bool is_of_device, const std::string& error, const Result& result) {
    try {
      link_.send(MessageWriter()
                     .put(News::finished)
                     .put(id)
                     .put(is_of_device)
                     .put(error)
                     .put(result)
                     .put(replica_.stats())
                     .bytes());
    } catch (const Error&) {
      static_cast<void>(0);  // serve() hears of it, too
    }
  }

  MessageLink& link_;
  LocalReplica replica_;
};

}  // namespace

void serve_replica(MessageLink& link, const EngineOptions& place) {
  for (bool goes_on = true; goes_on;) {
    MessageReader order(link.receive());
    if (order.take<Order>() != Order::load) return;
    const auto path = order.take<std::string>();
    EngineOptions options = place;
    visit_told(options, [&](auto& member) { order.take(member); });
    std::unique_ptr<Servant> servant;
    try {
      servant = std::make_unique<Servant>(link, path, options);
    } catch (const std::exception& error) {
      MessageWriter news;
      put_failure(news.put(News::refused), error);
      link.send(news.bytes());
      continue;
    }
    goes_on = servant->serve();
  }
}

void dismiss_replica(MessageLink& link) { link.send(MessageWriter().put(Order::dismiss).bytes()); }

}  // namespace faststream
