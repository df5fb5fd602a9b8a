// The scheduler on a device that fails: only the sequences concerned are lost, every page comes
// back, and what is left goes on as if nothing had been.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "engine/beam_search.h"
#include "engine/load_weights.h"
#include "model_file/model_file.h"
#include "text/tokenizer.h"
#include "unit/backend/failing_backend.h"
#include "unit/engine/engine_model.h"
#include "unit/support/refused_threads.h"

namespace faststream {
namespace {

constexpr int32_t kPages = 14;  // too few for all: sequences are preempted
constexpr RunnerLimits kLimits{.n_pages = kPages, .batch = {.max_tokens = 96, .max_logits = 4}};
constexpr SchedulerLimits kSchedulerLimits{
    .slots = 4, .max_step_tokens = 96, .first_tokens = 96, .chunk = 48, .prefix_sharing = true};

// Samples and beam searches of which some share a prefix that ends inside a page.
class Requests {
 public:
  explicit Requests(const Tokenizer& tokenizer, bool with_beams = true) {
    std::mt19937 random(5);
    std::vector<int32_t> common{1};
    while (common.size() < 45) common.push_back(3 + static_cast<int32_t>(random() % 270));
    for (int i = 0; i < 7; ++i) {
      auto rules = std::make_unique<GenerationRules>();
      if (i % 2 == 0) rules->prompt = common;
      for (uint32_t n = 2 + random() % 60; n > 0; --n) {
        rules->prompt.push_back(3 + static_cast<int32_t>(random() % 270));
      }
      rules->sampling.seed = static_cast<uint64_t>(i);
      rules->max_tokens = 3 + i;
      rules->context = 200;
      rules->ignore_eos = true;
      if (!with_beams) rules->max_tokens += 30;
      for (int32_t token = i; !with_beams && i % 2 == 1 && token < 270; token += 15) {
        rules->stop_tokens.push_back(token);  // it ends where nobody expects it
      }
      if (with_beams && i % 3 == 1) {
        rules->search.beams = 2 + i / 3;
        rules->n_best = rules->search.beams;
        groups_.push_back(std::make_unique<BeamSearch>(*rules, tokenizer));
      } else {
        groups_.push_back(std::make_unique<SampleGroup>(*rules, tokenizer, 0));
      }
      entries.push_back({.group = groups_.back().get(), .arrival = static_cast<uint64_t>(i)});
      rules_.push_back(std::move(rules));
    }
  }

  // All tokens of a group that has finished.
  [[nodiscard]] std::vector<int32_t> text(size_t i) const {
    std::vector<int32_t> tokens;
    for (const Output& output : groups_[i]->take_outputs()) {
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    }
    return tokens;
  }

  std::vector<Scheduler::Entry> entries;

 private:
  std::vector<std::unique_ptr<SequenceGroup>> groups_;
  std::vector<std::unique_ptr<GenerationRules>> rules_;
};

struct Trial {
  std::vector<std::vector<int32_t>> texts;  // of each request; empty if it failed
  std::map<size_t, std::string> errors;
  int64_t n_calls = 0;
  int64_t n_beside = 0;               // steps that ended beside another one
  std::set<std::thread::id> threads;  // that called the device
};

class FailingScheduler : public testing::Test {
 protected:
  explicit FailingScheduler(const ModelConfig& config = engine_shape(WeightFormat::f32))
      : image_(bench::make_random_model(config, 11)),
        file_(ModelFile::from_bytes(image_.bytes(), "random")),
        tokenizer_(make_sentencepiece_tokenizer(
            as_bytes(text_of_tokenizer_),
            TokenizerConfig{.bos = 1, .eos = {2}, .prefix = {1}, .suffix = {}}, "small")) {}

