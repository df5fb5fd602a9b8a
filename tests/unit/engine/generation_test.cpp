// A text in the making: its tokens first, the text of them while the device goes on.
#include "engine/generation.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {
namespace {

class SampleGroupTest : public testing::Test {
 protected:
  SampleGroupTest()
      : tokenizer_(make_sentencepiece_tokenizer(
            as_bytes(model_), TokenizerConfig{.bos = 1, .eos = {2}, .prefix = {1}, .suffix = {}},
            "small")) {
    rules_.prompt = {1, 5};
    rules_.max_tokens = 20;
    rules_.context = 100;
    answer_ = tokenizer_->encode("hello there world");
    answer_.erase(answer_.begin());  // the begin of a sequence
    Detokenizer detokenizer(*tokenizer_, false);
    for (const int32_t token : answer_) text_ += detokenizer.push(token);
    text_ += detokenizer.finish();
  }

  static void accept(SampleGroup& group, int32_t token) {
    std::vector<SampledToken> sampled{{.token = token, .top = {}}};
    EXPECT_EQ(group.accept(sampled).size(), 1U);
  }

  std::string model_ = serialize_sentencepiece_model(small_model(true));
  std::unique_ptr<Tokenizer> tokenizer_;
  GenerationRules rules_;
  std::vector<int32_t> answer_;
  std::string text_;  // of the answer
};

TEST_F(SampleGroupTest, WritesWhatItAccepted) {
  rules_.max_tokens = static_cast<int64_t>(answer_.size());
  SampleGroup group(rules_, *tokenizer_, 0);
  std::string printed;
  for (size_t i = 0; i < answer_.size(); ++i) {
    accept(group, answer_[i]);
    EXPECT_EQ(group.newest_token(), answer_[i]);
    EXPECT_EQ(group.finished(), i + 1 == answer_.size()) << "known before the text is";
    printed += group.write();
    EXPECT_EQ(group.write(), "") << "once";
  }
  EXPECT_EQ(printed, text_);
  EXPECT_EQ(group.take_outputs().at(0).text, text_);
}

TEST_F(SampleGroupTest, HasAWholeTextThatNobodyHadWritten) {
  SampleGroup ended(rules_, *tokenizer_, 0);
  SampleGroup cancelled(rules_, *tokenizer_, 0);
  for (size_t i = 0; i < answer_.size(); ++i) {
    accept(ended, answer_[i]);
    accept(cancelled, answer_[i]);
    if (i + 1 < answer_.size()) (void)ended.write();
    if (i + 1 < answer_.size()) (void)cancelled.write();
  }
  cancelled.finish(FinishReason::cancelled);
  EXPECT_EQ(cancelled.take_outputs().at(0).text, text_);
  (void)ended.write();
  accept(ended, 2);
  EXPECT_TRUE(ended.finished());
  const Output output = std::move(ended.take_outputs().at(0));
  EXPECT_EQ(output.text, text_);
  EXPECT_EQ(output.finish_reason, FinishReason::eos);
}

TEST_F(SampleGroupTest, TellsAStopTokenOfTheRequestFromTheModelsOwnEnd) {
  const auto reason_of = [this](int32_t token) {
    SampleGroup group(rules_, *tokenizer_, 0);
    accept(group, token);
    return group.take_outputs().at(0).finish_reason;
  };
  rules_.stop_tokens = {5};
  rules_.end_tokens = {6};
  EXPECT_EQ(reason_of(5), FinishReason::stop_token);
  EXPECT_EQ(reason_of(6), FinishReason::eos);
  EXPECT_EQ(finish_reason_name(FinishReason::stop_token), "stop");
}

TEST_F(SampleGroupTest, EndsAtAStopStringBeforeTheTextIsAskedFor) {
  const std::string stop = text_.substr(text_.size() / 2, 2);
  rules_.stop = {stop};
  SampleGroup group(rules_, *tokenizer_, 0);
  std::string printed;
  for (size_t i = 0; i < answer_.size() && !group.finished(); ++i) {
    accept(group, answer_[i]);
    if (!group.finished()) printed += group.write();
  }
  ASSERT_TRUE(group.finished());
  printed += group.write();
  EXPECT_EQ(printed, text_.substr(0, text_.find(stop)));
  const Output output = std::move(group.take_outputs().at(0));
  EXPECT_EQ(output.text, printed);
  EXPECT_EQ(output.finish_reason, FinishReason::stop_string);
  EXPECT_EQ(output.stop, stop);
}

TEST_F(SampleGroupTest, CountsWhatBecameOfProposalsOnce) {
  CommonRates common;
  const float hoped = common.draft.value();
  SampleGroup group(rules_, *tokenizer_, 0, Speculation::Kind::draft);
  group.suppose(std::vector{answer_[0], answer_[1] + 1});
  std::vector<SampledToken> sampled;
  for (int i = 0; i < 3; ++i) sampled.push_back({.token = answer_[i], .top = {}});
  (void)group.accept(sampled);
  EXPECT_EQ(group.newest_token(), answer_[1]) << "one fitted, one did not";
  for (int i = 0; i < 30; ++i) EXPECT_LT(group.offer(common).acceptance, hoped) << i;
}

TEST_F(SampleGroupTest, ProposesNothingAgainThatADrafterDidNotPropose) {
  CommonRates common;
  SampleGroup group(rules_, *tokenizer_, 0, Speculation::Kind::draft);
  group.suppose(std::vector{answer_[1]});
  accept(group, answer_[0]);
  EXPECT_GT(group.offer(common).most, 0);
  EXPECT_FALSE(group.propose(1)) << "a drafter is to say what";
  EXPECT_TRUE(group.proposed().empty());
}

}  // namespace
}  // namespace faststream
