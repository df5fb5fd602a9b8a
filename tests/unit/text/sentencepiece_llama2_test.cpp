// Llama 2's tokenizer against SentencePiece itself: the library called directly, and its programs.
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <unistd.h>

#include <random>
#include <sstream>

#include "support/utf8.h"
#include "text/tokenizer.h"
#include "unit/text/text_samples.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {
namespace {

const std::string kModel = "tokenizers/llama2/tokenizer.model";

class SentencePieceLlama2 : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto model = read_shared(kModel);
    if (!model) GTEST_SKIP() << "FASTSTREAM_SHARED has no " << kModel;
    TokenizerConfig config;
    config.bos = 1;
    config.prefix = {1};
    config.eos = {2};
    tokenizer_ = make_sentencepiece_tokenizer(as_bytes(*model), config, "tokenizer.model");
    ASSERT_TRUE(oracle_.LoadFromSerializedProto(*model).ok());
  }

  std::string stream(const std::vector<int32_t>& ids) {
    Detokenizer detokenizer(*tokenizer_, true);
    std::string text;
    for (const int32_t id : ids) text += detokenizer.push(id);
    return text + detokenizer.finish();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  sentencepiece::SentencePieceProcessor oracle_;
};

TEST_F(SentencePieceLlama2, EncodesAndDecodesAsTheLibraryDoes) {
  const std::vector<std::string> samples = text_samples();
  ASSERT_GE(samples.size(), 500U);
  for (const std::string& text : samples) {
    std::vector<int> expected;
    ASSERT_TRUE(oracle_.Encode(text, &expected).ok());
    const std::vector<int32_t> ids = tokenizer_->encode(text, false);
    ASSERT_EQ(ids, std::vector<int32_t>(expected.begin(), expected.end())) << text;
    std::string decoded;
    ASSERT_TRUE(oracle_.Decode(expected, &decoded).ok());
    ASSERT_EQ(tokenizer_->decode(ids), decoded) << text;
    ASSERT_EQ(stream(ids), decoded) << text;
  }
}

TEST_F(SentencePieceLlama2, StreamsRandomTokensAsTheLibraryDecodesThem) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(1 + random() % 60);
    for (int32_t& id : ids) {
      const uint32_t range = random() % 2 == 0 ? 259 : 32000;  // bytes and control tokens, or all
      id = static_cast<int32_t>(random() % range);
    }
    std::string decoded;
    ASSERT_TRUE(oracle_.Decode(std::vector<int>(ids.begin(), ids.end()), &decoded).ok());
    ASSERT_EQ(stream(ids), decoded) << ::testing::PrintToString(ids);
    ASSERT_TRUE(is_valid_utf8(decoded));
  }
}

TEST_F(SentencePieceLlama2, KnowsWellKnownTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), 32000);
  EXPECT_EQ(tokenizer_->encode("The capital of France is"),
            (std::vector<int32_t>{1, 450, 7483, 310, 3444, 338}));
  EXPECT_EQ(tokenizer_->token_bytes(450), " The");
  EXPECT_EQ(tokenizer_->token_bytes(13), "\n");
}

/// A folder of its own that goes away with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "faststream-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Lines of text, each with its line end, through `command --model M --input I --output O`.
std::vector<std::string> through_program(const std::string& command, const std::string& lines) {
  const ScratchFolder folder;
  std::ofstream(folder.file("in"), std::ios::binary) << lines;
  const std::string model = shared_file(kModel).string();
  const std::string line = command + " --model='" + model + "' --input='" + folder.file("in") +
                           "' --output='" + folder.file("out") + "' 2>/dev/null";
  EXPECT_EQ(std::system(line.c_str()), 0) << line;
  std::vector<std::string> results;
  std::ifstream out(folder.file("out"), std::ios::binary);
  for (std::string result; std::getline(out, result);) results.push_back(result);
  return results;
}

TEST_F(SentencePieceLlama2, EncodesAndDecodesAsTheProgramsDo) {
  if (std::system("command -v spm_encode >/dev/null && command -v spm_decode >/dev/null") != 0) {
    GTEST_SKIP() << "spm_encode and spm_decode (Debian package sentencepiece) are not installed";
  }
  // The programs work line by line; a text with line ends goes in as its lines.
  std::vector<std::string> texts;
  for (const std::string& sample : text_samples()) {
    std::istringstream lines(sample + "\n");
    for (std::string line; std::getline(lines, line);) texts.push_back(line);
  }
  ASSERT_GE(texts.size(), 500U);
  std::string input;
  for (const std::string& text : texts) input += text + "\n";
  const std::vector<std::string> encoded = through_program("spm_encode --output_format=id", input);
  ASSERT_EQ(encoded.size(), texts.size());

  std::string all_ids;
  std::vector<std::string> decoded;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int32_t> ids = tokenizer_->encode(texts[i], false);
    std::string line;
    for (const int32_t id : ids) {
      if (!line.empty()) line += ' ';
      line += std::to_string(id);
    }
    ASSERT_EQ(line, encoded[i]) << "line " << i << ": " << texts[i];
    if (ids.empty()) continue;  // spm_decode takes an empty line for id 0
    all_ids += line + "\n";
    decoded.push_back(tokenizer_->decode(ids));
  }
  const std::vector<std::string> expected =
      through_program("spm_decode --input_format=id", all_ids);
  ASSERT_EQ(expected.size(), decoded.size());
  for (size_t i = 0; i < decoded.size(); ++i) ASSERT_EQ(decoded[i], expected[i]) << "line " << i;
}

}  // namespace
}  // namespace faststream
