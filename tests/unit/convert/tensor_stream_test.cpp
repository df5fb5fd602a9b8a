#include "convert/weights/tensor_stream.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <numeric>

#include "convert/huggingface/safetensors.h"
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
    const Checkpoint checkpoint = open_safetensors_folder(folder_.path(), files);
    ModelWriter writer(folder_ / "m.bin", nlohmann::json::object(), {{"t", DType::f32, shape}},
                       true);
    ThreadPool pool(2);
    TensorStream stream(checkpoint, writer, pool);
    stream.add({.name = "t", .shape = shape}, parts, {}, [](uint64_t) {});
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
