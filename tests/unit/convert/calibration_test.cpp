// What matrices are multiplied with, as it is measured.

#include "convert/calibration/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/random_model.h"
#include "convert/calibration/observing_backend.h"
#include "engine/load_weights.h"
#include "engine/runner.h"
#include "golden/golden_data.h"
#include "kernels/cpu/experts/router.h"
#include "unit/backend/test_backends.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/engine/model_shapes.h"
#include "unit/support/file_helpers.h"
#include "unit/support/set_variable.h"

namespace faststream::convert {
namespace {

constexpr int64_t kBlock = kLeastGramColumns;
constexpr int64_t kWideBlocks = 512;  // as wide as all columns of the shapes here

std::set<TensorId> ids_of(std::span<const TensorPlan> plans) {
  std::set<TensorId> ids;
  for (const TensorPlan& plan : plans) ids.insert(plan.id);
  return ids;
}

// A random model behind an observing backend.
struct Observed {
  Observed(const ModelConfig& shape, const std::set<TensorId>& wanted, const std::string& device,
           int64_t block = kWideBlocks)
      : config(shape),
        image(bench::make_random_model(config, 3)),
        file(ModelFile::from_bytes(image.bytes(), "random")),
        backend(make_test_backend(device), file, config, wanted, wanted, block) {}

  ModelConfig config;
  ModelImage image;
  ModelFile file;
  ObservingBackend backend;
};

std::vector<float> rows_of(int64_t rows, int64_t cols, uint32_t seed) {
  return random_values(static_cast<size_t>(rows * cols), seed);
}

// Means of products of the columns i and j of rows.
double product(std::span<const float> rows, int64_t cols, int64_t i, int64_t j) {
  double sum = 0;
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(cols)) {
    sum += double{rows[at + static_cast<size_t>(i)]} * rows[at + static_cast<size_t>(j)];
  }
  return sum * static_cast<double>(cols) / static_cast<double>(rows.size());
}

void expect_moments(const InputMoments* moments, std::span<const float> rows, int64_t cols) {
  ASSERT_NE(moments, nullptr);
  EXPECT_EQ(moments->count, static_cast<double>(rows.size()) / static_cast<double>(cols));
  ASSERT_EQ(moments->mean_squares.size(), static_cast<size_t>(cols));
  for (int64_t c = 0; c < cols; ++c) {
    const double expected = product(rows, cols, c, c);
    EXPECT_NEAR(moments->mean_squares[static_cast<size_t>(c)], expected, 1e-5 * expected) << c;
  }
}

class Calibration : public DeviceTest {};

TEST_P(Calibration, KnowsTheMomentsOfAllColumns) {
  // 300 columns: a block of 256, and one of what is left.
  ModelConfig config = plain_decoder({.n_layers = 1,
                                      .hidden = 300,
                                      .n_heads = 2,
                                      .n_kv_heads = 1,
                                      .head_dim = 16,
                                      .ffn_hidden = 64,
                                      .vocab = 40,
                                      .max_context = 64});
  const TensorId qkv{.kind = TensorKind::attention_qkv};
  Observed model(config, {qkv}, GetParam(), kBlock);
  const WeightLookup lookup = load_weights(model.file, config, model.backend, nullptr);
  const int64_t out_rows = 4 * 16;
  const Weight weight{.data = lookup(qkv), .rows = out_rows, .cols = 300};
  std::vector<float> all;
  for (const int64_t count : {7, 1, 30}) {
    const std::vector<float> rows = rows_of(count, 300, static_cast<uint32_t>(count));
    all.insert(all.end(), rows.begin(), rows.end());
    const Buffer memory = model.backend.allocate(rows.size() * sizeof(float));
    const Buffer results =
        model.backend.allocate(static_cast<size_t>(count * out_rows) * sizeof(float));
    model.backend.copy_to_device(memory.get(), rows.data(), rows.size() * sizeof(float));
    Input input{.x = Matrix(memory.get(), DType::f32, count, 300)};
    model.backend.linear(input, weight, {}, Matrix(results.get(), DType::f32, count, out_rows));
    model.backend.synchronize();
  }
  const ActivationStatistics statistics = model.backend.statistics();
  const InputMoments* moments = statistics.find(qkv);
  expect_moments(moments, all, 300);
  for (const int64_t first : {int64_t{0}, kBlock}) {
    const int64_t n = std::min(kBlock, 300 - first);
    const std::span<const float> block = moments->gram_block(first);
    ASSERT_EQ(block.size(), static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        ASSERT_NEAR(block[static_cast<size_t>(i * n + j)], product(all, 300, first + i, first + j),
                    1e-6);
      }
    }
  }
  EXPECT_EQ(statistics.find(qkv, 1), nullptr);
  EXPECT_EQ(statistics.find({.kind = TensorKind::ffn_down}), nullptr);
}

