// Texts are the same whether tokens are proposed for them or not.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "support/error.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/mixed_requests.h"
#include "unit/engine/repeating_requests.h"

namespace faststream {
namespace {

// In bf16, of widths for which a GPU has kernels of their own.
ModelConfig wide_delta_net_shape() {
  ModelConfig config =
      hybrid_engine_shape(DeltaNetConfig{.n_key_heads = 1,
                                         .n_value_heads = 2,
                                         .key_head_dim = 32,
                                         .value_head_dim = 16,
                                         .convolution = {.taps = 4, .activation = Activation::silu},
                                         .norm = {.kind = NormKind::rms, .eps = 1e-6F}});
  set_formats(config, WeightFormat::bf16, WeightFormat::bf16, WeightFormat::bf16);
  return config;
}

class SpeculationEngine : public SpeculatingTest {
 protected:
  static std::filesystem::path model() {
    const std::string& name = model_name();
    if (name == "delta_net") return engine_model_of(hybrid_engine_shape(small_delta_net()), name);
    if (name == "wide_delta_net") return engine_model_of(wide_delta_net_shape(), name);
    if (name == "windowed") return engine_model(WeightFormat::f32, 40);
    if (name == "windowed_bf16") return engine_model(WeightFormat::bf16, 40);
    return engine_model(*format_from_name(name));
  }
  // Of float32 a GPU's products of one row and of several differ in last bits.
  static std::string exact_answer(const Result& result) {
    const bool is_float32 = model_name() == "f32" || model_name() == "delta_net";
    return device() == "cuda" && is_float32 ? answer_of(result) : exact_answer_of(result);
  }

  // What an engine that proposes nothing answers to requests one by one, and in how many steps.
  struct Plain {
    Answers exactly;
    Answers answers;
    int64_t steps = 0;
  };
  static Plain without_speculation(const std::vector<Request>& all) {
    Engine engine(model(), speculating("off", 1));
    Plain plain;
    plain.exactly = run_alone(engine, all, [&](const Result& result) {
      plain.answers.push_back(answer_of(result));
      return exact_answer(result);
    });
    plain.steps = engine.stats().steps;
    EXPECT_EQ(engine.stats().proposed_tokens, 0);
    return plain;
  }
};

TEST_P(SpeculationEngine, LookupChangesNoText) {
  const std::vector<Request> all = requests_that_repeat();
  const auto [exactly, expected, plain_steps] = without_speculation(all);

  Engine alone(model(), speculating("lookup", 1));
  expect_same_answers(run_alone(alone, all, exact_answer), exactly, "alone");
  EXPECT_GT(alone.stats().accepted_tokens, 20);
  EXPECT_LT(alone.stats().accepted_tokens, alone.stats().proposed_tokens);
  EXPECT_LT(alone.stats().steps, plain_steps);

  Engine engine(model(), speculating("lookup", 8));
  expect_same_answers(run_together(engine, all, answer_of), expected, "together");
  EXPECT_GT(engine.stats().accepted_tokens, 0);
  expect_same_answers(run_alone(engine, all, answer_of), expected, "from the cache");
  EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);

  EngineOptions tight = speculating("lookup", 8);
  tight.kv_tokens = tight.context = 256;
  Engine preempting(model(), tight);
  expect_same_answers(run_together(preempting, all, answer_of), expected, "preempted");
  EXPECT_GT(preempting.stats().preemptions, 0);
}

TEST_P(SpeculationEngine, RunsAheadWithTheSameTexts) {
  const std::vector<Request> all = requests_that_repeat();
  const auto [exactly, expected, plain_steps] = without_speculation(all);
  for (const std::string& how : {std::string("off"), std::string("lookup"),
                                 "draft=" + engine_model(WeightFormat::bf16).string()}) {
    Engine alone(model(), running_ahead(how, 1, device()));
    expect_same_answers(run_alone(alone, all, exact_answer), exactly, how + " alone");
    EngineOptions tight = running_ahead(how, 8, device());
    tight.kv_tokens = tight.context = 256;
    Engine engine(model(), tight);
    expect_same_answers(run_together(engine, all, answer_of), expected, how + " together");
    EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);
  }
}

