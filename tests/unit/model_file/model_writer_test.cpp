#include "model_file/model_writer.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "model_file/model_file.h"
#include "unit/model_file/model_file_helpers.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

// Bytes that differ from tensor to tensor and place to place.
std::vector<std::byte> pattern(size_t size, size_t seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed * 31);
  return bytes;
}

void write_sample(const std::filesystem::path& path, bool overwrite = false) {
  ModelWriter writer(path, sample_header(), sample_specs(), overwrite);
  writer.append(pattern(11, 0));
  writer.append(pattern(30, 1));
  writer.append(pattern(12, 2));
  // The last one in pieces.
  const std::vector<std::byte> last = pattern(4000, 3);
  writer.append(std::span(last).first(1));
  writer.append({});
  writer.append(std::span(last).subspan(1));
  writer.finish();
}

TEST(ModelWriter, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  write_sample(folder / "m.bin");
  const ModelFile file = ModelFile::open(folder / "m.bin");
  EXPECT_EQ(file.header(), sample_header());
  EXPECT_EQ(file.file_size(), model_file_size(sample_header(), sample_specs()));
  ASSERT_EQ(file.tensors().size(), sample_specs().size());
  for (size_t i = 0; i < sample_specs().size(); ++i) {
    const TensorSpec spec = sample_specs()[i];
    const TensorInfo& tensor = file.tensors()[i];
    EXPECT_EQ(tensor.name, spec.name);
    EXPECT_EQ(tensor.dtype, spec.dtype);
    EXPECT_EQ(tensor.shape, spec.shape);
    EXPECT_TRUE(std::ranges::equal(file.bytes(tensor), pattern(tensor.bytes, i))) << spec.name;
  }
  EXPECT_NO_THROW(file.verify());
  EXPECT_GE(file.weights().fd, 0);
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(ModelWriter, WritesTheSameBytesForTheSameInput) {
  const TemporaryFolder folder;
  write_sample(folder / "a.bin");
  write_sample(folder / "b.bin");
  EXPECT_EQ(read_bytes(folder / "a.bin"), read_bytes(folder / "b.bin"));
}

TEST(ModelWriter, FillsGapsWithZeros) {
  const TemporaryFolder folder;
  write_sample(folder / "m.bin");
  const std::string bytes = read_bytes(folder / "m.bin");
  const ModelFile file = ModelFile::open(folder / "m.bin");
  for (size_t i = 0; i + 1 < file.tensors().size(); ++i) {
    const uint64_t end = file.tensors()[i].offset + file.tensors()[i].bytes;
    const uint64_t next = file.tensors()[i + 1].offset;
    EXPECT_EQ(bytes.substr(end, next - end), std::string(next - end, '\0'));
  }
}

TEST(ModelWriter, ChecksumsFindOneFlippedBitInATensor) {
  const TemporaryFolder folder;
  write_sample(folder / "m.bin");
  std::string bytes = read_bytes(folder / "m.bin");
  bytes[ModelFile::open(folder / "m.bin").find("matrix")->offset + 29] ^= 4;
  write_bytes(folder / "m.bin", bytes);
  const ModelFile file = ModelFile::open(folder / "m.bin");
  EXPECT_TRUE(says(error_of([&] { file.verify(); }), "m.bin", "\"matrix\"", "checksum"));
}

TEST(ModelWriter, VerifyingFindsOneFlippedBitBetweenTensors) {
  const TemporaryFolder folder;
  write_sample(folder / "m.bin");
  const std::string sound = read_bytes(folder / "m.bin");
  const uint64_t first = ModelFile::open(folder / "m.bin").find("tokenizer")->offset;
  for (const uint64_t place : {first - 1, first + 11, first + kTensorAlignment - 1}) {
    std::string bytes = sound;
    bytes[place] ^= 4;
    write_bytes(folder / "m.bin", bytes);
    const ModelFile file = ModelFile::open(folder / "m.bin");
    const char* const next = place < first ? "\"tokenizer\"" : "\"matrix\"";
    EXPECT_TRUE(says(error_of([&] { file.verify(); }), "m.bin", "a byte before", next));
  }
}

TEST(ModelWriter, LeavesNothingWhenItIsNotFinished) {
  const TemporaryFolder folder;
  {
    ModelWriter writer(folder / "m.bin", sample_header(), sample_specs(), false);
    writer.append(pattern(11, 0));
    EXPECT_EQ(folder.entries(), 1U);  // the partial file
    EXPECT_FALSE(std::filesystem::exists(folder / "m.bin"));
  }
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(ModelWriter, RefusesMissingAndExcessBytes) {
  const TemporaryFolder folder;
  {
    ModelWriter writer(folder / "m.bin", sample_header(), sample_specs(), false);
    writer.append(pattern(11, 0));
    EXPECT_TRUE(says(error_of([&] { writer.append(pattern(31, 0)); }), "\"matrix\"", "too many"));
    EXPECT_TRUE(says(error_of([&] { writer.finish(); }), "\"matrix\"", "missing"));
  }
  EXPECT_EQ(folder.entries(), 0U);
  ModelWriter writer(folder / "m.bin", sample_header(), {{"t", DType::u8, {1}}}, false);
  writer.append(pattern(1, 0));
  EXPECT_TRUE(says(error_of([&] { writer.append(pattern(1, 0)); }), "more bytes"));
}

TEST(ModelWriter, OverwritesOnlyWhenTold) {
  const TemporaryFolder folder;
  write_bytes(folder / "m.bin", "precious");
  EXPECT_TRUE(says(error_of([&] { write_sample(folder / "m.bin"); }), "already exists", "--force"));
  EXPECT_EQ(read_bytes(folder / "m.bin"), "precious");
  write_sample(folder / "m.bin", true);
  EXPECT_NO_THROW(ModelFile::open(folder / "m.bin").verify());
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(ModelWriter, DoesNotReplaceAFileThatAppearedMeanwhile) {
  const TemporaryFolder folder;
  ModelWriter writer(folder / "m.bin", sample_header(), {{"t", DType::u8, {1}}}, false);
  writer.append(pattern(1, 0));
  write_bytes(folder / "m.bin", "precious");
  EXPECT_TRUE(says(error_of([&] { writer.finish(); }), "already exists"));
  EXPECT_EQ(read_bytes(folder / "m.bin"), "precious");
}

TEST(ModelWriter, RefusesAFolderThatCannotBeWritten) {
  const TemporaryFolder folder;
  EXPECT_TRUE(says(error_of([&] { write_sample(folder / "none" / "m.bin"); }), "none/m.bin",
                   "cannot create"));
  EXPECT_TRUE(says(error_of([&] { write_sample(folder.path(), true); }), "is a folder"));
  EXPECT_TRUE(says(error_of([&] { write_sample("/proc/m.bin"); }), "cannot create"));
  if (::geteuid() == 0) return;  // root writes everywhere
  std::filesystem::permissions(
      folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_TRUE(says(error_of([&] { write_sample(folder / "m.bin"); }), "cannot create"));
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
}

TEST(ModelWriter, RefusesALimitOnFilesAtOnce) {
  const TemporaryFolder folder;
  // A limit on the size of files needs no full disk.
  ASSERT_NE(std::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit tight = before;
  tight.rlim_cur = 8192;
  ::setrlimit(RLIMIT_FSIZE, &tight);
  const std::string message = error_of([&] { write_sample(folder / "m.bin"); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(says(message, "m.bin", "needs", "ulimit -f"));
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(ModelWriter, RefusesAFullFilesystemAtOnce) {
  const TemporaryFolder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=16k") != 0) {
    GTEST_SKIP() << "mounting a small filesystem needs root";
  }
  const std::string message = error_of([&] { write_sample(folder / "m.bin"); });
  const size_t left = folder.entries();
  ::umount(folder.path().c_str());
  EXPECT_TRUE(says(message, "m.bin", "disk is full"));
  EXPECT_EQ(left, 0U);
}

TEST(ModelWriter, RefusesImpossibleTensors) {
  const auto fault = [](const std::vector<TensorSpec>& specs) {
    return error_of([&] { model_file_size(sample_header(), specs); });
  };
  EXPECT_TRUE(says(fault({}), "at least one tensor"));
  EXPECT_TRUE(says(fault({{"", DType::f32, {1}}}), "no name"));
  EXPECT_TRUE(says(fault({{std::string(96, 'x'), DType::f32, {1}}}), "more than 95"));
  EXPECT_EQ(fault({{std::string(95, 'x'), DType::f32, {1}}}), "");
  EXPECT_TRUE(says(fault({{"ü", DType::f32, {1}}}), "printable ASCII"));
  EXPECT_TRUE(says(fault({{"a", DType::f32, {1, 1, 1}}}), "3 dimensions"));
  EXPECT_TRUE(says(fault({{"a", DType::f32, {0}}}), "empty dimension"));
  EXPECT_TRUE(says(fault({{"a", DType::f32, {-1}}}), "too large"));
  EXPECT_TRUE(says(fault({{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}), "twice"));
  EXPECT_TRUE(says(fault({{"a", DType::f32, {1}}, {"b", DType::u8, {1}}}), "come first"));
}

}  // namespace
}  // namespace faststream