TEST_P(Calibration, KnowsWhichExpertReadsWhat) {
  ModelConfig config = odd_shape(WeightFormat::f32);
  config.layer_kinds[0].experts = {.count = 4,
                                   .router = {.used = 2},
                                   .each = {.size = 24, .activation = Activation::silu},
                                   .shared = {},
                                   .shared_gate = false};
  config.layer_kinds[0].ffn = {};
  config.layers = {0};
  const TensorId up{.kind = TensorKind::experts_gate_up};
  const TensorId down{.kind = TensorKind::experts_down};
  Observed model(config, {up, down}, GetParam());
  const WeightLookup lookup = load_weights(model.file, config, model.backend, nullptr);
  const int64_t hidden = config.hidden;
  const int64_t count = 9;
  const std::vector<float> rows = rows_of(count, hidden, 5);
  std::vector<float> logits = rows_of(count, 4, 6);
  for (int64_t t = 0; t < count; ++t) logits[static_cast<size_t>(4 * t + 3)] = -9;  // never used
  const auto on_device = [&](const std::vector<float>& values) {
    Buffer memory = model.backend.allocate(values.size() * sizeof(float));
    model.backend.copy_to_device(memory.get(), values.data(), values.size() * sizeof(float));
    return memory;
  };
  const Buffer x = on_device(rows);
  const Buffer scores = on_device(logits);
  const Buffer out = on_device(std::vector<float>(rows.size()));
  const Experts experts{.n_experts = 4,
                        .up = {.data = lookup(up), .rows = 4 * 48, .cols = hidden},
                        .down = {.data = lookup(down), .rows = 4 * hidden, .cols = 24}};
  const Router router{.used = 2};
  Input input{.x = Matrix(x.get(), DType::f32, count, hidden)};
  model.backend.experts(input, Matrix(scores.get(), DType::f32, count, 4), router, experts,
                        OutputMode::store, Matrix(out.get(), DType::f32, count, hidden));

  std::vector<std::vector<float>> read(4);
  std::vector<ChosenExpert> chosen(2);
  for (size_t t = 0; t < static_cast<size_t>(count); ++t) {
    choose_experts(std::span(logits).subspan(t * 4, 4), router, chosen);
    for (const ChosenExpert& one : chosen) {
      const auto row =
          std::span(rows).subspan(t * static_cast<size_t>(hidden), static_cast<size_t>(hidden));
      std::vector<float>& own = read[static_cast<size_t>(one.expert)];
      own.insert(own.end(), row.begin(), row.end());
    }
  }
  const ActivationStatistics statistics = model.backend.statistics();
  double of_all = 0;
  for (int64_t e = 0; e < 4; ++e) {
    for (const float value : read[static_cast<size_t>(e)]) of_all += double{value} * value;
  }
  for (int64_t e = 0; e < 4; ++e) {
    const InputMoments* moments = statistics.find(up, e);
    ASSERT_NE(moments, nullptr);
    const std::vector<float>& own = read[static_cast<size_t>(e)];
    const auto tokens = static_cast<double>(own.size()) / static_cast<double>(hidden);
    EXPECT_EQ(moments->count, tokens);
    EXPECT_EQ(statistics.find(down, e)->count, tokens);
    EXPECT_EQ(moments->gram.empty(), tokens == 0);
    // The mean over columns: its own tokens', and 32 of all experts'.
    double squares = 0;
    for (const float value : own) squares += double{value} * value;
    double mean = 0;
    for (const float value : moments->mean_squares) mean += value;
    EXPECT_NEAR(mean, (squares + of_all / (2 * count) * 32) / (tokens + 32), 1e-4) << e;
  }
}

