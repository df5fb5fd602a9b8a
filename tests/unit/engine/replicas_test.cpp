// Several of a model side by side answer as one does.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "support/error.h"
#include "unit/backend/failing_backend.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/mixed_requests.h"

namespace faststream {
namespace {

using Texts = std::vector<std::vector<std::vector<int32_t>>>;

std::filesystem::path replicated_model() {
  return engine_model_of(engine_shape(WeightFormat::f32), "replicas-f32");
}

EngineOptions with_replicas(int32_t n, const std::string& device = "cpu") {
  return {.device = device, .threads = 2, .replicas = n, .slots = 3, .kv_tokens = 1024};
}

Texts texts_of(Engine& engine) {
  std::vector<std::future<Result>> results;
  for (Request& request : requests_of_all_lengths()) {
    results.push_back(engine.submit(std::move(request)));
  }
  Texts texts;
  for (std::future<Result>& result : results) texts.push_back(samples_of(result.get()));
  return texts;
}

Texts texts_with(const EngineOptions& options) {
  Engine engine(replicated_model(), options);
  return texts_of(engine);
}

TEST(Replicas, GiveTheTextsOfOne) {
  const Texts expected = texts_with(with_replicas(1));
  EXPECT_EQ(texts_with(with_replicas(2)), expected);
  EXPECT_EQ(texts_with(with_replicas(3)), expected);
  EXPECT_EQ(texts_with(with_replicas(2, "cpu,cpu,cpu,cpu")), expected);  // of two ranks each
}

TEST(Replicas, ShareTheWork) {
  std::vector<std::atomic<int>> n_operations(2);
  size_t n_made = 0;
  EngineOptions options = with_replicas(2);
  std::mutex mutex;  // both are loaded at once
  options.wrap_backend = [&](std::unique_ptr<Backend> backend) {
    const std::lock_guard lock(mutex);
    std::atomic<int>& count = n_operations.at(n_made++);
    return std::make_unique<FailingBackend>(std::move(backend), [&count](const std::string&) {
      ++count;
      return false;
    });
  };
  Engine engine(replicated_model(), options);
  EXPECT_EQ(engine.info().slots, 6);
  EXPECT_EQ(engine.info().kv_tokens, 2048);
  texts_of(engine);
  EXPECT_EQ(engine.stats().finished, static_cast<int64_t>(requests_of_all_lengths().size()));
  for (const std::atomic<int>& count : n_operations) EXPECT_GT(count, 1000);
}

// What the device of one fails the others answer, from the start: before and after its first
// tokens, of which nobody has had any.
TEST(Replicas, AnswerWhatOneFails) {
  const Texts expected = texts_with(with_replicas(1));
  for (const int works : {40, 400}) {
    std::atomic<bool> is_first = true;
    std::atomic<int> n_operations = 0;
    EngineOptions options = with_replicas(2);
    options.wrap_backend = [&](std::unique_ptr<Backend> backend) -> std::unique_ptr<Backend> {
      if (!is_first.exchange(false)) return backend;
      return std::make_unique<FailingBackend>(
          std::move(backend), [&n_operations, works](const std::string& operation) {
            return operation == "linear" && ++n_operations > works;
          });
    };
    Engine engine(replicated_model(), options);
    EXPECT_EQ(texts_of(engine), expected);
    EXPECT_GT(n_operations, works);
    Request request;
    request.prompt = "the hell";
    request.max_tokens = 5;
    for (int i = 0; i < 4; ++i) EXPECT_EQ(engine.submit(request).get().outputs.size(), 1);
  }
}

// A batch that is written in order would wait for them else, while all that came later is answered.
TEST(Replicas, AnswerWhatOneFailsBeforeWhatCameLater) {
  constexpr int kRequests = 60;
  std::atomic<bool> is_first = true;
  std::atomic<bool> have_all = false;
  std::atomic<int> n_failures = 0;  // of the one's jobs, half of all, and of several together
  const auto wait_until = [](const auto& is_so) {
    while (!is_so()) std::this_thread::yield();
  };
  EngineOptions options = with_replicas(2);
  options.wrap_backend = [&](std::unique_ptr<Backend> backend) -> std::unique_ptr<Backend> {
    const bool fails = is_first.exchange(false);
    return std::make_unique<FailingBackend>(
        std::move(backend), [&, fails](const std::string& operation) {
          if (operation != "linear") return false;
          wait_until([&] { return have_all || !fails; });
          if (fails) ++n_failures;
          wait_until([&] { return fails || n_failures >= kRequests / 3; });
          return fails;
        });
  };
  Engine engine(replicated_model(), options);
  Request request;
  request.prompt = "the hell";
  request.max_tokens = 20;
  request.ignore_eos = true;
  std::mutex mutex;
  std::vector<int> ended;
  std::promise<void> all;
  for (int i = 0; i < kRequests; ++i) {
    engine.submit(request, {.on_finish = [&, i](const Result&, const std::string& error) {
                    EXPECT_EQ(error, "");
                    const std::lock_guard lock(mutex);
                    ended.push_back(i);
                    if (ended.size() == kRequests) all.set_value();
                  }});
  }
  have_all = true;
  all.get_future().wait();
  // Of the first ten none ends where they would come to stand behind the other's own half.
  for (int place = kRequests / 2; place < kRequests; ++place) {
    EXPECT_GE(ended[static_cast<size_t>(place)], 10) << "ended as number " << place;
  }
}

// But not what somebody has had a part of.
TEST(Replicas, EndWhatOneFailsOnceItWasTold) {
  std::atomic<bool> is_first = true;
  std::atomic<bool> fails = false;
  EngineOptions options = with_replicas(2);
  options.wrap_backend = [&](std::unique_ptr<Backend> backend) -> std::unique_ptr<Backend> {
    if (!is_first.exchange(false)) return backend;
    return std::make_unique<FailingBackend>(std::move(backend),
                                            [&fails](const std::string&) { return fails.load(); });
  };
  Engine engine(replicated_model(), options);
  Request request;
  request.prompt = "the hell";
  request.ignore_eos = true;
  std::vector<std::promise<std::string>> errors(2);  // one of each replica
  std::vector<std::atomic<bool>> is_told(2);
  for (size_t i = 0; i < 2; ++i) {
    engine.submit(
        request, {.on_delta =
                      [&, i](const Delta&) {
                        is_told[i] = true;
                        fails = is_told[0] && is_told[1];
                      },
                  .on_finish = [&errors, i](const Result&,
                                            const std::string& why) { errors[i].set_value(why); }});
  }
  int n_failed = 0;
  for (std::promise<std::string>& error : errors) {
    n_failed += error.get_future().get().empty() ? 0 : 1;
  }
  EXPECT_EQ(n_failed, 1);
}

TEST(Replicas, CancelAndEnd) {
  std::vector<std::future<Result>> futures;
  {
    Engine engine(replicated_model(), with_replicas(2));
    Request request;
    request.prompt = "the hell";
    request.ignore_eos = true;
    std::promise<void> cancelled;
    const RequestId id = engine.submit(
        request, {.on_finish = [&](const Result&, const std::string&) { cancelled.set_value(); }});
    for (int i = 0; i < 10; ++i) futures.push_back(engine.submit(request));
    engine.cancel(id);
    cancelled.get_future().wait();
  }
  for (auto& future : futures) {
    EXPECT_EQ(future.get().outputs.at(0).finish_reason, FinishReason::cancelled);
  }
}

// Which may hear of it while a job goes from one that has failed to another.
TEST(Replicas, CancelWhatOneFails) {
  std::atomic<bool> is_first = true;
  std::atomic<RequestId> id = 0;
  Engine* cancels = nullptr;
  EngineOptions options = with_replicas(2);
  options.wrap_backend = [&](std::unique_ptr<Backend> backend) -> std::unique_ptr<Backend> {
    if (!is_first.exchange(false)) return backend;
    return std::make_unique<FailingBackend>(std::move(backend), [&](const std::string& operation) {
      if (operation != "linear" || id == 0) return false;
      cancels->cancel(id);
      return true;
    });
  };
  Engine engine(replicated_model(), options);
  cancels = &engine;
  Request request;
  request.prompt = "the hell";
  request.ignore_eos = true;
  for (int i = 0; i < 2; ++i) {  // one of them where the first fails
    std::promise<FinishReason> finished;
    id = 0;
    id = engine.submit(request, {.on_delta = [&](const Delta&) { engine.cancel(id); },
                                 .on_finish =
                                     [&](const Result& result, const std::string& error) {
                                       EXPECT_EQ(error, "");
                                       finished.set_value(result.outputs.at(0).finish_reason);
                                     }});
    EXPECT_EQ(finished.get_future().get(), FinishReason::cancelled);
  }
}

TEST(Replicas, SayWhatTheyTake) {
  const std::filesystem::path model = replicated_model();
  EXPECT_THROW(Engine(model, with_replicas(0)), UsageError);
  EXPECT_THROW(Engine(model, with_replicas(2, "cpu,cpu,cpu")), UsageError);
  EXPECT_THROW(Engine(model, with_replicas(2, "auto")), UsageError);
}

}  // namespace
}  // namespace faststream
