// Who takes part in which step, without a model: tokens lie in pages and states in place of what a
// model would make of them, and every step finds there what its sequences have behind them.
#include "engine/scheduling_policy.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>

#include "bench/random_model.h"
#include "engine/cache_kinds.h"
#include "unit/engine/fixed_states.h"

namespace faststream {
namespace {

// A text that is known beforehand, and proposals for it that are right now and then.
class KnownText final : public SequenceGroup {
 public:
  KnownText(uint32_t seed, size_t n_prompt, size_t n_answer, size_t n_proposed = 0)
      : n_prompt_(n_prompt), n_proposed_(n_proposed), random_(seed) {
    while (all_.size() < n_prompt + n_answer) all_.push_back(any_token());
    tokens_.assign(all_.begin(), all_.begin() + static_cast<ptrdiff_t>(n_prompt));
    propose_all();
  }
  /// Begins as another one does.
  void begin_like(const KnownText& other, size_t n_tokens) {
    std::copy_n(other.all_.begin(), n_tokens, all_.begin());
    std::copy_n(other.all_.begin(), n_tokens, tokens_.begin());
  }

  [[nodiscard]] int32_t width() const override { return 1; }
  [[nodiscard]] size_t n_sequences() const override { return 1; }
  [[nodiscard]] const std::vector<int32_t>& tokens(size_t) const override { return tokens_; }
  [[nodiscard]] std::span<const int32_t> source() const override { return {}; }
  [[nodiscard]] SamplingRow sampling_row(size_t) const override { return {}; }
  [[nodiscard]] ProposalOffer offer(CommonRates&) override {
    return {.most = static_cast<int32_t>(proposed_.size()), .acceptance = 0.7F};
  }
  [[nodiscard]] std::span<const int32_t> proposed() const override { return proposed_; }
  std::span<const int32_t> accept(std::span<SampledToken> sampled) override {
    static constexpr int32_t kItself = 0;
    for (size_t i = 0; i < sampled.size() && !finished(); ++i) {
      tokens_.push_back(all_[tokens_.size()]);
      if (i < proposed_.size() && proposed_[i] != tokens_.back()) break;
    }
    propose_all();
    return {&kItself, 1};
  }
  std::string_view write() override { return {}; }
  [[nodiscard]] int32_t newest_token() const override { return tokens_.back(); }
  void finish(FinishReason) override { all_ = tokens_; }
  [[nodiscard]] bool finished() const override { return tokens_.size() == all_.size(); }
  std::vector<Output> take_outputs() override { return {}; }

  [[nodiscard]] size_t n_answer() const { return tokens_.size() - n_prompt_; }
  [[nodiscard]] int32_t n_prompt() const { return static_cast<int32_t>(n_prompt_); }

 private:
  int32_t any_token() { return static_cast<int32_t>(random_() % 100); }
  void propose_all() {
    proposed_.clear();
    for (size_t i = 0; i < n_proposed_; ++i) {
      const size_t place = tokens_.size() + i;
      const bool is_right = random_() % 3 != 0 && place < all_.size();
      proposed_.push_back(is_right ? all_[place] : any_token());
    }
  }

  size_t n_prompt_;
  size_t n_proposed_;
  std::mt19937 random_;
  std::vector<int32_t> all_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> proposed_;
};

// A policy with caches, and a device that only remembers.
class Stage {
 public:
  /// n_states: sequences that there are states for; 0: the model has none.
  Stage(int32_t n_pages, const SchedulerLimits& limits, int32_t n_states = 0)
      : limits_(limits),
        caches_(kinds(n_states), {.n_pages = n_pages}),
        policy_(caches_, config_, limits, [this](const PageCopy& copy) { this->copy(copy); }),
        pages_(static_cast<size_t>(n_pages)),
        states_(static_cast<size_t>(FixedStatesKind::n_states(n_states))) {
    if (n_states > 0) fixed_ = dynamic_cast<StateCache*>(caches_.caches().back().get());
    entries_.reserve(100);
  }

