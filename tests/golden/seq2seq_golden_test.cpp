// Encoder-decoders give the texts that Transformers finds, with the same scores
// (make_seq2seq_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/batch/batch_line.h"
#include "engine/engine.h"
#include "golden_data.h"
#include "model_file/model_file.h"
#include "models/model.h"
#include "searches.h"
#include "unit/backend/test_backends.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

using nlohmann::json;

const json& seq2seq_golden() {
  static const json all = [] {
    std::ifstream file(golden_root() / "seq2seq" / "texts.json");
    return json::parse(file);
  }();
  return all;
}

std::vector<std::string> seq2seq_models() {
  std::vector<std::string> names;
  for (const auto& [name, searches] : seq2seq_golden().at("models").items()) names.push_back(name);
  return names;
}

convert::ConvertOptions seq2seq_model(const std::string& name) {
  convert::ConvertOptions options;
  options.checkpoint = golden_root() / "seq2seq" / name;
  if (!std::filesystem::exists(options.checkpoint / "vocab.json")) {
    options.tokenizer = golden_root() / "gqa" / "tokenizer.model";
  }
  options.format = WeightFormat::f32;
  return options;
}

Request seq2seq_line(const json& search, const json& source) {
  json line = search.at("settings");
  line["prompt"] = source;
  line["n"] = line.at("beams");
  if (!line.contains("max_tokens")) line["max_tokens"] = seq2seq_golden().at("max_tokens");
  line["stop_tokens"] = seq2seq_golden().at("ends");
  Request defaults;
  defaults.sampling.seed = 0;
  defaults.sampling.temperature = 0;
  const cli::BatchLine parsed =
      cli::parse_batch_line(line.dump(), 1, cli::BatchFormat::json, defaults);
  EXPECT_EQ(parsed.error, "");
  return parsed.request;
}

class Seq2SeqGolden : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == "cuda" && cuda_device_count() == 0) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }

  // All searches with the model at once, or one after the other.
  static void compare(EngineOptions options, bool together) {
    const auto& [device, name] = GetParam();
    options.device = device;
    options.threads = 2;
    const ConvertedCheckpoint model(seq2seq_model(name));
    Engine engine(model.path(), options);
    Searches searches(engine, together);
    for (const json& search : seq2seq_golden().at("models").at(name)) {
      for (size_t i = 0; i < search.at("texts").size(); ++i) {
        const json& texts = search.at("texts")[i];
        if (texts.is_null()) continue;  // rounding decides
        const Request request = seq2seq_line(search, seq2seq_golden().at("sources")[i]);
        searches.submit(
            search.at("settings").dump() + ", source " + std::to_string(i), request,
            [&texts, request](Result result) { expect_texts(std::move(result), request, texts); });
        if (HasFailure()) return;
      }
    }
    searches.finish(options.kv_tokens > 0);
  }
};

TEST_P(Seq2SeqGolden, FindsTransformersTextsAlone) { compare({.slots = 4}, false); }

TEST_P(Seq2SeqGolden, FindsTransformersTextsInBatches) { compare({.slots = 48}, true); }

TEST_P(Seq2SeqGolden, FindsTransformersTextsWhenPagesRunOut) {
  const std::string& name = std::get<1>(GetParam());
  if (name != "bart" && name != "t5" && name != "t5gemma") {
    GTEST_SKIP() << "its texts have but a page";
  }
  compare({.context = 64, .slots = 48, .kv_tokens = 640}, true);
}

// The encoder's part of a model, as a model of its own.
std::vector<float> encode_source(const ModelFile& file, Backend& backend,
                                 const std::vector<int32_t>& source) {
  const ModelConfig whole = config_from_json(file.section("model"), file.name());
  ModelConfig config = *whole.encoder;
  config.embedding.shared = false;
  const auto lookup = [&](TensorId id) {
    id.of_encoder = id.kind != TensorKind::embedding || !whole.encoder->embedding.shared;
    return file.bytes(*file.find(tensor_name(id))).data();
  };
  const auto n_tokens = static_cast<int32_t>(source.size());
  const auto model = make_model(config, lookup, backend, {.max_tokens = n_tokens, .max_logits = 1});
  Batch batch;
  batch.add_sequence(source, 0);
  batch.max_pages = pages_for(n_tokens);
  for (int32_t page = 0; page < batch.max_pages; ++page) batch.page_table.push_back(page);
  std::vector<Buffer> memory;
  std::vector<KvLayer> kv;
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const AttentionConfig& attention = config.layer(n).attention();
    const auto half = static_cast<size_t>(batch.max_pages * kPageTokens * attention.k_dim());
    memory.push_back(backend.allocate(2 * half * sizeof(float)));
    kv.push_back({.k = memory.back().get(),
                  .v = memory.back().get() + half * sizeof(float),
                  .dtype = DType::f32,
                  .n_pages = batch.max_pages,
                  .n_kv_heads = static_cast<int32_t>(attention.n_kv_heads),
                  .head_dim = static_cast<int32_t>(attention.head_dim),
                  .v_head_dim = static_cast<int32_t>(attention.head_dim)});
  }
  const Matrix states = model->encode(backend.upload(batch), {.kv = kv});
  std::vector<float> values(static_cast<size_t>(states.rows * states.cols));
  backend.copy_to_host(values.data(), states.data, values.size() * sizeof(float));
  return values;
}

