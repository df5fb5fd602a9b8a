// Requests of which tokens may be proposed, and what tells their answers apart.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/forwarding_backend.h"
#include "engine/engine.h"
#include "unit/engine/mixed_requests.h"

namespace faststream {

inline EngineOptions speculating(const std::string& speculate, int32_t slots,
                                 const std::string& device = "cpu") {
  return {.device = device,
          .threads = 2,
          .slots = slots,
          .speculate = speculate,
          .always_speculate = true};
}

// A device that is beside the host, as a GPU is: the engine runs ahead.
class DeviceBesideHost final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  [[nodiscard]] bool runs_beside_host() const override { return true; }

 private:
  void before(std::string_view /*operation*/) override {}
};

// On such a device, and where it is worth it alone.
inline EngineOptions running_ahead(const std::string& speculate, int32_t slots,
                                   const std::string& device = "cpu") {
  EngineOptions options = speculating(speculate, slots, device);
  options.always_speculate = false;
  options.wrap_backend = [](std::unique_ptr<Backend> backend) {
    return std::make_unique<DeviceBesideHost>(std::move(backend));
  };
  return options;
}

// Tests over devices and models by name: "cpu" or "cuda", which is skipped where there is no GPU.
using DeviceAndModel = std::pair<std::string, std::string>;

class SpeculatingTest : public testing::TestWithParam<DeviceAndModel> {
 protected:
  void SetUp() override {
    if (device() == "cuda" && cuda_device_count() == 0) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
  static const std::string& device() { return GetParam().first; }
  static const std::string& model_name() { return GetParam().second; }
  static EngineOptions speculating(const std::string& speculate, int32_t slots) {
    return faststream::speculating(speculate, slots, device());
  }
};
inline std::vector<DeviceAndModel> on_device(const std::string& device,
                                             const std::vector<std::string>& models) {
  std::vector<DeviceAndModel> all;
  for (const std::string& model : models) all.emplace_back(device, model);
  return all;
}
inline std::string model_name_of(const testing::TestParamInfo<DeviceAndModel>& info) {
  return info.param.second;
}

// Prompts whose passages come again, which random models go on with, too: greedily they repeat
// themselves. Of all kinds that speculation has to do with: draws, penalties, biases, limits, stop
// rules, log-probabilities, rules of output, several samples.
inline std::vector<Request> requests_that_repeat() {
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

// Answers by rules that leave little to the model, of the same kinds.
inline std::vector<Request> requests_by_rule() {
  using Kind = OutputRule::Kind;
  const std::vector<OutputRule> rules = {
      {Kind::json_schema,
       R"({"type": "object", "additionalProperties": false, "required": ["a long name", "kind"],
           "properties": {"a long name": {"type": "integer", "minimum": 10, "maximum": 99},
                          "kind": {"enum": ["hello there", "hello world", "other"]}}})"},
      {Kind::regex, "(yes|no), that is (what|how) it (does|is), [a-d]{2,8} \\(sic\\)"},
      {Kind::grammar,
       "root ::= \"<text>\" word (\", \" word)* \"</text>\"\n"
       "word ::= \"hello\" | \"world\" | [x-z]+"},
  };
  std::mt19937 random(59);
  std::vector<Request> all;
  for (size_t i = 0; i < 15; ++i) {
    std::vector<int32_t> prompt{1};
    append(prompt, random_tokens(random, 5 + random() % 30));
    Request request;
    request.prompt = prompt;
    request.rule = rules[i % rules.size()];
    request.max_tokens = i % 5 == 4 ? 9 : 90;
    request.sampling.seed = random();
    request.sampling.temperature = i % 2 == 0 ? 0 : 1;
    if (i % 4 == 1) request.sampling.repetition_penalty = 1.1F;
    if (i % 4 == 2) request.logprobs = 2;
    if (i % 7 == 3) request.sampling.logit_bias = {{.token = prompt[1], .bias = 3}};
    if (i % 7 == 4) request.min_tokens = 12;
    if (i % 7 == 5) request.n = 2;
    if (i % 7 == 6) request.stop = {"at is"};
    all.push_back(request);
  }
  return all;
}

inline std::string answer_of(const Result& result) {
  std::string all;
  for (const Output& output : result.outputs) {
    all += output.text + "\n" + std::string(finish_reason_name(output.finish_reason));
    for (const int32_t token : output.tokens) all += " " + std::to_string(token);
    all += "\n";
  }
  return all;
}

// The same with log-probabilities, whose last bits in float32 depend on a text's company.
inline std::string exact_answer_of(const Result& result) {
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

inline void expect_same_answers(const Answers& got, const Answers& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << what << ", request " << i;
}

}  // namespace faststream
