// Models with an encoder in the engine: sources are read once, shared and given back.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "convert/huggingface/answers_from_hf.h"
#include "convert/tokenizers/separate_vocabulary.h"
#include "engine/answer_rules.h"
#include "engine/beam_search.h"
#include "engine/loaded_model.h"
#include "engine/scheduler.h"
#include "engine/source.h"
#include "unit/backend/failing_backend.h"
#include "unit/backend/test_backends.h"
#include "unit/effort.h"
#include "unit/engine/engine_model.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

using nlohmann::json;

constexpr int32_t kSourcePages = 24;
constexpr RunnerLimits kSourceLimits{.n_pages = kSourcePages,
                                     .batch = {.max_tokens = 128, .max_logits = 8}};

// An encoder with heads of its own, a decoder with learned positions and a bias.
ModelConfig translator() {
  ModelConfig config = engine_shape(WeightFormat::f32);
  config.max_context = 200;
  LayerConfig& layer = config.layer_kinds[0];
  layer.attention().relative_bias = {.buckets = 8, .max_distance = 20};
  layer.cross_attention.emplace().norms.stream = layer.mixer_norms.before;
  ModelConfig encoder = engine_shape(WeightFormat::f32);
  encoder.max_context = 100;
  encoder.embedding.shared = true;
  encoder.output = {.norm = encoder.output.norm, .none = true};
  AttentionConfig& attention = encoder.layer_kinds[0].attention();
  attention.n_heads = attention.n_kv_heads = 4;
  attention.head_dim = 12;
  attention.rope.reset();
  attention.bidirectional = true;
  config.encoder = std::make_shared<const ModelConfig>(std::move(encoder));
  return config;
}

class EncoderDecoder : public testing::Test {
 protected:
  EncoderDecoder()
      : image_(bench::make_random_model(translator(), 3)),
        file_(ModelFile::from_bytes(image_.bytes(), "random")),
        tokenizer_(make_sentencepiece_tokenizer(
            as_bytes(tokenizer_bytes_),
            TokenizerConfig{.bos = 1, .eos = {2}, .prefix = {}, .suffix = {2}}, "small")) {}

  static std::vector<int32_t> source(int32_t length, int32_t first) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < length; ++i) tokens.push_back(3 + (first + 7 * i) % 270);
    return tokens;
  }

  // Texts of different sources, lengths and widths; the first two and the last have one source.
  struct Texts {
    explicit Texts(const Tokenizer& tokenizer) {
      for (int32_t i = 0; i < 7; ++i) {
        auto rule = std::make_unique<GenerationRules>();
        rule->source = i < 2 || i == 6 ? source(70, 5) : source(3 + 15 * i, i);
        rule->prompt = {2};
        rule->sampling.temperature = 0;
        rule->max_tokens = 40 + 9 * i;
        rule->context = 100;
        rule->ignore_eos = true;
        if (i % 3 == 1) {
          rule->search.beams = rule->n_best = 3;
          groups.push_back(std::make_unique<BeamSearch>(*rule, tokenizer));
        } else {
          groups.push_back(std::make_unique<SampleGroup>(*rule, tokenizer, 0));
        }
        entries.push_back({.group = groups.back().get(), .arrival = static_cast<uint64_t>(i)});
        rules.push_back(std::move(rule));
      }
    }

    std::vector<Scheduler::Entry> entries;
    std::vector<std::unique_ptr<SequenceGroup>> groups;
    std::vector<std::unique_ptr<GenerationRules>> rules;
  };

  // Tokens of all texts, empty for those that failed, with all pages given back.
  std::vector<std::vector<int32_t>> run(Backend& backend, int32_t n_pages, int32_t slots,
                                        int32_t turn_slots = 1000) {
    RunnerLimits limits = kSourceLimits;
    limits.n_pages = n_pages;
    Runner runner(file_, backend, limits, nullptr);
    Texts texts(*tokenizer_);
    std::set<const Scheduler::Entry*> failed;
    {
      Scheduler scheduler(runner, {.slots = slots,
                                   .max_step_tokens = 128,
                                   .first_tokens = 128,
                                   .chunk = 32,
                                   .prefix_sharing = false,
                                   .turn_slots = turn_slots});
      for (Scheduler::Entry& entry : texts.entries) scheduler.add(entry);
      for (int steps = 0; !scheduler.idle(); ++steps) {
        if (steps > 2000) throw std::logic_error("the scheduler does not get on");
        for (const Scheduler::Outcome& outcome : scheduler.step()) {
          if (!outcome.error.empty()) failed.insert(outcome.entry);
        }
      }
      preemptions_ = scheduler.counts().preemptions;
      read_tokens_ = scheduler.counts().prompt_tokens;
    }
    EXPECT_EQ(runner.pages().n_free(), n_pages);
    std::vector<std::vector<int32_t>> all;
    for (size_t i = 0; i < texts.entries.size(); ++i) {
      std::vector<int32_t>& tokens = all.emplace_back();
      if (failed.contains(&texts.entries[i])) continue;
      for (const Output& output : texts.groups[i]->take_outputs()) {
        tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
      }
    }
    return all;
  }

  ModelImage image_;
  ModelFile file_;
  std::string tokenizer_bytes_ = serialize_sentencepiece_model(small_model(true));
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t preemptions_ = 0;
  int64_t read_tokens_ = 0;
};