  // Runs all requests with a device that fails where `fails(call number, operation)`.
  Trial run(const std::function<bool(int64_t, const std::string&)>& fails,
            const SchedulerLimits& limits = kSchedulerLimits, bool with_beams = true) {
    Trial result;
    bool armed = false;
    FailingBackend backend(make_cpu_backend(1), [&](const std::string& operation) {
      if (armed) result.threads.insert(std::this_thread::get_id());
      return armed && fails(++result.n_calls, operation);
    });
    Runner runner(file_, backend, kLimits, nullptr);
    Requests requests(*tokenizer_, with_beams);
    armed = true;
    {
      Scheduler scheduler(runner, limits);
      for (Scheduler::Entry& entry : requests.entries) scheduler.add(entry);
      std::set<const Scheduler::Entry*> inside;
      for (const Scheduler::Entry& entry : requests.entries) inside.insert(&entry);
      for (int steps = 0; !scheduler.idle(); ++steps) {
        if (steps > 2000) throw std::logic_error("the scheduler does not get on");
        for (const Scheduler::Outcome& outcome : scheduler.step()) {
          const auto i = static_cast<size_t>(outcome.entry - requests.entries.data());
          EXPECT_TRUE(inside.contains(outcome.entry)) << "request " << i << " had left";
          if (!outcome.error.empty()) {
            EXPECT_TRUE(result.errors.emplace(i, outcome.error).second);
            EXPECT_FALSE(outcome.entry->group->finished());
          }
          if (!outcome.error.empty() || outcome.entry->group->finished()) {
            EXPECT_TRUE(outcome.entry->sequences.empty());
            inside.erase(outcome.entry);
          }
        }
        result.n_beside += scheduler.is_in_flight() ? 1 : 0;
        int32_t slots = 0;
        for (const Scheduler::Entry* entry : inside) slots += entry->group->width();
        EXPECT_EQ(scheduler.n_running() + scheduler.n_waiting(), slots);
        expect_pages_add_up(runner.pages(), requests);
      }
      EXPECT_EQ(runner.pages().n_free() + runner.pages().n_idle(), kPages);
    }
    EXPECT_EQ(runner.pages().n_free(), kPages) << "the prefix cache gives its pages back";
    for (size_t i = 0; i < requests.entries.size(); ++i) {
      result.texts.push_back(result.errors.contains(i) ? std::vector<int32_t>() : requests.text(i));
    }
    return result;
  }

  // Every hold on a page is a sequence's or the prefix cache's.
  static void expect_pages_add_up(const PagePool& pool, const Requests& requests) {
    std::map<int32_t, int32_t> holds;
    for (const Scheduler::Entry& entry : requests.entries) {
      for (const Sequence& sequence : entry.sequences) {
        for (const int32_t page : sequence.pages) ++holds[page];
      }
    }
    int32_t n_free = 0;
    int32_t n_idle = 0;
    for (int32_t page = 0; page < kPages; ++page) {
      const int32_t beyond = pool.references(page) - holds[page];
      EXPECT_TRUE(beyond == 0 || beyond == 1) << "page " << page << " has " << beyond << " more";
      if (pool.references(page) == 0) ++n_free;
      if (holds[page] == 0 && beyond == 1) ++n_idle;
    }
    EXPECT_EQ(pool.n_free(), n_free);
    EXPECT_EQ(pool.n_idle(), n_idle);
  }

  // What did not fail has its own text.
  static void expect_texts(const Trial& run, const Trial& sound) {
    for (size_t i = 0; i < sound.texts.size(); ++i) {
      if (!run.errors.contains(i)) {
        EXPECT_EQ(run.texts[i], sound.texts[i]) << "request " << i;
      }
    }
  }

  static bool never(int64_t, const std::string&) { return false; }

  // Takes a group out after some steps; the others have their own texts.
  void remove_one_after(int n_steps, const SchedulerLimits& limits, const Trial& sound,
                        bool with_beams = true) {
    const auto backend = make_cpu_backend(1);
    Runner runner(file_, *backend, kLimits, nullptr);
    Requests requests(*tokenizer_, with_beams);
    Scheduler scheduler(runner, limits);
    for (Scheduler::Entry& entry : requests.entries) scheduler.add(entry);
    for (int n = 0; n < n_steps; ++n) (void)scheduler.step();
    while (scheduler.is_in_flight()) (void)scheduler.end_oldest_step();
    size_t removed = 0;
    while (requests.entries[removed].group->finished()) ++removed;
    scheduler.remove(requests.entries[removed]);
    expect_pages_add_up(runner.pages(), requests);
    while (!scheduler.idle()) (void)scheduler.step();
    EXPECT_FALSE(requests.entries[removed].group->finished());
    for (size_t i = 0; i < requests.entries.size(); ++i) {
      if (i != removed) {
        EXPECT_EQ(requests.text(i), sound.texts[i]) << "request " << i;
      }
    }
  }

