// The engine: a text does not depend on its batch, requests come and go from any thread, and
// every page comes back.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "unit/backend/test_backends.h"
#include "unit/effort.h"
#include "unit/engine/engine_model.h"
#include "unit/support/file_helpers.h"
#include "unit/support/refused_threads.h"

namespace faststream {
namespace {

constexpr int32_t kVocab = 280;

std::vector<int32_t> random_prompt(std::mt19937& random, size_t length) {
  std::vector<int32_t> prompt{1};
  while (prompt.size() < length)
    prompt.push_back(3 + static_cast<int32_t>(random() % (kVocab - 4)));
  return prompt;
}

// Requests of mixed lengths and sampling settings.
std::vector<Request> mixed_requests(size_t count, bool greedy) {
  std::mt19937 random(17);
  const std::vector<int32_t> common = random_prompt(random, 70);
  std::vector<Request> requests;
  for (size_t i = 0; i < count; ++i) {
    Request request;
    std::vector<int32_t> prompt = random_prompt(random, 1 + random() % 150);
    if (i % 5 == 0) prompt.insert(prompt.begin(), common.begin(), common.end());
    request.prompt = prompt;
    request.max_tokens = 1 + static_cast<int64_t>(random() % 60);
    request.sampling.seed = random();
    if (greedy || i % 4 == 0) request.sampling.temperature = 0;
    if (i % 4 == 1) request.sampling.top_k = 0;
    if (i % 7 == 2) request.sampling.min_p = 0.02F;
    if (i % 6 == 3) request.sampling.repetition_penalty = 1.2F;
    if (i % 6 == 4) request.sampling.frequency_penalty = 0.3F;
    if (i % 6 == 5) request.sampling.presence_penalty = 0.5F;
    if (i % 9 == 0) request.sampling.logit_bias = {{20, 2}, {21, -100}};
    if (i % 8 == 0) request.stop = {"he", "ll o"};
    if (i % 10 == 3) request.n = 3;
    if (i % 11 == 4) request.ignore_eos = true;
    requests.push_back(request);
  }
  return requests;
}

using Tokens = std::vector<std::vector<int32_t>>;  // of each sample

Tokens tokens_of(const Result& result) {
  Tokens tokens;
  for (const Output& output : result.outputs) tokens.push_back(output.tokens);
  return tokens;
}

std::vector<Tokens> run_together(Engine& engine, const std::vector<Request>& requests) {
  return run_together(engine, requests, tokens_of);
}

std::vector<Tokens> run_alone(Engine& engine, const std::vector<Request>& requests) {
  return run_alone(engine, requests, tokens_of);
}

class EngineTest : public DeviceTest {
 protected:
  EngineOptions options(int32_t slots = 0, int64_t kv_tokens = 0) {
    return {.device = GetParam(), .threads = 2, .slots = slots, .kv_tokens = kv_tokens};
  }
};

TEST_P(EngineTest, ATextDoesNotDependOnItsBatch) {
  const std::vector<Request> requests = mixed_requests(repetitions(100), false);
  EngineOptions plain = options(1);
  plain.prefix_sharing = false;
  Engine alone(engine_model(), plain);
  const std::vector<Tokens> expected = run_alone(alone, requests);

  for (const int32_t slots : {1, 3, 64}) {
    Engine engine(engine_model(), options(slots));
    EXPECT_EQ(run_together(engine, requests), expected) << slots << " slots";

    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(slots)));
    std::vector<Request> shuffled;
    std::vector<Tokens> expected_shuffled;
    for (const size_t i : order) {
      shuffled.push_back(requests[i]);
      expected_shuffled.push_back(expected[i]);
    }
    EXPECT_EQ(run_together(engine, shuffled), expected_shuffled) << slots << " slots, shuffled";
  }

  EngineOptions small_chunks = options(16);
  small_chunks.chunk = 4;
  Engine in_chunks(engine_model(), small_chunks);
  EXPECT_EQ(run_together(in_chunks, requests), expected) << "prompts in chunks of 4";
}

