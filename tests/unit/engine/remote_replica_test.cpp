// A replica in another process answers as one in this process does; here it is a thread's.
#include "engine/remote_replica.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "support/error.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/message_pair.h"
#include "unit/engine/mixed_requests.h"

namespace faststream {
namespace {

std::filesystem::path served_model() {
  return engine_model_of(engine_shape(WeightFormat::f32), "remote-replicas-f32");
}

// A process that serves.
class OtherProcess {
 public:
  explicit OtherProcess(int64_t lasts = std::numeric_limits<int64_t>::max())
      : pair_(lasts), thread_([this] {
          try {
            serve_replica(pair_.there(), {.device = "cpu", .threads = 1});
          } catch (const Error&) {
            was_left_ = true;
          }
        }) {}
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  ~OtherProcess() {
    try {
      dismiss_replica(pair_.here());
    } catch (const Error&) {
      pair_.cut();
    }
    thread_.join();
  }
  MessagePair& pair() { return pair_; }
  MessageLink* link() { return &pair_.here(); }
  [[nodiscard]] bool was_left() const { return was_left_; }

 private:
  MessagePair pair_;
  std::atomic<bool> was_left_ = false;
  std::thread thread_;
};

EngineOptions beside(const std::vector<MessageLink*>& links) {
  return {.device = "cpu", .threads = 1, .replica_links = links, .slots = 3, .kv_tokens = 1024};
}

std::vector<Result> results_of(Engine& engine, const std::vector<Request>& requests) {
  std::vector<std::future<Result>> futures;
  for (const Request& request : requests) futures.push_back(engine.submit(request));
  std::vector<Result> results;
  for (std::future<Result>& future : futures) results.push_back(future.get());
  return results;
}

std::vector<std::string> described(const std::vector<Result>& results) {
  std::vector<std::string> all;
  for (const Result& result : results) {
    std::string text = std::to_string(result.prompt_tokens) + " " + std::to_string(result.seed);
    for (const PositionLogprobs& position : result.prompt_logprobs) {
      text += " " + std::to_string(position.chosen.logprob) + " of";
      for (const TokenLogprob& top : position.top) text += " " + std::to_string(top.token);
    }
    for (const Output& output : result.outputs) {
      text += "\n" + output.text + " " + std::string(finish_reason_name(output.finish_reason)) +
              " " + output.stop + " " + std::to_string(output.logprobs.size());
      for (const int32_t token : output.tokens) text += " " + std::to_string(token);
    }
    all.push_back(text);
  }
  return all;
}

// Of each kind.
std::vector<Request> requests_of_all_kinds() {
  std::vector<Request> all = requests_of_all_lengths();
  for (size_t i = 0; i < 24; ++i) {
    Request request;
    request.prompt = std::string("the hell");
    request.max_tokens = 12;
    request.sampling.seed = 17 + i;
    switch (i % 6) {
      case 0:
        request.search = {.beams = 2};
        request.n = 2;
        break;
      case 1:
        request.best_of = 3;
        request.logprobs = 2;
        break;
      case 2:
        request.stop = {"e"};
        request.stop_tokens = {40};
        break;
      case 3:
        request.rule = OutputRule{.kind = OutputRule::Kind::regex, .text = "[a-m ]{4,9}"};
        break;
      case 4:
        request.sampling.logit_bias = {{.token = 30, .bias = 5}};
        request.sampling.repetition_penalty = 1.2F;
        request.sampling.no_repeat_ngram = 2;
        break;
      default:
        request.max_tokens = 0;
        request.prompt_logprobs = 2;
    }
    all.push_back(request);
  }
  return all;
}

TEST(RemoteReplicas, GiveTheTextsOfOne) {
  const std::vector<Request> requests = requests_of_all_kinds();
  Engine alone(served_model(), beside({}));
  const auto expected = described(results_of(alone, requests));
  OtherProcess first;
  OtherProcess second;
  Engine engine(served_model(), beside({first.link(), second.link()}));
  EXPECT_EQ(engine.info().slots, 9);
  EXPECT_EQ(engine.info().kv_tokens, 3072);
  EXPECT_EQ(described(results_of(engine, requests)), expected);
  EXPECT_EQ(engine.stats().finished, static_cast<int64_t>(requests.size()));
}

TEST(RemoteReplicas, TakeTheirPart) {
  OtherProcess other;
  RemoteReplica replica(*other.link(), served_model(), beside({}), {});
  Engine engine(served_model(), beside({}));
  EXPECT_EQ(replica.info().context, engine.info().context);
  EXPECT_EQ(replica.info().slots, 3);
  EXPECT_EQ(replica.info().vocab, engine.info().vocab);
}

// What is generated of a text, as it is told.
struct Told {
  std::string text;
  std::vector<int32_t> tokens;
  size_t n_logprobs = 0;
  std::promise<Result> result;
  std::string error;