TEST(Seq2SeqGoldenStates, AreTransformersEncoderOutputs) {
  for (const auto& [name, encoded] : seq2seq_golden().at("encoded").items()) {
    const ConvertedCheckpoint model(seq2seq_model(name));
    const ModelFile file = ModelFile::open(model.path());
    const auto& source = seq2seq_golden().at("sources").at(encoded.at("source").get<size_t>());
    const auto expected = encoded.at("states").get<std::vector<float>>();
    for (const char* device : {"reference", "cpu"}) {
      const auto backend = make_test_backend(device);
      const auto states = encode_source(file, *backend, source.get<std::vector<int32_t>>());
      ASSERT_EQ(states.size(), expected.size()) << name;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(states[i], expected[i], 1e-4 * std::max(1.0F, std::abs(expected[i])))
            << name << ", " << device << ", number " << i;
      }
    }
  }
}

// Sources are read by one tokenizer, answers written by another.
TEST(Seq2SeqGoldenTexts, AreTransformersTranslations) {
  const ConvertedCheckpoint model(seq2seq_model("marian_separate"));
  Engine engine(model.path(), {.device = "cpu", .threads = 2, .slots = 4});
  std::ifstream file(golden_root() / "seq2seq" / "marian_separate" / "translations.json");
  for (const json& pair : json::parse(file)) {
    Request request{.prompt = pair.at(0).get<std::string>(),
                    .max_tokens = seq2seq_golden().at("max_tokens").get<int64_t>()};
    request.search.beams = 4;
    EXPECT_EQ(engine.submit(request).get().outputs.front().text, pair.at(1)) << pair.at(0);
  }
}

// As servers and Python ask for them.
TEST(Seq2SeqGoldenTexts, HaveSlotsForASearchAndAsManyMoreAsMemoryAllows) {
  TemporaryFolder folder;
  convert::ConvertOptions options = seq2seq_model("plbart");
  for (const auto& file : std::filesystem::directory_iterator(options.checkpoint)) {
    std::filesystem::copy(file, folder.path());
  }
  options.checkpoint = folder.path();
  const auto slots_of = [&](const json& search, const EngineOptions& engine) {
    write_bytes(folder.path() / "generation_config.json", search.dump());
    const ConvertedCheckpoint model(options);
    return Engine(model.path(), engine).info().slots;
  };
  EngineOptions engine{.device = "cpu", .threads = 1};
  const int32_t as_memory_allows = slots_of({{"num_beams", 1}}, engine);
  EXPECT_GT(as_memory_allows, 3);
  engine.slots_for_search = true;
  EXPECT_EQ(slots_of({{"num_beams", 1}}, engine), as_memory_allows);
  EXPECT_EQ(slots_of({{"num_beams", 3}}, engine), as_memory_allows);
  engine.slots = 2;
  EXPECT_EQ(slots_of({{"num_beams", 1}}, engine), 2);
  EXPECT_EQ(slots_of({{"num_beams", 3}}, engine), 3);
}

TEST(Seq2SeqGoldenTexts, TakeTokensOfPromptsFromOneVocabularyAndOthersFromAnother) {
  const ConvertedCheckpoint model(seq2seq_model("marian_separate"));
  Engine engine(model.path(),
                {.device = "cpu", .threads = 2, .slots = 1, .chat_template = "plain"});
  const auto submit = [&](std::vector<int32_t> prompt, std::vector<int32_t> stop_tokens) {
    const Request request{
        .prompt = std::move(prompt), .max_tokens = 2, .stop_tokens = std::move(stop_tokens)};
    (void)engine.submit(request).get();
  };
  EXPECT_NO_THROW(submit({135, 2}, {123}));
  EXPECT_THROW(submit({136, 2}, {}), UsageError);
  EXPECT_THROW(submit({3, 2}, {124}), UsageError);

  const Message question{.role = "user", .content = "a dog"};
  const ChatPrompt as_text({question, {.role = "assistant", .content = "Hund"}, question});
  const ChatPrompt as_tokens(
      {question, {.role = "assistant", .content = "Hund", .tokens = {30, 31}}, question});
  EXPECT_EQ(engine.tokenize(as_tokens), engine.tokenize(as_text)) << "an answer's are no prompt's";
}

std::string seq2seq_name(const testing::TestParamInfo<Seq2SeqGolden::ParamType>& info) {
  return std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(Cpu, Seq2SeqGolden,
                         testing::Combine(testing::Values("cpu"),
                                          testing::ValuesIn(seq2seq_models())),
                         seq2seq_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Seq2SeqGolden,
                         testing::Combine(testing::Values("cuda"),
                                          testing::ValuesIn(seq2seq_models())),
                         seq2seq_name);

}  // namespace
}  // namespace faststream
