// Beam searches in the engine: what they find, whatever runs beside them, and what it takes.
// (That they find what Transformers finds: golden/beam_golden_test.cpp.)
#include "engine/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <future>
#include <numeric>
#include <random>
#include <set>

#include "engine/engine.h"
#include "engine/runner.h"
#include "unit/backend/test_backends.h"
#include "unit/engine/engine_model.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

constexpr int32_t kSearchVocab = 280;

std::vector<int32_t> some_prompt(std::mt19937& random, size_t length) {
  std::vector<int32_t> prompt{1};
  while (prompt.size() < length)
    prompt.push_back(3 + static_cast<int32_t>(random() % (kSearchVocab - 4)));
  return prompt;
}

Request search_request(std::vector<int32_t> prompt, int32_t beams, int64_t max_tokens) {
  Request request{.prompt = std::move(prompt), .max_tokens = max_tokens};
  request.search.beams = beams;
  request.n = beams;
  return request;
}

// Searches of all kinds, and samples between them.
std::vector<Request> mixed_searches(size_t count, size_t prompt_tokens, int64_t new_tokens) {
  std::mt19937 random(41);
  const std::vector<int32_t> common = some_prompt(random, 50);
  std::vector<Request> requests;
  for (size_t i = 0; i < count; ++i) {
    std::vector<int32_t> prompt = some_prompt(random, 1 + random() % prompt_tokens);
    if (i % 4 == 0) prompt.insert(prompt.begin(), common.begin(), common.end());
    Request request = search_request(prompt, 2 + static_cast<int32_t>(random() % 5),
                                     1 + static_cast<int64_t>(random()) % new_tokens);
    for (int s = 0; s < 12; ++s)
      request.stop_tokens.push_back(3 + static_cast<int32_t>(random() % 270));
    if (i % 3 == 1) request.search.early_stopping = EarlyStopping::yes;
    if (i % 3 == 2) request.search.early_stopping = EarlyStopping::never;
    if (i % 5 == 1) request.search.length_penalty = 2;
    if (i % 5 == 2) request.sampling.no_repeat_ngram = 2;
    if (i % 5 == 3) request.sampling.repetition_penalty = 1.2F;
    if (i % 7 == 1) request.min_tokens = 5;
    if (i % 7 == 2) request.stop = {"he", "ll o"};
    if (i % 7 == 3) request.logprobs = 2;
    if (i % 6 == 5) {
      request.search.beams = 6;
      request.n = 4;
      request.search.groups = 3;
      request.search.diversity_penalty = 0.7F;
    }
    if (i % 4 == 3) {
      request.search = {};
      request.n = 2;
      request.sampling.seed = i;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

struct FoundText {
  std::vector<int32_t> tokens;
  double score = 0;
};

using FoundTexts = std::vector<FoundText>;  // of a request

FoundTexts found_texts(const Result& result) {
  FoundTexts texts;
  for (const Output& output : result.outputs) texts.push_back({output.tokens, output.score});
  return texts;
}

void expect_same_texts(const std::vector<FoundTexts>& actual,
                       const std::vector<FoundTexts>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    ASSERT_EQ(actual[i].size(), expected[i].size());
    for (size_t k = 0; k < actual[i].size(); ++k) {
      EXPECT_EQ(actual[i][k].tokens, expected[i][k].tokens) << "text " << k;
      EXPECT_NEAR(actual[i][k].score, expected[i][k].score, 1e-4) << "text " << k;
    }
  }
}

std::vector<FoundTexts> search_together(Engine& engine, const std::vector<Request>& requests) {
  return run_together(engine, requests, found_texts);
}

std::vector<FoundTexts> search_alone(Engine& engine, const std::vector<Request>& requests) {
  return run_alone(engine, requests, found_texts);
}

class BeamSearchTest : public DeviceTest {
 protected:
  static EngineOptions options(int32_t slots, int64_t kv_tokens = 0) {
    return {.device = GetParam(), .threads = 2, .slots = slots, .kv_tokens = kv_tokens};
  }
};

// Log-probabilities of each position's next token, without an engine.
std::vector<std::vector<double>> exact_log_softmax(Runner& runner,
                                                   const std::vector<int32_t>& tokens) {
  Sequence sequence;
  runner.step({{{&sequence, tokens, NewTokens::Logits::all}}});
  const std::vector<float> logits = runner.logits();
  runner.release(sequence);
  std::vector<std::vector<double>> rows;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const auto* row = logits.data() + t * kSearchVocab;
    double total = 0;
    for (int i = 0; i < kSearchVocab; ++i) total += std::exp(static_cast<double>(row[i]));
    std::vector<double>& out = rows.emplace_back();
    for (int i = 0; i < kSearchVocab; ++i)
      out.push_back(static_cast<double>(row[i]) - std::log(total));
  }
  return rows;
}

TEST_P(BeamSearchTest, FindsTheBestOfAllTextsWithEnoughBeams) {
  const std::vector<int32_t> prompt = {1, 30, 77};
  const std::vector<int32_t> letters = {10, 40, 60, 90, 200};
  constexpr int32_t kEnd = 50;
  constexpr size_t kLength = 3;
  const float penalties[] = {0.5F, 1, 2};

  const ModelFile file = ModelFile::open(engine_model());
  const auto backend = make_reference_backend();
  Runner runner(file, *backend, {.n_pages = 4, .batch = {.max_tokens = 64, .max_logits = 64}},
                nullptr);
  struct Found {
    std::vector<int32_t> tokens;
    double sum;
  };
  std::vector<Found> all;  // by trying all
  const std::function<void(const std::vector<int32_t>&, double)> extend =
      [&](const std::vector<int32_t>& text, double sum) {
        std::vector<int32_t> tokens = prompt;
        tokens.insert(tokens.end(), text.begin(), text.end());
        const std::vector<double> next = exact_log_softmax(runner, tokens).back();
        std::vector<int32_t> longer = text;
        longer.push_back(kEnd);
        all.push_back({longer, sum + next[kEnd]});
        for (const int32_t letter : letters) {
          longer.back() = letter;
          const double longer_sum = sum + next[static_cast<size_t>(letter)];
          if (longer.size() == kLength) {
            all.push_back({longer, longer_sum});
          } else {
            extend(longer, longer_sum);
          }
        }
      };
  extend({}, 0);
  ASSERT_EQ(all.size(), 1U + 5 + 25 + 125);

  Engine engine(engine_model(), options(128));
  for (const float penalty : penalties) {
    SCOPED_TRACE(penalty);
    Request request = search_request(prompt, 128, kLength);
    request.n = 3;
    request.search.length_penalty = penalty;
    request.search.early_stopping = EarlyStopping::never;
    request.stop_tokens = {kEnd};
    request.ignore_eos = true;
    for (int32_t token = 0; token < kSearchVocab; ++token) {
      if (token != kEnd && std::ranges::find(letters, token) == letters.end()) {
        request.sampling.logit_bias.push_back({token, -100});
      }
    }
    const auto score = [&](const Found& found) {
      return found.sum / std::pow(static_cast<double>(found.tokens.size()), penalty);
    };
    std::ranges::sort(all, std::greater<>(), score);
    const Result result = engine.submit(request).get();
    ASSERT_EQ(result.outputs.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(result.outputs[i].tokens, all[i].tokens);
      EXPECT_NEAR(result.outputs[i].score, score(all[i]), 1e-5);
    }
  }
}

TEST_P(BeamSearchTest, ATextDoesNotDependOnItsBatch) {
  const std::vector<Request> requests = mixed_searches(60, 70, 40);
  EngineOptions plain = options(6);
  plain.prefix_sharing = false;
  Engine alone(engine_model(), plain);
  const std::vector<FoundTexts> expected = search_alone(alone, requests);
  for (const int32_t slots : {6, 13, 64}) {
    SCOPED_TRACE(std::to_string(slots) + " slots");
    Engine engine(engine_model(), options(slots));
    expect_same_texts(search_together(engine, requests), expected);
    EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);
  }
  EngineOptions small_chunks = options(16);
  small_chunks.chunk = 4;
  Engine in_chunks(engine_model(), small_chunks);
  expect_same_texts(search_together(in_chunks, requests), expected);
}

