// Tokenizers of translation models, and CTRL's, without a tokenizer.json: ids and texts are
// Transformers' (make_seq2seq_tokenizers.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "convert/huggingface/answers_from_hf.h"
#include "convert/source_model.h"
#include "convert/tokenizers/separate_vocabulary.h"
#include "convert/tokenizers/subword_nmt.h"
#include "golden_data.h"
#include "text/tokenizer.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {
namespace {

class Seq2SeqTokenizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = golden_root() / "seq2seq" / "tokenizers" / GetParam();
    convert::SourceFiles files;
    auto found = convert::read_separate_vocabulary(folder_, files);
    if (!found) {
      auto other = convert::read_subword_nmt(folder_, files);
      ASSERT_TRUE(other);
      found.emplace().tokenizer = *std::move(other);
    }
    tokenizer_ = tokenizer_of(found->encoder ? *found->encoder : found->tokenizer);
    if (found->encoder) tokenizer_of_answers_ = tokenizer_of(found->tokenizer);
  }

  static std::unique_ptr<Tokenizer> tokenizer_of(const convert::TokenizerFile& file) {
    if (file.description) {
      return make_compiled_tokenizer(compile_tokenizer(*file.description, "t"), file.config.value(),
                                     "t");
    }
    return make_sentencepiece_tokenizer(as_bytes(file.sentencepiece), file.config.value(), "t");
  }

  void compare(const Tokenizer& tokenizer, const char* cases) const {
    std::ifstream file(folder_ / cases);
    for (const auto& each : nlohmann::json::parse(file)) {
      const auto text = each.at(0).get<std::string>();
      const auto ids = each.at(1).get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer.encode(text), ids) << text;
      if (each.at(2).is_null()) continue;
      Detokenizer stream(tokenizer, true);
      std::string decoded;
      for (const int32_t id : ids) decoded += stream.push(id);
      EXPECT_EQ(decoded + stream.finish(), each.at(2).get<std::string>());
    }
  }

  std::filesystem::path folder_;
  std::unique_ptr<Tokenizer> tokenizer_;             // of sources
  std::unique_ptr<Tokenizer> tokenizer_of_answers_;  // where it is another
};

TEST_P(Seq2SeqTokenizer, GivesTransformersIdsAndTexts) {
  compare(*tokenizer_, "cases.json");
  ASSERT_EQ(tokenizer_of_answers_ != nullptr, std::string(GetParam()) == "marian_separate");
  if (tokenizer_of_answers_) compare(*tokenizer_of_answers_, "answers.json");
}

// What merges make of words on their way, and is no token, has no id of the model's.
TEST(Seq2SeqTokenizers, CountNoPartsOfWordsAsTokens) {
  const auto folder = golden_root() / "seq2seq" / "tokenizers";
  for (const char* name : {"blenderbot_small", "ctrl"}) {
    convert::SourceFiles files;
    const auto found = convert::read_subword_nmt(folder / name, files);
    ASSERT_TRUE(found);
    const auto tokenizer =
        make_compiled_tokenizer(compile_tokenizer(*found->description, name), *found->config, name);
    std::ifstream file(folder / name / "vocab.json");
    EXPECT_EQ(tokenizer->vocab_size(), std::ssize(nlohmann::json::parse(file)));
    EXPECT_GT(found->description->n_parts, 0);
  }
  convert::SourceFiles files;
  EXPECT_FALSE(convert::read_subword_nmt(folder / "marian", files)) << "another's vocab.json";
}

TEST_P(Seq2SeqTokenizer, KnowsItsLanguages) {
  const std::string name = GetParam();
  const auto languages = convert::languages_from_hf(*tokenizer_, nullptr);
  if (name.starts_with("marian")) {
    EXPECT_EQ(languages.at("deu"), tokenizer_->find_token(">>deu<<"));
    EXPECT_EQ(languages.size(), name == "marian" ? 2U : 1U);
  } else if (name == "m2m_100") {
    EXPECT_EQ(languages.at("fr"), tokenizer_->find_token("__fr__"));
    EXPECT_EQ(languages.size(), 100U);
  } else if (name.starts_with("plbart")) {
    EXPECT_EQ(languages.at("python"), tokenizer_->find_token("__python__"));
    EXPECT_EQ(languages.size(), name == "plbart" ? 3U : 7U);
    EXPECT_EQ(tokenizer_->config().suffix.size(), name == "plbart" ? 1U : 2U) << "the source's";
  }
}

TEST(Seq2SeqTokenizers, AreReadWithWhatIsBesideThemWhereOneIsNamed) {
  const auto folder = golden_root() / "seq2seq";
  const convert::SourceModel model =
      convert::open_source_model(folder / "t5", folder / "tokenizers" / "t5" / "spiece.model");
  EXPECT_EQ(model.tokenizer.config.prefix, std::vector<int32_t>());
  EXPECT_EQ(model.tokenizer.config.suffix.size(), 1U);  // the end of a source
}

INSTANTIATE_TEST_SUITE_P(All, Seq2SeqTokenizer,
                         testing::Values("marian", "marian_separate", "m2m_100", "plbart",
                                         "plbart_multi", "t5", "blenderbot_small", "ctrl"));

}  // namespace
}  // namespace faststream
