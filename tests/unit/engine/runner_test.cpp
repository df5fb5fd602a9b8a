// The forward pass does not depend on how tokens are cut into steps or which sequences share them.

#include "engine/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "bench/random_model.h"
#include "support/error.h"
#include "unit/backend/test_backends.h"
#include "unit/effort.h"
#include "unit/engine/logits_distance.h"
#include "unit/engine/model_shapes.h"

namespace faststream {
namespace {

constexpr RunnerLimits kRunnerLimits{.n_pages = 40,
                                     .batch = {.max_tokens = 600, .max_logits = 600}};

std::vector<int32_t> tokens_for(int32_t count, int32_t salt) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back((i * 37 + salt * 11 + i * i) % 131);
  return tokens;
}

class TestModel {
 public:
  TestModel(const ModelConfig& config, Backend& backend)
      : image_(bench::make_random_model(config, 7)),
        file_(ModelFile::from_bytes(image_.bytes(), "random")),
        runner_(file_, backend, kRunnerLimits, nullptr) {}

  Runner& runner() { return runner_; }

  // Logits of every token, fed in pieces of the given sizes (the last is repeated).
  std::vector<float> logits(const std::vector<int32_t>& tokens, std::vector<size_t> pieces) {
    Sequence sequence;
    std::vector<float> all;
    std::span<const int32_t> rest = tokens;
    for (size_t n = 0; !rest.empty(); ++n) {
      const size_t size = std::min(rest.size(), pieces[std::min(n, pieces.size() - 1)]);
      runner_.step({{{&sequence, rest.first(size), NewTokens::Logits::all}}});
      const std::vector<float> part = runner_.logits();
      all.insert(all.end(), part.begin(), part.end());
      rest = rest.subspan(size);
    }
    runner_.release(sequence);
    return all;
  }

 private:
  ModelImage image_;
  ModelFile file_;
  Runner runner_;
};

class RunnerTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    backend_ = make_test_backend(GetParam());
    FASTSTREAM_REQUIRE_BACKEND(backend_);
  }
  // The plain backend is tested with sanitizers by what other tests compare with it.
  static bool is_slow() { return kSanitized && GetParam() == "reference"; }
  static constexpr const char* kIsSlow = "too slow with sanitizers";

  void expect_same_logits_after_a_long_context(ModelConfig shape);

  std::unique_ptr<Backend> backend_;
};

// But for rounding: few and many tokens have kernels of their own, whose sums are within 1e-5 of
// the reference's.
TEST_P(RunnerTest, GivesTheSameLogitsHoweverAPromptIsCut) {
  if (is_slow()) GTEST_SKIP() << kIsSlow;
  constexpr double kBothRounded = 2e-5;
  for (const ModelConfig& shape : {odd_shape(WeightFormat::f32), rich_shape(WeightFormat::f32),
                                   hybrid_shape(WeightFormat::f32)}) {
    TestModel model(shape, *backend_);
    for (const int32_t length : {1, 2, 31, 32, 33, 63, 64, 65, 150}) {
      const std::vector<int32_t> tokens = tokens_for(length, length);
      const std::vector<float> whole = model.logits(tokens, {tokens.size()});
      for (const std::vector<size_t>& pieces : std::vector<std::vector<size_t>>{
               {1}, {31, 1, 1, 32}, {32}, {7, 26, 33, 1}, {64, 5}, {20, 1, 1, 1, 40}}) {
        EXPECT_LT(distance(model.logits(tokens, pieces), whole), kBothRounded)
            << length << " tokens, first piece of " << pieces.front();
      }
    }
  }
}

void expect_same_logits_in_a_batch(TestModel& model) {
  Runner& runner = model.runner();
  // Some in prefill, some in decode, some both in turn; lengths around page borders.
  const std::vector<std::vector<int32_t>> texts = {
      tokens_for(70, 1), tokens_for(33, 2), tokens_for(5, 3), tokens_for(64, 4), tokens_for(40, 5)};
  const std::vector<std::vector<size_t>> cuts = {
      {1}, {32, 1, 0}, {5}, {0, 31, 2, 1}, {10, 0, 0, 3, 20}};
  std::vector<Sequence> sequences(texts.size());
  std::vector<std::vector<float>> got(texts.size());
  bool any = true;
  for (size_t round = 0; any; ++round) {
    any = false;
    std::vector<NewTokens> inputs;
    std::vector<size_t> owners;
    for (size_t s = 0; s < texts.size(); ++s) {
      const auto done = static_cast<size_t>(sequences[s].n_cached);
      const size_t left = texts[s].size() - done;
      any |= left > 0;
      const size_t take =
          std::min(left, round < cuts[s].size() ? cuts[s][round] : std::max<size_t>(1, s));
      if (take == 0) continue;
      inputs.push_back(
          {&sequences[s], std::span(texts[s]).subspan(done, take), NewTokens::Logits::all});
      owners.push_back(s);
    }
    if (inputs.empty()) continue;
    runner.step(inputs);
    const std::vector<float> logits = runner.logits();
    auto from = logits.begin();
    for (size_t c = 0; c < inputs.size(); ++c) {
      const auto to = from + static_cast<ptrdiff_t>(inputs[c].tokens.size() * 131);
      got[owners[c]].insert(got[owners[c]].end(), from, to);
      from = to;
    }
  }
  for (Sequence& sequence : sequences) runner.release(sequence);
  EXPECT_EQ(runner.pages().n_free(), runner.pages().n_pages());
  for (size_t s = 0; s < texts.size(); ++s) {
    EXPECT_LT(distance(got[s], model.logits(texts[s], {texts[s].size()})), 1e-5) << s;
  }
}

