// A model on devices of this process or its ranks, and the thread that runs it.
//
// Callers put jobs and cancellations into an inbox; the replica's thread takes them out between two
// steps of its scheduler. Only that thread touches the scheduler, the runner and jobs in work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/draft_model.h"
#include "engine/engine.h"
#include "engine/job.h"
#include "engine/loaded_model.h"
#include "engine/mtp_drafter.h"
#include "engine/replica.h"
#include "engine/rule_cache.h"
#include "engine/scheduler.h"
#include "text/chat_template.h"

namespace faststream {

/// Any thread may call any member at any time.
class LocalReplica final : public Replica {
 public:
  /// Throws as Engine's constructor does.
  LocalReplica(const std::filesystem::path& path, const EngineOptions& options, Rescue rescue);
  ~LocalReplica() override { stop(); }

  [[nodiscard]] const EngineInfo& info() const override { return model_.info; }
  [[nodiscard]] EngineStats stats() const override;
  [[nodiscard]] const Tokenizer& tokenizer() const { return *model_.tokenizer; }
  [[nodiscard]] const Tokenizer& prompt_tokenizer() const { return *model_.prompt_tokenizer; }
  /// Of a prompt, as Engine::tokenize() has it.
  [[nodiscard]] std::vector<int32_t> prompt_tokens(std::string_view text, bool parse_special) const;
  /// Null: it has none.
  [[nodiscard]] const ChatTemplate* chat() const { return chat_ ? &*chat_ : nullptr; }
  [[nodiscard]] ChatText write(const ChatPrompt& prompt) const;

  /// Before the first job is made: those of make_job() are for this other replica, too, which may
  /// have less room.
  void make_jobs_for(const EngineInfo& other);
  /// What is to be submitted; throws as Engine::submit() does. keeps: the request, too.
  [[nodiscard]] std::unique_ptr<Job> make_job(Request request, bool keeps) const;
  /// What another process has made: its rules, the rule of output apart. Of the request there is
  /// what Job reads.
  [[nodiscard]] std::unique_ptr<Job> take_job(const Request& request, GenerationRules rules) const;
  void submit(std::unique_ptr<Job> job) override;
  void cancel(RequestId request) override;

  [[nodiscard]] int64_t n_unfinished() const override { return n_unfinished_; }
  [[nodiscard]] bool has_failed() const override { return has_failed_; }
  void stop() override;

 private:
  // What other threads want of this one's.
  struct Inbox {
    std::vector<std::unique_ptr<Job>> submitted = {};
    std::vector<RequestId> cancelled = {};
    bool stopping = false;
  };
  // A job that is to be ended.
  struct Failure {
    std::string error = {};  // none: it was cancelled
    bool is_of_device = false;
  };
  // What jobs may need.
  struct Room {
    int64_t context = 0;
    int32_t slots = 0;
    int64_t kv_tokens = 0;
  };
  // How long a prompt is.
  struct PromptLength {
    int64_t tokens = 0;
    bool is_counted = false;  // else it has so many at least
  };

  // Any thread.
  // ------------------------------------------------------------------------------------

  [[nodiscard]] const ChatTemplate& chat_template() const;
  // Each throws Error where the model cannot do it.
  void check_fits(PromptLength length) const;
  void check_fits_encoder(PromptLength length) const;
  void check_fits_context(PromptLength length) const;
  void check_slots(int32_t beams) const;
  void check_answer_fits(const GenerationRules& rules) const;
  [[nodiscard]] std::string room_advice() const;
  /// As TextKind has it. Throws UsageError when there is none of that name.
  [[nodiscard]] int32_t adapter_number(const std::optional<std::string>& name) const;
  /// Tokens of prompt and answer: with beams no more than the KV cache holds for all of them.
  [[nodiscard]] int64_t context_for(const GenerationRules& rules) const;

  // The replica's.
  // ---------------------------------------------------------------------------------

  void run();
  [[nodiscard]] Inbox take_inbox();
  Inbox begin_work();
  void end_steps();
  void score_next();
  [[nodiscard]] bool can_score(const Job& job) const;
  void end_early(std::span<const RequestId> cancelled);
  void start(std::unique_ptr<Job> job);
  void generate(Job& job);
  void step();
  void deliver();
  static void on_prompt(const Part& part, int64_t n_done);
  static void on_token(const Part& part, Job::Clock::time_point now);
  void end_part(const Part& part);
  void end(Job& job, FinishReason reason, const Failure& failure);
  void publish();

  std::unique_ptr<DraftModel> draft_;  // before the model, which takes what is left of memory
  LoadedModel model_;
  std::unique_ptr<MtpDrafter> mtp_;
  Room room_;  // for jobs that are made here
  mutable RuleCache rule_cache_;
  std::string context_option_;  // which made the context smaller than the model's
  std::optional<ChatTemplate> chat_;
  std::string chat_error_;  // why the model's own template is none
  Rescue rescue_;
  Scheduler scheduler_;
  bool prefix_sharing_;
  std::unordered_map<RequestId, std::unique_ptr<Job>> jobs_;  // in work
  std::vector<Scheduler::Outcome> outcomes_;                  // of the last step, to be delivered
  std::unordered_map<RequestId, Failure> failed_;             // jobs to be ended
  std::unordered_map<RequestId, Replica*> rescued_;           // jobs that others answer
  std::deque<Job*> to_score_;                                 // before they generate
  int64_t n_finished_ = 0;
  std::atomic<int64_t> n_unfinished_ = 0;
  std::atomic<bool> has_failed_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by it:
  Inbox inbox_;
  EngineStats stats_;

  std::thread thread_;  // last: it uses all others
};

}  // namespace faststream
