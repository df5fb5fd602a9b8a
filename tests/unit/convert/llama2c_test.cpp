#include "convert/llama2c/llama2c.h"

#include <gtest/gtest.h>

#include <array>

#include "convert/pipeline.h"
#include "model_file/model_file.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

using Header = std::array<int32_t, 7>;

// dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len
constexpr Header kHeader = {8, 12, 2, 2, 1, 10, 16};

void append(std::string& bytes, const void* data, size_t size) {
  bytes.append(static_cast<const char*>(data), size);
}

// A checkpoint whose n-th number is n.
std::string checkpoint_bytes(Header header) {
  const size_t vocab = static_cast<size_t>(std::abs(header[5]));
  const size_t layer = 8 + 8 * 8 + 4 * 8 + 4 * 8 + 8 * 8 + 8 + 3 * 12 * 8;
  size_t count = vocab * 8 + 2 * layer + 8 + 16 * 4;
  if (header[5] < 0) count += vocab * 8;
  std::string bytes;
  append(bytes, header.data(), sizeof header);
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(i);
    append(bytes, &value, sizeof value);
  }
  return bytes;
}

class Llama2c : public testing::Test {
 protected:
  void SetUp() override {
    write_bytes(folder_ / "m.bin", checkpoint_bytes(kHeader));
    write_bytes(folder_ / "t.model", tiny_tokenizer(10));
    options_.checkpoint = folder_ / "m.bin";
    options_.tokenizer = folder_ / "t.model";
    options_.output = folder_ / "out.bin";
  }
  [[nodiscard]] std::string open_error() const {
    return error_of([&] { open_llama2c(folder_ / "m.bin", options_.tokenizer); });
  }
  // Element (row, col) of a tensor of the converted file, which is f32.
  static float element(const ModelFile& file, std::string_view name, int64_t row, int64_t col) {
    const TensorInfo& tensor = *file.find(name);
    const int64_t cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    return load_as_float(file.bytes(tensor).data(), DType::f32,
                         static_cast<size_t>(row * cols + col));
  }
  TemporaryFolder folder_;
  ConvertOptions options_;
};

TEST_F(Llama2c, ReadsTheHeader) {
  const SourceModel model = open_source_model(folder_ / "m.bin", options_.tokenizer);
  ModelConfig expected = plain_decoder({.n_layers = 2,
                                        .hidden = 8,
                                        .n_heads = 2,
                                        .n_kv_heads = 1,
                                        .head_dim = 4,
                                        .ffn_hidden = 12,
                                        .vocab = 10,
                                        .max_context = 16});
  expected.output.tied = true;
  EXPECT_EQ(config_to_json(model.config), config_to_json(expected));
  EXPECT_EQ(model.tokenizer.config.bos, 1);
  EXPECT_EQ(model.tokenizer.config.eos, (std::vector<int32_t>{1, 2}));
}

TEST_F(Llama2c, PutsEveryTensorInItsPlace) {
  convert_checkpoint(options_);
  const ModelFile file = ModelFile::open(folder_ / "out.bin");
  // Where each kind of tensor begins, in numbers from the start, and its size in a layer.
  const int64_t norm = 80;
  const int64_t wq = norm + 2 * 8;
  const int64_t wk = wq + 2 * 64;
  const int64_t wv = wk + 2 * 32;
  const int64_t wo = wv + 2 * 32;
  const int64_t ffn_norm = wo + 2 * 64;
  const int64_t w1 = ffn_norm + 2 * 8;
  const int64_t w2 = w1 + 2 * 96;
  const int64_t w3 = w2 + 2 * 96;
  const int64_t last_norm = w3 + 2 * 96;
  const auto expect = [&](std::string_view name, int64_t row, int64_t col, int64_t value) {
    EXPECT_EQ(element(file, name, row, col), static_cast<float>(value)) << name << " row " << row;
  };
  expect("embedding", 9, 7, 79);
  expect("layers.1.attention_norm", 3, 0, norm + 8 + 3);
  // Two query heads of four rows, a key head, a value head. Pairs (0, 1), (2, 3) become halves.
  constexpr std::array<int64_t, 4> kFrom = {0, 2, 1, 3};
  for (int64_t row = 0; row < 4; ++row) {
    const int64_t from = kFrom[static_cast<size_t>(row)];
    expect("layers.1.attention_qkv", row, 5, wq + 64 + from * 8 + 5);
    expect("layers.1.attention_qkv", 4 + row, 5, wq + 64 + (4 + from) * 8 + 5);
    expect("layers.1.attention_qkv", 8 + row, 5, wk + 32 + from * 8 + 5);
    expect("layers.1.attention_qkv", 12 + row, 5, wv + 32 + row * 8 + 5);
  }
  expect("layers.0.attention_out", 2, 1, wo + 2 * 8 + 1);
  expect("layers.0.ffn_norm", 7, 0, ffn_norm + 7);
  expect("layers.1.ffn_gate_up", 11, 2, w1 + 96 + 11 * 8 + 2);
  expect("layers.1.ffn_gate_up", 12 + 11, 2, w3 + 96 + 11 * 8 + 2);
  expect("layers.1.ffn_down", 7, 11, w2 + 96 + 7 * 12 + 11);
  expect("output_norm", 4, 0, last_norm + 4);
  EXPECT_EQ(file.find("output"), nullptr);
}