TEST_P(RunnerTest, GivesTheSameLogitsInABatch) {
  for (const ModelConfig& shape : {odd_shape(WeightFormat::f32), rich_shape(WeightFormat::f32),
                                   hybrid_shape(WeightFormat::f32)}) {
    TestModel model(shape, *backend_);
    expect_same_logits_in_a_batch(model);
  }
}

TEST_P(RunnerTest, AgreesWithTheReferenceInF32) {
  const auto reference = make_reference_backend();
  for (const ModelConfig& shape : {odd_shape(WeightFormat::f32), rich_shape(WeightFormat::f32),
                                   hybrid_shape(WeightFormat::f32)}) {
    TestModel expected(shape, *reference);
    TestModel model(shape, *backend_);
    const std::vector<int32_t> tokens = tokens_for(100, 9);
    EXPECT_LT(distance(model.logits(tokens, {60, 1}), expected.logits(tokens, {100})), 1e-4);
  }
}

// In pages, in windows, and in layers beside others whose keys and values are alike.
TEST_P(RunnerTest, AgreesWithTheReferenceWhereValuesAreNotAsWideAsKeys) {
  const auto reference = make_reference_backend();
  ModelConfig shape = rich_shape(WeightFormat::f32);
  shape.layer_kinds[0].attention().value_head_dim = 12;
  shape.layer_kinds[4].attention().value_head_dim = 12;  // those of layer 0
  shape.layer_kinds[2].attention().value_head_dim = 40;
  TestModel model(shape, *backend_);
  const std::vector<int32_t> tokens = tokens_for(100, 9);
  TestModel expected(shape, *reference);
  EXPECT_LT(distance(model.logits(tokens, {60, 1}), expected.logits(tokens, {100})), 1e-4);
  expect_same_logits_in_a_batch(model);
}

// With the other streams' rows where few are wanted, and gates that are cut.
TEST_P(RunnerTest, AgreesWithTheReferenceWhereStreamsAlternate) {
  const auto reference = make_reference_backend();
  ModelConfig shape = odd_shape(WeightFormat::f32);
  const NormConfig norm{.kind = NormKind::rms, .eps = 1e-6F};
  shape.altup = {.streams = 3, .norm = norm};
  shape.layer_inputs = {.size = 12, .norm = norm, .norm_after = norm, .scaled = true};
  LayerConfig& first = shape.layer_kinds[0];
  first.laurel = {.rank = 7, .norm = norm};
  first.ffn.cutoff = 0.3F;
  TestModel model(shape, *backend_);
  const std::vector<int32_t> tokens = tokens_for(100, 9);
  TestModel expected(shape, *reference);
  EXPECT_LT(distance(model.logits(tokens, {60, 1}), expected.logits(tokens, {100})), 1e-4);
}

// Bounds: bf16 has 8 significant bits, so a rounding is off by up to 2^-9; about 10 roundings lie
// on the path through each of 3 layers (activations, KV, weights' inputs), and their errors add up
// like a random walk: 2^-9 · sqrt(30) ≈ 0.011; three times that for the largest of 13,100 logits.
// f16 has 11 bits, an eighth of it. INT8 activations of tall products are off by up to max|x| /
// 254, for values of about max|x| / 3: 1.2% each, so with 12 such products sqrt(12) · 1.2% ≈ 4%,
// largest 3 times that over a dot product's averaging. E4M3 activations are off by up to 2^-4 of
// themselves, 1.8% in the middle.
TEST_P(RunnerTest, AgreesWithTheReferenceWithinTheBoundsOfEachType) {
  for (const auto& [format, bound] : {std::pair{WeightFormat::f16, 0.005},
                                      {WeightFormat::bf16, 0.033},
                                      {WeightFormat::int8, 0.12},
                                      {WeightFormat::int4, 0.12},
                                      {WeightFormat::fp8, 0.25}}) {
    const auto reference = make_reference_backend();
    TestModel expected(odd_shape(format), *reference);
    TestModel model(odd_shape(format), *backend_);
    const std::vector<int32_t> tokens = tokens_for(100, 9);
    const std::vector<float> want = expected.logits(tokens, {100});
    EXPECT_LT(distance(model.logits(tokens, {100}), want), bound) << format_name(format);
    EXPECT_LT(distance(model.logits(tokens, {1}), want), bound) << format_name(format);
    EXPECT_LT(distance(model.logits(tokens, {33, 1, 1, 40}), want), bound) << format_name(format);
  }
}

