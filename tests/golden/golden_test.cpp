// Logits of small checkpoints equal those of Transformers in float32 (see make_golden.py and
// make_families.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "convert/pipeline.h"
#include "engine/runner.h"
#include "golden_data.h"
#include "unit/test_backends.h"

namespace faststream {
namespace {

// Of letters, digits and underscores.
std::string plain(std::string name) {
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

// The variant as a model file with f32 weights, made once a process.
const ModelFile& converted(const GoldenData& golden) {
  static std::map<std::string, ModelFile> files;
  const auto found = files.find(golden.name);
  if (found != files.end()) return found->second;
  const auto path =
      std::filesystem::temp_directory_path() /
      ("faststream-golden-" + plain(golden.name) + "-" + std::to_string(getpid()) + ".bin");
  ConvertOptions options;
  options.checkpoint = golden.folder;
  options.tokenizer = golden.tokenizer;
  options.output = path;
  options.dtype = DType::f32;
  convert_checkpoint(options);
  const auto [entry, added] = files.emplace(golden.name, ModelFile::open(path));
  std::filesystem::remove(path);  // the mapping keeps it
  return entry->second;
}

class GoldenTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    backend_ = make_test_backend(std::get<0>(GetParam()));
    FASTSTREAM_REQUIRE_BACKEND(backend_);
    golden_ = load_golden(std::get<1>(GetParam()));
    const auto n = static_cast<int32_t>(golden_.tokens.size());
    runner_ = std::make_unique<Runner>(
        converted(golden_), *backend_,
        RunnerLimits{.n_pages = n / kPageTokens + 3,
                     .batch = {.max_tokens = n, .max_logits = n, .context = n}},
        nullptr);
  }

  // Largest difference over largest magnitude.
  [[nodiscard]] double distance(const std::vector<float>& logits) const {
    double difference = 0;
    double magnitude = 0;
    for (size_t i = 0; i < golden_.logits.size(); ++i) {
      if (std::isnan(logits[i])) return INFINITY;
      difference = std::max(difference, std::abs(double{logits[i]} - golden_.logits[i]));
      magnitude = std::max(magnitude, std::abs(double{golden_.logits[i]}));
    }
    return difference / magnitude;
  }

  GoldenData golden_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Runner> runner_;
};

TEST_P(GoldenTest, PrefillGivesTransformersLogits) {
  Sequence sequence;
  runner_->step({{{&sequence, golden_.tokens, NewTokens::Logits::all}}});
  const std::vector<float> logits = runner_->logits();
  ASSERT_EQ(logits.size(), golden_.logits.size());
  EXPECT_LT(distance(logits), 1e-4);
}

TEST_P(GoldenTest, SingleStepsGiveTransformersLogits) {
  Sequence sequence;
  std::vector<float> logits;
  for (const int32_t& token : golden_.tokens) {
    runner_->step({{{&sequence, {&token, 1}}}});
    const std::vector<float> row = runner_->logits();
    logits.insert(logits.end(), row.begin(), row.end());
  }
  ASSERT_EQ(logits.size(), golden_.logits.size());
  EXPECT_LT(distance(logits), 1e-4);
}

TEST_P(GoldenTest, GreedyTextIsTransformersText) {
  if (golden_.greedy.empty()) GTEST_SKIP() << "the variant has no greedy text";
  Sequence sequence;
  std::vector<int32_t> tokens;
  runner_->step({{{&sequence, golden_.tokens}}});
  while (tokens.size() < golden_.greedy.size()) {
    tokens.push_back(
        runner_->sample({{sampling_row({.temperature = 0}, sequence.n_cached)}}).front().token);
    runner_->step({{{&sequence, {&tokens.back(), 1}}}});
  }
  EXPECT_EQ(tokens, golden_.greedy);
}

std::string test_name(const testing::TestParamInfo<GoldenTest::ParamType>& info) {
  return plain(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Reference, GoldenTest,
                         testing::Combine(testing::Values("reference"),
                                          testing::ValuesIn(all_golden_variants())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Cpu, GoldenTest,
                         testing::Combine(testing::Values("cpu"),
                                          testing::ValuesIn(all_golden_variants())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Cuda, GoldenTest,
                         testing::Combine(testing::Values("cuda"),
                                          testing::ValuesIn(all_golden_variants())),
                         test_name);

}  // namespace
}  // namespace faststream