TEST_P(BeamSearchTest, ATextDoesNotDependOnPreemption) {
  for (const int64_t window : {0, 40}) {
    std::vector<Request> requests = mixed_searches(24, 20, 70);
    for (Request& request : requests) {
      request.stop_tokens.clear();  // few end early
      request.ignore_eos = true;
      BeamParams& beams = request.search;
      beams.beams = std::min(beams.beams, 3 * beams.groups);
      if (beams.groups > 1) beams = {.beams = 3, .groups = 3, .diversity_penalty = 0.7F};
      request.n = std::min(request.n, std::max(beams.beams, 2));
    }
    EngineOptions plain = options(6);
    plain.prefix_sharing = false;
    Engine alone(engine_model(WeightFormat::f32, window), plain);
    const std::vector<FoundTexts> expected = search_alone(alone, requests);
    for (const bool sharing : {true, false}) {
      SCOPED_TRACE((sharing ? "shared" : "not shared") + std::string(", window ") +
                   std::to_string(window));
      EngineOptions tight = options(32, 448);  // for three beams of the longest
      tight.context = 192;
      tight.prefix_sharing = sharing;
      Engine engine(engine_model(WeightFormat::f32, window), tight);
      expect_same_texts(search_together(engine, requests), expected);
      EXPECT_GT(engine.stats().preemptions, 0);
      EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);
    }
  }
}