// As faststream-convert --format int8 --keep-output leaves it: in the checkpoint's own 16 bits.
TEST_P(RunnerTest, AgreesWithTheReferenceWhenTheOutputMatrixIsNotQuantized) {
  for (const WeightFormat output : {WeightFormat::f16, WeightFormat::bf16}) {
    ModelConfig config = odd_shape(WeightFormat::int8);
    config.output_format = config.embedding_format = output;
    const auto reference = make_reference_backend();
    TestModel expected(config, *reference);
    TestModel model(config, *backend_);
    const std::vector<int32_t> tokens = tokens_for(50, 9);
    const std::vector<float> want = expected.logits(tokens, {50});
    EXPECT_LT(distance(model.logits(tokens, {50}), want), 0.12) << format_name(output);
    EXPECT_LT(distance(model.logits(tokens, {1}), want), 0.12) << format_name(output);
  }
}

TEST_P(RunnerTest, ReachesTheLongestContext) {
  TestModel model(odd_shape(WeightFormat::f32), *backend_);
  const std::vector<int32_t> tokens = tokens_for(512, 3);
  EXPECT_LT(distance(model.logits(tokens, {500, 1}), model.logits(tokens, {512})), 1e-5);
}

// A token alone may take another way than one beside others: on some GPUs it is a program's.
void RunnerTest::expect_same_logits_after_a_long_context(ModelConfig shape) {
  // Three splits of attention, of which the last begins on the way. The plain backend has none.
  const size_t context = GetParam() == "reference" ? 30 : 510;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8}) {
    shape.weight_format = format;
    shape.embedding_format = shape.output_format = WeightFormat::bf16;
    TestModel model(shape, *backend_);
    Runner& runner = model.runner();
    const std::vector<int32_t> tokens = tokens_for(static_cast<int32_t>(context) + 5, 9);
    const std::vector<int32_t> others = tokens_for(5, 4);
    std::vector<float> got[2];
    for (const bool in_batch : {false, true}) {
      Sequence sequence;
      Sequence other;
      const std::span text = tokens;
      runner.step({{{&sequence, text.first(context), NewTokens::Logits::all}}});
      for (size_t i = 0; i < others.size(); ++i) {
        std::vector<NewTokens> inputs = {
            {&sequence, text.subspan(context + i, 1), NewTokens::Logits::all}};
        if (in_batch) {
          inputs.push_back({&other, std::span(others).subspan(i, 1), NewTokens::Logits::all});
        }
        runner.step(inputs);
        const std::vector<float> logits = runner.logits();
        got[in_batch ? 1 : 0].insert(got[in_batch ? 1 : 0].end(), logits.begin(),
                                     logits.begin() + 131);
      }
      runner.release(sequence);
      runner.release(other);
    }
    EXPECT_LE(distance(got[0], got[1]), GetParam() == "cuda" ? 0 : 0.02) << format_name(format);
  }
}

TEST_P(RunnerTest, GivesATokenAfterALongContextTheSameLogitsInABatch) {
  if (is_slow()) GTEST_SKIP() << kIsSlow;
  for (const int head_dim : {64, 128}) {
    const ModelConfig shape = plain_decoder({.n_layers = 2,
                                             .hidden = 128,
                                             .n_heads = 6,
                                             .n_kv_heads = 2,
                                             .head_dim = head_dim,
                                             .ffn_hidden = 256,
                                             .vocab = 131,
                                             .max_context = 1024});
    expect_same_logits_after_a_long_context(shape);
  }
}

TEST_P(RunnerTest, GivesATokenOfAHybridTheSameLogitsInABatch) {
  if (is_slow()) GTEST_SKIP() << kIsSlow;
  expect_same_logits_after_a_long_context(even_hybrid_shape());
}

TEST_P(RunnerTest, GivesATokenOfARichDecoderTheSameLogitsInABatch) {
  if (is_slow()) GTEST_SKIP() << kIsSlow;
  expect_same_logits_after_a_long_context(even_rich_shape(128, 64));
  if (GetParam() == "cuda") {  // rows that several warps share
    expect_same_logits_after_a_long_context(even_rich_shape(1152, 128));
  }
}

