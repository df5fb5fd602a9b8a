#include "convert/weights/tensor_stream.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <numeric>

#include "convert/huggingface/weight_files.h"
#include "convert/quantized/quantization.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

// A checkpoint of tensors that hold 0, 1, 2, ...
class TensorParts : public testing::Test {
 protected:
  void add(const std::string& name, const std::vector<int64_t>& shape) {
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    std::vector<float> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), 0.0F);
    tensors_[name] = {DType::f32, shape, values};
  }

  // What a tensor of the model file holds that is made of `parts`.
  std::vector<float> made(const std::vector<int64_t>& shape, const std::vector<TensorPart>& parts) {
    write_bytes(folder_ / "model.safetensors", safetensors_bytes(tensors_));
    SourceFiles files;
    const Checkpoint checkpoint = open_weight_files(folder_.path(), files);
    ModelWriter writer(folder_ / "m.bin", nlohmann::json::object(), {{"t", DType::f32, shape}},
                       true);
    ThreadPool pool(2);
    TensorStream stream(
        checkpoint, [&](std::span<const std::byte> bytes) { writer.append(bytes); }, pool);
    stream.add({.name = "t", .shape = shape}, parts, {}, nullptr, [](uint64_t) {});
    stream.flush();
    writer.finish();
    const ModelFile file = ModelFile::open(folder_ / "m.bin");
    const auto bytes = file.bytes(*file.find("t"));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  TemporaryFolder folder_;
  TestTensors tensors_;
};

using Floats = std::vector<float>;

TEST_F(TensorParts, AreRowsOfAnyRange) {
  add("a", {4, 2});
  EXPECT_EQ(made({2, 2}, {{.source = "a", .shape = {4, 2}, .first_row = 1, .n_rows = 2}}),
            (Floats{2, 3, 4, 5}));
  EXPECT_EQ(made({4, 2}, {{.source = "a", .shape = {4, 2}, .row_step = 2},
                          {.source = "a", .shape = {4, 2}, .first_row = 1, .row_step = 2}}),
            (Floats{0, 1, 4, 5, 2, 3, 6, 7}));
}