TEST_F(EncoderDecoder, ForksShareASourceAndTheLastOneGivesItBack) {
  const auto backend = make_cpu_backend(1);
  Runner runner(file_, *backend, kSourceLimits, nullptr);
  Sequence first;
  runner.caches().look_at(first, source(65, 1));
  EXPECT_EQ(runner.pages().n_free(), kSourcePages - 3);
  const std::vector<int32_t> start = {2};
  EXPECT_THROW(runner.step({{{&first, start}}}), Error) << "nobody has read the source";
  Source* to_read = first.source.get();
  runner.read_sources({&to_read, 1});
  runner.step({{{&first, start}}});
  Sequence second = runner.fork(first);
  EXPECT_EQ(runner.pages().n_free(), kSourcePages - 4);
  runner.release(first);
  EXPECT_EQ(runner.pages().n_free(), kSourcePages - 4);
  runner.release(second);
  EXPECT_EQ(runner.pages().n_free(), kSourcePages);
  EXPECT_THROW(runner.caches().look_at(first, source(101, 1)), Error)
      << "longer than the encoder reads";
  EXPECT_THROW(runner.caches().look_at(first, {}), Error);
}

TEST_F(EncoderDecoder, TextsDoNotDependOnTheirBatch) {
  const auto reference = make_reference_backend();
  const auto backend = make_cpu_backend(2);
  const auto alone = run(*backend, 64, 3);
  const int64_t read_alone = read_tokens_;
  EXPECT_EQ(run(*reference, 64, 3), alone);
  EXPECT_EQ(run(*backend, 64, 8), alone);
  EXPECT_LT(read_tokens_, read_alone) << "those with the same source read it once";
  EXPECT_EQ(run(*backend, 64, 8, 1), alone) << "in turns";
  EXPECT_LT(read_tokens_, read_alone);
  EXPECT_EQ(run(*backend, 14, 8, 1), alone);
  EXPECT_EQ(run(*backend, 14, 8), alone);
  EXPECT_GT(preemptions_, 0);
}

TEST_F(EncoderDecoder, ADeviceThatFailsTakesOnlyTheTextsConcerned) {
  const auto sound = make_cpu_backend(1);
  const auto expected = run(*sound, 64, 8);
  int64_t n_calls = 0;
  for (int64_t fails_at = 1; fails_at < 400; fails_at += kSanitized ? 69 : 23) {
    n_calls = 0;
    FailingBackend backend(make_cpu_backend(1), [&](const std::string& operation) {
      return (operation == "append" || operation == "linear") && ++n_calls == fails_at;
    });
    // One failure of a batch is mended by trying each alone.
    EXPECT_EQ(run(backend, 64, 8), expected) << fails_at;
    n_calls = 0;
    EXPECT_EQ(run(backend, 64, 8, 1), expected) << fails_at << ", in turns";
  }
}