TEST_P(BeamSearchTest, MemoryGrowsWithBeamsByTheNewTokensOnly) {
  std::mt19937 random(3);
  constexpr int64_t kPrompt = 600;
  constexpr int64_t kNew = 70;
  constexpr int32_t kBeams = 8;
  Engine engine(engine_model(), options(kBeams));
  Request request = search_request(some_prompt(random, kPrompt), kBeams, kNew);
  request.ignore_eos = true;
  int64_t least_free = engine.info().kv_tokens;
  std::promise<Result> done;
  engine.submit(
      request,
      {.on_delta =
           [&](const Delta&) {
             const EngineStats stats = engine.stats();  // after the step before
             if (stats.steps > 0) least_free = std::min(least_free, stats.free_tokens);
           },
       .on_finish = [&](Result result, const std::string&) { done.set_value(std::move(result)); }});
  EXPECT_EQ(done.get_future().get().outputs.at(0).tokens.size(), kNew);
  constexpr int64_t kPage = 32;
  EXPECT_LE(engine.info().kv_tokens - least_free, kPrompt + kBeams * (kNew + kPage));
  EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);
  EXPECT_EQ(engine.stats().prompt_tokens, kPrompt);
}

TEST_P(BeamSearchTest, StreamsWhatAllBeamsAgreeOn) {
  std::mt19937 random(5);
  Engine engine(engine_model(), options(8));
  size_t n_early = 0;
  for (int i = 0; i < 20; ++i) {
    Request request = search_request(some_prompt(random, 3), 2 + i % 3, 30);
    request.n = 1;
    if (i % 3 == 0) request.stop = {"e"};
    if (i % 4 == 0) request.search.early_stopping = EarlyStopping::yes;
    std::vector<std::string> pieces;
    std::promise<Result> done;
    engine.submit(request,
                  {.on_delta =
                       [&](const Delta& delta) {
                         EXPECT_EQ(delta.sample, 0);
                         pieces.emplace_back(delta.text);
                       },
                   .on_finish = [&](Result result,
                                    const std::string&) { done.set_value(std::move(result)); }});
    const Result result = done.get_future().get();
    std::string streamed;
    for (const std::string& piece : pieces) streamed += piece;
    EXPECT_EQ(streamed, result.outputs.at(0).text);
    n_early += streamed.size() > pieces.back().size() ? 1 : 0;
  }
  EXPECT_GT(n_early, 0U);
}