TEST_F(Llama2c, FindsASeparateOutputMatrixBehindTheRotations) {
  Header header = kHeader;
  header[5] = -10;
  write_bytes(folder_ / "m.bin", checkpoint_bytes(header));
  convert_checkpoint(options_);
  const ModelFile file = ModelFile::open(folder_ / "out.bin");
  const int64_t last_norm = static_cast<int64_t>(element(file, "output_norm", 0, 0));
  EXPECT_EQ(element(file, "output", 9, 7), static_cast<float>(last_norm + 8 + 16 * 4 + 79));
}

TEST_F(Llama2c, RefusesAFileOfTheWrongSize) {
  const std::string bytes = checkpoint_bytes(kHeader);
  for (size_t i = 0; i < 16; ++i) {
    write_bytes(folder_ / "m.bin", bytes.substr(0, bytes.size() * i / 16));
    EXPECT_TRUE(says(open_error(), "m.bin")) << i;
  }
  write_bytes(folder_ / "m.bin", bytes + "x");
  EXPECT_TRUE(says(open_error(), "truncated, or no checkpoint at all"));
}

TEST_F(Llama2c, RefusesAbsurdHeaders) {
  for (size_t field = 0; field < kHeader.size(); ++field) {
    for (const int32_t value : {0, -1, INT32_MIN, INT32_MAX, 1 << 20}) {
      Header header = kHeader;
      header[field] = value;
      std::string bytes = checkpoint_bytes(kHeader);
      bytes.replace(0, sizeof header, reinterpret_cast<const char*>(header.data()), sizeof header);
      write_bytes(folder_ / "m.bin", bytes);
      EXPECT_TRUE(says(open_error(), "m.bin")) << "field " << field << " = " << value;
    }
  }
}

TEST_F(Llama2c, RefusesNewerVersionsAndSaysWhatToDo) {
  std::string bytes = checkpoint_bytes(kHeader);
  const std::array<int32_t, 2> newer = {0x616b3432, 2};
  bytes.replace(0, sizeof newer, reinterpret_cast<const char*>(newer.data()), sizeof newer);
  write_bytes(folder_ / "m.bin", bytes);
  EXPECT_TRUE(says(open_error(), "version 2", "--version 0"));
}

TEST_F(Llama2c, TakesTheOnlyTokenizerBesideIt) {
  options_.tokenizer.reset();
  EXPECT_TRUE(says(open_error(), "m.bin", "no tokenizer", "--tokenizer FILE"));
  write_bytes(folder_ / "tok10.bin", "x");
  EXPECT_TRUE(says(open_error(), "tok10.bin"));  // found, and found to be no tokenizer
  write_bytes(folder_ / "tokenizer.bin", "x");
  EXPECT_TRUE(says(open_error(), "more than one tokenizer", "--tokenizer FILE"));
  options_.tokenizer = folder_ / "t.model";
  EXPECT_EQ(open_error(), "");
}

}  // namespace
}  // namespace faststream::convert
