#include "convert/huggingface/safetensors.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>

#include "convert/huggingface/weight_files.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

Checkpoint open_folder(const std::filesystem::path& folder) {
  SourceFiles files;
  return open_weight_files(folder, files);
}

using nlohmann::json;

// Parses a header for a file with a byte buffer of 64 bytes.
std::string header_error(const std::string& text) {
  return error_of([&] {
    parse_safetensors_header(text, 8 + text.size(), 8 + text.size() + 64, "w.safetensors");
  });
}

std::string tensor_error(const json& tensor) { return header_error(json{{"t", tensor}}.dump()); }

json tensor_json(const std::string& dtype, const json& shape, uint64_t first, uint64_t last) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {first, last}}};
}

TEST(Safetensors, ReadsTensorsOfAllThreeTypes) {
  const TemporaryFolder folder;
  const TestTensors tensors = {{"a", {DType::f32, {2, 2}, {1, 2, 3, 4}}},
                               {"b", {DType::f16, {3}, {0.5F, -2, 65504}}},
                               {"c", {DType::bf16, {1, 2}, {-1, 256}}}};
  write_bytes(folder / "model.safetensors", safetensors_bytes(tensors));
  const Checkpoint checkpoint = open_folder(folder.path());
  ASSERT_EQ(checkpoint.tensors().size(), 3U);
  for (const auto& [name, expected] : tensors) {
    const SourceTensor& tensor = checkpoint.require(name, expected.shape);
    const DType type = tensor.format->packed;
    EXPECT_EQ(type, expected.dtype);
    std::vector<std::byte> bytes(tensor.bytes());
    checkpoint.read(tensor, 0, bytes);
    for (size_t i = 0; i < expected.values.size(); ++i) {
      EXPECT_EQ(load_as_float(bytes.data(), type, i), expected.values[i]) << name;
    }
  }
  std::vector<std::byte> last(sizeof(float));
  checkpoint.read(*checkpoint.find("a"), 3, last);
  EXPECT_EQ(load_as_float(last.data(), DType::f32, 0), 4.0F);
}

TEST(Safetensors, SaysWhichTensorIsMissingOrHasAnotherShape) {
  const TemporaryFolder folder;
  write_bytes(folder / "model.safetensors", safetensors_bytes({{"a", {DType::f32, {2}, {1, 2}}}}));
  const Checkpoint checkpoint = open_folder(folder.path());
  EXPECT_TRUE(
      says(error_of([&] { static_cast<void>(checkpoint.require("b", {})); }), "\"b\"", "missing"));
  const std::vector<int64_t> shape = {3, 1};
  EXPECT_TRUE(says(error_of([&] { static_cast<void>(checkpoint.require("a", shape)); }),
                   "model.safetensors", "\"a\"", "[2]", "[3, 1]"));
}

TEST(Safetensors, ReadsTheShardsOfAnIndex) {
  const TemporaryFolder folder;
  write_bytes(folder / "x-1.safetensors", safetensors_bytes({{"a", {DType::f32, {1}, {1}}}}));
  write_bytes(folder / "x-2.safetensors", safetensors_bytes({{"b", {DType::f32, {1}, {2}}}}));
  write_bytes(folder / "other.safetensors", safetensors_bytes({{"z", {DType::f32, {1}, {2}}}}));
  const json index = {{"weight_map", {{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}}}};
  write_bytes(folder / "model.safetensors.index.json", index.dump());
  const Checkpoint checkpoint = open_folder(folder.path());
  EXPECT_NE(checkpoint.find("a"), nullptr);
  EXPECT_NE(checkpoint.find("b"), nullptr);
  EXPECT_EQ(checkpoint.find("z"), nullptr);
  std::filesystem::remove(folder / "x-2.safetensors");
  EXPECT_TRUE(says(error_of([&] { open_folder(folder.path()); }), "x-2.safetensors", "is missing"));
}

TEST(Safetensors, ReadsAllFilesWhereThereIsNoIndex) {
  const TemporaryFolder folder;
  EXPECT_TRUE(says(error_of([&] { open_folder(folder.path()); }), "neither .safetensors files"));
  write_bytes(folder / "p.safetensors", safetensors_bytes({{"a", {DType::f32, {1}, {1}}}}));
  write_bytes(folder / "q.safetensors", safetensors_bytes({{"b", {DType::f32, {1}, {2}}}}));
  EXPECT_EQ(open_folder(folder.path()).tensors().size(), 2U);
  write_bytes(folder / "r.safetensors", safetensors_bytes({{"b", {DType::f32, {1}, {2}}}}));
  EXPECT_TRUE(says(error_of([&] { open_folder(folder.path()); }), "\"b\"", "twice"));
}