TEST_P(BeamSearchTest, StreamsWholeCharactersOnly) {
  Engine engine(engine_model(), options(8));
  // Tokens of bytes of two characters that differ in the last one.
  constexpr int32_t kBytes = 3;
  ASSERT_EQ(engine.detokenize(std::vector<int32_t>{kBytes + 0xC3, kBytes + 0xA9}), "\xC3\xA9");
  Request request = search_request({1}, 3, 12);
  request.n = 1;
  for (const int32_t byte : {0xC3, 0xA8, 0xA9}) {
    request.sampling.logit_bias.push_back({kBytes + byte, 20});
  }
  std::string streamed;
  const Result result = engine.generate(request, [&](std::string_view text) {
    EXPECT_TRUE(text.empty() || (text.front() & 0xC0) != 0x80);
    streamed += text;
    return true;
  });
  EXPECT_EQ(streamed, result.outputs.at(0).text);
}

TEST_P(BeamSearchTest, ReturnsTheBestTextsInOrder) {
  std::mt19937 random(7);
  Engine engine(engine_model(), options(8));
  Request request = search_request(some_prompt(random, 20), 8, 15);
  request.logprobs = 3;
  const Result all = engine.submit(request).get();
  ASSERT_EQ(all.outputs.size(), 8U);
  std::set<std::vector<int32_t>> different;
  for (const Output& output : all.outputs) {
    different.insert(output.tokens);
    double sum = 0;
    ASSERT_EQ(output.logprobs.size(), output.tokens.size());
    for (size_t i = 0; i < output.tokens.size(); ++i) {
      EXPECT_EQ(output.logprobs[i].chosen.token, output.tokens[i]);
      EXPECT_EQ(output.logprobs[i].top.size(), 3U);
      sum += static_cast<double>(output.logprobs[i].chosen.logprob);
    }
    EXPECT_NEAR(output.score, sum / static_cast<double>(output.tokens.size()), 1e-5);
    EXPECT_NEAR(output.mean_logprob, output.score, 1e-5);
  }
  EXPECT_EQ(different.size(), 8U);
  EXPECT_TRUE(std::ranges::is_sorted(all.outputs, std::greater<>(), &Output::score));
  request.n = 2;
  request.logprobs = -1;
  const Result best = engine.submit(request).get();
  ASSERT_EQ(best.outputs.size(), 2U);
  EXPECT_EQ(best.outputs[1].tokens, all.outputs[1].tokens);
  EXPECT_TRUE(best.outputs[1].logprobs.empty());
}

TEST_P(BeamSearchTest, LogProbabilitiesAreTheModelsOwn) {
  std::mt19937 random(8);
  Engine engine(engine_model(), options(4));
  Request request = search_request(some_prompt(random, 20), 4, 15);
  request.logprobs = 20;
  request.sampling.repetition_penalty = 1.5F;
  request.sampling.presence_penalty = 0.3F;
  request.sampling.logit_bias = {{77, 3}};
  request.search.groups = 2;
  request.search.diversity_penalty = 0.5F;
  size_t n_compared = 0;
  for (const Output& output : engine.submit(request).get().outputs) {
    for (const PositionLogprobs& position : output.logprobs) {
      for (const TokenLogprob& top : position.top) {
        if (top.token != position.chosen.token) continue;
        EXPECT_NEAR(top.logprob, position.chosen.logprob, 1e-5);
        ++n_compared;
      }
    }
  }
  EXPECT_GT(n_compared, 20U);
}

TEST_P(BeamSearchTest, StopStringsEndBeams) {
  std::mt19937 random(9);
  Engine engine(engine_model(), options(4));
  Request request = search_request(some_prompt(random, 5), 4, 40);
  request.ignore_eos = true;
  const std::string whole = engine.submit(request).get().outputs.at(0).text;
  ASSERT_GT(whole.size(), 8U);
  request.stop = {whole.substr(whole.size() / 2, 2)};
  request.search.length_penalty = 0;  // the shortest are the best
  size_t n_stopped = 0;
  for (const Output& output : engine.submit(request).get().outputs) {
    EXPECT_EQ(output.text.find(request.stop[0]), std::string::npos);
    EXPECT_EQ(output.stop,
              output.finish_reason == FinishReason::stop_string ? request.stop[0] : "");
    n_stopped += output.finish_reason == FinishReason::stop_string ? 1 : 0;
  }
  EXPECT_GT(n_stopped, 0U);
}

