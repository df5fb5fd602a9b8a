#include "model_file/model_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "model_file/model_writer.h"
#include "unit/model_file/model_file_helpers.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

std::string error_of_bytes(std::span<const std::byte> bytes) {
  return error_of([&] { ModelFile::from_bytes(bytes, "m.bin"); });
}

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

TEST(ModelFile, ReadsWhatAnImageHolds) {
  ModelImage image(sample_header(), sample_specs());
  std::ranges::fill(image.tensor("matrix.scales"), std::byte{7});
  const ModelFile file = ModelFile::from_bytes(image.bytes(), "m.bin");
  EXPECT_EQ(file.name(), "m.bin");
  EXPECT_EQ(file.header(), sample_header());
  EXPECT_EQ(file.file_size(), model_file_size(sample_header(), sample_specs()));
  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.find("nothing"), nullptr);
  const TensorInfo& scales = file.require("matrix.scales", DType::f32, std::vector<int64_t>{3});
  EXPECT_EQ(scales.offset % kTensorAlignment, 0U);
  EXPECT_EQ(file.bytes(scales).size(), 12U);
  EXPECT_EQ(file.bytes(scales)[11], std::byte{7});
}

TEST(ModelFile, GivesAllButTheTokenizerToTheDevice) {
  const std::vector<std::byte> bytes = sample_bytes();
  const ModelFile file = ModelFile::from_bytes(bytes, "m.bin");
  const WeightSource weights = file.weights();
  EXPECT_EQ(weights.offset, file.find("matrix")->offset);
  EXPECT_EQ(weights.bytes.data(), bytes.data() + weights.offset);
  EXPECT_EQ(weights.bytes.size(), bytes.size() - weights.offset);
  EXPECT_EQ(weights.fd, -1);
}

TEST(ModelFile, StaysValidWhenMoved) {
  const std::vector<std::byte> bytes = sample_bytes();
  ModelFile first = ModelFile::from_bytes(bytes, "m.bin");
  const TensorInfo* vector = first.find("vector");
  const ModelFile second = std::move(first);
  EXPECT_EQ(second.find("vector"), vector);
}

TEST(ModelFile, RefusesAMissingTensorAWrongTypeAndAWrongShape) {
  const std::vector<std::byte> bytes = sample_bytes();
  const ModelFile file = ModelFile::from_bytes(bytes, "m.bin");
  const std::vector<int64_t> shape = {3, 5};
  const std::vector<int64_t> turned = {5, 3};
  EXPECT_TRUE(says(error_of([&] { static_cast<void>(file.require("lost", DType::f32, shape)); }),
                   "m.bin", "\"lost\" is missing"));
  EXPECT_TRUE(says(error_of([&] { static_cast<void>(file.require("matrix", DType::f32, shape)); }),
                   "is bf16 [3, 5]", "asks for f32 [3, 5]"));
  EXPECT_TRUE(
      says(error_of([&] { static_cast<void>(file.require("matrix", DType::bf16, turned)); }),
           "is bf16 [3, 5]", "asks for bf16 [5, 3]"));
}

TEST(ModelFile, RefusesPathsThatAreNoFiles) {
  const TemporaryFolder folder;
  EXPECT_TRUE(
      says(error_of([&] { ModelFile::open(folder / "none.bin"); }), "none.bin", "no such file"));
  EXPECT_TRUE(says(error_of([&] { ModelFile::open(folder.path()); }), "is a folder"));
  EXPECT_TRUE(says(error_of([&] { ModelFile::open("/dev/null"); }), "not a regular file"));
  write_bytes(folder / "empty.bin", "");
  EXPECT_TRUE(says(error_of([&] { ModelFile::open(folder / "empty.bin"); }), "is empty"));
}

TEST(ModelFile, RefusesATextFileAndNamesTheConverter) {
  const TemporaryFolder folder;
  write_bytes(folder / "text.txt", std::string(5000, 'x'));
  EXPECT_TRUE(says(error_of([&] { ModelFile::open(folder / "text.txt"); }),
                   "not a FastStream model file", "faststream-convert"));
}

