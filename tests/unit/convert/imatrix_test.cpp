#include "convert/calibration/imatrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "convert/pipeline.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/convert/gguf_files.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

ImportanceEntries parse_importance(const std::string& bytes) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    ASSERT_LE(offset + out.size(), bytes.size());
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  return parse_imatrix(read, bytes.size(), "i.gguf");
}

std::string importance_error(const std::string& bytes) {
  return error_of([&] { parse_importance(bytes); });
}

std::string number(int32_t value) { return GgufBuilder::bytes_of(value); }

// An entry of the older form.
std::string entry(const std::string& name, int32_t calls, const std::vector<float>& values) {
  std::string bytes = number(static_cast<int32_t>(name.size())) + name + number(calls) +
                      number(static_cast<int32_t>(values.size()));
  for (const float value : values) bytes += GgufBuilder::bytes_of(value);
  return bytes;
}

GgufBuilder gguf_form() {
  GgufBuilder gguf;
  gguf.add("general.type", "imatrix");
  return gguf;
}

TEST(Imatrix, ReadsBothForms) {
  const ImportanceEntries older =
      parse_importance(number(2) + entry("blk.0.attn_q.weight", 4, {8, 2, 0}) +
                       entry("x", 1, {0.5}) + number(10) + number(4) + "text");
  EXPECT_EQ(older.size(), 2U);
  EXPECT_EQ(older.at("blk.0.attn_q.weight").mean_squares, (std::vector<float>{2, 0.5, 0}));
  EXPECT_EQ(older.at("blk.0.attn_q.weight").counts, std::vector<float>{4});

  GgufBuilder gguf = gguf_form();
  gguf.floats("a.in_sum2", {2, 3}, {3, 6, 9, 1, 2, 3}).floats("a.counts", {2, 1}, {3, 0});
  const ImportanceEntries newer = parse_importance(gguf.bytes());
  EXPECT_EQ(newer.size(), 1U);
  EXPECT_EQ(newer.at("a").mean_squares, (std::vector<float>{1, 2, 3, 0, 0, 0}));
  EXPECT_EQ(newer.at("a").counts, (std::vector<float>{3, 0}));
}

TEST(Imatrix, RefusesWhatIsUnsound) {
  EXPECT_TRUE(says(importance_error(""), "i.gguf", "no importance matrix"));
  EXPECT_TRUE(says(importance_error(number(-1)), "no importance matrix"));
  EXPECT_TRUE(says(importance_error(number(1 << 30) + entry("a", 1, {1})), "no importance matrix"));
  const std::string whole = number(1) + entry("a", 2, {1, 2});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(says(importance_error(whole.substr(0, size)), "no importance matrix")) << size;
  }
  EXPECT_EQ(importance_error(whole), "");
  EXPECT_TRUE(says(importance_error(number(1) + entry("a", 0, {1})), "damaged"));
  const std::string twice = number(2) + entry("a", 1, {1}) + entry("a", 1, {1});
  EXPECT_TRUE(says(importance_error(twice), "\"a\"", "twice"));
  for (const float bad :
       {-1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_TRUE(says(importance_error(number(1) + entry("a", 1, {bad})), "\"a\"", "not finite"));
  }

  EXPECT_TRUE(says(importance_error(GgufBuilder().add("general.type", "model").bytes()),
                   "no importance matrix"));
  EXPECT_TRUE(says(importance_error(gguf_form().floats("a.in_sum2", {1, 2}, {1, 2}).bytes()),
                   "no counts", "\"a\""));
  EXPECT_TRUE(says(importance_error(gguf_form()
                                        .floats("a.in_sum2", {1, 2}, {1, 2})
                                        .floats("a.counts", {2, 1}, {1, 1})
                                        .bytes()),
                   "2 counts for 1 parts"));
  EXPECT_TRUE(says(importance_error(gguf_form()
                                        .tensor("a.in_sum2", 1, {1, 2}, std::string(4, '\0'))
                                        .floats("a.counts", {1, 1}, {1})
                                        .bytes()),
                   "not of type F32"));
  EXPECT_TRUE(says(
      importance_error(
          gguf_form().floats("a.in_sum2", {1, 2}, {1, -2}).floats("a.counts", {1, 1}, {1}).bytes()),
      "negative"));
}