// Each turn says again all that was said.
TEST_P(SpeculationEngine, LookupChangesNoChat) {
  const auto chat = [&](const EngineOptions& with) {
    std::mt19937 random(7);
    Engine engine(model(), with);
    std::vector<int32_t> conversation{1};
    append(conversation, random_tokens(random, 40));
    for (int turn = 0; turn < 12; ++turn) {
      Request request;
      request.prompt = conversation;
      request.max_tokens = 20 + turn;
      request.sampling.temperature = turn % 2 == 0 ? 0 : 0.3F;
      request.sampling.seed = 5;
      append(conversation, engine.submit(request).get().outputs[0].tokens);
      append(conversation, random_tokens(random, 9));
    }
    return conversation;
  };
  EXPECT_EQ(chat(speculating("lookup", 2)), chat(speculating("off", 2)));
}

// A model of the same file draws the same; another one, seldom.
TEST_P(SpeculationEngine, DraftsChangeNoText) {
  constexpr int kFew = 10;  // how many more depends on measured times
  const std::vector<Request> all = requests_that_repeat();
  const auto [exactly, expected, plain_steps] = without_speculation(all);
  Engine alone(model(), speculating("draft=" + model().string(), 1));
  expect_same_answers(run_alone(alone, all, exact_answer), exactly, "alone");
  EXPECT_GT(alone.stats().proposed_tokens, kFew);
  Engine engine(model(), speculating("draft=" + engine_model(WeightFormat::bf16).string(), 8));
  expect_same_answers(run_together(engine, all, answer_of), expected, "together");
  EXPECT_GT(engine.stats().proposed_tokens, kFew);
}

TEST_P(SpeculationEngine, ADraftThatIsTheModelItselfIsAccepted) {
  Engine engine(model(), speculating("draft=" + model().string(), 1));
  Request request;
  request.prompt = std::vector<int32_t>{1, 20, 30};
  request.max_tokens = 100;
  request.ignore_eos = true;
  (void)engine.submit(request).get();
  const EngineStats stats = engine.stats();
  EXPECT_GT(10 * stats.accepted_tokens, 9 * stats.proposed_tokens);
}

TEST_P(SpeculationEngine, WhatARuleForcesIsReadTogetherAndChangesNoText) {
  const std::vector<Request> all = requests_by_rule();
  const auto [exactly, expected, plain_steps] = without_speculation(all);

  for (const std::string& how : {std::string("lookup"), "draft=" + model().string()}) {
    Engine alone(model(), speculating(how, 1));
    expect_same_answers(run_alone(alone, all, exact_answer), exactly, how + ", alone");
    EXPECT_GT(alone.stats().accepted_tokens, 100);
    EXPECT_LT(alone.stats().steps, plain_steps);
  }
  for (const int32_t slots : {8, 64}) {
    Engine engine(model(), speculating("lookup", slots));
    expect_same_answers(run_together(engine, all, answer_of), expected, "together");
    EXPECT_GT(engine.stats().accepted_tokens, 0);
    EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);
  }
  EngineOptions tight = speculating("lookup", 8);
  tight.kv_tokens = tight.context = 160;
  Engine preempting(model(), tight);
  expect_same_answers(run_together(preempting, all, answer_of), expected, "with little room");
}

TEST_P(SpeculationEngine, ARequestSaysHowTokensAreProposed) {
  std::vector<Request> all = requests_that_repeat();
  const Answers expected = without_speculation(all).exactly;
  const auto ask = [&](const char* how) {
    for (Request& request : all) request.speculate = how;
  };
  Engine engine(model(), speculating("lookup", 1));
  ask("off");
  expect_same_answers(run_alone(engine, all, exact_answer), expected, "off");
  EXPECT_EQ(engine.stats().proposed_tokens, 0);
  ask("lookup");
  expect_same_answers(run_alone(engine, all, exact_answer), expected, "lookup");
  EXPECT_GT(engine.stats().accepted_tokens, 20);
  for (const char* how : {"mtp", "draft", "auto"}) {
    ask(how);
    EXPECT_THROW((void)engine.submit(all.front()), UsageError) << how;
  }
  Engine plain(model(), speculating("off", 1));
  ask("lookup");
  EXPECT_THROW((void)plain.submit(all.front()), UsageError);
}