  // Steps begin before it is known what the ones before chose, also where some of them fail.
  void expect_runs_ahead() {
    SchedulerLimits limits = kSchedulerLimits;
    const Trial sound = run(never, limits, false);
    EXPECT_EQ(sound.n_beside, 0);
    limits.runs_ahead = true;
    const Trial ahead = run(never, limits, false);
    EXPECT_EQ(ahead.texts, sound.texts);
    EXPECT_GT(ahead.n_beside, 20);
    EXPECT_EQ(run(never, limits).texts, run(never).texts) << "beside beam searches";
    limits.threads = 3;
    EXPECT_EQ(run(never, limits, false).texts, sound.texts);
    for (int64_t k = 1; k <= ahead.n_calls; k += 1 + k / 4) {
      SCOPED_TRACE("call " + std::to_string(k) + " fails");
      const auto is_call = [k](int64_t call, const std::string&) { return call == k; };
      const Trial failing = run(is_call, limits, false);
      expect_texts(failing, sound);
      EXPECT_LE(failing.errors.size(), 1U);
      SCOPED_TRACE("and so does every such one");
      const auto is_multiple = [k](int64_t call, const std::string&) { return call % k == 0; };
      expect_texts(run(is_multiple, limits, false), sound);
      if (HasFailure()) return;
    }
  }

  // The texts of many beam searches that run at once on a sound device; empty where one failed.
  std::vector<std::vector<int32_t>> run_many(SchedulerLimits limits) {
    constexpr int32_t kGroups = 60;
    const auto backend = make_cpu_backend(1);
    constexpr RunnerLimits kManyLimits{.n_pages = 400,
                                       .batch = {.max_tokens = 256, .max_logits = 256}};
    Runner runner(file_, *backend, kManyLimits, nullptr);
    limits.slots = 3 * kGroups;
    limits.max_step_tokens = limits.first_tokens = limits.chunk = 256;
    Scheduler scheduler(runner, limits);
    std::vector<GenerationRules> rules(kGroups);
    std::vector<std::unique_ptr<BeamSearch>> groups;
    std::vector<Scheduler::Entry> entries;
    entries.reserve(kGroups);
    for (int32_t i = 0; i < kGroups; ++i) {
      GenerationRules& rule = rules[static_cast<size_t>(i)];
      rule.prompt = {1, 3 + i};
      rule.max_tokens = 4 + i % 5;
      rule.context = 100;
      rule.search.beams = rule.n_best = 3;
      // No token is left for the third of every ten.
      for (int32_t token = 0; i % 10 == 3 && token < file_config_.vocab; ++token) {
        rule.never.push_back({token});
      }
      groups.push_back(std::make_unique<BeamSearch>(rule, *tokenizer_));
      entries.push_back({.group = groups.back().get(), .arrival = static_cast<uint64_t>(i)});
      scheduler.add(entries.back());
    }
    while (!scheduler.idle()) (void)scheduler.step();
    std::vector<std::vector<int32_t>> texts;
    for (const auto& group : groups) {
      std::vector<int32_t>& tokens = texts.emplace_back();
      for (const Output& output : group->take_outputs()) {
        tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
      }
    }
    return texts;
  }