TEST(ModelFile, RefusesAFileTruncatedAnywhere) {
  const std::vector<std::byte> bytes = sample_bytes();
  const auto check = [&](size_t size) {
    EXPECT_NE(error_of_bytes(std::span(bytes).first(size)), "") << "cut to " << size;
  };
  for (size_t i = 0; i < 16; ++i) check(bytes.size() * i / 16);
  for (size_t size = 0; size < 3000; ++size) check(size);
  check(bytes.size() - 1);
  EXPECT_TRUE(says(error_of_bytes(std::span(bytes).first(bytes.size() - 1)), "truncated",
                   std::to_string(bytes.size())));
}

TEST(ModelFile, RefusesTrailingBytes) {
  std::vector<std::byte> bytes = sample_bytes();
  bytes.push_back(std::byte{0});
  EXPECT_TRUE(says(error_of_bytes(bytes), "damaged"));
}

TEST(ModelFile, RefusesEveryFlippedBitInHeadHeaderAndTable) {
  const std::vector<std::byte> sound = sample_bytes();
  const layout::Head head = head_of(sound);
  const size_t metadata = head.table_offset + head.n_tensors * sizeof(layout::TableEntry);
  for (size_t place = 0; place < metadata; ++place) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> bytes = sound;
      bytes[place] ^= std::byte(1U << bit);
      EXPECT_TRUE(says(error_of_bytes(bytes), "m.bin")) << "byte " << place << " bit " << bit;
    }
  }
}

TEST(ModelFile, RefusesAnotherVersionAndSaysWhichItReads) {
  const auto bytes = with_head([](layout::Head& head) { head.version = 1; });
  EXPECT_TRUE(says(error_of_bytes(bytes), "version 1", "reads version 2", "convert"));
}

TEST(ModelFile, RefusesSizesInTheHeadThatDoNotFit) {
  for (const uint64_t size : {uint64_t{100000}, uint64_t{1} << 40, kHuge, kHuge - 63}) {
    EXPECT_NE(error_of_bytes(with_head([&](layout::Head& h) { h.header_bytes = size; })), "");
    EXPECT_NE(error_of_bytes(with_head([&](layout::Head& h) { h.table_offset = size; })), "");
    EXPECT_NE(error_of_bytes(with_head([&](layout::Head& h) { h.file_bytes = size; })), "");
  }
  EXPECT_TRUE(says(error_of_bytes(with_head([](layout::Head& h) { h.n_tensors = 0xffffffffU; })),
                   "past its end"));
  EXPECT_TRUE(
      says(error_of_bytes(with_head([](layout::Head& h) { h.n_tensors = 0; })), "no tensors"));
}

TEST(ModelFile, RefusesTensorsOutsideTheFile) {
  const auto with_offset = [](uint64_t offset) {
    return with_entry(3, [&](layout::TableEntry& entry) { entry.offset = offset; });
  };
  EXPECT_TRUE(says(error_of_bytes(with_offset(uint64_t{1} << 40)), "\"vector\"", "past the end"));
  EXPECT_TRUE(says(error_of_bytes(with_offset(kHuge - 4095)), "\"vector\"", "past the end"));
  EXPECT_TRUE(says(error_of_bytes(with_offset(kHuge)), "\"vector\"", "aligned"));
}

TEST(ModelFile, RefusesOverlappingAndUnorderedTensors) {
  const uint64_t matrix = ModelImage(sample_header(), sample_specs()).tensors()[1].offset;
  EXPECT_TRUE(says(error_of_bytes(with_entry(2, [&](auto& entry) { entry.offset = matrix; })),
                   "matrix.scales", "overlaps"));
  EXPECT_TRUE(says(error_of_bytes(with_entry(0, [&](auto& entry) { entry.offset = 0; })),
                   "tokenizer", "overlaps"));
}