TEST_P(EngineTest, ATextDoesNotDependOnItsBatchWhereALayerHasMemoryForWindowsOnly) {
  constexpr int64_t kWindow = 40;
  const std::vector<Request> requests = mixed_requests(40, false);
  EngineOptions plain = options(1);
  plain.prefix_sharing = false;
  Engine alone(engine_model(WeightFormat::f32, kWindow), plain);
  const std::vector<Tokens> expected = run_alone(alone, requests);

  Engine engine(engine_model(WeightFormat::f32, kWindow), options(8));
  EXPECT_EQ(run_together(engine, requests), expected);
  EXPECT_EQ(run_alone(engine, requests), expected) << "from the cache";
  EXPECT_GT(engine.stats().cached_tokens, 70);
  EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);
  EXPECT_LT(engine.info().kv_bytes, Engine(engine_model(), options(8)).info().kv_bytes * 3 / 4);

  EngineOptions tight = options(8, 320);
  tight.context = 320;
  Engine preempting(engine_model(WeightFormat::f32, kWindow), tight);
  EXPECT_EQ(run_together(preempting, requests), expected);
  EXPECT_GT(preempting.stats().preemptions, 0);
}

TEST_P(EngineTest, ATextDoesNotDependOnPreemption) {
  const std::vector<Request> requests = mixed_requests(100, false);
  EngineOptions plain = options(1);
  plain.prefix_sharing = false;
  Engine alone(engine_model(), plain);
  const std::vector<Tokens> expected = run_alone(alone, requests);
  for (const bool sharing : {true, false}) {
    EngineOptions tight = options(32, 320);
    tight.context = 320;
    tight.prefix_sharing = sharing;
    Engine engine(engine_model(), tight);
    EXPECT_EQ(run_together(engine, requests), expected) << (sharing ? "shared" : "not shared");
    const EngineStats stats = engine.stats();
    EXPECT_GT(stats.preemptions, 0);
    EXPECT_EQ(stats.free_tokens, engine.info().kv_tokens);
  }
}

TEST_P(EngineTest, ATextDoesNotDependOnCancelledNeighbours) {
  const std::vector<Request> requests = mixed_requests(60, false);
  Engine engine(engine_model(), options(8));
  const std::vector<Tokens> expected = run_alone(engine, requests);

  std::vector<std::future<Result>> kept;
  std::mt19937 random(2);
  for (const Request& request : requests) {
    Request neighbour;
    neighbour.prompt = random_prompt(random, 1 + random() % 200);
    neighbour.ignore_eos = true;
    const auto cancel_after = static_cast<int64_t>(random() % 20);
    auto count = std::make_shared<std::atomic<int64_t>>(0);
    auto id = std::make_shared<std::atomic<RequestId>>(0);
    *id = engine.submit(neighbour, {.on_delta =
                                        [=, &engine](const Delta&) {
                                          if (++*count >= cancel_after) engine.cancel(*id);
                                        },
                                    .on_finish = {}});
    kept.push_back(engine.submit(request));
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(tokens_of(kept[i].get()), expected[i]) << "request " << i;
  }
}

// Random weights often make two tokens all but equally likely, so that any other order of a sum
// shows.
TEST_P(EngineTest, GreedyTextsAlmostNeverDependOnTheirBatchInFewerBits) {
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8}) {
    const std::vector<Request> requests = mixed_requests(repetitions(200), true);
    Engine alone(engine_model(format), options(1));
    Engine together(engine_model(format), options(64));
    const std::vector<Tokens> expected = run_alone(alone, requests);
    const std::vector<Tokens> actual = run_together(together, requests);
    size_t same = 0;
    for (size_t i = 0; i < requests.size(); ++i) same += actual[i] == expected[i] ? 1 : 0;
    EXPECT_GE(same, requests.size() * 99 / 100) << format_name(format);
  }
}

