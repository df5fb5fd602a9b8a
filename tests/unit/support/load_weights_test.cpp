// Weights reach the backend's memory as they are, from memory and from a file.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "support/error.h"
#include "unit/backend/backend_fixture.h"

namespace faststream {
namespace {

/// A temporary file without a name.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::span<const std::byte> bytes) : file_(std::tmpfile()) {
    if (file_ == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size() ||
        std::fflush(file_) != 0) {
      throw Error("The test cannot write a temporary file.");
    }
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::fclose(file_); }

  [[nodiscard]] int descriptor() const { return fileno(file_); }

 private:
  std::FILE* file_;
};

class LoadWeights : public BackendTest {
 protected:
  std::vector<std::byte> random_bytes(size_t count) {
    std::vector<std::byte> bytes(count);
    for (size_t i = 0; i + 4 <= count; i += 4) {
      const auto word = static_cast<uint32_t>(random_());
      std::memcpy(bytes.data() + i, &word, sizeof word);
    }
    return bytes;
  }

  void expect_loaded(const WeightSource& source) {
    size_t done = 0;
    const std::byte* weights = backend_->load_weights(source, [&](size_t bytes) {
      EXPECT_GE(bytes, done) << "progress goes back";
      done = bytes;
    });
    EXPECT_EQ(done, source.bytes.size());
    std::vector<std::byte> loaded(source.bytes.size());
    backend_->copy_to_host(loaded.data(), weights, loaded.size());
    EXPECT_TRUE(std::equal(loaded.begin(), loaded.end(), source.bytes.begin()));
  }
};

TEST_P(LoadWeights, CopiesBytesFromMemory) {
  for (const size_t count : {size_t{1}, size_t{4096}, (size_t{8} << 20) + 1, size_t{50} << 20}) {
    const auto bytes = random_bytes(count);
    expect_loaded({bytes, -1, 0});
  }
}

TEST_P(LoadWeights, WorksWithoutAProgressCallback) {
  const auto bytes = random_bytes(1000);
  const std::byte* weights = backend_->load_weights({bytes, -1, 0}, nullptr);
  std::vector<std::byte> loaded(bytes.size());
  backend_->copy_to_host(loaded.data(), weights, loaded.size());
  EXPECT_EQ(loaded, bytes);
}

TEST_P(LoadWeights, CopiesSlicesToTheirPlaces) {
  const auto bytes = random_bytes(size_t{40} << 20);
  constexpr uint64_t kPitch = 5000;
  const WeightSource source{
      bytes,
      -1,
      0,
      nullptr,
      {{.to = 0, .from = 100, .row_bytes = 300},
       {.to = 512, .from = 7, .row_bytes = 1234, .rows = 8000, .pitch = kPitch},
       {.to = 512 + 1234 * 8000, .from = size_t{20} << 20, .row_bytes = size_t{19} << 20}}};
  std::vector<std::byte> loaded(source.size());
  size_t done = 0;
  backend_->copy_to_host(loaded.data(),
                         backend_->load_weights(source, [&](size_t count) { done = count; }),
                         loaded.size());
  EXPECT_EQ(done, source.size());
  for (const WeightSlice& slice : source.slices) {
    for (uint64_t row = 0; row < slice.rows; ++row) {
      const auto from = static_cast<std::ptrdiff_t>(slice.from + row * slice.pitch);
      const auto to = static_cast<std::ptrdiff_t>(slice.to + row * slice.row_bytes);
      ASSERT_TRUE(std::equal(loaded.begin() + to,
                             loaded.begin() + to + static_cast<std::ptrdiff_t>(slice.row_bytes),
                             bytes.begin() + from))
          << row;
    }
  }
}

class LoadWeightsToGpu : public LoadWeights {};

TEST_P(LoadWeightsToGpu, ReadsAFileFromAnOffset) {
  const auto bytes = random_bytes(size_t{40} << 20);
  const TemporaryFile file(bytes);
  constexpr size_t kOffset = 4096;
  expect_loaded({std::span<const std::byte>(bytes).subspan(kOffset), file.descriptor(), kOffset});
}

TEST_P(LoadWeightsToGpu, CopiesBytesThatAreMadeInPieces) {
  const auto bytes = random_bytes((size_t{40} << 20) + 1);
  const std::vector<std::byte> place(bytes.size());
  const WeightSource source{place, -1, 0, [&](uint64_t offset, std::span<std::byte> out) {
                              std::ranges::copy(std::span(bytes).subspan(offset, out.size()),
                                                out.begin());
                            }};
  const std::byte* weights = backend_->load_weights(source, nullptr);
  std::vector<std::byte> loaded(bytes.size());
  backend_->copy_to_host(loaded.data(), weights, loaded.size());
  EXPECT_EQ(loaded, bytes);
}

TEST_P(LoadWeightsToGpu, RefusesAFileThatEndsEarly) {
  const auto bytes = random_bytes(size_t{20} << 20);
  const TemporaryFile file(std::span<const std::byte>(bytes).first(size_t{17} << 20));
  EXPECT_THROW(backend_->load_weights({bytes, file.descriptor(), 0}, nullptr), Error);
}

TEST_P(LoadWeightsToGpu, RefusesAModelThatDoesNotFitAndSaysHowMuchIsFree) {
  const std::byte one{};
  try {
    // Refused by its size: not a byte is read.
    backend_->load_weights({std::span(&one, size_t{1} << 50), -1, 0}, nullptr);
    FAIL() << "a petabyte was accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("GB are free"), std::string::npos) << message;
    EXPECT_NE(message.find("--device cpu"), std::string::npos) << message;
  }
}

TEST_P(LoadWeightsToGpu, AFailingProgressCallbackEndsTheUpload) {
  const auto bytes = random_bytes(size_t{100} << 20);
  EXPECT_THROW(backend_->load_weights({bytes, -1, 0}, [](size_t) { throw Error("stop"); }), Error);
}

TEST(Cuda, AskingForAGpuThatIsNotThereSaysSo) {
  try {
    make_cuda_backend(1000);
    FAIL() << "GPU 1000 was found";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("There is no GPU"), std::string::npos) << error.what();
  }
  EXPECT_THROW(make_cuda_backend(-1), Error);
  EXPECT_EQ(cuda_device_count() == 0, !cuda_unavailable_reason().empty());
}

FASTSTREAM_INSTANTIATE_BACKENDS(LoadWeights);
INSTANTIATE_TEST_SUITE_P(Cuda, LoadWeightsToGpu, ::testing::Values("cuda"));

}  // namespace
}  // namespace faststream