TEST_P(BeamSearchTest, GroupsTakeOtherTokens) {
  std::mt19937 random(11);
  Engine engine(engine_model(), options(6));
  Request request = search_request(some_prompt(random, 9), 6, 1);
  request.search.groups = 6;
  request.search.diversity_penalty = 50;
  std::set<int32_t> first;
  for (const Output& output : engine.submit(request).get().outputs) first.insert(output.tokens[0]);
  EXPECT_EQ(first.size(), 6U);
  request.search.diversity_penalty = 0;
  first.clear();
  for (const Output& output : engine.submit(request).get().outputs) first.insert(output.tokens[0]);
  EXPECT_EQ(first.size(), 1U);
}

TEST_P(BeamSearchTest, ACancelledSearchReturnsTheBestItHas) {
  std::mt19937 random(13);
  Engine engine(engine_model(), options(4));
  Request request = search_request(some_prompt(random, 5), 4, -1);
  request.ignore_eos = true;
  std::promise<Result> done;
  std::atomic<RequestId> id = 0;
  std::promise<void> submitted;
  std::shared_future<void> known = submitted.get_future().share();
  std::string streamed;
  int steps = 0;
  id = engine.submit(
      request,
      {.on_delta =
           [&](const Delta& delta) {
             known.wait();
             streamed += delta.text;
             if (++steps == 7) engine.cancel(id);
           },
       .on_finish = [&](Result result, const std::string&) { done.set_value(std::move(result)); }});
  submitted.set_value();
  const Result result = done.get_future().get();
  ASSERT_EQ(result.outputs.size(), 4U);
  for (const Output& output : result.outputs) {
    EXPECT_EQ(output.finish_reason, FinishReason::cancelled);
    EXPECT_GE(output.tokens.size(), 7U);
  }
  EXPECT_TRUE(result.outputs[0].text.starts_with(streamed));
  EXPECT_TRUE(std::ranges::is_sorted(result.outputs, std::greater<>(), &Output::score));
  const Result next = engine.submit(search_request({1, 5}, 2, 3)).get();  // after all is given back
  EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);
}

TEST_P(BeamSearchTest, EndsWhereTheCacheIsFullOfItsBeams) {
  EngineOptions small = options(4, 320);
  small.context = 300;
  Engine engine(engine_model(), small);
  std::mt19937 random(15);
  Request request = search_request(some_prompt(random, 70), 4, -1);
  request.ignore_eos = true;
  const Result result = engine.submit(request).get();
  // Of ten pages two are of the prompt, and two of each beam.
  EXPECT_EQ(result.outputs[0].tokens.size(), 4U * 32 - 70);
  EXPECT_EQ(result.outputs[0].finish_reason, FinishReason::context);
  request.prompt = some_prompt(random, 300);
  EXPECT_TRUE(
      says(error_of([&] { (void)engine.submit(request); }), "300 tokens", "no room for an answer"));
}

TEST_P(BeamSearchTest, MemoryGrowsWithTheBeamsNewTokensAlone) {
  std::mt19937 random(16);
  const std::vector<int32_t> prompt = some_prompt(random, 6 * 32 + 8);
  for (const int32_t beams : {2, 3, 5, 8}) {
    // All hold the prompt's six whole pages. Its other eight tokens are in the first of two pages
    // that each beam has of its own.
    EngineOptions small = options(beams, (6 + 2 * beams) * 32);
    small.context = 300;
    Engine engine(engine_model(), small);
    Request request = search_request(prompt, beams, -1);
    request.ignore_eos = true;
    const Result result = engine.submit(request).get();
    EXPECT_GE(result.outputs[0].tokens.size(), 2U * 32 - 8) << beams << " beams";
    EXPECT_EQ(engine.stats().preemptions, 0) << beams << " beams";
  }
}

