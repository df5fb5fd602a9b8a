// Texts are the same whether tokens are proposed for them or not.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/mixed_requests.h"

namespace faststream {
namespace {

EngineOptions options(const std::string& speculate, int32_t slots) {
  return {.device = "cpu",
          .threads = 2,
          .slots = slots,
          .speculate = speculate,
          .always_speculate = true};
}

// Prompts whose passages come again, which random models go on with, too: greedily they repeat
// themselves. Of all kinds that speculation has to do with: draws, penalties, biases, limits, stop
// rules, log-probabilities, rules of output, several samples.
std::vector<Request> requests_that_repeat() {
  std::mt19937 random(53);
  std::vector<Request> all;
  for (int i = 0; i < 18; ++i) {
    const std::vector<int32_t> passage = random_tokens(random, 3 + random() % 30);
    std::vector<int32_t> prompt{1};
    for (int n = 0; n < 1 + i % 4; ++n) append(prompt, passage);
    Request request;
    request.prompt = prompt;
    request.max_tokens = 40 + i;
    request.ignore_eos = i % 2 == 0;
    request.sampling.seed = random();
    request.sampling.temperature = i % 3 == 0 ? 0.2F : 0;
    if (i % 5 == 1) request.sampling.repetition_penalty = 1.05F;
    if (i % 5 == 2) request.sampling.frequency_penalty = 0.02F;
    if (i % 7 == 3) request.sampling.logit_bias = {{.token = passage[0], .bias = 2}};
    if (i % 7 == 4) request.sampling.no_repeat_ngram = 4;
    if (i % 6 == 5) request.min_tokens = 30;
    if (i % 6 == 2) request.stop_tokens = {passage[1]};
    if (i % 8 == 3) request.logprobs = 2;
    if (i % 8 == 5) request.n = 2;
    if (i % 8 == 7) request.stop = {"e"};
    if (i == 9) request.rule = OutputRule{.kind = OutputRule::Kind::regex, .text = "[a-h ]{3,30}"};
    all.push_back(request);
  }
  return all;
}

std::string answer_of(const Result& result) {
  std::string all;
  for (const Output& output : result.outputs) {
    all += output.text + "\n" + std::string(finish_reason_name(output.finish_reason));
    for (const int32_t token : output.tokens) all += " " + std::to_string(token);
    all += "\n";
  }
  return all;
}

// The same with log-probabilities, whose last bits in float32 depend on a text's company.
std::string exact_answer_of(const Result& result) {
  std::string all = answer_of(result);
  for (const Output& output : result.outputs) {
    for (const PositionLogprobs& position : output.logprobs) {
      all += " " + std::to_string(position.chosen.logprob);
      for (const TokenLogprob& top : position.top) {
        all += " " + std::to_string(top.token) + " " + std::to_string(top.logprob);
      }
    }
  }
  return all;
}

using Answers = std::vector<std::string>;

void expect_same(const Answers& got, const Answers& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << what << ", request " << i;
}

class SpeculationEngine : public testing::TestWithParam<std::string> {
 protected:
  static std::filesystem::path model() {
    const std::string& name = GetParam();
    if (name == "delta_net") return engine_model_of(hybrid_engine_shape(small_delta_net()), name);
    if (name == "windowed") return engine_model(WeightFormat::f32, 40);
    return engine_model(name == "int8" ? WeightFormat::int8 : WeightFormat::f32);
  }
};

TEST_P(SpeculationEngine, LookupChangesNoText) {
  const std::vector<Request> all = requests_that_repeat();
  Engine plain(model(), options("off", 1));
  const Answers exactly = run_alone(plain, all, exact_answer_of);
  const Answers expected = run_alone(plain, all, answer_of);
  EXPECT_EQ(plain.stats().proposed_tokens, 0);

  Engine alone(model(), options("lookup", 1));
  expect_same(run_alone(alone, all, exact_answer_of), exactly, "alone");
  EXPECT_GT(alone.stats().accepted_tokens, 20);
  EXPECT_LT(alone.stats().accepted_tokens, alone.stats().proposed_tokens);
  EXPECT_LT(2 * alone.stats().steps, plain.stats().steps);

  Engine engine(model(), options("lookup", 8));
  expect_same(run_together(engine, all, answer_of), expected, "together");
  EXPECT_GT(engine.stats().accepted_tokens, 0);
  expect_same(run_alone(engine, all, answer_of), expected, "from the cache");
  EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);

  EngineOptions tight = options("lookup", 8);
  tight.kv_tokens = tight.context = 256;
  Engine preempting(model(), tight);
  expect_same(run_together(preempting, all, answer_of), expected, "preempted");
  EXPECT_GT(preempting.stats().preemptions, 0);
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
  EXPECT_EQ(chat(options("lookup", 2)), chat(options("off", 2)));
}

// A model of the same file draws the same; another one, seldom.
TEST_P(SpeculationEngine, DraftsChangeNoText) {
  const std::vector<Request> all = requests_that_repeat();
  Engine plain(model(), options("off", 1));
  const Answers exactly = run_alone(plain, all, exact_answer_of);
  const Answers expected = run_alone(plain, all, answer_of);
  Engine alone(model(), options("draft=" + model().string(), 1));
  expect_same(run_alone(alone, all, exact_answer_of), exactly, "alone");
  EXPECT_GT(alone.stats().proposed_tokens, 100);
  Engine engine(model(), options("draft=" + engine_model(WeightFormat::bf16).string(), 8));
  expect_same(run_together(engine, all, answer_of), expected, "together");
  EXPECT_GT(engine.stats().proposed_tokens, 100);
}

TEST_P(SpeculationEngine, ADraftThatIsTheModelItselfIsAccepted) {
  Engine engine(model(), options("draft=" + model().string(), 1));
  Request request;
  request.prompt = std::vector<int32_t>{1, 20, 30};
  request.max_tokens = 100;
  request.ignore_eos = true;
  (void)engine.submit(request).get();
  const EngineStats stats = engine.stats();
  EXPECT_GT(10 * stats.accepted_tokens, 9 * stats.proposed_tokens);
}

TEST(Speculation, RefusesADraftOfAnotherTokenizer) {
  SentencePieceModel pieces = small_model(true);
  pieces.pieces.back().text += "e";
  const auto other = engine_model_of(engine_shape(WeightFormat::f32), "other", pieces);
  try {
    const Engine engine(engine_model(), options("draft=" + other.string(), 1));
    FAIL() << "it drafts";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("whose tokenizer is another"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(Engine(engine_model(), options("guess", 1)), UsageError);
}

INSTANTIATE_TEST_SUITE_P(Models, SpeculationEngine,
                         testing::Values("f32", "int8", "windowed", "delta_net"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace faststream