TEST(ModelFile, RefusesAbsurdShapes) {
  const auto with_shape = [](uint64_t rows, uint64_t cols) {
    return with_entry(1, [&](layout::TableEntry& entry) { entry.shape = {rows, cols}; });
  };
  EXPECT_TRUE(says(error_of_bytes(with_shape(kHuge, kHuge)), "too large"));
  EXPECT_TRUE(says(error_of_bytes(with_shape(uint64_t{1} << 32, uint64_t{1} << 31)), "too large"));
  EXPECT_TRUE(says(error_of_bytes(with_shape(3, 0)), "empty dimension"));
  EXPECT_TRUE(says(error_of_bytes(with_shape(3, 6)), "differs from its shape"));
}

TEST(ModelFile, RefusesImpossibleTableEntries) {
  using Entry = layout::TableEntry;
  EXPECT_TRUE(says(error_of_bytes(with_entry(1, [](Entry& e) { e.dtype = 6; })), "unknown type 6"));
  EXPECT_TRUE(says(error_of_bytes(with_entry(1, [](Entry& e) { e.rank = 3; })), "3 dimensions"));
  EXPECT_TRUE(says(error_of_bytes(with_entry(1, [](Entry& e) { e.rank = 0; })), "0 dimensions"));
  EXPECT_TRUE(says(error_of_bytes(with_entry(1, [](Entry& e) { e.rank = kHuge & 0xffffffffU; })),
                   "impossible number of dimensions"));
  EXPECT_TRUE(says(error_of_bytes(with_entry(1, [](Entry& e) { e.bytes = 31; })),
                   "differs from its shape"));
  EXPECT_TRUE(
      says(error_of_bytes(with_entry(1, [](Entry& e) { e.name.fill('x'); })), "does not end"));
  EXPECT_TRUE(says(error_of_bytes(with_entry(1, [](Entry& e) { e.name = {}; })), "no name"));
  EXPECT_TRUE(
      says(error_of_bytes(with_entry(1, [](Entry& e) { e.name[90] = 'x'; })), "does not end"));
  EXPECT_TRUE(
      says(error_of_bytes(with_entry(1, [](Entry& e) { e.name[0] = '\x1b'; })), "printable ASCII"));
  EXPECT_TRUE(
      says(error_of_bytes(with_entry(1, [](Entry& e) { e.name[0] = '\xc3'; })), "printable ASCII"));
  EXPECT_TRUE(
      says(error_of_bytes(with_entry(3, [](Entry& e) { e.name = {'m', 'a', 't', 'r', 'i', 'x'}; })),
           "\"matrix\"", "appears twice"));
  EXPECT_TRUE(says(error_of_bytes(with_entry(2,
                                             [](Entry& e) {
                                               e.dtype = static_cast<uint32_t>(DType::u8);
                                               e.shape = {12};
                                             })),
                   "does not come first"));
}

TEST(ModelFile, RefusesAHeaderThatIsNoJsonObject) {
  EXPECT_TRUE(says(error_of_bytes(with_header_text("{\"model\": ")), "not valid JSON"));
  EXPECT_TRUE(says(error_of_bytes(with_header_text("")), "not valid JSON"));
  EXPECT_TRUE(says(error_of_bytes(with_header_text("[1, 2]")), "not an object"));
  EXPECT_TRUE(says(error_of_bytes(with_header_text("{\"a\": \"\xff\"}")), "not valid JSON"));
  EXPECT_TRUE(says(error_of_bytes(with_header_text("{\"a\": 1e999}")), "out of range"));
}

TEST(ModelFile, RefusesADepthBomb) {
  std::string bomb = R"({"a":)";
  bomb += std::string(1000000, '[') + std::string(1000000, ']') + "}";
  EXPECT_TRUE(says(error_of_bytes(with_header_text(bomb)), "nested"));
}

}  // namespace
}  // namespace faststream
