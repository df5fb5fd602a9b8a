// The golden checkpoints' tokenizers, which a newer SentencePiece trained than the one we link.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "golden/golden_data.h"
#include "text/tokenizer.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {
namespace {

TEST(GoldenTokenizers, ReadAndWriteTheTextTheyWereTrainedOn) {
  for (const std::string& name : golden_variants()) {
    const auto path = golden_root() / name / "tokenizer.model";
    std::ifstream file(path, std::ios::binary);
    const std::string model(std::istreambuf_iterator<char>(file), {});
    TokenizerConfig config;
    config.bos = 1;
    config.prefix = {1};
    config.eos = {2};
    const auto tokenizer = make_sentencepiece_tokenizer(as_bytes(model), config, path.string());
    EXPECT_LE(tokenizer->vocab_size(), load_golden(name).vocab) << name;
    const std::string text = "one and two make more, said the cat.";
    const std::vector<int32_t> ids = tokenizer->encode(text);
    EXPECT_EQ(ids.front(), 1) << name;
    EXPECT_LT(ids.size(), text.size()) << name << " merges nothing";
    EXPECT_EQ(tokenizer->decode(ids), text) << name;
  }
}

}  // namespace
}  // namespace faststream