TEST(Batch, HasASequenceForEachTokenThatIsOneByOne) {
  Batch batch;
  batch.add_sequence(std::vector<int32_t>{5, 6}, 0);
  batch.max_pages = 2;
  batch.n_groups = 2;
  batch.page_table = {1, 0, 7, 0};
  EXPECT_EQ(divide_one_by_one(batch).n_sequences(), 0);
  batch.add_sequence(std::vector<int32_t>{7, 8, 9}, 40, 0, true);
  batch.page_table = {1, 0, 2, 3, 7, 0, 8, 9};
  const Batch divided = divide_one_by_one(batch);
  EXPECT_EQ(divided.query_start, (std::vector<int32_t>{0, 2, 3, 4, 5}));
  EXPECT_EQ(divided.kv_len, (std::vector<int32_t>{2, 41, 42, 43}));
  EXPECT_EQ(divided.page_table,
            (std::vector<int32_t>{1, 0, 2, 3, 2, 3, 2, 3, 7, 0, 8, 9, 8, 9, 8, 9}));
}

TEST(Speculation, RefusesADraftOfAnotherTokenizer) {
  SentencePieceModel pieces = small_model(true);
  pieces.pieces.back().text += "e";
  const auto other = engine_model_of(engine_shape(WeightFormat::f32), "other", pieces);
  try {
    const Engine engine(engine_model(), speculating("draft=" + other.string(), 1));
    FAIL() << "it drafts";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("whose tokenizer is another"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(Engine(engine_model(), speculating("guess", 1)), UsageError);
}

// The least memory that suffices, to a quarter, and what is said of less.
std::pair<size_t, std::string> least_memory(EngineOptions options) {
  std::string refused;
  for (options.memory = 1000;; options.memory += options.memory / 4) {
    try {
      const Engine engine(engine_model(), options);
      return {options.memory, refused};
    } catch (const Error& error) {
      refused = error.what();
    }
  }
}

TEST(Speculation, ADraftTakesMemoryForTheSlotsThatThereAre) {
  const std::string draft = engine_model(WeightFormat::bf16).string();
  const auto [of_one, refused] = least_memory(speculating("draft=" + draft, 1));
  EXPECT_LT(of_one, least_memory(speculating("draft=" + draft, 64)).first);
  EXPECT_EQ(refused.rfind(draft + ": ", 0), 0U) << refused;
}

TEST(Speculation, ADraftWithoutACacheInEightBitsDoesNotKeepTheModelFromOne) {
  ModelConfig windowed = engine_shape(WeightFormat::f32, 40);
  windowed.layer_kinds.erase(windowed.layer_kinds.begin());
  windowed.layers = {0, 0};
  const auto draft = engine_model_of(windowed, "windows alone");
  EngineOptions options = speculating("draft=" + draft.string(), 1);
  options.kv = "int8";
  EXPECT_EQ(Engine(engine_model(), options).info().kv_in_eight, 2);
}

INSTANTIATE_TEST_SUITE_P(Cpu, SpeculationEngine,
                         testing::ValuesIn(on_device("cpu",
                                                     {"f32", "int8", "windowed", "delta_net"})),
                         model_name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, SpeculationEngine,
                         testing::ValuesIn(on_device("cuda", {"f32", "bf16", "int8", "int4", "fp8",
                                                              "mxfp4", "windowed_bf16", "delta_net",
                                                              "wide_delta_net"})),
                         model_name_of);

}  // namespace
}  // namespace faststream