TEST(AnswerRules, SurviveJson) {
  AnswerRules rules;
  rules.start = 5;
  rules.first = 6;
  rules.last = 2;
  rules.never = {{7}, {8, 9}};
  rules.search = {.beams = 4, .length_penalty = 0.6F, .early_stopping = EarlyStopping::never};
  rules.max_tokens = 200;
  rules.min_tokens = 3;
  rules.no_repeat_ngram = 3;
  rules.languages = {
      .source = 11, .target = TargetLanguage::start, .tokens = {{"en_XX", 11}, {"ro_RO", 10}}};
  const json written = answer_rules_to_json(rules);
  EXPECT_EQ(answer_rules_to_json(answer_rules_from_json(written, 12, 12, "t")), written);
  EXPECT_EQ(answer_rules_to_json(answer_rules_from_json({{"start", 0}}, 12, 12, "t")),
            (json{{"start", 0}}));
}

TEST(AnswerRules, RefuseWhatNoModelCanSay) {
  for (const json& wrong :
       {json::object(), json{{"start", 12}}, json{{"start", 0}, {"first", -1}},
        json{{"start", 0}, {"never", {json::array()}}}, json{{"start", 0}, {"beams", 1000}},
        json{{"start", 0}, {"early_stopping", "sometimes"}}, json{{"start", 0}, {"max_tokens", 0}},
        json{{"start", 0}, {"languages", {{"target", "everywhere"}}}},
        json{{"start", 0}, {"languages", {{"tokens", {"en"}}}}},
        json{{"start", 0}, {"languages", {{"tokens", {{"en", 12}}}}}},
        json{{"start", 0}, {"what", 1}}}) {
    EXPECT_TRUE(says(error_of([&] { (void)answer_rules_from_json(wrong, 12, 12, "model.bin"); }),
                     "model.bin"))
        << wrong;
  }
}

TEST(AnswerRules, TakeAMarianLanguageOffATextThatBeginsWithIt) {
  const LanguageRules marian{.source = {}, .target = TargetLanguage::source};
  std::string text = ">>fra<< Good morning.";
  EXPECT_EQ(take_target_language(marian, text), "fra");
  EXPECT_EQ(text, " Good morning.");
  EXPECT_EQ(take_target_language(marian, text), std::nullopt);
  text = ">>fra<< Good morning.";
  EXPECT_EQ(take_target_language({}, text), std::nullopt) << "for others it is text";
}

TEST(LanguageToken, IsThatOfALanguageByItsName) {
  LanguageRules rules{.source = {}, .target = TargetLanguage::first};
  EXPECT_TRUE(says(error_of([&] { (void)language_token(rules, "fr"); }), "names no languages"));
  rules.tokens = {{"deu_Latn", 1}, {"eng_Latn", 2}, {"fon_Latn", 3}, {"fra_Latn", 4},
                  {"fur_Latn", 5}, {"zul_Latn", 6}, {"zzz_Latn", 7}};
  EXPECT_EQ(language_token(rules, "fra_Latn"), 4);
  const auto refusal = [&](const char* name) {
    return error_of([&] { (void)language_token(rules, name); });
  };
  EXPECT_TRUE(says(refusal("fr"), R"(no language "fr")",
                   R"(it has "eng_Latn", "fon_Latn", "fra_Latn", "fur_Latn", "zul_Latn" ()"));
  EXPECT_TRUE(says(refusal("~"), R"(it has "zul_Latn", "zzz_Latn" ()", "all 7"));
  EXPECT_TRUE(says(refusal(""), R"(no language "")", R"(it has "deu_Latn",)"));
}

TEST(LanguagesFromHf, AreTheSpecialTokensWithoutAnotherRole) {
  using Type = SentencePieceModel::PieceType;
  SentencePieceModel model = small_model(true);
  for (const char* spelling : {"en_XX", "ro_RO", "<mask>", "[extra]", "__fr__", ">>nld<<"}) {
    model.pieces.push_back({spelling, 0, Type::control});
  }
  const auto tokenizer = make_compiled_tokenizer(compile_sentencepiece(model), {}, "t");
  std::vector<std::string> names;
  for (const auto& [name, token] :
       convert::languages_from_hf(*tokenizer, {{"cls_token", "[extra]"}})) {
    names.push_back(name);
    EXPECT_TRUE(tokenizer->token_bytes(token).empty());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"en_XX", "fr", "nld", "ro_RO"}));
}