TEST_P(EngineTest, ProcessesACommonPrefixOnce) {
  std::mt19937 random(23);
  const std::vector<int32_t> common = random_prompt(random, 500);
  std::vector<Request> requests;
  int64_t own_tokens = 0;
  const auto n_requests = static_cast<int>(repetitions(1000));
  for (int i = 0; i < n_requests; ++i) {
    std::vector<int32_t> prompt = common;
    const std::vector<int32_t> own = random_prompt(random, 2 + random() % 10);
    prompt.push_back(3 + i % 270);
    prompt.insert(prompt.end(), own.begin() + 1, own.end());
    own_tokens += static_cast<int64_t>(own.size());
    Request request;
    request.prompt = prompt;
    request.max_tokens = 4;
    request.sampling.seed = static_cast<uint64_t>(i);
    requests.push_back(request);
  }
  Engine shared(engine_model(), options(16));
  const std::vector<Tokens> texts = run_together(shared, requests);
  const EngineStats stats = shared.stats();
  // What a prompt has in common with an earlier one beyond the 500 tokens is not processed again.
  EXPECT_LE(stats.prompt_tokens, 500 + own_tokens);
  EXPECT_EQ(stats.prompt_tokens + stats.cached_tokens, n_requests * 500 + own_tokens);
  EXPECT_EQ(stats.preemptions, 0);

  EngineOptions unshared_options = options(16);
  unshared_options.prefix_sharing = false;
  Engine unshared(engine_model(), unshared_options);
  requests.resize(60);
  const std::vector<Tokens> same = run_together(unshared, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(texts[i], same[i]) << "request " << i;
}

TEST_P(EngineTest, ContinuesAConversationFromTheCache) {
  std::mt19937 random(29);
  Engine engine(engine_model(), options(1));
  std::vector<int32_t> conversation = random_prompt(random, 45);
  int64_t processed = 0;
  for (int turn = 0; turn < 6; ++turn) {
    Request request;
    request.prompt = conversation;
    request.max_tokens = 19;
    request.ignore_eos = true;
    const Result result = engine.submit(request).get();
    const EngineStats stats = engine.stats();
    // All but what is new: the user's tokens, and the last token of the answer, which was drawn but
    // not processed.
    EXPECT_EQ(stats.prompt_tokens - processed, turn == 0 ? 45 : 13 + 1) << "turn " << turn;
    processed = stats.prompt_tokens;
    const auto& answer = result.outputs[0].tokens;
    conversation.insert(conversation.end(), answer.begin(), answer.end());
    const std::vector<int32_t> next = random_prompt(random, 14);
    conversation.insert(conversation.end(), next.begin() + 1, next.end());
  }
}

TEST_P(EngineTest, GivesEveryPageBackAfterTenThousandRandomRequests) {
  // Pages for about a tenth of those that run.
  EngineOptions tight = options(24, 1024);
  Engine engine(engine_model(), tight);
  constexpr int kThreads = 4;
  constexpr int kPerThread = static_cast<int>(repetitions(2500));
  std::atomic<int64_t> finished{0};
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(100 + t));
      std::atomic<int64_t> in_flight{0};
      for (int i = 0; i < kPerThread; ++i) {
        while (in_flight > 50) std::this_thread::sleep_for(std::chrono::microseconds(200));
        Request request;
        const bool is_long = random() % 500 == 0;
        const size_t length = is_long ? 1 + random() % 1000 : 1 + random() % 24;
        request.prompt = random_prompt(random, length);
        request.max_tokens = random() % 4 == 0 ? -1 : static_cast<int64_t>(random() % 12);
        if (request.max_tokens == -1)
          request.stop_tokens = {static_cast<int32_t>(random() % kVocab)};
        for (int s = 0; s < 24 && request.max_tokens == -1; ++s) {
          request.stop_tokens.push_back(static_cast<int32_t>(random() % kVocab));
        }
        request.priority = static_cast<int32_t>(random() % 3);
        if (random() % 50 == 0) request.n = 2;
        if (random() % 50 == 0) request.best_of = request.n + 1;
        ++in_flight;
        const size_t n = static_cast<size_t>(request.n);
        const RequestId id = engine.submit(
            std::move(request),
            {.on_delta = {}, .on_finish = [&, n](const Result& result, const std::string& error) {
               if (!error.empty() || result.outputs.size() != n) ++wrong;
               ++finished;
               --in_flight;
             }});
        if (random() % 10 == 0) engine.cancel(id);
        if (random() % 20 == 0) engine.cancel(random() % (id + 1));
      }
      while (in_flight > 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finished, kThreads * kPerThread);
  EXPECT_EQ(wrong, 0);
  // The engine's thread tells its counts after its last step.
  while (engine.stats().running + engine.stats().waiting > 0) std::this_thread::yield();
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.finished, kThreads * kPerThread);
  EXPECT_EQ(stats.free_tokens, engine.info().kv_tokens);
}

TEST_P(EngineTest, CancelsWhatIsLeftWhenItIsDestroyed) {
  std::vector<std::future<Result>> futures;
  {
    Engine engine(engine_model(), options(2));
    for (int i = 0; i < 10; ++i) {
      Request request;
      request.prompt = "the hell";
      request.ignore_eos = true;
      futures.push_back(engine.submit(request));
    }
  }
  for (auto& future : futures) {
    EXPECT_EQ(future.get().outputs.at(0).finish_reason, FinishReason::cancelled);
  }
}