  Callbacks callbacks() {
    return {.on_prompt = {},
            .on_delta =
                [this](const Delta& delta) {
                  text += delta.text;
                  tokens.push_back(delta.token);
                  n_logprobs = delta.logprobs.size();
                },
            .on_finish =
                [this](Result given, const std::string& why) {
                  error = why;
                  result.set_value(std::move(given));
                }};
  }
};

// A request that this process's replica has, and that keeps it from all others as long as this
// lives: the next one goes to the other process.
class Held {
 public:
  explicit Held(Engine& engine) {
    Request request;
    request.prompt = std::string("the hell");
    request.max_tokens = 2;
    engine.submit(request,
                  {.on_delta = [this](const Delta&) { wait_for_release_.wait(); },
                   .on_finish = [this](const Result&, const std::string&) { end_.set_value(); }});
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    release_.set_value();
    end_.get_future().wait();
  }

 private:
  std::promise<void> release_;
  std::shared_future<void> wait_for_release_ = release_.get_future().share();
  std::promise<void> end_;
};

TEST(RemoteReplicas, TellTextsAsTheyCome) {
  OtherProcess other;
  Engine engine(served_model(), beside({other.link()}));
  auto held = std::make_unique<Held>(engine);
  Request request;
  request.prompt = std::string("the hell");
  request.max_tokens = 30;
  request.ignore_eos = true;
  request.logprobs = 1;
  request.sampling.seed = 3;
  std::vector<Told> told(4);  // two of them there
  for (Told& each : told) engine.submit(request, each.callbacks());
  held.reset();
  for (Told& each : told) {
    const Result result = each.result.get_future().get();
    EXPECT_EQ(each.error, "");
    EXPECT_EQ(result.outputs.at(0).tokens.size(), 30U);
    EXPECT_EQ(each.tokens, result.outputs.at(0).tokens);
    EXPECT_TRUE(result.outputs.at(0).text.starts_with(each.text)) << each.text;
    EXPECT_EQ(each.n_logprobs, 30U);
    EXPECT_EQ(each.tokens, told.front().tokens);
  }
}

TEST(RemoteReplicas, EndWhatItsOwnCallbackFailsAndWhatIsCancelled) {
  OtherProcess other;
  Engine engine(served_model(), beside({other.link()}));
  Request request;
  request.prompt = std::string("the hell");
  request.ignore_eos = true;
  for (const bool is_there : {true, false}) {
    const auto held = is_there ? std::make_unique<Held>(engine) : nullptr;
    Told told;
    Callbacks callbacks = told.callbacks();
    callbacks.on_delta = [](const Delta&) { throw Error("no more"); };
    engine.submit(request, std::move(callbacks));
    EXPECT_EQ(told.result.get_future().get().outputs.size(), 1U);
    EXPECT_EQ(told.error, "no more");
  }
  std::vector<Told> told(4);  // two of them there
  std::vector<RequestId> ids;
  auto held = std::make_unique<Held>(engine);
  for (Told& each : told) ids.push_back(engine.submit(request, each.callbacks()));
  for (const RequestId id : ids) engine.cancel(id);
  held.reset();
  for (Told& each : told) {
    EXPECT_EQ(each.result.get_future().get().outputs.at(0).finish_reason, FinishReason::cancelled);
    EXPECT_EQ(each.error, "");
  }
}

TEST(RemoteReplicas, EndAllWithTheEngine) {
  OtherProcess other;
  std::vector<std::future<Result>> futures;
  for (int i = 0; i < 2; ++i) {  // one model after the other
    {
      Engine engine(served_model(), beside({other.link()}));
      Request request;
      request.prompt = std::string("the hell");
      request.ignore_eos = true;
      for (int n = 0; n < 10; ++n) futures.push_back(engine.submit(request));
    }
    for (auto& future : futures) {
      EXPECT_EQ(future.get().outputs.at(0).finish_reason, FinishReason::cancelled);
    }
    futures.clear();
  }
  EXPECT_FALSE(other.was_left());
}

// Wherever the other process ends; only texts of which somebody has had a part end.
TEST(RemoteReplicas, AnswerWhatOneThatEndsHad) {
  const std::vector<Request> requests = requests_of_all_kinds();
  Engine alone(served_model(), beside({}));
  const auto expected = described(results_of(alone, requests));
  for (const int lasts : {1, 2, 9}) {
    OtherProcess other(lasts);
    Engine engine(served_model(), beside({other.link()}));
    EXPECT_EQ(described(results_of(engine, requests)), expected) << lasts;
    EXPECT_EQ(described(results_of(engine, requests)), expected) << lasts;  // without it
  }
}

TEST(RemoteReplicas, EndWhatWasToldInPartWhereOneEnds) {
  OtherProcess other(3);
  Engine engine(served_model(), beside({other.link()}));
  Request request;
  request.prompt = std::string("the hell");
  request.max_tokens = 20;
  request.ignore_eos = true;
  const Held held(engine);
  Told told;
  engine.submit(request, told.callbacks());
  EXPECT_EQ(told.result.get_future().get().outputs.size(), 1U);
  EXPECT_EQ(told.error, "the other end has ended");
}

TEST(RemoteReplicas, SayWhyTheyCannotBegin) {
  OtherProcess other;
  EXPECT_THROW(RemoteReplica(*other.link(), "no-such-model.bin", beside({}), {}), Error);
  EngineOptions options = beside({});
  options.kv = "int9";
  try {
    const RemoteReplica replica(*other.link(), served_model(), options, {});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("the other end: "), std::string::npos) << error.what();
  }
  Engine engine(served_model(), beside({other.link()}));  // it waits for one that can
  EXPECT_EQ(engine.info().slots, 6);
  OtherProcess gone(0);
  EXPECT_THROW(Engine(served_model(), beside({gone.link()})), Error);
}

TEST(Messages, AreReadAsTheyWereWritten) {
  const std::vector<std::vector<std::string>> texts{{"a", ""}, {}, {"bc"}};
  MessageWriter writer;
  writer.put(int64_t{-5}).put(texts).put(std::optional<int32_t>()).put(std::optional<float>(2.5F));
  MessageReader reader(writer.bytes());
  EXPECT_EQ(reader.take<int64_t>(), -5);
  EXPECT_EQ(reader.take<std::vector<std::vector<std::string>>>(), texts);
  EXPECT_EQ(reader.take<std::optional<int32_t>>(), std::nullopt);
  EXPECT_EQ(reader.take<std::optional<float>>(), 2.5F);
  EXPECT_THROW(reader.take<bool>(), Error);
  for (size_t size = 0; size < writer.bytes().size(); ++size) {
    std::vector<std::byte> part(writer.bytes().begin(),
                                writer.bytes().begin() + static_cast<ptrdiff_t>(size));
    MessageReader short_one(std::move(part));
    EXPECT_THROW(
        {
          short_one.take<int64_t>();
          short_one.take<std::vector<std::vector<std::string>>>();
          short_one.take<std::optional<int32_t>>();
          short_one.take<std::optional<float>>();
        },
        Error)
        << size;
  }
}

}  // namespace
}  // namespace faststream