TEST(AnswersFromHf, TakeWhatGenerationConfigSaysAndElseConfig) {
  const json config = {{"decoder_start_token_id", 7}, {"num_beams", 3}, {"forced_eos_token_id", 2}};
  const AnswerRules without = convert::answers_from_hf(config, json::object(), {}, {}, 100, "t");
  EXPECT_EQ(without.start, 7);
  EXPECT_EQ(without.last, 2);
  EXPECT_EQ(without.search.beams, 3);
  const json generation = {{"max_length", 20},           {"min_length", 5},
                           {"early_stopping", "never"},  {"bad_words_ids", {{9}, {2}, {4, 5}}},
                           {"forced_eos_token_id", {8}}, {"eos_token_id", 2},
                           {"no_repeat_ngram_size", 3}};
  const AnswerRules with = convert::answers_from_hf(config, generation, {}, {}, 100, "t");
  EXPECT_EQ(with.start, 7) << "tokens may be in either file";
  EXPECT_EQ(with.last, 8);
  EXPECT_EQ(with.search.beams, 1) << "config.json does not count beside the other file";
  EXPECT_EQ(with.search.early_stopping, EarlyStopping::never);
  EXPECT_EQ(with.max_tokens, 19) << "the start counts there";
  EXPECT_EQ(with.min_tokens, 4);
  EXPECT_EQ(with.no_repeat_ngram, 3);
  EXPECT_EQ(with.never, (std::vector<std::vector<int32_t>>{{9}, {4, 5}})) << "texts may end";
  for (const json& wrong : {json{{"num_beams", 0}}, json{{"bad_words_ids", {1}}},
                            json{{"decoder_start_token_id", 100}}, json{{"num_beams", 4000}}}) {
    EXPECT_TRUE(says(
        error_of([&] { (void)convert::answers_from_hf(config, wrong, {}, {}, 100, "t"); }), "t"))
        << wrong;
  }
  const auto refusal_of = [&](const json& in_config, const json& in_generation) {
    return error_of(
        [&] { (void)convert::answers_from_hf(in_config, in_generation, {}, {}, 100, "folder"); });
  };
  for (const int beams : {0, 129}) {
    EXPECT_EQ(refusal_of(config, {{"num_beams", beams}}),
              "folder: generation_config.json: \"num_beams\" is not a whole number from 1 to 128; "
              "correct it there");
  }
  EXPECT_TRUE(says(refusal_of(config, {{"length_penalty", 99}}),
                   "folder: generation_config.json: \"length_penalty\"", "correct it there"));
  EXPECT_TRUE(says(refusal_of({{"length_penalty", 99}}, json::object()), "folder: config.json: "));
}

TEST(AnswersFromHf, NameWhatTheyDoNotTake) {
  using Names = std::vector<std::string>;
  const json asking = {{"num_beams", 4},
                       {"num_beam_groups", 2},
                       {"diversity_penalty", 0.5},
                       {"typical_p", "high"},
                       {"encoder_no_repeat_ngram_size", 3},
                       {"temperature", 0.5}};
  const Names of_all = {"num_beam_groups", "diversity_penalty", "typical_p",
                        "encoder_no_repeat_ngram_size"};
  Names of_decoders = of_all;
  of_decoders.emplace_back("num_beams");
  EXPECT_EQ(convert::untaken_from_hf(json::object(), asking, true), of_all);
  EXPECT_EQ(convert::untaken_from_hf(json::object(), asking, false), of_decoders);
  EXPECT_EQ(convert::untaken_from_hf(asking, json::object(), false), of_decoders);
  const json harmless = {{"num_beams", 1},
                         {"num_beam_groups", 1},
                         {"diversity_penalty", 0.0},
                         {"typical_p", 1.0},
                         {"suppress_tokens", json::array()},
                         {"bad_words_ids", nullptr}};
  EXPECT_EQ(convert::untaken_from_hf(asking, harmless, false), Names());
}