TEST_P(EngineTest, FinishesWhatACallbackSubmitsWhileItIsDestroyed) {
  std::atomic<int> n_finished = 0;
  std::vector<FinishReason> last;
  {
    std::unique_ptr<Engine> engine = std::make_unique<Engine>(engine_model(), options(2));
    Engine* running = engine.get();
    Request request;
    request.prompt = "the hell";
    request.ignore_eos = true;
    for (int i = 0; i < 3; ++i) {
      running->submit(
          request, {.on_finish = [&, running, request](const Result&, const auto&) {
            ++n_finished;
            running->submit(
                request, {.on_finish = [&, running, request](const Result& result, const auto&) {
                  ++n_finished;
                  last.push_back(result.outputs.at(0).finish_reason);
                  Request empty = request;
                  empty.max_tokens = 0;
                  running->submit(empty,
                                  {.on_finish = [&](const Result&, const auto&) { ++n_finished; }});
                }});
          }});
    }
    engine.reset();
  }
  EXPECT_EQ(n_finished, 9);
  EXPECT_EQ(last, std::vector<FinishReason>(3, FinishReason::cancelled));
}

TEST_P(EngineTest, EndsTheRequestWhoseCallbackThrows) {
  Engine engine(engine_model(), options(4));
  Request request;
  request.prompt = "the hell";
  request.max_tokens = 30;
  request.ignore_eos = true;
  request.sampling.seed = 3;
  std::promise<std::string> error;
  Request twice = request;
  twice.n = 2;
  engine.submit(
      twice, {.on_delta = [](const Delta&) { throw Error("full disk"); },
              .on_finish = [&](const Result&, const std::string& why) { error.set_value(why); }});
  const Result other = engine.submit(request).get();
  EXPECT_EQ(error.get_future().get(), "full disk");
  EXPECT_EQ(other.outputs.at(0).tokens.size(), 30U);
}

// Requests, as numbers, in the order in which an engine with one slot ends them when all wait.
std::vector<int32_t> order_of_ends(Engine& engine, const std::vector<Request>& requests) {
  Request first = requests.front();
  first.priority = 1 << 20;
  // Holds the only slot, in its first token, until all others wait.
  std::promise<void> all_wait;
  engine.submit(first,
                {.on_delta = [held = all_wait.get_future().share()](const Delta&) { held.wait(); },
                 .on_finish = {}});
  std::vector<int32_t> order;  // the engine's thread fills it, before it ends the last
  std::vector<std::promise<void>> done(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    engine.submit(requests[i],
                  {.on_delta = {}, .on_finish = [&, i](const Result&, const std::string&) {
                     order.push_back(static_cast<int32_t>(i));
                     done[i].set_value();
                   }});
  }
  all_wait.set_value();
  for (auto& promise : done) promise.get_future().wait();
  return order;
}

TEST_P(EngineTest, RunsLargerPrioritiesFirst) {
  Engine engine(engine_model(), options(1));
  std::vector<Request> requests(9);
  for (int32_t i = 0; i < 9; ++i) {
    Request& request = requests[static_cast<size_t>(i)];
    request.prompt = "the";
    request.max_tokens = 40;
    request.ignore_eos = true;
    request.priority = i % 3;
  }
  EXPECT_EQ(order_of_ends(engine, requests), (std::vector<int32_t>{2, 5, 8, 1, 4, 7, 0, 3, 6}));
}

TEST_P(EngineTest, RunsTheLongestOfTheLastFirstWhereAllAreToEndTogether) {
  EngineOptions together = options(1);
  together.ends_together = true;
  Engine engine(engine_model(), together);
  std::vector<Request> requests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = "the";
    requests[i].max_tokens = 10 * (static_cast<int64_t>(i) + 1);
    requests[i].ignore_eos = true;
  }
  EXPECT_EQ(order_of_ends(engine, requests), (std::vector<int32_t>{0, 1, 3, 2}));
  requests[2].priority = 1;
  EXPECT_EQ(order_of_ends(engine, requests), (std::vector<int32_t>{2, 0, 3, 1}));
}

