#include "convert/quantized/quantization.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "convert/quantized/module_tensors.h"
#include "convert/weights/elements.h"
#include "convert/weights/read_values.h"
#include "unit/convert/quantized_checkpoint.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

class Quantization : public QuantizedCheckpoint {};

TEST_F(Quantization, OfAnUnknownMethodIsRefusedByName) {
  EXPECT_TRUE(says(error({}, {{"quant_method", "hqq"}}), "\"hqq\"", "gptq", "awq"));
  EXPECT_TRUE(says(error({}, json::object()), "no method by name"));
}

TEST_F(Quantization, OfOptionsThatAreNotReadIsRefusedByName) {
  const auto refused = [&](const json& quantization, const std::string& what) {
    const std::string text = error({}, quantization);
    EXPECT_TRUE(says(text, what, "not supported")) << text;
  };
  refused({{"quant_method", "gptq"}, {"checkpoint_format", "marlin"}}, "\"marlin\"");
  refused({{"quant_method", "gptq"}, {"is_marlin_format", true}}, "is_marlin_format");
  refused({{"quant_method", "awq"}, {"version", "gemv_fast"}}, "\"gemv_fast\"");
  refused({{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "\"e5m2\"");
  refused({{"quant_method", "modelopt"}, {"quant_algo", "W4A16_AWQ"}}, "\"W4A16_AWQ\"");
  const char* method = "compressed-tensors";
  refused({{"quant_method", method}, {"format", "marlin-24"}}, "\"marlin-24\"");
  refused({{"quant_method", method}, {"quantization_status", "frozen"}}, "\"frozen\"");
  refused({{"quant_method", method}, {"transform_config", {{"config_groups", 1}}}}, "rotations");
  refused({{"quant_method", method}, {"sparsity_config", {{"format", "sparse-24-bitmask"}}}},
          "\"sparse-24-bitmask\"");
  EXPECT_TRUE(says(error({}, {{"quant_method", "awq"}, {"bits", 8}}), "not 4"));
  refused({{"quant_method", "bitnet"}, {"use_rms_norm", true}}, "norm before each product");
  refused({{"quant_method", "bitnet"}, {"linear_class", "other"}}, "\"other\"");
  refused({{"quant_method", "bitnet"}, {"quantization_mode", "late"}}, "\"late\"");
}

TEST_F(Quantization, OfGptqsFirstFormatHasZeroPointsOfOneMore) {
  const Floats first = values(joined(gptq_module(), kGptq), "m.weight");
  EXPECT_EQ(Floats(first.begin(), first.begin() + 9), (Floats{-1, -1, -1, -1, -1, -1, -1, -1, -2}));
  json second = kGptq;
  second["checkpoint_format"] = "gptq_v2";
  EXPECT_EQ(values(joined(gptq_module(), second), "m.weight"), Floats(64, 0.0F));
  RawTensors fifteen = gptq_module();  // and one are zero again
  fifteen["m.qzeros"].bytes = std::string(4, '\xff');
  EXPECT_EQ(values(joined(fifteen, kGptq), "m.weight"), Floats(64, 0.0F));
}

// Two bits of a byte are of the first half of rows, then of the second and so on; here of 4 and 8
// rows, 0 is -1, 1 is 0, 2 is 1.
TEST_F(Quantization, OfBitNetHasRowsFarApartInAByte) {
  const json multiplied = {{"quant_method", "bitnet"}, {"linear_class", "autobitlinear"}};
  const json divided = {{"quant_method", "bitnet"}};
  RawTensors tensors = {{"m.weight", {"U8", {1, 2}, bytes_of<uint8_t>({0b10010001, 0b01100010})}},
                        {"m.weight_scale", {"F32", {1}, bytes_of<float>({0.5F})}}};
  const Floats once = {0, 0.5F, -0.5F, -0.5F, 0, 0.5F, 0.5F, 0};
  EXPECT_EQ(values(joined(tensors, multiplied), "m.weight"), once);
  EXPECT_EQ(values(joined(tensors, divided), "m.weight"), (Floats{0, 2, -2, -2, 0, 2, 2, 0}));
  tensors["m.weight"] = {"U8", {2, 1}, bytes_of<uint8_t>({0b10010001, 0b01100010})};
  const Checkpoint tall = joined(tensors, multiplied);
  EXPECT_EQ(tall.find("m.weight")->shape, (std::vector<int64_t>{8, 1}));
  EXPECT_EQ(values(tall, "m.weight"), once) << "rows of both bytes by turns";
  tensors["m.weight"] = {"F32", {2, 1}, bytes_of<float>({-1, 1})};
  EXPECT_EQ(values(joined(tensors, multiplied), "m.weight"), (Floats{-0.5F, 0.5F}))
      << "numbers that are not packed";
  tensors["m.weight"] = {"I32", {2, 1}, zeros(8)};
  EXPECT_TRUE(says(error(tensors, multiplied), "\"m.weight\"", "I32", "U8"));
  tensors.erase("m.weight");
  EXPECT_TRUE(says(error(tensors, multiplied), "\"m.weight\"", "missing"));
}

TEST_F(Quantization, OfBitNetRoundsMasterWeightsToThreeValues) {
  json online = {{"quant_method", "bitnet"},
                 {"linear_class", "autobitlinear"},
                 {"quantization_mode", "online"}};
  const Floats floats = {0.25F, -0.75F, 2.0F, 0.5F, -1.0F, 1.5F};  // of which 1 is the mean
  const RawTensor matrix{"F32", {2, 3}, bytes_of<float>({0.25F, -0.75F, 2.0F, 0.5F, -1.0F, 1.5F})};
  const RawTensors tensors = {{"model.layers.0.m.weight", matrix},
                              {"model.layers.0.norm.weight", {"F32", {1}, zeros(4)}},
                              {"lm_head.weight", matrix}};
  const Floats rounded = {0, -1, 1, 0, -1, 1};  // a half to the even one
  const Checkpoint checkpoint = joined(tensors, online);
  EXPECT_EQ(values(checkpoint, "model.layers.0.m.weight"), rounded);
  EXPECT_EQ(values(checkpoint, "lm_head.weight"), floats);
  for (const char* kept : {"m", "model.layers.0", "model.layers.0.m"}) {
    online["modules_to_not_convert"] = json::array({kept});
    EXPECT_EQ(values(joined(tensors, online), "model.layers.0.m.weight"), floats) << kept;
  }
  online["modules_to_not_convert"] = json::array({"layers.*"});
  EXPECT_TRUE(says(error(tensors, online), "pattern"));
  online.erase("modules_to_not_convert");
  RawTensors damaged = tensors;
  damaged["model.layers.0.m.weight"].bytes.replace(0, 4, "\x00\x00\x80\x7f", 4);
  EXPECT_TRUE(says(error(damaged, online), "\"model.layers.0.m.weight\"", "not finite"));
  damaged["model.layers.0.m.weight"] = {"U8", {2, 3}, zeros(6)};
  EXPECT_TRUE(says(error(damaged, online), "\"model.layers.0.m.weight\"", "U8"));
}

TEST_F(Quantization, LeavesOutBiasesOfZeros) {
  RawTensors tensors = gptq_module();
  tensors["m.bias"] = {"F16", {8}, zeros(16)};
  tensors["n.bias"] = {"F16", {8}, zeros(16)};
  joined(tensors, kGptq);
  EXPECT_TRUE(biases_of_zeros_.contains("m.bias"));
  EXPECT_FALSE(biases_of_zeros_.contains("n.bias"));
  tensors["m.bias"].bytes[15] = '\x3c';
  joined(tensors, kGptq);
  EXPECT_FALSE(biases_of_zeros_.contains("m.bias"));
}

TEST_F(Quantization, RefusesTensorsOfAModuleThatDoNotFitTogether) {
  const auto changed = [](const std::string& name, const RawTensor& tensor) {
    RawTensors tensors = gptq_module();
    tensors[name] = tensor;
    return tensors;
  };
  RawTensors incomplete = gptq_module();
  incomplete.erase("m.scales");
  EXPECT_TRUE(says(error(incomplete, kGptq), "\"m.scales\"", "missing"));
  EXPECT_TRUE(says(error(changed("m.qweight", {"F32", {1, 8}, zeros(32)}), kGptq), "\"m.qweight\"",
                   "F32", "I32"));
  EXPECT_TRUE(says(error(changed("m.qweight", {"I32", {8}, zeros(32)}), kGptq), "no matrix"));
  EXPECT_TRUE(says(error(changed("m.qzeros", {"I32", {1, 3}, zeros(12)}), kGptq), "\"m.qzeros\"",
                   "no whole number of bits"));
  EXPECT_TRUE(says(error(changed("m.qzeros", {"I32", {2, 1}, zeros(8)}), kGptq), "\"m.qzeros\"",
                   "[2, 1]", "[1, 1]"));
  EXPECT_TRUE(says(error(changed("m.scales", {"F32", {1, 4}, zeros(16)}), kGptq), "\"m.scales\"",
                   "[1, 4]", "[1, 8]"));
  EXPECT_TRUE(says(error(changed("m.scales", {"I16", {1, 8}, zeros(16)}), kGptq), "\"m.scales\"",
                   "I16", "no scale"));
  EXPECT_TRUE(says(error(changed("m.g_idx", {"I32", {4}, zeros(16)}), kGptq), "\"m.g_idx\""));
  RawTensors groups = gptq_module();
  groups["m.qzeros"] = {"I32", {3, 1}, zeros(12)};
  groups["m.scales"] = {"F32", {3, 8}, zeros(96)};
  EXPECT_TRUE(says(error(groups, kGptq), "3 groups", "8 inputs"));
}

TEST_F(Quantization, RefusesGroupsThatThereAreNot) {
  RawTensors tensors = gptq_module();
  tensors["m.g_idx"] = {"I32", {8}, bytes_of<int32_t>({0, 0, 0, 0, 0, 0, 0, 1})};
  const Checkpoint checkpoint = joined(tensors, kGptq);
  EXPECT_TRUE(says(error_of([&] { values(checkpoint, "m.weight"); }), "\"m.g_idx\"", "group 1"));
}

TEST_F(Quantization, NeedsTheOrderOfColumnsThatTheConfigurationSpeaksOf) {
  RawTensors tensors = gptq_module();
  json ordered = kGptq;
  ordered["desc_act"] = true;
  EXPECT_EQ(error(tensors, ordered), "") << "one group has no order";
  tensors["m.qzeros"] = {"I32", {2, 1}, zeros(8)};
  tensors["m.scales"] = {"F32", {2, 8}, zeros(64)};
  EXPECT_TRUE(says(error(tensors, ordered), "\"m.g_idx\"", "missing"));
  tensors["m.g_idx"] = {"I32", {8}, zeros(32)};
  EXPECT_EQ(error(tensors, ordered), "");
}

TEST_F(Quantization, JoinsBlocksAndScalesOfMxfp4) {
  std::string blocks(32, '\x52');  // 1 and 3
  blocks[16] = '\x9F';             // in the second row: -6 and -0.5
  const RawTensors tensors = {{"x_blocks", {"U8", {2, 1, 16}, blocks}},
                              {"x_scales", {"U8", {2, 1}, "\x80\x7E"}}};  // 2 and 1/2
  const Checkpoint checkpoint = joined(tensors, {{"quant_method", "mxfp4"}});
  EXPECT_EQ(checkpoint.tensors().size(), 1U);
  static_cast<void>(checkpoint.require("x", std::vector<int64_t>{2, 32}));
  const Floats all = values(checkpoint, "x");
  EXPECT_EQ(Floats(all.begin(), all.begin() + 3), (Floats{2, 6, 2}));
  EXPECT_EQ(Floats(all.begin() + 32, all.begin() + 36), (Floats{-3, -0.25F, 0.5F, 1.5F}));
  EXPECT_TRUE(
      says(error({{"m.weight_packed", {"U8", {}, "\x52"}}, {"m.weight_scale", {"U8", {1}, "\x80"}}},
                 {{"quant_method", "compressed-tensors"}}),
           "m.weight_packed", "no matrix"));
}

const char* const kNf4State = R"({"quant_type": "nf4", "blocksize": 64, "shape": [2, 3]})";

RawTensors nf4_matrix(const std::string& state) {
  return {{"w", {"U8", {3, 1}, "\x12\x34\x56"}},
          {"w.absmax", {"F32", {1}, bytes_of<float>({2})}},
          {"w.quant_map",
           {"F32", {16}, bytes_of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})}},
          {"w.quant_state.bitsandbytes__nf4", {"U8", {static_cast<int64_t>(state.size())}, state}}};
}