TEST(AnswersFromHf, FindTheLanguagesPlaces) {
  AnswerRules family;
  family.start = 2;
  family.languages.target = TargetLanguage::first;
  const TokenizerConfig before{.bos = 0, .eos = {2}, .prefix = {50}, .suffix = {2}};
  const AnswerRules nllb =
      convert::answers_from_hf(json::object(), json::object(), family, before, 100, "t");
  EXPECT_EQ(nllb.languages.source, 50);
  EXPECT_EQ(nllb.languages.target, TargetLanguage::first);
  const TokenizerConfig after{.bos = 0, .eos = {2}, .prefix = {}, .suffix = {2, 51}};
  const AnswerRules mbart = convert::answers_from_hf(json{{"decoder_start_token_id", 52}},
                                                     json::object(), family, after, 100, "t");
  EXPECT_EQ(mbart.languages.source, 51);
  EXPECT_EQ(mbart.languages.target, TargetLanguage::start);
}

// A file that describes two tokenizers, and has one or both. The encoder's knows a piece more.
ModelImage image_with_tokenizers(bool of_encoder_too) {
  SentencePieceModel model = small_model(true);
  std::vector<TensorSpec> specs;
  std::map<std::string, std::string> tokenizers = {{kTokenizer, compile_sentencepiece(model)}};
  model.pieces.push_back({"dog", 0, SentencePieceModel::PieceType::normal});
  if (of_encoder_too) tokenizers[kEncoderTokenizer] = compile_sentencepiece(model);
  for (const auto& [name, bytes] : tokenizers) {
    specs.push_back({name, DType::u8, {static_cast<int64_t>(bytes.size())}});
  }
  const json config = tokenizer_config_to_json({.bos = 1, .eos = {2}, .prefix = {}, .suffix = {2}});
  ModelImage image({{kTokenizer, config}, {kEncoderTokenizer, config}}, specs);
  for (const auto& [name, bytes] : tokenizers) {
    std::ranges::copy(as_bytes(bytes), image.tensor(name).begin());
  }
  return image;
}

TEST(EncoderTokenizer, ReadsPromptsWhereTheFileHasOne) {
  ModelConfig config = translator();
  const auto read = [&](const ModelImage& image) {
    const ModelFile file = ModelFile::from_bytes(image.bytes(), "model.bin");
    return make_prompt_tokenizer(file, config, make_tokenizer(file, config));
  };
  const ModelImage both = image_with_tokenizers(true);
  EXPECT_TRUE(read(both)->find_token("dog"));
  EXPECT_TRUE(says(error_of([&] { (void)read(image_with_tokenizers(false)); }), "model.bin"))
      << "only its description is there";
  auto encoder = std::make_shared<ModelConfig>(*config.encoder);
  encoder->embedding.shared = false;
  encoder->vocab = 100;
  config.encoder = encoder;
  EXPECT_TRUE(says(error_of([&] { (void)read(both); }), "only 100")) << "the encoder's vocabulary";
  config.encoder = nullptr;
  EXPECT_FALSE(read(both)->find_token("dog"));
}

TEST(SeparateVocabulary, NamesTheFileThatIsWrong) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                       ("faststream-vocabulary-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "source.spm", std::ios::binary)
      << serialize_sentencepiece_model(small_model(true));
  const auto refusal = [&](const std::string& vocabulary) {
    std::ofstream(folder / "vocab.json") << vocabulary;
    convert::SourceFiles files;
    return error_of([&] { (void)convert::read_separate_vocabulary(folder, files); });
  };
  for (const char* wrong : {"[]", R"({"a": 1})", R"({"a": 0, "b": 0})", R"({"a": -1})",
                            R"({"": 0})", R"({"a": "0"})"}) {
    EXPECT_TRUE(says(refusal(wrong), "vocab.json")) << wrong;
  }
  EXPECT_TRUE(says(refusal(R"({"a": 0})"), "</s>"));
  EXPECT_EQ(refusal(R"({"</s>": 0, "<unk>": 1, "a": 2})"), "");
  std::ofstream(folder / "tokenizer_config.json") << R"({"separate_vocabs": true})";
  EXPECT_TRUE(says(refusal(R"({"</s>": 0, "<unk>": 1})"), "target.spm")) << "it is missing";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace faststream