TEST_P(EngineTest, EndsATextAtAStopStringWithoutPrintingIt) {
  Engine engine(engine_model(), options(2));
  Request request;
  request.prompt = "the hell";
  request.max_tokens = 60;
  request.ignore_eos = true;
  request.sampling.seed = 5;
  const std::string whole = engine.submit(request).get().outputs[0].text;
  ASSERT_GT(whole.size(), 12U);
  const std::string stop = whole.substr(whole.size() / 2, 4);
  request.stop = {stop, "not there at all"};
  std::string streamed;
  const Result result = engine.generate(request, [&](std::string_view text) {
    streamed += text;
    return true;
  });
  const Output& output = result.outputs[0];
  EXPECT_EQ(output.finish_reason, FinishReason::stop_string);
  EXPECT_EQ(output.stop, stop);
  EXPECT_EQ(output.text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(streamed, output.text);
}

TEST_P(EngineTest, ShowsSpecialTokensWhereAsked) {
  Engine engine(engine_model(), options(1));
  Request request{.prompt = "hello"};
  request.sampling.logit_bias = {{2, 100}};
  EXPECT_EQ(engine.submit(request).get().outputs.at(0).text, "");
  request.show_special = true;
  const Output output = engine.submit(request).get().outputs.at(0);
  EXPECT_EQ(output.text, "</s>");
  EXPECT_EQ(output.finish_reason, FinishReason::eos);
  EXPECT_EQ(engine.detokenize(output.tokens), "");
}

TEST_P(EngineTest, ShowsTheMarkOfAToolCallWhereThereAreTools) {
  EngineOptions plain = options(1);
  plain.chat_template = "plain";
  Engine engine(engine_model(), plain);
  const int32_t mark = engine.tokenize("[TOOL_CALLS]", true).back();
  ChatPrompt prompt;
  prompt.messages = {{.role = "user", .content = "hello"}};
  Request request{.prompt = prompt, .max_tokens = 1};
  request.sampling.logit_bias = {{mark, 100}};
  EXPECT_EQ(engine.submit(request).get().outputs.at(0).text, "");
  prompt.tools = R"([{"type": "function", "function": {"name": "f"}}])";
  request.prompt = prompt;
  EXPECT_EQ(engine.submit(request).get().outputs.at(0).text, "[TOOL_CALLS]");
}

TEST_P(EngineTest, AnswersAConversationWithoutTheSpaceBeforeIt) {
  EngineOptions plain = options(2);
  plain.chat_template = "plain";
  Engine engine(engine_model(), plain);
  const int32_t word = engine.tokenize("x the").back();  // of a space and a word
  ASSERT_EQ(engine.token_text(word).front(), ' ');
  const std::string spaced = engine.token_text(word);
  Request request;
  request.prompt = std::vector<Message>{{.role = "user", .content = "hello"}};
  request.max_tokens = 3;
  request.sampling.logit_bias = {{word, 100}};
  request.logprobs = 0;
  std::string streamed;
  const Output output = engine
                            .generate(request,
                                      [&](std::string_view text) {
                                        streamed += text;
                                        return true;
                                      })
                            .outputs.at(0);
  EXPECT_EQ(output.text, (spaced + spaced + spaced).substr(1));
  EXPECT_EQ(streamed, output.text);
  EXPECT_EQ(output.tokens, (std::vector<int32_t>{word, word, word}));
  EXPECT_EQ(output.logprobs.size(), 3U);

  request.stop = {spaced};  // is found all the same
  EXPECT_EQ(engine.submit(request).get().outputs.at(0).finish_reason, FinishReason::stop_string);
  request.stop.clear();
  request.prompt = "hello";  // a text goes on as it does
  EXPECT_EQ(engine.submit(request).get().outputs.at(0).text, spaced + spaced + spaced);
}

TEST_P(EngineTest, TellsHowFarALongPromptIs) {
  std::promise<void> begun;
  std::once_flag once;
  EngineOptions in_chunks = options(2);
  in_chunks.chunk = 16;
  Engine engine(engine_model(), in_chunks);
  std::mt19937 random(7);
  // Beside another sequence, prompts are processed in chunks.
  Request endless{.prompt = random_prompt(random, 5), .ignore_eos = true};
  const RequestId other = engine.submit(endless, {.on_delta = [&](const Delta&) {
                                          std::call_once(once, [&] { begun.set_value(); });
                                        }});
  begun.get_future().wait();
  Request request{.prompt = random_prompt(random, 300), .max_tokens = 2};
  std::vector<int64_t> done;
  bool answered = false;
  engine.generate(
      request,
      [&](std::string_view text) {
        answered = answered || !text.empty();
        return true;
      },
      [&](const PromptProgress& prompt) {
        EXPECT_EQ(prompt.total, 300);
        EXPECT_FALSE(answered);
        done.push_back(prompt.done);
      });
  engine.cancel(other);
  ASSERT_FALSE(done.empty());
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_GT(done.front(), 0);
  EXPECT_LT(done.back(), 300);
}

TEST_P(EngineTest, ReturnsTheLikeliestOfSeveralSamples) {
  Engine engine(engine_model(), options(8));
  Request request;
  request.prompt = "the hell";
  request.max_tokens = 12;
  request.sampling.seed = 9;
  request.n = 6;
  request.logprobs = 2;
  const Result all = engine.submit(request).get();
  ASSERT_EQ(all.outputs.size(), 6U);
  std::vector<double> means;
  for (const Output& output : all.outputs) {
    double sum = 0;
    ASSERT_EQ(output.logprobs.size(), output.tokens.size());
    for (const PositionLogprobs& position : output.logprobs) {
      sum += static_cast<double>(position.chosen.logprob);
      ASSERT_EQ(position.top.size(), 2U);
      EXPECT_GE(position.top[0].logprob, position.top[1].logprob);
      EXPECT_GE(position.top[0].logprob, position.chosen.logprob);
    }
    EXPECT_NEAR(output.mean_logprob, sum / static_cast<double>(output.tokens.size()), 1e-9);
    means.push_back(output.mean_logprob);
  }
  EXPECT_NE(all.outputs[0].tokens, all.outputs[1].tokens);

  request.n = 2;
  request.best_of = 6;
  request.logprobs = -1;
  const Result best = engine.submit(request).get();
  std::sort(means.rbegin(), means.rend());
  ASSERT_EQ(best.outputs.size(), 2U);
  EXPECT_NEAR(best.outputs[0].mean_logprob, means[0], 1e-5);
  EXPECT_NEAR(best.outputs[1].mean_logprob, means[1], 1e-5);
  EXPECT_TRUE(best.outputs[0].logprobs.empty());
}

TEST_P(EngineTest, EndsWhereTheContextIsFull) {
  EngineOptions small = options(2);
  small.context = 70;
  Engine engine(engine_model(), small);
  std::mt19937 random(31);
  Request request;
  request.prompt = random_prompt(random, 50);
  request.ignore_eos = true;
  const Result result = engine.submit(request).get();
  EXPECT_EQ(result.outputs[0].finish_reason, FinishReason::context);
  EXPECT_EQ(result.outputs[0].tokens.size(), 20U);

  request.prompt = random_prompt(random, 70);
  EXPECT_TRUE(says(error_of([&] { (void)engine.submit(request); }), "70 tokens",
                   "no room for an answer", "--context"));
  request.max_tokens = 0;
  const Result none = engine.submit(request).get();
  EXPECT_EQ(none.outputs[0].finish_reason, FinishReason::length) << "who wants no answer";
}

TEST_P(EngineTest, RefusesWhatACacheOfOneTokenCannotAnswer) {
  Engine engine(engine_model(), options(1, 1));
  EXPECT_EQ(engine.info().context, 1);
  EXPECT_TRUE(says(error_of([&] { (void)engine.submit({.prompt = std::vector<int32_t>{1}}); }),
                   "no room for an answer", "--kv-tokens"));
}

INSTANTIATE_TEST_SUITE_P(Cpu, EngineTest, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, EngineTest, testing::Values("cuda"));

TEST(Engine, RefusesRequestsThatMakeNoSense) {
  Engine engine(engine_model(), {.device = "cpu", .threads = 1, .slots = 1});
  const auto refused = [&](const std::function<void(Request&)>& change) {
    Request request;
    request.prompt = "the";
    change(request);
    try {
      (void)engine.submit(request);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused([](Request& r) { r.max_tokens = 1; }), "");
  EXPECT_NE(refused([](Request& r) { r.max_tokens = -2; }), "");
  EXPECT_NE(refused([](Request& r) { r.n = 0; }), "");
  EXPECT_NE(refused([](Request& r) { r.n = 1000; }), "");
  EXPECT_NE(refused([](Request& r) { r.n = 3, r.best_of = 2; }), "");
  EXPECT_NE(refused([](Request& r) { r.logprobs = 21; }), "");
  EXPECT_NE(refused([](Request& r) { r.stop = {""}; }), "");
  EXPECT_NE(refused([](Request& r) { r.stop_tokens = {kVocab}; }), "");
  EXPECT_NE(refused([](Request& r) { r.prompt = std::vector<int32_t>{}; }), "");
  EXPECT_NE(refused([](Request& r) { r.prompt = std::vector<int32_t>{-1}; }), "");
  EXPECT_NE(refused([](Request& r) { r.prompt = std::vector<int32_t>(1001, 5); }), "");
  EXPECT_NE(refused([](Request& r) { r.prompt = std::vector<Message>{{"user", "hello"}}; }), "");
  EXPECT_NE(refused([](Request& r) { r.sampling.temperature = -1; }), "");
  EXPECT_NE(refused([](Request& r) { r.sampling.min_p = 2; }), "");
  EXPECT_NE(refused([](Request& r) { r.sampling.repetition_penalty = 0; }), "");
  EXPECT_NE(refused([](Request& r) { r.sampling.logit_bias = {{1, 1}, {1, 2}}; }), "");
  EXPECT_NE(refused([](Request& r) { r.sampling.logit_bias = {{kVocab, 1}}; }), "");
}

TEST(Engine, ScoresTokensAsItWritesThem) {
  Engine engine(engine_model(), {.device = "cpu", .threads = 2, .slots = 3});
  Request request;
  request.prompt = "the cat";
  request.sampling.temperature = 0;
  request.max_tokens = 20;
  request.ignore_eos = true;
  request.logprobs = 0;
  const Output written = engine.submit(request).get().outputs.front();
  std::vector<int32_t> tokens = engine.tokenize("the cat");
  const size_t n_prompt = tokens.size();
  tokens.insert(tokens.end(), written.tokens.begin(), written.tokens.end());

  // More requests than slots, so that some wait beside it.
  std::vector<std::future<Result>> others;
  for (int i = 0; i < 9; ++i) others.push_back(engine.submit(request));
  const std::vector<float> scores = engine.score(tokens);
  for (auto& other : others) EXPECT_EQ(other.get().outputs.front().tokens, written.tokens);

  ASSERT_EQ(scores.size(), tokens.size() - 1);
  for (size_t i = 0; i < written.tokens.size(); ++i) {
    EXPECT_NEAR(scores[n_prompt - 1 + i], written.logprobs[i].chosen.logprob, 1e-4) << i;
  }
  EXPECT_TRUE(engine.score(std::vector<int32_t>{5}).empty());
  EXPECT_THROW((void)engine.score(std::vector<int32_t>{5, kVocab}), Error);
  EXPECT_THROW((void)engine.score(std::vector<int32_t>{5, -1}), Error);
  EXPECT_THROW((void)engine.score(std::vector<int32_t>(1001, 5)), Error);
}

// What the model gave to tokens when it generated them it gives to them in a prompt.
TEST(Engine, GivesTheLogprobsOfPrompts) {
  Engine engine(engine_model(), {.device = "cpu", .threads = 1});
  Request request;
  request.prompt = std::vector<int32_t>{5, 6, 7};
  request.sampling.temperature = 0;
  request.max_tokens = 60;
  request.ignore_eos = true;
  request.logprobs = 3;
  const Output written = engine.submit(request).get().outputs.front();
  std::vector<int32_t> tokens{5, 6, 7};
  tokens.insert(tokens.end(), written.tokens.begin(), written.tokens.end());

  Engine other(engine_model(), {.device = "cpu", .threads = 1});
  request.prompt = tokens;
  request.max_tokens = 2;
  request.logprobs = -1;
  request.prompt_logprobs = 3;
  const Result scored = other.submit(request).get();
  ASSERT_EQ(scored.prompt_logprobs.size(), tokens.size());
  EXPECT_TRUE(std::isnan(scored.prompt_logprobs.front().chosen.logprob));
  EXPECT_TRUE(scored.prompt_logprobs.front().top.empty());
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(scored.prompt_logprobs[i].chosen.token, tokens[i]);
  }
  for (size_t i = 0; i < written.logprobs.size(); ++i) {
    const PositionLogprobs& position = scored.prompt_logprobs[i + 3];
    EXPECT_NEAR(position.chosen.logprob, written.logprobs[i].chosen.logprob, 1e-4) << i;
    ASSERT_EQ(position.top.size(), 3U);
    EXPECT_EQ(position.top.front().token, written.logprobs[i].top.front().token) << i;
    EXPECT_NEAR(position.top[2].logprob, written.logprobs[i].top[2].logprob, 1e-4) << i;
  }
  EXPECT_EQ(scored.outputs.front().tokens.size(), 2U);
  EXPECT_GT(scored.cached_tokens, 32);  // which were computed for the scores
  request.prompt_logprobs = 21;
  EXPECT_THROW((void)other.submit(request), UsageError);
}

// Jobs that wait for their scores are ended as others are.
TEST(Engine, CancelsARequestThatWaitsForScores) {
  Engine engine(engine_model(), {.device = "cpu", .threads = 1, .slots = 1});
  Request request;
  request.prompt = "the cat";
  request.max_tokens = 900;
  request.ignore_eos = true;
  const RequestId running = engine.submit(request, {});
  request.prompt_logprobs = 0;
  std::promise<Result> ended;
  const RequestId waiting = engine.submit(
      request, {.on_finish = [&](Result result, const std::string&) { ended.set_value(result); }});
  engine.cancel(waiting);
  const Result result = ended.get_future().get();
  EXPECT_EQ(result.outputs.front().finish_reason, FinishReason::cancelled);
  engine.cancel(running);
  EXPECT_EQ(engine.score(std::vector<int32_t>{5, 6}).size(), 1U);
}

TEST(Engine, ScoresWhereTextsItRemembersFillTheCache) {
  Engine engine(engine_model(), {.device = "cpu", .threads = 1, .context = 128, .kv_tokens = 128});
  Request request;
  request.prompt = std::vector<int32_t>(100, 5);
  request.max_tokens = 1;
  (void)engine.submit(request).get();
  EXPECT_EQ(engine.score(std::vector<int32_t>(128, 6)).size(), 127U);
}

// With one slot it is always busy when the text to score comes, and nothing is left once it is
// free.
TEST(Engine, ScoresOnceTheRequestsThatItWaitedForHaveEnded) {
  Engine engine(engine_model(), {.device = "cpu", .threads = 1, .slots = 1});
  for (const bool ends_by_itself : {true, false}) {
    SCOPED_TRACE(ends_by_itself ? "ends" : "is cancelled");
    Request request;
    request.prompt = "the cat";
    request.max_tokens = ends_by_itself ? 200 : 900;
    request.ignore_eos = true;
    std::promise<void> begun;
    bool has_begun = false;  // of the engine's thread
    const RequestId id = engine.submit(request, {.on_delta = [&](const Delta&) {
                                         if (!std::exchange(has_begun, true)) begun.set_value();
                                       }});
    begun.get_future().wait();
    auto scores = std::async(std::launch::async, [&] {
      return engine.score(std::vector<int32_t>{5, 6, 7});
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // so that it waits
    if (!ends_by_itself) engine.cancel(id);
    const bool is_done = scores.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    EXPECT_TRUE(is_done);
    if (!is_done) (void)engine.submit(Request{.prompt = "the"}).get();  // which wakes the engine
    EXPECT_EQ(scores.get().size(), 2U);
  }
}

TEST(Engine, ScoresTextsInWindows) {
  Engine engine(engine_model(), {.device = "cpu", .threads = 1, .context = 16});
  const std::string text = "the cat and the dog and the cat and the dog and the cat";
  const std::vector<float> scores = engine.score(text);
  std::vector<int32_t> window = engine.tokenize(text);
  ASSERT_GT(window.size(), 16U);
  EXPECT_EQ(scores.size(), window.size() - 1);
  window.resize(16);
  const std::vector<float> first = engine.score(window);
  EXPECT_EQ(std::vector(scores.begin(), scores.begin() + 15), first);
  EXPECT_THROW((void)engine.score(""), Error);
}

TEST(Engine, RefusesLimitsThatMakeNoSense) {
  const auto refused = [&](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options{.device = "cpu", .threads = 1};
    change(options);
    try {
      const Engine engine(engine_model(), options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused([](EngineOptions& o) { o.slots = 4096; }), "");
  EXPECT_NE(refused([](EngineOptions& o) { o.slots = 8193; }), "");
  EXPECT_NE(refused([](EngineOptions& o) { o.slots = -1; }), "");
  EXPECT_NE(refused([](EngineOptions& o) { o.chunk = -1; }), "");
  EXPECT_NE(refused([](EngineOptions& o) { o.chunk = 3; }), "");
  EXPECT_EQ(refused([](EngineOptions& o) { o.chunk = 4; }), "");
  EXPECT_NE(refused([](EngineOptions& o) { o.kv_tokens = int64_t{1} << 60; }), "");
  EXPECT_NE(refused([](EngineOptions& o) { o.context = 64, o.kv_tokens = 32; }), "");
  EXPECT_NE(refused([](EngineOptions& o) { o.chat_template = "/nowhere"; }), "");
}

TEST(Engine, IsNoneWhereTheSystemGivesNoThread) {
  const EngineOptions options{.device = "cpu", .threads = 1, .slots = 1};
  {
    const RefusedThreads refused;
    EXPECT_THROW({ const Engine engine(engine_model(), options); }, std::system_error);
  }
  Engine engine(engine_model(), options);
  EXPECT_EQ(engine.submit({.prompt = "the", .max_tokens = 1}).get().outputs.size(), 1U);
}

TEST(Engine, PassesOnWhatItsListenerThrows) {
  Engine engine(engine_model(), {.device = "cpu", .threads = 1, .slots = 1});
  Request request;
  request.prompt = "the";
  request.ignore_eos = true;
  EXPECT_THROW(engine.generate(request, [](std::string_view) -> bool { throw Error("full disk"); }),
               Error);
  request.max_tokens = 3;
  EXPECT_EQ(
      engine.generate(request, [](std::string_view) { return true; }).outputs[0].tokens.size(), 3U);
}

}  // namespace
}  // namespace faststream