  KnownText& add(std::unique_ptr<KnownText> text) {
    texts_.push_back(std::move(text));
    entries_.push_back({.group = texts_.back().get(), .arrival = entries_.size()});
    policy_.add(entries_.back());
    return *texts_.back();
  }
  const StepPlan& plan() {
    policy_.plan(plan_, false);
    return plan_;
  }
  // Computes what was planned; where the device fails, each part alone.
  void finish(bool fails = false) {
    for (const PageCopy& copy : plan_.copies) this->copy(copy);
    if (fails) {
      begin(plan_.parts);
      compute(plan_.parts);  // of which nothing counts
      for (const NewTokens& input : plan_.inputs) {
        caches_.abandon(*input.sequence, input.n_tokens());
      }
      for (const StepPlan::Part& part : plan_.parts) compute_and_follow({&part, 1});
    } else if (!plan_.parts.empty()) {
      compute_and_follow(plan_.parts);
    }
    policy_.end_step(plan_);
    for (const SchedulerOutcome& outcome : policy_.take_outcomes()) {
      EXPECT_EQ(outcome.error, "");
    }
    most_running_ = std::max(most_running_, policy_.n_running());
  }
  void run(const std::function<bool(int)>& fails = [](int) { return false; }) {
    for (n_steps_ = 0; !policy_.idle(); ++n_steps_) {
      if (n_steps_ > 2000) throw std::logic_error("the policy does not get on");
      plan();
      EXPECT_LE(plan_.n_tokens(plan_.parts, true) + plan_.n_tokens(plan_.parts, false),
                limits_.max_step_tokens);
      finish(fails(n_steps_));
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(caches_.pages().n_free() + caches_.pages().n_idle(), caches_.pages().n_pages());
    if (fixed_ != nullptr) {
      EXPECT_EQ(fixed_->n_sequences(), 0);
    }
  }
  [[nodiscard]] int64_t n_answered() const {
    size_t n = 0;
    for (const auto& text : texts_) n += text->n_answer();
    return static_cast<int64_t>(n);
  }
  [[nodiscard]] const SchedulerEntry& entry(size_t i) const { return entries_[i]; }
  [[nodiscard]] const SchedulerCounts& counts() const { return policy_.counts(); }
  [[nodiscard]] int n_steps() const { return n_steps_; }
  [[nodiscard]] int32_t most_running() const { return most_running_; }

 private:
  using Parts = std::span<const StepPlan::Part>;

  static CacheKinds kinds(int32_t n_states) {
    CacheKinds kinds = cache_kinds(tiny_decoder(1), DType::f32);
    if (n_states > 0) kinds.push_back(std::make_unique<FixedStatesKind>(n_states));
    return kinds;
  }
  void copy(const PageCopy& copy) {
    pages_[static_cast<size_t>(copy.to)] = pages_[static_cast<size_t>(copy.from)];
  }
  int32_t& place(const Sequence& sequence, int32_t position) {
    const int32_t page = sequence.pages.at(static_cast<size_t>(position / kPageTokens));
    return pages_[static_cast<size_t>(page)][static_cast<size_t>(position % kPageTokens)];
  }
  void begin(Parts parts) {
    for (const NewTokens& input : plan_.inputs_of(parts)) {
      caches_.begin(*input.sequence, input.n_tokens());
    }
  }
  void compute(Parts parts) {
    for (const StepPlan::Part& part : parts) {
      for (const NewTokens& input : plan_.inputs_of({&part, 1})) {
        compute(input, dynamic_cast<const KnownText&>(*part.entry->group));
      }
    }
  }
  void compute(const NewTokens& input, const KnownText& known) {
    const Sequence& sequence = *input.sequence;
    const int32_t first = sequence.n_cached - input.n_tokens();
    if (first < known.n_prompt()) {
      ASSERT_LE(sequence.n_cached, known.n_prompt());
      ASSERT_FALSE(input.one_by_one);
    } else {
      ASSERT_LE(input.n_tokens(), kMostOneByOne);
      ASSERT_TRUE(input.one_by_one || input.n_tokens() == 1);
    }
    const std::vector<int32_t>& text = known.tokens(0);
    std::vector<int32_t> seen(text.begin(), text.begin() + first);
    for (int32_t n = 0; n < first; ++n) {
      ASSERT_EQ(place(sequence, n), seen[static_cast<size_t>(n)]) << "position " << n;
    }
    if (fixed_ != nullptr) {
      ASSERT_EQ(states_[static_cast<size_t>(fixed_->states_of(sequence).from)], seen);
    }
    seen.insert(seen.end(), input.tokens.begin(), input.tokens.end());
    seen.insert(seen.end(), input.proposed.begin(), input.proposed.end());
    for (int32_t n = first; n < sequence.n_cached; ++n) {
      place(sequence, n) = seen[static_cast<size_t>(n)];
    }
    if (fixed_ == nullptr) return;
    const CacheHold& held = fixed_->states_of(sequence);
    if (held.border != 0) {
      ASSERT_GT(border_of(sequence.n_cached), first);
      states_[static_cast<size_t>(held.border)] = {seen.begin(),
                                                   seen.begin() + border_of(sequence.n_cached)};
    }
    states_[static_cast<size_t>(held.to)] = seen;
  }
  void compute_and_follow(Parts parts) {
    begin(parts);
    compute(parts);
    for (const StepPlan::Part& part : parts) {
      policy_.processed(plan_, part);
      size_t n_rows = 0;
      for (const NewTokens& input : plan_.inputs_of({&part, 1})) {
        n_rows += static_cast<size_t>(input.n_logits());
      }
      std::vector<SampledToken> sampled(n_rows);
      std::span<const int32_t> parents;
      if (n_rows > 0) parents = part.entry->group->accept(sampled);
      policy_.follow(plan_, part, n_rows > 0, parents);
    }
  }

  ModelConfig config_ = tiny_decoder(1);
  SchedulerLimits limits_;
  SequenceCaches caches_;
  SchedulingPolicy policy_;
  StateCache* fixed_ = nullptr;
  std::vector<std::array<int32_t, kPageTokens>> pages_;
  std::vector<std::vector<int32_t>> states_;
  std::vector<std::unique_ptr<KnownText>> texts_;
  std::vector<SchedulerEntry> entries_;
  StepPlan plan_;
  int n_steps_ = 0;
  int32_t most_running_ = 0;
};

constexpr SchedulerLimits kPolicyLimits{
    .slots = 4, .max_step_tokens = 96, .first_tokens = 96, .chunk = 64};

SchedulerLimits proposing(int32_t n) {
  SchedulerLimits limits = kPolicyLimits;
  limits.proposed_tokens = n;
  limits.always_proposes = true;
  return limits;
}

void add_texts(Stage& stage, size_t n_proposed) {
  const KnownText first(0, 70, 1);
  for (uint32_t i = 0; i < 9; ++i) {
    const size_t n_prompt = 5 + 37 * i % 120;
    auto text = std::make_unique<KnownText>(i, n_prompt, 10 + 13 * i % 50, n_proposed);
    if (i % 3 == 1) text->begin_like(first, std::min<size_t>(n_prompt, 70));
    stage.add(std::move(text));
  }
  for (uint32_t i = 0; i < 4; ++i) {  // which grow
    stage.add(std::make_unique<KnownText>(20 + i, 4, 90, n_proposed));
  }
}

TEST(SchedulingPolicy, RunsTextsInPagesThatDoNotDoForAll) {
  Stage stage(7, kPolicyLimits);
  add_texts(stage, 0);
  stage.run();
  EXPECT_GT(stage.counts().preemptions, 0);
  EXPECT_EQ(stage.counts().generated_tokens, stage.n_answered());
}

TEST(SchedulingPolicy, KeepsOfProposedTokensThoseThatTheTextHas) {
  Stage plain(40, kPolicyLimits);
  add_texts(plain, 0);
  plain.run();
  for (const int32_t n_pages : {40, 7}) {
    Stage stage(n_pages, proposing(16));
    add_texts(stage, 4);
    stage.run();
    EXPECT_EQ(stage.counts().generated_tokens, stage.n_answered()) << n_pages;
    EXPECT_EQ(stage.n_answered(), plain.n_answered());
    if (n_pages == 40) {
      EXPECT_LT(stage.n_steps(), plain.n_steps()) << "several tokens a step";
    }
  }
}

TEST(SchedulingPolicy, GivesProposedTokensOnlyRoomToSpare) {
  Stage stage(1, proposing(8));
  stage.add(std::make_unique<KnownText>(1, 29, 3, 5));
  stage.plan();
  stage.finish();
  // Token 29 and two more are what the page has room for, and there is no other.
  const StepPlan& plan = stage.plan();
  ASSERT_EQ(plan.inputs.size(), 1U);
  EXPECT_EQ(plan.inputs[0].tokens.size(), 1U);
  EXPECT_EQ(plan.inputs[0].proposed.size(), 2U);
  EXPECT_EQ(plan.inputs[0].n_logits(), 3);
  stage.finish();
}

TEST(SchedulingPolicy, CountsProposedTokensInTheStep) {
  SchedulerLimits limits = proposing(5);
  limits.max_step_tokens = 16;
  limits.first_tokens = 16;
  Stage stage(40, limits);
  stage.add(std::make_unique<KnownText>(1, 3, 20, 4));
  stage.add(std::make_unique<KnownText>(2, 3, 20, 4));
  stage.plan();
  stage.finish();
  stage.add(std::make_unique<KnownText>(3, 50, 20));
  const StepPlan& plan = stage.plan();
  ASSERT_EQ(plan.inputs.size(), 3U);
  EXPECT_EQ(plan.inputs[0].proposed.size(), 4U);
  EXPECT_EQ(plan.inputs[1].proposed.size(), 1U) << "five of the step in all";
  EXPECT_EQ(plan.n_tokens(plan.parts, true), 7);
  EXPECT_EQ(plan.n_tokens(plan.parts, false), 9) << "what they leave of sixteen";
  stage.finish();
  stage.run();
}

TEST(SchedulingPolicy, LetsSequencesWaitForStates) {
  Stage stage(40, kPolicyLimits, 2);
  add_texts(stage, 0);
  stage.run();
  EXPECT_EQ(stage.most_running(), 2) << "of four slots";
}

TEST(SchedulingPolicy, GoesOnFromTheStateBeforeAStepThatDoesNotCountAsAWhole) {
  Stage stage(40, proposing(16), 6);
  add_texts(stage, 4);
  stage.run();
  EXPECT_EQ(stage.counts().generated_tokens, stage.n_answered());
}

TEST(SchedulingPolicy, TriesPartsOfAFailedStepAgainFromWhereTheyWere) {
  for (const int32_t n_states : {0, 6}) {
    Stage stage(40, proposing(8), n_states);
    add_texts(stage, 2);
    stage.run([](int step) { return step % 3 == 1; });
    EXPECT_EQ(stage.counts().generated_tokens, stage.n_answered());
  }
}

TEST(SchedulingPolicy, TakesAKnownTextUpToWhereEveryCacheHasIt) {
  SchedulerLimits limits = kPolicyLimits;
  limits.first_tokens = 64;  // so that a step ends with a page
  for (const int32_t n_states : {0, 6}) {
    Stage stage(40, limits, n_states);
    const KnownText& first = stage.add(std::make_unique<KnownText>(1, 84, 2));
    stage.run();
    auto second = std::make_unique<KnownText>(2, 90, 2);
    second->begin_like(first, 84);
    stage.add(std::move(second));
    stage.run();
    EXPECT_EQ(stage.entry(1).cached_tokens, n_states == 0 ? 84 : 64) << "a state at a page's end";
  }
}

}  // namespace
}  // namespace faststream