TEST_P(BeamSearchTest, MinTokensAndNgramsActOnSamplesToo) {
  Engine engine(engine_model(), options(2));
  Request request{.prompt = "hello", .max_tokens = 30};
  request.sampling.temperature = 0;
  request.sampling.logit_bias = {{2, 100}};  // the end, at once
  EXPECT_EQ(engine.submit(request).get().outputs[0].tokens.size(), 1U);
  request.min_tokens = 9;
  const Output output = engine.submit(request).get().outputs[0];
  EXPECT_EQ(output.tokens.size(), 10U);
  EXPECT_EQ(output.finish_reason, FinishReason::eos);
  EXPECT_EQ(std::ranges::count(output.tokens, 2), 1);

  Request plain{.prompt = "hello", .max_tokens = 40, .ignore_eos = true};
  plain.sampling.temperature = 0;
  plain.sampling.no_repeat_ngram = 1;
  std::vector<int32_t> tokens = engine.submit(plain).get().outputs[0].tokens;
  std::ranges::sort(tokens);
  EXPECT_EQ(std::ranges::adjacent_find(tokens), tokens.end());
}

TEST_P(BeamSearchTest, FailsWhereEveryTokenIsForbidden) {
  Engine engine(engine_model(), options(4));
  std::vector<int32_t> all(kSearchVocab);
  std::iota(all.begin(), all.end(), 0);
  Request request = search_request(all, 4, 5);
  request.sampling.no_repeat_ngram = 1;
  auto other = engine.submit(search_request({1, 2, 3}, 3, 20));
  try {
    (void)engine.submit(request).get();
    FAIL() << "it found a token";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no_repeat_ngram"), std::string::npos);
  }
  EXPECT_EQ(other.get().outputs.size(), 3U);
}

INSTANTIATE_TEST_SUITE_P(Cpu, BeamSearchTest, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, BeamSearchTest, testing::Values("cuda"));

TEST(BeamSearch, RefusesWhatMakesNoSense) {
  Engine engine(engine_model(), {.device = "cpu", .threads = 1, .slots = 8});
  const auto refused = [&](const std::function<void(Request&)>& change) {
    Request request{.prompt = "the", .max_tokens = 1};
    request.search.beams = 4;
    change(request);
    try {
      (void)engine.submit(request).get();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refused([](Request&) {}), "");
  EXPECT_NE(refused([](Request& r) { r.search.beams = 0; }), "");
  EXPECT_NE(refused([](Request& r) { r.search.beams = 129; }), "");
  EXPECT_EQ(refused([](Request& r) { r.search.beams = 9; }),
            "9 beams need as many slots, but there are only 8; give fewer beams or more --slots");
  EXPECT_EQ(refused([](Request& r) { r.n = 5; }),
            "a search with 4 beams cannot return 5 texts; give a smaller n or more beams");
  EXPECT_EQ(refused([](Request& r) { r.best_of = 1; }), "");  // as clients send it
  EXPECT_NE(refused([](Request& r) { r.search.length_penalty = 11; }), "");
  EXPECT_NE(refused([](Request& r) { r.search.length_penalty = kNan; }), "");
  EXPECT_NE(refused([](Request& r) { r.search.groups = 3; }), "");
  EXPECT_NE(refused([](Request& r) { r.search.groups = 0; }), "");
  EXPECT_EQ(refused([](Request& r) { r.search.diversity_penalty = 1; }), "");
  EXPECT_NE(refused([](Request& r) { r.search.groups = 2, r.search.diversity_penalty = -1; }), "");
  EXPECT_NE(refused([](Request& r) { r.min_tokens = -1; }), "");
  EXPECT_NE(refused([](Request& r) { r.sampling.no_repeat_ngram = -1; }), "");
}

}  // namespace
}  // namespace faststream