TEST_P(RunnerTest, ChangesNothingWhenItRefuses) {
  TestModel model(odd_shape(WeightFormat::f32), *backend_);
  Runner& runner = model.runner();
  Sequence sequence;
  const int32_t free = runner.pages().n_free();
  const std::vector<int32_t> unknown = {3, 131};
  const std::vector<int32_t> negative = {-1};
  const std::vector<int32_t> many(601, 1);
  EXPECT_THROW(runner.step({{{&sequence, unknown}}}), Error);
  EXPECT_THROW(runner.step({{{&sequence, negative}}}), Error);
  EXPECT_THROW(runner.step({{{&sequence, many}}}), Error);
  EXPECT_THROW(runner.step({{{&sequence, {}}}}), Error);
  EXPECT_EQ(runner.pages().n_free(), free);
  EXPECT_EQ(sequence.n_cached, 0);

  // 40 pages hold 1,280 tokens: the third 600 do not fit.
  std::vector<Sequence> sequences(3);
  const std::vector<int32_t> text(600, 1);
  runner.step({{{&sequences[0], text, NewTokens::Logits::none}}});
  runner.step({{{&sequences[1], text, NewTokens::Logits::none}}});
  const int32_t left = runner.pages().n_free();
  EXPECT_THROW(runner.step({{{&sequences[2], text, NewTokens::Logits::none}}}), Error);
  EXPECT_EQ(runner.pages().n_free(), left);
  for (Sequence& s : sequences) runner.release(s);
}

TEST_P(RunnerTest, ComputesProposedTokensAndKeepsThoseThatCount) {
  TestModel model(rich_shape(WeightFormat::f32), *backend_);
  Runner& runner = model.runner();
  const std::vector<int32_t> text = tokens_for(64, 2);
  const std::vector<int32_t> wrong = {text[41], 7, 9};
  const std::vector<float> want = model.logits(text, {text.size()});
  Sequence sequence;
  const std::span tokens = text;
  runner.step({{{&sequence, tokens.first(40), NewTokens::Logits::none}}});
  const NewTokens proposing{&sequence, tokens.subspan(40, 1), NewTokens::Logits::all, wrong};
  runner.begin_step({&proposing, 1});
  runner.compute({&proposing, 1});
  EXPECT_EQ(runner.n_logits(), 4);
  const std::vector<float> proposed = runner.logits();
  EXPECT_LT(
      distance(std::span(proposed).first(2 * 131), std::span(want).subspan(40 * 131, 2 * 131)),
      1e-5);
  runner.caches().commit(sequence, 4, 2);
  EXPECT_EQ(sequence.n_cached, 42);
  runner.step({{{&sequence, tokens.subspan(42), NewTokens::Logits::all}}});
  EXPECT_LT(distance(runner.logits(), std::span(want).subspan(42 * 131)), 1e-5);
  runner.release(sequence);
}

// A state after some of a step's tokens there is not: all of them are processed again.
TEST_P(RunnerTest, ComputesAgainWhatStatesCannotKeep) {
  TestModel model(hybrid_shape(WeightFormat::f32), *backend_);
  Runner& runner = model.runner();
  const std::vector<int32_t> tokens = tokens_for(60, 4);
  const std::vector<float> want = model.logits(tokens, {60});
  Sequence sequence;
  const std::span text = tokens;
  runner.step({{{&sequence, text.first(40), NewTokens::Logits::none}}});
  for (const int32_t n_kept : {2, 4}) {
    const NewTokens proposing{.sequence = &sequence,
                              .tokens = text.subspan(40, 1),
                              .logits = NewTokens::Logits::all,
                              .proposed = text.subspan(41, 3)};
    runner.begin_step({&proposing, 1});
    runner.compute({&proposing, 1});
    EXPECT_LT(distance(runner.logits(), std::span(want).subspan(40 * 131, 4 * 131)), 1e-5);
    runner.caches().commit(sequence, 4, n_kept);
    EXPECT_EQ(sequence.n_cached, n_kept == 4 ? 44 : 40);
  }
  runner.begin_step({{{&sequence, text.subspan(44), NewTokens::Logits::all}}});
  runner.compute({{{&sequence, text.subspan(44), NewTokens::Logits::all}}});
  runner.abandon_step({{{&sequence, text.subspan(44), NewTokens::Logits::all}}});
  runner.step({{{&sequence, text.subspan(44), NewTokens::Logits::all}}});
  EXPECT_LT(distance(runner.logits(), std::span(want).subspan(44 * 131)), 1e-5);
  runner.release(sequence);
}

INSTANTIATE_TEST_SUITE_P(Reference, RunnerTest, testing::Values("reference"));
INSTANTIATE_TEST_SUITE_P(Cpu, RunnerTest, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, RunnerTest, testing::Values("cuda"));

}  // namespace
}  // namespace faststream
