#include "convert/gguf/gguf_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "convert/gguf/block_formats.h"
#include "unit/convert/gguf_files.h"

namespace faststream::convert {
namespace {

GgufHeader parse(const std::string& bytes) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    ASSERT_LE(offset + out.size(), bytes.size());
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  return parse_gguf(read, bytes.size(), "w.gguf");
}

std::string parse_error(const std::string& bytes) {
  return error_of([&] { parse(bytes); });
}

std::string parse_error(const GgufBuilder& gguf) { return parse_error(gguf.bytes()); }

TEST(Gguf, ReadsValuesOfAllTypes) {
  GgufBuilder gguf;
  gguf.add("u8", GgufType::u8, uint8_t{200}).add("i8", GgufType::i8, int8_t{-2});
  gguf.add("u16", GgufType::u16, uint16_t{60000}).add("i16", GgufType::i16, int16_t{-300});
  gguf.add("u32", 7U).add("i32", GgufType::i32, int32_t{-7}).add("f32", 0.5F).add("yes", true);
  gguf.add("u64", GgufType::u64, uint64_t{1} << 40).add("i64", GgufType::i64, int64_t{-1} << 40);
  gguf.add("f64", GgufType::f64, 0.25).add("text", "häh");
  gguf.add("strings", std::vector<std::string>{"a", "", "\xff"});
  gguf.add_array<int16_t>("shorts", GgufType::i16, {3, -4});
  gguf.add_array<float>("floats", GgufType::f32, {1.5F, -2});
  gguf.add_array<uint8_t>("bytes", GgufType::u8, {0, 255});
  gguf.add_array<uint32_t>("alike", GgufType::u32, {8, 8, 8});
  const GgufMetadata metadata = parse(gguf.bytes()).metadata;
  EXPECT_EQ(metadata.integer("u8"), 200);
  EXPECT_EQ(metadata.integer("i8"), -2);
  EXPECT_EQ(metadata.integer("u16"), 60000);
  EXPECT_EQ(metadata.integer("i16"), -300);
  EXPECT_EQ(metadata.integer("u32"), 7);
  EXPECT_EQ(metadata.integer("i32"), -7);
  EXPECT_EQ(metadata.integer("u64"), int64_t{1} << 40);
  EXPECT_EQ(metadata.integer("i64"), int64_t{-1} << 40);
  EXPECT_EQ(metadata.number("f32"), 0.5);
  EXPECT_EQ(metadata.number("f64"), 0.25);
  EXPECT_EQ(metadata.number("u32"), 7);
  EXPECT_EQ(metadata.find_boolean("yes"), true);
  EXPECT_EQ(metadata.text("text"), "häh");
  EXPECT_EQ(*metadata.find_strings("strings"), (std::vector<std::string>{"a", "", "\xff"}));
  EXPECT_EQ(metadata.integers("shorts"), (std::vector<int32_t>{3, -4}));
  EXPECT_EQ(metadata.numbers("floats"), (std::vector<float>{1.5F, -2}));
  EXPECT_EQ(metadata.bytes("bytes"), std::string_view("\0\xff", 2));
  EXPECT_EQ(metadata.integer("alike"), 8);
}

TEST(Gguf, SaysWhichValueIsNotAsAskedFor) {
  GgufBuilder gguf;
  gguf.add("text", "x").add("bad", "\xff").add("n", 1U).add("real", 0.5F);
  gguf.add("huge", GgufType::u64, ~uint64_t{0}).add("minus", GgufType::i32, int32_t{-1});
  gguf.add_array<uint32_t>("layers", GgufType::u32, {8, 4});
  gguf.add_array<float>("nan", GgufType::f32, {NAN});
  const GgufMetadata metadata = parse(gguf.bytes()).metadata;
  const auto error = [&](auto&& read) { return error_of([&] { static_cast<void>(read()); }); };
  EXPECT_TRUE(says(error([&] { return metadata.integer("x"); }), "w.gguf", "\"x\"", "missing"));
  EXPECT_TRUE(says(error([&] { return metadata.integer("text"); }), "whole number"));
  EXPECT_TRUE(says(error([&] { return metadata.integer("real"); }), "whole number"));
  EXPECT_TRUE(says(error([&] { return metadata.integer("huge"); }), "2^63"));
  EXPECT_TRUE(says(error([&] { return metadata.integer("layers"); }), "from layer to layer"));
  EXPECT_TRUE(says(error([&] { return metadata.find_token("minus"); }), "token id"));
  EXPECT_TRUE(says(error([&] { return metadata.number("text"); }), "not a number"));
  EXPECT_TRUE(says(error([&] { return metadata.text("n"); }), "not text"));
  EXPECT_TRUE(says(error([&] { return metadata.text("bad"); }), "UTF-8"));
  EXPECT_TRUE(says(error([&] { return metadata.find_boolean("n"); }), "true nor false"));
  EXPECT_TRUE(says(error([&] { return metadata.find_strings("n"); }), "not an array"));
  EXPECT_TRUE(says(error([&] { return metadata.find_strings("nan"); }), "array of strings"));
  EXPECT_TRUE(says(error([&] { return metadata.numbers("nan"); }), "finite"));
  EXPECT_TRUE(says(error([&] { return metadata.bytes("nan"); }), "array of bytes"));
}

TEST(Gguf, ReadsOverArraysOfArraysUpToADepth) {
  std::string nested = GgufBuilder::array_head(GgufType::u8, 1) + "x";
  for (int depth = 2; depth <= 4; ++depth) {
    nested = GgufBuilder::array_head(GgufType::array, 1) + nested;
  }
  GgufBuilder gguf;
  gguf.raw("nested", GgufType::array, nested).add("after", 3U);
  EXPECT_EQ(parse(gguf.bytes()).metadata.integer("after"), 3);
  gguf.raw("nested", GgufType::array, GgufBuilder::array_head(GgufType::array, 1) + nested);
  EXPECT_TRUE(says(parse_error(gguf), "\"nested\"", "too deeply"));
}

TEST(Gguf, ReadsTensorsWithRowsFirst) {
  GgufBuilder gguf;
  gguf.add("general.alignment", 64U);
  gguf.alignment = 64;
  gguf.floats("a", {2, 3}, {1, 2, 3, 4, 5, 6}).tensor("b", 8, {2, 32}, std::string(68, '\1'));
  const std::string bytes = gguf.bytes();
  const GgufHeader header = parse(bytes);
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[0].format, &kF32Format);
  EXPECT_EQ(header.tensors[0].offset % 64, 0U);
  EXPECT_EQ(header.tensors[1].format->name, "Q8_0");
  EXPECT_EQ(header.tensors[1].bytes(), 68U);
  EXPECT_EQ(header.tensors[1].offset, header.tensors[0].offset + 64);
}