std::vector<float> logits_of(const ModelConfig& config, const ModelFile& file, Backend& backend) {
  Runner runner(file, backend, {.n_pages = 8, .batch = {.max_tokens = 64, .max_logits = 64}},
                nullptr);
  std::vector<float> all;
  Sequence sequence = runner.begin(50);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 50; ++i) tokens.push_back((i * 37 + i * i) % 131);
  for (const size_t first : {0U, 40U}) {
    const auto part = std::span(tokens).subspan(first, std::min<size_t>(40, 50 - first));
    runner.step({{{&sequence, part, NewTokens::Logits::all}}});
    const std::vector<float> logits = runner.logits();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  EXPECT_EQ(all.size(), static_cast<size_t>(50 * config.vocab));
  return all;
}

TEST_P(Calibration, LeavesResultsAsTheyAreAndSeesEveryProduct) {
  for (ModelConfig (*shape)(WeightFormat) : {&rich_shape, &hybrid_shape}) {
    const std::vector<TensorPlan> plans = calibrated_matrices(shape(WeightFormat::int4));
    Observed model(shape(WeightFormat::f32), ids_of(plans), GetParam());
    const auto plain = make_test_backend(GetParam());
    const std::vector<float> expected = logits_of(model.config, model.file, *plain);
    const std::vector<float> got = logits_of(model.config, model.file, model.backend);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-4) << i;

    const ActivationStatistics statistics = model.backend.statistics();
    for (const TensorPlan& plan : plans) {
      double count = 0;
      for (int64_t part = 0; part < ActivationStatistics::parts_of(plan); ++part) {
        const InputMoments* moments = statistics.find(plan.id, part);
        ASSERT_NE(moments, nullptr) << plan.name << " part " << part;
        ASSERT_EQ(moments->mean_squares.size(), static_cast<size_t>(plan.columns()));
        count += moments->count;
        if (moments->count == 0 || plan.experts > 0) continue;
        const auto columns = static_cast<size_t>(plan.columns());
        ASSERT_EQ(moments->gram.size(), columns * columns) << plan.name;
        for (size_t c = 0; c < columns; ++c) {
          const float square = moments->mean_squares[c];
          ASSERT_NEAR(moments->gram[c * columns + c], square, 1e-4F * square + 1e-9F) << plan.name;
        }
      }
      const int64_t each = plan.experts > 0 ? 1 : ActivationStatistics::parts_of(plan);
      EXPECT_EQ(std::fmod(count, 50.0 * static_cast<double>(each)), 0) << plan.name;
      EXPECT_GE(count, 50) << plan.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Calibration, testing::Values("cpu", "cuda"),
                         [](const auto& test) { return test.param; });

// Runs the bundled model; the numbers are NumPy's.
TEST(CalibrateTest, MeasuresTheBundledModel) {
  const nlohmann::json golden = nlohmann::json::parse(read_bytes(golden_root() / "moments.json"));
  ConvertOptions conversion;
  conversion.checkpoint = golden_root().parent_path().parent_path() / "demo";
  conversion.format = WeightFormat::int4;
  conversion.keep = "output=int4";  // all matrices
  const ActivationStatistics statistics = calibrate(
      conversion, {.text = golden.at("text").get<std::string>(), .device = "cpu", .threads = 2});
  const nlohmann::json& moments = golden.at("moments");
  EXPECT_EQ(statistics.all().size(), moments.size());
  for (const auto& [place, measured] : statistics.all()) {
    const std::string name = tensor_name(place.first);
    ASSERT_TRUE(moments.contains(name)) << name;
    EXPECT_EQ(measured.count, golden.at("tokens").get<double>()) << name;
    EXPECT_FALSE(measured.gram.empty()) << name;
    double sum = 0;
    for (const float square : measured.mean_squares) sum += square;
    const auto expected = moments.at(name).at("sum").get<double>();
    EXPECT_NEAR(sum, expected, 0.01 * expected) << name;
    for (size_t c = 0; c < 4; ++c) {
      const auto square = moments.at(name).at("first").at(c).get<double>();
      EXPECT_NEAR(measured.mean_squares[c], square, 0.03 * square) << name << " column " << c;
    }
  }
}

class CalibrateFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "model");
    std::filesystem::create_directory(folder_ / "temporary");
    write_hf_folder(folder_ / "model", tiny_config(), tiny_tensors(DType::f32));
    conversion_.checkpoint = folder_ / "model";
    conversion_.output = folder_ / "m.bin";
    conversion_.format = WeightFormat::int4;
    conversion_.keep = "output=int4";  // all matrices
    calibration_ = {.text = "abcdefgh", .device = "cpu", .threads = 1};
  }
  std::string refusal() {
    return error_of([&] { calibrate(conversion_, calibration_); });
  }
  [[nodiscard]] bool leaves_nothing() const {
    return std::filesystem::is_empty(folder_ / "temporary");
  }

  TemporaryFolder folder_;
  SetVariable temporary_{"TMPDIR", folder_ / "temporary"};
  ConvertOptions conversion_;
  CalibrationOptions calibration_;
};