 private:
  std::string text_of_tokenizer_ = serialize_sentencepiece_model(small_model(true));
  ModelImage image_;
  ModelFile file_;
  ModelConfig file_config_ = read_config(file_);
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(FailingScheduler, AdvancesGroupsInThreadsAsInOne) {
  const std::vector<std::vector<int32_t>> alone = run_many({.threads = 1});
  EXPECT_EQ(run_many({.threads = 4}), alone);
  EXPECT_EQ(run_many({.threads = 4, .turn_slots = 30}), alone) << "in turns";
  EXPECT_EQ(run_many({.threads = 4, .turns = 5, .turn_slots = 1}), alone) << "in five turns";
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i].empty(), i % 10 == 3) << i;
}

TEST_F(FailingScheduler, SurvivesAFailureOfEveryKthCall) {
  const Trial sound = run(never);
  ASSERT_TRUE(sound.errors.empty());
  for (int64_t k = 1; k <= sound.n_calls; k += k < 60 ? 1 : k / 12) {
    SCOPED_TRACE("every " + std::to_string(k) + "th call fails");
    const Trial failing = run([k](int64_t call, const std::string&) { return call % k == 0; });
    expect_texts(failing, sound);
    if (k < 5) {
      EXPECT_EQ(failing.errors.size(), sound.texts.size());
    }
    if (HasFailure()) return;
  }
}

TEST_F(FailingScheduler, TakesTurnsWithTheSameTexts) {
  SchedulerLimits turns = kSchedulerLimits;
  turns.turn_slots = 1;
  const Trial sound = run(never);
  const Trial in_turns = run(never, turns);
  EXPECT_EQ(in_turns.texts, sound.texts);
  EXPECT_GT(in_turns.n_calls, sound.n_calls) << "in more and smaller steps";
  EXPECT_EQ(sound.threads, std::set({std::this_thread::get_id()}));
  EXPECT_GT(in_turns.threads.size(), 1U) << "another one launches";
  SchedulerLimits more = turns;
  more.turns = 4;
  EXPECT_EQ(run(never, more).texts, sound.texts);
  for (int64_t k = 1; k <= in_turns.n_calls; k += 1 + k / 20) {
    SCOPED_TRACE("every " + std::to_string(k) + "th call fails");
    expect_texts(run([k](int64_t call, const std::string&) { return call % k == 0; }, turns),
                 sound);
    if (HasFailure()) return;
  }
}

TEST_F(FailingScheduler, TakesTurnsInOneThreadWhereTheSystemGivesNoOther) {
  SchedulerLimits turns = kSchedulerLimits;
  turns.turn_slots = 1;
  const Trial sound = run(never);
  const RefusedThreads refused;
  const Trial in_turns = run(never, turns);
  EXPECT_TRUE(in_turns.errors.empty());
  EXPECT_EQ(in_turns.texts, sound.texts);
  EXPECT_EQ(in_turns.threads, std::set({std::this_thread::get_id()}));
}

TEST_F(FailingScheduler, IsLeftByAGroupBetweenTurns) {
  const Trial sound = run(never);
  SchedulerLimits turns = kSchedulerLimits;
  turns.turn_slots = 1;
  for (int n_steps = 1; n_steps < 40; n_steps += 3) {
    SCOPED_TRACE("after " + std::to_string(n_steps) + " steps");
    remove_one_after(n_steps, turns, sound);
  }
}

TEST_F(FailingScheduler, RunsAheadWithTheSameTexts) { expect_runs_ahead(); }

TEST_F(FailingScheduler, IsLeftByAGroupThatRunsAhead) {
  const Trial sound = run(never, kSchedulerLimits, false);
  SchedulerLimits ahead = kSchedulerLimits;
  ahead.runs_ahead = true;
  for (int n_steps = 1; n_steps < 30; n_steps += 3) {
    SCOPED_TRACE("after " + std::to_string(n_steps) + " steps");
    remove_one_after(n_steps, ahead, sound, false);
  }
}

TEST_F(FailingScheduler, LosesNothingToAFailureThatDoesNotComeAgain) {
  const Trial sound = run(never);
  std::set<std::string> operations;
  for (int64_t k = 1; k <= sound.n_calls; k += 1 + k / 40) {
    SCOPED_TRACE("call " + std::to_string(k) + " fails");
    std::string what;
    const Trial failing = run([&](int64_t call, const std::string& operation) {
      if (call == k) what = operation;
      return call == k;
    });
    operations.insert(what);
    expect_texts(failing, sound);
    EXPECT_LE(failing.errors.size(), 1U) << what;
    if (HasFailure()) return;
  }
  EXPECT_GE(operations.size(), 9U);
}

TEST_F(FailingScheduler, LosesOnlyTheSequenceWhosePageIsNotCopied) {
  const Trial sound = run(never);
  int copies = 0;
  const Trial failing = run([&](int64_t, const std::string& operation) {
    // The copies of a step of several groups, and then those of the group alone.
    return operation == "copy_pages" && ++copies <= 2;
  });
  ASSERT_GE(copies, 2);
  ASSERT_EQ(failing.errors.size(), 1U);
  EXPECT_EQ(failing.errors.begin()->second, "the device failed in copy_pages");
  expect_texts(failing, sound);
}

TEST_F(FailingScheduler, LosesOnlyTheSequenceThatFailsAlone) {
  const Trial sound = run(never);
  // The first draw, which is for several, and then the first of them alone.
  int64_t n_draws = 0;
  const Trial failing = run([&](int64_t, const std::string& operation) {
    return operation == "sample" && ++n_draws <= 2;
  });
  EXPECT_EQ(failing.errors.size(), 1U);
  expect_texts(failing, sound);
}

// Whose states a step overwrites that is taken again.
class FailingHybridScheduler : public FailingScheduler {
 protected:
  FailingHybridScheduler() : FailingScheduler(hybrid_engine_shape(small_delta_net())) {}
};

TEST_F(FailingHybridScheduler, RunsAheadWithTheSameTexts) { expect_runs_ahead(); }

TEST_F(FailingHybridScheduler, GoesOnWithTheStatesBeforeAStepThatFailed) {
  const Trial sound = run(never);
  ASSERT_TRUE(sound.errors.empty());
  for (const std::string wanted : {"convolve", "recur", "attention", "sample"}) {
    for (const int64_t every : {3, 10}) {
      int64_t n = 0;
      const Trial trial = run([&](int64_t, const std::string& operation) {
        return operation == wanted && ++n % every == 0;
      });
      expect_texts(trial, sound);
    }
  }
}

}  // namespace
}  // namespace faststream