TEST_F(TensorParts, CountRowsOverLeadingDimensions) {
  add("a", {2, 2, 3});
  EXPECT_EQ(made({2, 3}, {{.source = "a", .shape = {2, 2, 3}, .first_row = 1, .n_rows = 2}}),
            (Floats{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(made({4}, {{.source = "a", .shape = {2, 2, 3}, .first_row = 8, .n_rows = 4}}),
            (Floats{8, 9, 10, 11}));
}

TEST_F(TensorParts, MayBeOfOneTensorSeveralTimes) {
  add("a", {2});
  EXPECT_EQ(made({4}, std::vector<TensorPart>(2, {.source = "a", .shape = {2}})),
            (Floats{0, 1, 0, 1}));
}

TEST_F(TensorParts, PutPairsInHalvesWithinWhatIsRotated) {
  add("a", {12});
  EXPECT_EQ(made({12}, {{.source = "a", .shape = {12}, .pairs = {.head_dim = 6, .rotated = 4}}}),
            (Floats{0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11}));
  EXPECT_EQ(made({6}, {{.source = "a",
                        .shape = {12},
                        .first_row = 6,
                        .n_rows = 6,
                        .pairs = {.head_dim = 6, .rotated = 6}}}),
            (Floats{6, 8, 10, 7, 9, 11}));
}

TEST_F(TensorParts, AreTransposed) {
  add("a", {2, 3});
  EXPECT_EQ(made({3, 2}, {{.source = "a", .shape = {2, 3}, .transposed = true}}),
            (Floats{0, 3, 1, 4, 2, 5}));
  add("b", {2, 2, 4});  // of two experts, with gates and ups in turn
  EXPECT_EQ(made({4, 2}, {{.source = "b", .shape = {2, 2, 4}, .transposed = true, .row_step = 2}}),
            (Floats{0, 4, 2, 6, 8, 12, 10, 14}));
}

TEST_F(TensorParts, AreTransposedOfSomeInputs) {
  add("a", {4, 3});
  EXPECT_EQ(
      made({3, 2},
           {{.source = "a", .shape = {4, 3}, .transposed = true, .first_input = 1, .n_rows = 3}}),
      (Floats{3, 6, 4, 7, 5, 8}));
}

// Of a matrix [5, 7] in blocks of 2 rows and 3 columns, the last ones smaller.
TEST(Fp8Blocks, AreDecodedWithTheFactorOfTheirBlock) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kCols = 7;
  const TemporaryFolder folder;
  std::string data;
  for (int64_t i = 0; i < kRows * kCols; ++i) data += static_cast<char>(0x38 + i % 3 * 8 + i % 2);
  const size_t matrix_bytes = data.size();
  data.resize(data.size() + 9 * sizeof(float));
  for (size_t i = 0; i < 9; ++i) {
    const float factor = static_cast<float>(i) + 1;
    std::memcpy(&data[matrix_bytes + i * sizeof factor], &factor, sizeof factor);
  }
  const nlohmann::json header = {
      {"m.weight", {{"dtype", "F8_E4M3"}, {"shape", {kRows, kCols}}, {"data_offsets", {0, 35}}}},
      {"m.weight_scale_inv", {{"dtype", "F32"}, {"shape", {3, 3}}, {"data_offsets", {35, 71}}}}};
  const std::string text = header.dump();
  const uint64_t size = text.size();
  write_bytes(folder / "model.safetensors",
              std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data);
  SourceFiles files;
  Checkpoint checkpoint = open_weight_files(folder.path(), files);
  const auto config_of = [](const nlohmann::json& block) {
    return nlohmann::json{
        {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", block}}}};
  };
  const nlohmann::json other = config_of({3, 3});
  EXPECT_TRUE(says(error_of([&] {
                     Checkpoint again = open_weight_files(folder.path(), files);
                     join_quantized(JsonView(other, "config.json"), again);
                   }),
                   "m.weight_scale_inv", "[2, 3]"));
  const nlohmann::json config = config_of({2, 3});
  join_quantized(JsonView(config, "config.json"), checkpoint);
  EXPECT_EQ(checkpoint.tensors().size(), 1U);

  const auto made = [&](const std::vector<int64_t>& shape, const TensorPart& part) {
    ModelWriter writer(folder / "m.bin", nlohmann::json::object(), {{"t", DType::f32, shape}},
                       true);
    ThreadPool pool(1);
    TensorStream stream(
        checkpoint, [&](std::span<const std::byte> bytes) { writer.append(bytes); }, pool);
    stream.add({.name = "t", .shape = shape}, std::vector{part}, {}, nullptr, [](uint64_t) {});
    stream.flush();
    writer.finish();
    const ModelFile file = ModelFile::open(folder / "m.bin");
    const auto bytes = file.bytes(*file.find("t"));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  const auto expected = [&](int64_t row, int64_t col) {
    const int64_t i = row * kCols + col;
    const float element =
        std::exp2(static_cast<float>(i % 3)) * (1 + static_cast<float>(i % 2) / 8);
    return element * static_cast<float>(row / 2 * 3 + col / 3 + 1);
  };
  const std::vector<float> plain = made({kRows, kCols}, {.source = "m.weight", .shape = {5, 7}});
  const std::vector<float> turned =
      made({kCols, kRows}, {.source = "m.weight", .shape = {5, 7}, .transposed = true});
  const std::vector<float> some =
      made({2, kCols}, {.source = "m.weight", .shape = {5, 7}, .first_row = 1, .row_step = 3});
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kCols; ++col) {
      EXPECT_EQ(plain[static_cast<size_t>(row * kCols + col)], expected(row, col));
      EXPECT_EQ(turned[static_cast<size_t>(col * kRows + row)], expected(row, col));
    }
  }
  for (int64_t col = 0; col < kCols; ++col) {
    EXPECT_EQ(some[static_cast<size_t>(kCols + col)], expected(4, col));
  }
}

TEST(Fp8Blocks, HaveNumbersOfBothSignsSubnormalOnesAndNaN) {
  const std::vector<std::byte> codes = {std::byte{0x00}, std::byte{0x01}, std::byte{0x07},
                                        std::byte{0x08}, std::byte{0x7e}, std::byte{0xfe},
                                        std::byte{0xb8}, std::byte{0x7f}};
  std::vector<float> values(codes.size());
  kE4m3Format.decode(codes.data(), values);
  EXPECT_TRUE(std::isnan(values.back()));
  values.pop_back();
  EXPECT_EQ(values, (Floats{0, 1.0F / 512, 7.0F / 512, 1.0F / 64, 448, -448, -1}));
}

TEST_F(TensorParts, AreTransposedInManyPieces) {
  constexpr int64_t kRows = 700;
  constexpr int64_t kCols = 600;
  add("a", {kCols, kRows});
  const Floats values =
      made({kRows, kCols}, {{.source = "a", .shape = {kCols, kRows}, .transposed = true}});
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kCols; ++col) {
      ASSERT_EQ(values[static_cast<size_t>(row * kCols + col)],
                static_cast<float>(col * kRows + row));
    }
  }
}

TEST_F(TensorParts, AreChanged) {
  add("a", {2, 2});
  EXPECT_EQ(made({2, 2}, {{.source = "a", .shape = {2, 2}, .add = 1, .scale = 0.5F}}),
            (Floats{0.5F, 1, 1.5F, 2}));
  EXPECT_EQ(made({2}, {{.source = "", .shape = {2}, .add = 1}}), (Floats{1, 1}));
  const Floats unit = made({2, 2}, {{.source = "a", .shape = {2, 2}, .unit_rows = true}});
  EXPECT_EQ(unit[1], 1);
  EXPECT_FLOAT_EQ(unit[2], 2 / std::sqrt(13.0F));
}

TEST_F(TensorParts, PutBlocksOfColumnsInAnotherOrder) {
  add("a", {2, 6});
  EXPECT_EQ(made({2, 6}, {{.source = "a", .shape = {2, 6}, .column_blocks = {0, 2, 1}}}),
            (Floats{0, 1, 4, 5, 2, 3, 6, 7, 10, 11, 8, 9}));
}

TEST_F(TensorParts, AreLogarithmsOfOpposites) {
  tensors_["a"] = {DType::f32, {3}, {-1, -std::exp(2.0F), -0.0F}};
  const Floats logs = made({3}, {{.source = "a", .shape = {3}, .log_of_opposite = true}});
  EXPECT_EQ(logs[0], 0);
  EXPECT_NEAR(logs[1], 2, 1e-6);
  EXPECT_LT(logs[2], -80);
  tensors_["a"] = {DType::f32, {1}, {0.5F}};
  EXPECT_TRUE(
      says(error_of([&] { made({1}, {{.source = "a", .shape = {1}, .log_of_opposite = true}}); }),
           "\"a\" holds NaN"));
}

TEST_F(TensorParts, AreProjected) {
  add("a", {3, 2});
  add("m", {4, 2});
  add("turned", {2, 4});
  const TensorPart last_two{.source = "a",
                            .shape = {3, 2},
                            .first_row = 1,
                            .projection = {.matrix = "m", .inputs = 2},
                            .scale = 0.5F};
  EXPECT_EQ(made({2, 4}, {last_two}),
            (Floats{1.5F, 6.5F, 11.5F, 16.5F, 2.5F, 11.5F, 20.5F, 29.5F}));
  const TensorPart first{.source = "a",
                         .shape = {3, 2},
                         .n_rows = 1,
                         .projection = {.matrix = "turned", .inputs = 2, .transposed = true}};
  EXPECT_EQ(made({1, 4}, {first}), (Floats{4, 5, 6, 7}));
  EXPECT_TRUE(says(error_of([&] { made({2, 5}, {last_two}); }), "\"m\"", "shape"));
}

TEST_F(TensorParts, MustHaveTheirRows) {
  add("a", {2});
  EXPECT_TRUE(
      says(error_of([&] { made({3}, {{.source = "a", .shape = {2}}}); }), "\"t\"", "missing"));
}

}  // namespace
}  // namespace faststream::convert