TEST_F(Quantization, OfBitsandbytesHasTheFirstOfTwoNumbersInTheUpperHalf) {
  const json method = {{"quant_method", "bitsandbytes"}};
  const Checkpoint checkpoint = joined(nf4_matrix(kNf4State), method);
  EXPECT_EQ(values(checkpoint, "w"), (Floats{2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(checkpoint.tensors().size(), 1U);
  EXPECT_TRUE(says(error(nf4_matrix("[]"), method), "bitsandbytes__nf4", "not an object"));
  EXPECT_TRUE(says(error(nf4_matrix(R"({"blocksize": 64, "shape": [2, 4]})"), method), "smaller"));
  EXPECT_TRUE(
      says(error(nf4_matrix(R"({"blocksize": 64, "shape": [2]})"), method), "another size"));
  EXPECT_TRUE(says(error(nf4_matrix(R"({"blocksize": 0, "shape": [2, 3]})"), method), "blocksize"));
  EXPECT_TRUE(
      says(error(nf4_matrix(R"({"blocksize": 2, "shape": [2, 3]})"), method), "absmax", "[3]"));
  RawTensors other = {{"m.weight", {"I8", {1, 1}, "\x01"}},
                      {"m.SCB", {"F32", {1}, zeros(4)}},
                      {"m.weight_format", {"U8", {}, "\x02"}}};
  EXPECT_TRUE(says(error(other, method), "m.weight_format", "not supported"));
}

// Ten numbers of 3 bits a word, as compressed-tensors had it at first, or across words.
TEST_F(Quantization, OfCompressedTensorsPacksNumbersInWordsOfTwoKinds) {
  const auto module = [](std::initializer_list<uint32_t> words) {
    return RawTensors{{"m.weight_packed",
                       {"I32", {1, static_cast<int64_t>(words.size())}, bytes_of<uint32_t>(words)}},
                      {"m.weight_scale", {"F32", {1, 1}, bytes_of<float>({1})}},
                      {"m.weight_shape", {"I64", {2}, bytes_of<int64_t>({1, 21})}}};
  };
  json config = {{"quant_method", "compressed-tensors"},
                 {"format", "pack-quantized"},
                 {"config_groups", {{"g", {{"weights", {{"num_bits", 3}, {"type", "int"}}}}}}}};
  // Number 10 is 7, others are 0; minus 4.
  Floats expected(21, -4.0F);
  expected[10] = 3;
  const auto values_in = [&](std::initializer_list<uint32_t> words) {
    return values(joined(module(words), config), "m.weight");
  };
  EXPECT_EQ(values_in({0, 7, 0}), expected);
  EXPECT_EQ(values_in({3U << 30, 1}), expected);
  config["config_groups"]["g"]["weights"]["num_bits"] = 4;
  EXPECT_TRUE(says(error(module({0, 7}), config), "weight_packed", "num_bits", "[1, 21]"));
}

TEST_F(Quantization, OfCompressedTensorsHasWhatAllOfItsGroupsAskFor) {
  const RawTensors tensors = {{"m.weight_packed", {"I32", {1, 1}, zeros(4)}},
                              {"m.weight_scale", {"F32", {1, 2}, bytes_of<float>({1, 2})}},
                              {"m.weight_shape", {"I64", {2}, bytes_of<int64_t>({1, 8})}}};
  const auto missing = [&](json weights, bool alone = true) {
    weights["num_bits"] = 4;
    json groups = {{"g", {{"weights", weights}}}};
    if (!alone) groups["h"] = {{"weights", {{"num_bits", 4}}}};
    return error(tensors, {{"quant_method", "compressed-tensors"}, {"config_groups", groups}});
  };
  EXPECT_EQ(missing({{"symmetric", true}, {"actorder", nullptr}}), "");
  EXPECT_EQ(missing({{"actorder", "static"}}), "");
  EXPECT_TRUE(says(missing({{"symmetric", false}}), "m.weight_zero_point", "missing"));
  EXPECT_TRUE(says(missing({{"actorder", "group"}}), "m.weight_g_idx", "missing"));
  EXPECT_TRUE(says(missing({{"actorder", true}}), "m.weight_g_idx", "missing"));
  EXPECT_EQ(missing({{"symmetric", false}, {"actorder", "group"}}, false), "") << "it may be h's";
}

TEST_F(Quantization, OfNvfp4HasOneScaleForSixteen) {
  RawTensors tensors = {{"m.weight", {"U8", {1, 16}, std::string(16, '\x22')}},  // ones
                        {"m.weight_scale", {"F8_E4M3", {1, 2}, "\x38\x40"}},     // 1 and 2
                        {"m.weight_scale_2", {"F32", {}, bytes_of<float>({0.5F})}},
                        {"m.input_scale", {"F32", {}, zeros(4)}},
                        {"n.k_scale", {"F32", {}, zeros(4)}}};
  const json method = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  const Checkpoint checkpoint = joined(tensors, method);
  EXPECT_EQ(checkpoint.tensors().size(), 1U);
  Floats expected(16, 0.5F);
  expected.resize(32, 1.0F);
  EXPECT_EQ(values(checkpoint, "m.weight"), expected);
  tensors["m.weight_scale_2"].bytes = bytes_of<float>({INFINITY});
  EXPECT_TRUE(says(error(tensors, method), "m.weight_scale_2", "infinity"));
  tensors["m.weight_scale_2"].bytes = bytes_of<float>({0.5F});
  tensors["m.weight_scale"] = {"F8_E4M3", {1, 3}, zeros(3)};
  EXPECT_TRUE(says(error(tensors, method), "m.weight_scale", "[1, 3]", "[1, 2]"));
}

TEST_F(Quantization, OfSeveralMatricesHasScalesOfManyShapes) {
  const auto values_with = [&](const std::vector<int64_t>& shape) {
    size_t count = 1;
    for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
    std::string scales;
    for (size_t i = 0; i < count; ++i) scales += bytes_of<float>({static_cast<float>(i) + 1});
    return values(joined({{"m", {"F8_E4M3", {2, 2, 3}, std::string(12, '\x38')}},
                          {"m_scale", {"F32", shape, scales}}},
                         {{"quant_method", "fbgemm_fp8"}}),
                  "m");
  };
  EXPECT_EQ(values_with({2, 1, 3}), (Floats{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(values_with({2, 2, 1}), (Floats{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}));
  EXPECT_EQ(values_with({2}), (Floats{1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(values_with({}), Floats(12, 1.0F));
}

// --- Blocks of packed tensors, against a plain reading of their bits
// -------------------------------

struct Layout {
  int bits;
  int word_bits;
  bool across_words;
  PackedNumbers::Along along;
  bool transposed;
  std::vector<uint8_t> order;
};

uint64_t bits_at(const std::string& bytes, int64_t bit, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(bytes.at(static_cast<size_t>((bit + i) / 8)));
    value |= uint64_t{static_cast<unsigned char>(byte >> ((bit + i) % 8) & 1)} << i;
  }
  return value;
}

TEST_F(Quantization, ReadsAnyBlockOfNumbersInWords) {
  constexpr auto kLine = PackedNumbers::Along::line;
  constexpr auto kLines = PackedNumbers::Along::lines;
  std::minstd_rand random(1);
  for (const Layout& layout :
       std::vector<Layout>{{4, 32, false, kLine, false, {}},
                           {4, 32, false, kLine, true, {0, 2, 4, 6, 1, 3, 5, 7}},
                           {3, 32, true, kLines, true, {}},
                           {4, 32, false, kLines, true, {}},
                           {5, 32, true, kLine, false, {}},
                           {3, 32, false, kLine, false, {}},
                           {2, 32, false, kLines, false, {}},
                           {4, 8, false, kLine, false, {1, 0}},
                           {8, 8, false, kLine, true, {}}}) {
    SCOPED_TRACE(std::to_string(layout.bits) + " bits in " + std::to_string(layout.word_bits));
    constexpr int64_t kRows = 37;
    constexpr int64_t kColumns = 45;
    const int64_t lines = layout.transposed ? kColumns : kRows;
    const int64_t length = layout.transposed ? kRows : kColumns;
    const bool along_line = layout.along == kLine;
    const int64_t packed = along_line ? length : lines;
    const int64_t in_word = layout.word_bits / layout.bits;
    const int64_t words = layout.across_words
                              ? (packed * layout.bits + layout.word_bits - 1) / layout.word_bits
                              : (packed + in_word - 1) / in_word;
    const int64_t pitch = layout.word_bits * (along_line ? words : length);
    std::string bytes(
        static_cast<size_t>(words * (along_line ? lines : length) * layout.word_bits / 8), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    // The bit of number i of a line of words whose first word begins at `begin`; words are `step`
    // bits apart.
    const auto value_at = [&](int64_t i, int64_t begin, int64_t step) {
      uint64_t value = 0;
      if (layout.across_words) {
        for (int b = 0; b < layout.bits; ++b) {
          const int64_t bit = i * layout.bits + b;
          value |= bits_at(bytes, begin + bit / layout.word_bits * step + bit % layout.word_bits, 1)
                   << b;
        }
        return static_cast<float>(value);
      }
      int64_t place = i % in_word;
      for (size_t p = 0; p < layout.order.size(); ++p) {
        if (layout.order[p] == i % in_word) place = static_cast<int64_t>(p);
      }
      return static_cast<float>(
          bits_at(bytes, begin + i / in_word * step + place * layout.bits, layout.bits));
    };
    const auto expected = [&](int64_t row, int64_t column) {
      const int64_t line = layout.transposed ? column : row;
      const int64_t i = layout.transposed ? row : column;
      return along_line ? value_at(i, line * pitch, layout.word_bits)
                        : value_at(line, i * layout.word_bits, pitch);
    };
    write_bytes(folder_ / "words", bytes);
    SourceFiles files;
    Checkpoint checkpoint("test");
    checkpoint.add_file(files.open(folder_ / "words"));
    SourceTensor tensor{.name = "t", .shape = {kRows, kColumns}, .transposed = layout.transposed};
    tensor.packed = std::make_shared<const PackedNumbers>(
        PackedNumbers{layout.bits, layout.word_bits, layout.across_words, layout.along, pitch,
                      layout.order, integers_from(0, layout.bits)});
    std::vector<std::byte> raw;
    for (int i = 0; i < 30; ++i) {
      const auto below = [&](int64_t n) { return static_cast<int64_t>(random()) % n; };
      MatrixBlock block{below(kRows), 0, below(kColumns), 0};
      if (i == 0) block = {};
      block.rows = i == 0 ? kRows : 1 + below(kRows - block.first_row);
      block.columns = i == 0 ? kColumns : 1 + below(kColumns - block.first_column);
      Floats out(static_cast<size_t>(block.rows * block.columns));
      read_block(checkpoint, tensor, block, out, raw);
      for (size_t at = 0; at < out.size(); ++at) {
        const auto place = static_cast<int64_t>(at);
        ASSERT_EQ(out[at], expected(block.first_row + place / block.columns,
                                    block.first_column + place % block.columns))
            << "block " << i << ", element " << at;
      }
    }
  }
}

}  // namespace
}  // namespace faststream::convert