TEST(Gguf, ReadsVersion2AndNamesTheOthers) {
  GgufBuilder gguf = tiny_gguf_metadata();
  gguf.version = 2;
  EXPECT_EQ(parse_error(gguf), "");
  gguf.version = 1;
  EXPECT_TRUE(says(parse_error(gguf), "version 1"));
  gguf.version = 4;
  EXPECT_TRUE(says(parse_error(gguf), "version 4"));
  gguf.version = 0x03000000;
  EXPECT_TRUE(says(parse_error(gguf), "big-endian"));
  EXPECT_TRUE(says(parse_error("GGML and more"), "not a GGUF file"));
}

TEST(Gguf, RefusesAFileTruncatedAnywhere) {
  GgufBuilder gguf;
  gguf.add("a", "text").add("b", std::vector<std::string>{"x", "yz"});
  gguf.floats("t", {2}, {1, 2});
  const std::string bytes = gguf.bytes();
  EXPECT_EQ(parse_error(bytes), "");
  const size_t end = bytes.size() - 24;  // of the tensor, without the padding behind it
  for (size_t size = 0; size < end; ++size) {
    EXPECT_TRUE(says(parse_error(bytes.substr(0, size)), "w.gguf: ")) << "cut to " << size;
  }
}

TEST(Gguf, RefusesCountsThatTheFileHasNoRoomFor) {
  const auto head = [](uint64_t n_tensors, uint64_t n_pairs) {
    return "GGUF" + GgufBuilder::bytes_of(3U) + GgufBuilder::bytes_of(n_tensors) +
           GgufBuilder::bytes_of(n_pairs);
  };
  const uint64_t huge = ~uint64_t{0};
  EXPECT_TRUE(says(parse_error(head(huge, 0)), "tensors", "room"));
  EXPECT_TRUE(says(parse_error(head(0, huge)), "metadata entries", "room"));
  EXPECT_TRUE(says(parse_error(head(0, 1) + GgufBuilder::bytes_of(huge) + std::string(64, 'x')),
                   "name of 18446744073709551615 bytes"));
  GgufBuilder gguf;
  gguf.raw("a", GgufType::array, GgufBuilder::array_head(GgufType::f64, huge));
  EXPECT_TRUE(says(parse_error(gguf), "array elements", "room"));
  gguf.raw("a", GgufType::string, GgufBuilder::bytes_of(huge));
  EXPECT_TRUE(says(parse_error(gguf), "truncated"));
  gguf.raw(
      "a", GgufType::array,
      GgufBuilder::array_head(GgufType::u8, (1U << 24) + 1) + std::string((1U << 24) + 1, ' '));
  EXPECT_TRUE(says(parse_error(gguf), "16777216"));
}

TEST(Gguf, RefusesUnknownTypesOfValues) {
  GgufBuilder gguf;
  gguf.raw("a", static_cast<GgufType>(13), std::string(16, '\0'));
  EXPECT_TRUE(says(parse_error(gguf), "\"a\"", "unknown type 13"));
  gguf.raw("a", GgufType::array, GgufBuilder::array_head(static_cast<GgufType>(99), 0));
  EXPECT_TRUE(says(parse_error(gguf), "\"a\"", "unknown type 99"));
}

