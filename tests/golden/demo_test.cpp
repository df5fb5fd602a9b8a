// The bundled model: the same answers as Transformers, its scores, and what quantization costs.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "convert/pipeline.h"
#include "engine/engine.h"
#include "engine/perplexity.h"
#include "golden_data.h"
#include "unit/backend/test_backends.h"
#include "unit/effort.h"

namespace faststream {
namespace {

constexpr size_t kEvery = kSanitized ? 20 : 1;  // of the items

std::filesystem::path demo_folder() { return golden_root().parent_path().parent_path() / "demo"; }

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// demo/ converted, once a process and type.
std::string converted(WeightFormat format) {
  struct Files {
    std::map<WeightFormat, std::string> paths;
    ~Files() {
      for (const auto& [type, path] : paths) std::filesystem::remove(path);
    }
  };
  static Files files;
  std::string& path = files.paths[format];
  if (path.empty()) {
    path = std::filesystem::temp_directory_path() /
           ("faststream-demo-" + std::string(format_name(format)) + "-" + std::to_string(getpid()) +
            ".bin");
    convert::ConvertOptions options;
    options.checkpoint = demo_folder();
    options.output = path;
    options.format = format;
    options.threads = 2;
    convert::convert_checkpoint(options);
  }
  return path;
}

std::vector<nlohmann::json> items() {
  std::ifstream file(demo_folder() / "eval" / "items.jsonl");
  std::vector<nlohmann::json> all;
  for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

// Greedy answers to prompts, of at most `longest` tokens; an answer that the model ended has its
// end-of-sequence token.
std::vector<Output> greedy(WeightFormat format, const std::string& device,
                           const std::vector<std::string>& prompts, int64_t longest) {
  Engine engine(converted(format), {.device = device, .threads = 2, .slots = 64});
  std::vector<std::future<Result>> results;
  for (const std::string& prompt : prompts) {
    results.push_back(
        engine.submit({.prompt = prompt, .max_tokens = longest, .sampling = {.temperature = 0}}));
  }
  std::vector<Output> answers;
  for (auto& result : results) answers.push_back(std::move(result.get().outputs.front()));
  return answers;
}

// Right answers and all answers, by family; open stories are left out.
using Scores = std::map<std::string, std::pair<int, int>>;

Scores score(WeightFormat format, const std::string& device, size_t every) {
  std::vector<nlohmann::json> asked;
  std::vector<std::string> prompts;
  const std::vector<nlohmann::json> all = items();
  for (size_t i = 0; i < all.size(); i += every) {
    if (all[i].at("check") != "exact") continue;
    asked.push_back(all[i]);
    prompts.push_back(all[i].at("prompt"));
  }
  const std::vector<Output> answers = greedy(format, device, prompts, 96);
  Scores scores;
  for (size_t i = 0; i < asked.size(); ++i) {
    const bool ended = answers[i].finish_reason == FinishReason::eos;
    auto& [right, total] = scores[asked[i].at("family")];
    right += ended && answers[i].text == " " + asked[i].at("answer").get<std::string>() ? 1 : 0;
    ++total;
  }
  return scores;
}

double accuracy(const Scores& scores) {
  int right = 0;
  int total = 0;
  for (const auto& [family, score] : scores) {
    right += score.first;
    total += score.second;
  }
  return static_cast<double>(right) / total;
}

class DemoTest : public DeviceTest {
 protected:
  // Of the first of `parts` parts of the held-out text.
  Perplexity measure(size_t parts, WeightFormat format,
                     std::optional<WeightFormat> against = std::nullopt) {
    const EngineOptions options{.device = GetParam(), .threads = 2, .slots = 1};
    LoadedModel model(converted(format), options, 256);
    std::optional<LoadedModel> reference;
    if (against) reference.emplace(converted(*against), options, 256);
    std::string text = read_all(demo_folder() / "eval" / "heldout.txt");
    text.resize(text.size() / parts);
    return measure_perplexity(model, reference ? &*reference : nullptr, text, [] {});
  }
};

TEST_P(DemoTest, GivesTransformersGreedyAnswers) {
  const nlohmann::json golden = nlohmann::json::parse(read_all(golden_root() / "demo.json"));
  std::map<std::string, std::string> prompts;
  for (const nlohmann::json& item : items()) prompts[item.at("id")] = item.at("prompt");
  std::vector<std::string> asked;
  std::vector<std::vector<int32_t>> expected;
  for (const auto& [id, answer] : golden.at("answers").items()) {
    asked.push_back(prompts.at(id));
    expected.push_back(answer);
  }
  ASSERT_GE(asked.size(), 200U);
  asked.resize(repetitions(asked.size()));
  const auto answers = greedy(WeightFormat::f32, GetParam(), asked, golden.at("longest_answer"));
  for (size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(answers[i].tokens, expected[i]) << asked[i];
}

TEST_P(DemoTest, HasTransformersPerplexity) {
  if (kSanitized) GTEST_SKIP() << "too slow with sanitizers";
  const nlohmann::json golden = nlohmann::json::parse(read_all(golden_root() / "demo.json"));
  const Perplexity perplexity = measure(1, WeightFormat::f32);
  EXPECT_EQ(perplexity.n_tokens, golden.at("perplexity_tokens").get<int64_t>());
  EXPECT_NEAR(perplexity.value, golden.at("perplexity").get<double>(), 5e-5);
  EXPECT_GT(perplexity.standard_error, 0);
  EXPECT_GT(perplexity.seconds, 0);
}

TEST_P(DemoTest, AnswersHeldOutQuestionsAlsoWithQuantizedWeights) {
  const size_t every = GetParam() == "cpu" ? std::max<size_t>(3, kEvery) : kEvery;
  const Scores full = score(WeightFormat::f32, GetParam(), every);
  EXPECT_EQ(full.size(), 7U);
  for (const auto& [family, score] : full) {
    EXPECT_GE(score.first, 0.95 * score.second) << family;
  }
  EXPECT_NEAR(accuracy(score(WeightFormat::int8, GetParam(), every)), accuracy(full), 0.01);
  EXPECT_NEAR(accuracy(score(WeightFormat::bf16, GetParam(), every)), accuracy(full), 0.015);
}

TEST_P(DemoTest, PredictsAlmostTheSameWithQuantizedWeights) {
  if (kSanitized) GTEST_SKIP() << "too slow with sanitizers";
  const Perplexity quantized = measure(6, WeightFormat::int8, WeightFormat::f32);
  const Perplexity rounded = measure(6, WeightFormat::bf16, WeightFormat::f32);
  ASSERT_TRUE(quantized.divergence && rounded.divergence);
  EXPECT_NEAR(quantized.value / quantized.divergence->reference_perplexity, 1, 0.005);
  EXPECT_GE(quantized.divergence->top_token_agrees, 0.99);
  EXPECT_NEAR(rounded.value / rounded.divergence->reference_perplexity, 1, 0.005);
  EXPECT_GE(rounded.divergence->top_token_agrees, quantized.divergence->top_token_agrees);
  EXPECT_LE(rounded.divergence->mean_kl, quantized.divergence->mean_kl);
  EXPECT_LE(quantized.divergence->mean_kl, quantized.divergence->kl_99th);
}

// Questions, which end by themselves, and beginnings of stories, where tokens are often all but
// equally likely; docs/cpp-api.md says why not all need be the same.
TEST_P(DemoTest, AlmostNeverAnswersOtherwiseInABatchInFewerBits) {
  constexpr size_t kRequests = 100;
  const std::vector<nlohmann::json> questions = items();
  const std::string stories = read_all(demo_folder() / "eval" / "heldout.txt");
  std::vector<Request> requests;
  for (size_t i = 0; i < kRequests; i += kEvery) {
    Request request;
    request.max_tokens = static_cast<int32_t>(10 + i % 45);
    request.sampling.temperature = 0;
    if (i % 2 == 0) {
      request.prompt = questions[i * questions.size() / kRequests].at("prompt").get<std::string>();
    } else {
      const size_t begin = stories.find('\n', i * stories.size() / kRequests) + 1;
      request.prompt =
          stories.substr(begin, std::min(stories.find('\n', begin) - begin, 20 + i / 4));
    }
    requests.push_back(request);
  }
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8}) {
    std::vector<std::vector<int32_t>> alone;
    for (const int32_t slots : {1, 3, 64}) {
      Engine engine(converted(format), {.device = GetParam(), .threads = 2, .slots = slots});
      std::vector<std::future<Result>> results;
      for (const Request& request : requests) results.push_back(engine.submit(request));
      size_t same = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        std::vector<int32_t> tokens = results[i].get().outputs.front().tokens;
        if (slots == 1) {
          alone.push_back(std::move(tokens));
        } else {
          same += tokens == alone[i] ? 1 : 0;
        }
      }
      if (slots == 1) continue;
      EXPECT_GE(same, requests.size() * 99 / 100) << format_name(format) << ", slots " << slots;
      RecordProperty("same_" + std::string(format_name(format)) + "_" + std::to_string(slots),
                     static_cast<int>(same));
    }
  }
}

constexpr size_t kPartsOfShort = kSanitized ? 100 : 20;

TEST_P(DemoTest, IsAtNoDistanceFromItself) {
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::int8}) {
    SCOPED_TRACE(format_name(format));
    const Perplexity same = measure(kPartsOfShort, format, format);
    EXPECT_EQ(same.divergence->mean_kl, 0);
    EXPECT_EQ(same.divergence->top_token_agrees, 1);
    EXPECT_EQ(same.value, same.divergence->reference_perplexity);
  }
}