TEST(Safetensors, RefusesAnIndexThatLeadsOutOfItsFolder) {
  const TemporaryFolder folder;
  for (const json& file : {json("../x.safetensors"), json("/etc/passwd"), json(".."), json(""),
                           json("a/b"), json(7)}) {
    const json index = {{"weight_map", {{"a", file}}}};
    write_bytes(folder / "model.safetensors.index.json", index.dump());
    EXPECT_TRUE(says(error_of([&] { open_folder(folder.path()); }), "index.json",
                     "not in a file of this folder"))
        << file;
  }
  write_bytes(folder / "model.safetensors.index.json", "{}");
  EXPECT_TRUE(says(error_of([&] { open_folder(folder.path()); }), "weight_map"));
}

TEST(Safetensors, RefusesAFileTruncatedAnywhere) {
  const TemporaryFolder folder;
  const std::string bytes = safetensors_bytes({{"a", {DType::f32, {4}, {1, 2, 3, 4}}}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    write_bytes(folder / "model.safetensors", bytes.substr(0, size));
    EXPECT_TRUE(says(error_of([&] { open_folder(folder.path()); }), "model.safetensors"))
        << "cut to " << size;
  }
}

TEST(Safetensors, RefusesAHeaderLengthPastTheEnd) {
  const TemporaryFolder folder;
  write_bytes(folder / "model.safetensors", std::string(100, '\xff'));
  EXPECT_TRUE(says(error_of([&] { open_folder(folder.path()); }), "truncated or not"));
}

TEST(Safetensors, RefusesAHeaderThatWouldFillTheMemory) {
  const TemporaryFolder folder;
  const uint64_t size = uint64_t{33} << 20;
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  write_bytes(folder / "model.safetensors", bytes);
  std::filesystem::resize_file(folder / "model.safetensors", sizeof size + size);  // takes no disk
  EXPECT_TRUE(says(error_of([&] { open_folder(folder.path()); }), "header", "right file"));
}

TEST(Safetensors, HoldsMasksAndPositionsThatNoModelNeeds) {
  EXPECT_TRUE(says(tensor_error(tensor_json("C64", {1}, 0, 8)), "\"t\"", "C64", "F32, F16"));
  const json header = {{"t", tensor_json("I64", {1}, 0, 8)}};
  const TemporaryFolder folder;
  const std::string text = header.dump();
  const uint64_t size = text.size();
  write_bytes(
      folder / "model.safetensors",
      std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + std::string(8, '\0'));
  const Checkpoint checkpoint = open_folder(folder.path());
  const std::vector<int64_t> shape = {1};
  EXPECT_TRUE(says(error_of([&] { static_cast<void>(checkpoint.require("t", shape)); }), "\"t\"",
                   "I64", "F32, F16"));
}

TEST(Safetensors, RefusesOffsetsAndSizesThatDoNotFit) {
  const uint64_t huge = uint64_t{1} << 62;
  EXPECT_EQ(tensor_error(tensor_json("F32", {16}, 0, 64)), "");
  EXPECT_EQ(tensor_error(tensor_json("F32", json::array(), 0, 4)), "");
  EXPECT_TRUE(says(tensor_error(tensor_json("F32", {16}, 1, 65)), "past the end"));
  EXPECT_TRUE(says(tensor_error(tensor_json("F32", {1}, 8, 4)), "past the end"));
  EXPECT_TRUE(says(tensor_error(tensor_json("F32", {16}, 0, 60)), "differs from its shape"));
  EXPECT_TRUE(says(tensor_error(tensor_json("F32", {huge, huge}, 0, 64)), "larger than the file"));
  EXPECT_TRUE(says(tensor_error(tensor_json("F32", {huge}, 0, huge)), "larger than the file"));
  EXPECT_TRUE(says(tensor_error(tensor_json("F32", {-1}, 0, 64)), "\"shape[0]\""));
  EXPECT_TRUE(says(tensor_error(tensor_json("F32", {1.5}, 0, 64)), "\"shape[0]\""));
  EXPECT_TRUE(says(tensor_error({{"dtype", "F32"}, {"shape", {1}}}), "data_offsets"));
  EXPECT_TRUE(
      says(tensor_error({{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {4}}}), "not a pair"));
  EXPECT_TRUE(says(tensor_error(json::array()), "JSON object"));
}

TEST(Safetensors, RefusesOverlappingTensors) {
  const json header = {{"a", tensor_json("F32", {4}, 0, 16)},
                       {"b", tensor_json("F32", {4}, 12, 28)}};
  EXPECT_TRUE(says(header_error(header.dump()), "\"b\"", "overlaps", "\"a\""));
}

TEST(Safetensors, RefusesAHeaderThatIsNoJsonObject) {
  EXPECT_TRUE(says(header_error("{"), "not valid JSON"));
  EXPECT_TRUE(says(header_error("[]"), "not an object"));
  EXPECT_TRUE(says(header_error(std::string(100000, '[')), "nested"));
}

}  // namespace
}  // namespace faststream::convert