TEST(Gguf, RefusesAKeyThatIsThereTwice) {
  GgufBuilder gguf;
  gguf.add("a", 1U).add("b", 1U);
  std::string bytes = gguf.bytes();
  bytes[bytes.rfind('b')] = 'a';
  EXPECT_TRUE(says(parse_error(bytes), "\"a\"", "twice"));
}

TEST(Gguf, RefusesTensorsThatCannotBeThere) {
  const auto error = [](uint32_t type, const std::vector<int64_t>& shape, uint64_t offset) {
    GgufBuilder gguf;
    gguf.floats("first", {8}, std::vector<float>(8)).tensor_at("t", type, shape, offset);
    return parse_error(gguf);
  };
  const int64_t huge = int64_t{1} << 62;
  EXPECT_TRUE(says(error(0, {8}, 0), "\"t\"", "overlaps", "\"first\""));
  EXPECT_TRUE(says(error(0, {1}, 4), "\"t\"", "not aligned"));
  EXPECT_TRUE(says(error(0, {1}, 32), "\"t\"", "past the end"));
  EXPECT_TRUE(says(error(0, {1}, uint64_t{1} << 63), "\"t\"", "past the end"));
  EXPECT_TRUE(says(error(0, {huge}, 0), "\"t\"", "larger than the file"));
  EXPECT_TRUE(says(error(0, {huge, huge}, 0), "\"t\"", "larger than the file"));
  EXPECT_TRUE(says(error(0, {-1}, 0), "\"t\"", "larger than the file"));
  EXPECT_TRUE(says(error(0, {4, 0}, 0), "\"t\"", "empty"));
  EXPECT_TRUE(says(error(0, {}, 0), "\"t\"", "0 dimensions"));
  EXPECT_TRUE(says(error(0, {1, 1, 1, 1, 1}, 0), "\"t\"", "5 dimensions"));
  EXPECT_TRUE(says(error(17, {256}, 0), "\"t\"", "IQ2_XS", "Q4_K"));
  EXPECT_TRUE(says(error(77, {256}, 0), "\"t\"", "number 77"));
  EXPECT_TRUE(says(error(8, {1, 16}, 0), "\"t\"", "rows of 16", "Q8_0"));
  EXPECT_TRUE(says(error(8, {32}, 0), "\"t\"", "Q8_0"));
}

TEST(Gguf, RefusesAnAlignmentThatIsNone) {
  for (const uint32_t alignment : {0U, 3U, 1U << 21}) {
    GgufBuilder gguf;
    gguf.add("general.alignment", alignment).floats("t", {1}, {1});
    EXPECT_TRUE(says(parse_error(gguf), "general.alignment")) << alignment;
  }
}

// A file in three parts, the first without tensors.
class GgufParts : public testing::Test {
 protected:
  void SetUp() override {
    for (uint16_t part = 0; part < 3; ++part) {
      GgufBuilder gguf;
      gguf.add("split.no", GgufType::u16, part).add("split.count", GgufType::u16, uint16_t{3});
      gguf.add("split.tensors.count", GgufType::i32, int32_t{2});
      if (part > 0) gguf.floats("t" + std::to_string(part), {1}, {float(part)});
      write_bytes(path(part), gguf.bytes());
    }
  }
  std::filesystem::path path(int part) const {
    return folder_ / ("m-0000" + std::to_string(part + 1) + "-of-00003.gguf");
  }
  static GgufFile open(const std::filesystem::path& path) {
    SourceFiles files;
    return open_gguf_file(path, files);
  }
  TemporaryFolder folder_;
};

TEST_F(GgufParts, AreFoundByTheFirst) {
  const GgufFile gguf = open(path(0));
  ASSERT_EQ(gguf.weights.tensors().size(), 2U);
  float value = 0;
  gguf.weights.read(*gguf.weights.find("t2"), 0, std::as_writable_bytes(std::span(&value, 1)));
  EXPECT_EQ(value, 2);
}

TEST_F(GgufParts, SayWhatIsWrongWithThem) {
  const auto error = [](const std::filesystem::path& path) {
    return error_of([&] { open(path); });
  };
  EXPECT_TRUE(says(error(path(1)), "00002-of", "not the first part"));
  std::filesystem::copy(path(0), folder_ / "first.gguf");
  EXPECT_TRUE(says(error(folder_ / "first.gguf"), "must end in \"-00001-of-00003.gguf\""));
  std::filesystem::rename(path(2), folder_ / "third");
  EXPECT_TRUE(says(error(path(0)), "00003-of-00003", "missing"));
  std::filesystem::copy(path(1), path(2));
  EXPECT_TRUE(says(error(path(0)), "00003-of-00003", "not part 3"));
  GgufBuilder empty;
  empty.add("split.no", 2U).add("split.count", 3U);
  std::filesystem::remove(path(2));
  write_bytes(path(2), empty.bytes());
  EXPECT_TRUE(says(error(path(0)), "1 tensors", "not 2"));
}

}  // namespace
}  // namespace faststream::convert