class ImatrixOfModels : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "model");
    write_hf_folder(folder_ / "model", tiny_config(), tiny_tensors(DType::f32));
    GgufBuilder gguf = tiny_gguf_metadata();
    add_tiny_gguf_tensors(gguf);
    write_bytes(folder_ / "model.gguf", gguf.bytes());
  }
  ActivationStatistics read(const std::string& checkpoint, const std::string& bytes) {
    ConvertOptions options;
    options.checkpoint = folder_ / checkpoint;
    options.format = WeightFormat::int4;
    options.keep = "output=int4";  // all matrices
    write_bytes(folder_ / "imatrix.dat", bytes);
    const SourceModel source = open_source(options);
    return read_imatrix(folder_ / "imatrix.dat", source,
                        calibrated_matrices(target_config(source.config, options)));
  }
  static std::vector<float> counted(size_t count) {
    std::vector<float> values;
    for (size_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i));
    return values;
  }
  TemporaryFolder folder_;
};

TEST_F(ImatrixOfModels, FindsMatricesByTheirNamesInGguf) {
  const std::string file = number(4) + entry("blk.1.attn_q.weight", 1, counted(16)) +
                           entry("blk.1.attn_v.weight", 1, counted(16)) +
                           entry("blk.0.ffn_down.weight", 2, counted(24)) +
                           entry("blk.0.attn_norm.weight", 2, counted(16));
  for (const char* checkpoint : {"model", "model.gguf"}) {
    SCOPED_TRACE(checkpoint);
    const ActivationStatistics statistics = read(checkpoint, file);
    EXPECT_EQ(statistics.all().size(), 2U);
    const InputMoments* qkv = statistics.find({.kind = TensorKind::attention_qkv, .n = 1});
    ASSERT_NE(qkv, nullptr);
    EXPECT_EQ(qkv->mean_squares, counted(16));
    EXPECT_TRUE(qkv->gram.empty());
    const InputMoments* down = statistics.find({.kind = TensorKind::ffn_down});
    ASSERT_NE(down, nullptr);
    EXPECT_EQ(down->mean_squares[3], 1.5F);
    EXPECT_EQ(down->count, 2);
  }
}

TEST_F(ImatrixOfModels, RefusesThoseOfOtherModels) {
  const auto refusal = [&](const std::string& bytes) {
    return error_of([&] { read("model", bytes); });
  };
  EXPECT_TRUE(says(refusal(number(1) + entry("blk.0.ffn_down.weight", 1, counted(25))),
                   "imatrix.dat", "25 values", "24 columns", "another model"));
  EXPECT_TRUE(says(refusal(number(1) + entry("blk.7.ffn_down.weight", 1, counted(24))),
                   "none of the model's matrices"));
}

TEST_F(ImatrixOfModels, AreReadByAConversion) {
  ConvertOptions options;
  options.checkpoint = folder_ / "model";
  options.output = folder_ / "m.bin";
  options.imatrix = folder_ / "imatrix.dat";
  write_bytes(*options.imatrix, number(1) + entry("blk.0.ffn_down.weight", 1, counted(24)));
  options.format = WeightFormat::int4;
  options.keep = "output=int4";  // all matrices
  const ConvertReport report = convert_checkpoint(options);
  EXPECT_EQ(report.n_measured, 1U);
  EXPECT_EQ(report.n_calibrated, 9U);
  options.format.reset();
  options.keep.clear();
  options.force = true;
  EXPECT_TRUE(says(error_of([&] { convert_checkpoint(options); }), "--imatrix"));
}

}  // namespace
}  // namespace faststream::convert