TEST_F(CalibrateFolder, TakesItsFileAwayHoweverItEnds) {
  EXPECT_FALSE(calibrate(conversion_, calibration_).all().empty());
  EXPECT_TRUE(leaves_nothing());
  size_t calls = 0;
  calibration_.check_interrupted = [&] { ++calls; };
  calibrate(conversion_, calibration_);
  for (const size_t end : {size_t{1}, calls}) {  // while it converts, and while it measures
    size_t left = end;
    calibration_.check_interrupted = [&] {
      if (--left == 0) throw std::runtime_error("interrupted");
    };
    EXPECT_THROW(calibrate(conversion_, calibration_), std::runtime_error);
    EXPECT_TRUE(leaves_nothing());
  }
}

// Not even a name that nobody could take away after SIGKILL.
TEST_F(CalibrateFolder, ShowsNothingOfItsFileMeanwhile) {
  size_t calls = 0;
  calibration_.check_interrupted = [&] {
    ++calls;
    EXPECT_TRUE(leaves_nothing());
  };
  calibrate(conversion_, calibration_);
  EXPECT_GT(calls, 0U);
}

TEST_F(CalibrateFolder, DrawsTokensWhereThereIsNoText) {
  calibration_.text.reset();
  const ActivationStatistics drawn = calibrate(conversion_, calibration_);
  EXPECT_EQ(drawn.all().size(), 9U);
  for (const auto& [place, moments] : drawn.all()) EXPECT_EQ(moments.count, kRandomTokens);
  const ActivationStatistics again = calibrate(conversion_, calibration_);
  EXPECT_EQ(again.all().begin()->second.mean_squares, drawn.all().begin()->second.mean_squares);
}

TEST_F(CalibrateFolder, RefusesWhatItCannotMeasure) {
  calibration_.text = "";
  EXPECT_TRUE(says(refusal(), "text has no token"));
  calibration_.text = "abc";
  conversion_.keep.clear();
  for (const WeightFormat other : {WeightFormat::bf16, WeightFormat::int8, WeightFormat::nf4}) {
    conversion_.format = other;
    EXPECT_TRUE(says(refusal(), "--calibrate", "become int4"));
  }
  conversion_.format.reset();
  EXPECT_TRUE(says(refusal(), "--calibrate", "become int4"));
  conversion_.format = WeightFormat::int8;
  conversion_.keep = "down=int4";
  write_bytes(conversion_.output, "there");
  EXPECT_TRUE(says(refusal(), "already exists"));
  conversion_.force = true;
  EXPECT_EQ(refusal(), "");
  const SetVariable nowhere("TMPDIR", folder_ / "nowhere");
  EXPECT_TRUE(says(refusal(), "TMPDIR"));
}

TEST_F(CalibrateFolder, IsToldOfByTheConversion) {
  conversion_.statistics =
      std::make_shared<const ActivationStatistics>(calibrate(conversion_, calibration_));
  const ConvertReport report = convert_checkpoint(conversion_);
  EXPECT_EQ(report.n_calibrated, 9);
  EXPECT_EQ(report.n_measured, 9);
  conversion_.format = WeightFormat::f32;
  conversion_.keep.clear();
  conversion_.force = true;
  EXPECT_TRUE(says(error_of([&] { convert_checkpoint(conversion_); }), "--calibrate"));
}

}  // namespace
}  // namespace faststream::convert