TEST_P(DemoTest, IsMeasuredAgainstReferencesOfEveryType) {
  const Perplexity full = measure(kPartsOfShort, WeightFormat::f32);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8}) {
    SCOPED_TRACE(format_name(format));
    const Perplexity alone = measure(kPartsOfShort, format);
    const Perplexity from = measure(kPartsOfShort, WeightFormat::f32, format);
    const Perplexity to = measure(kPartsOfShort, format, WeightFormat::f32);
    EXPECT_EQ(from.value, full.value);
    EXPECT_EQ(from.divergence->reference_perplexity, alone.value);
    EXPECT_EQ(to.value, alone.value);
    EXPECT_EQ(to.divergence->reference_perplexity, full.value);
    EXPECT_GT(from.divergence->mean_kl, 0);
    EXPECT_EQ(from.divergence->top_token_agrees, to.divergence->top_token_agrees);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, DemoTest, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, DemoTest, testing::Values("cuda"));

TEST(Perplexity, RefusesATextWithoutTokensAndOtherVocabularies) {
  LoadedModel model(converted(WeightFormat::f32), {.device = "cpu", .threads = 1, .slots = 1}, 256);
  EXPECT_THROW(measure_perplexity(model, nullptr, "", [] {}), Error);

  const auto path = std::filesystem::temp_directory_path() /
                    ("faststream-other-" + std::to_string(getpid()) + ".bin");
  convert::ConvertOptions options;
  options.checkpoint = golden_root() / "gqa";
  options.output = path;
  convert::convert_checkpoint(options);
  LoadedModel other(path, {.device = "cpu", .threads = 1, .slots = 1}, 256);
  std::filesystem::remove(path);
  EXPECT_THROW(measure_perplexity(model, &other, "a text", [] {}), Error);
}

}  // namespace
}  // namespace faststream
