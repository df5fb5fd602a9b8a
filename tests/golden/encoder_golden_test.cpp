// Hidden states, vectors and scores of small encoders equal those of Transformers in float32 (see
// make_encoders.py), also as llama.cpp's converter writes them (make_gguf_families.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "convert/command/show.h"
#include "engine/cache_kinds.h"
#include "engine/embedder.h"
#include "engine/kv_groups.h"
#include "engine/load_weights.h"
#include "golden_data.h"
#include "models/model.h"
#include "searches.h"
#include "unit/backend/test_backends.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

const nlohmann::json& manifest() {
  static const nlohmann::json whole = [] {
    std::ifstream file(golden_root() / "encoders/manifest.json");
    return nlohmann::json::parse(file);
  }();
  return whole;
}

std::vector<std::string> texts(const char* name) {
  return manifest().at(name).get<std::vector<std::string>>();
}

// "bert", or "gguf_bert": the same as a GGUF file.
constexpr std::string_view kGguf = "gguf_";
bool is_gguf(const std::string& variant) { return variant.starts_with(kGguf); }
std::string name_of(const std::string& variant) {
  return is_gguf(variant) ? variant.substr(kGguf.size()) : variant;
}

// What metadata cannot say, and users do.
void say_pooling(const std::string& name, convert::ConvertOptions& options) {
  const std::map<std::string, Pooling> poolings = {{"roberta", Pooling::largest},
                                                   {"modernbert", Pooling::mean_by_root},
                                                   {"t5_encoder", Pooling::mean}};
  if (const auto found = poolings.find(name); found != poolings.end()) {
    options.pooling = found->second;
  }
  std::ifstream file(golden_root() / "encoders" / name / "modules.json");
  if (!file) return;
  for (const auto& module : nlohmann::json::parse(file)) {
    if (module.at("type") == "sentence_transformers.models.Normalize") options.normalize = true;
  }
}

// Of a checkpoint with adapters for several.
std::string task_of(const std::string& name) {
  for (const auto& variant : manifest().at("variants")) {
    if (variant.at("name") == name) return variant.value("task", "");
  }
  return "";
}

convert::ConvertOptions encoder_file(const std::string& variant,
                                     WeightFormat format = WeightFormat::f32) {
  convert::ConvertOptions options;
  options.checkpoint = golden_root() / "encoders" / variant;
  if (is_gguf(variant)) {
    options.checkpoint = golden_root() / "gguf_encoders" / (name_of(variant) + ".gguf");
    say_pooling(name_of(variant), options);
  } else {
    options.task = task_of(variant);
  }
  options.format = format;
  return options;
}

// At how many tokens texts are cut; 0: the model's length. A GGUF file does not say it.
int64_t context_of(const std::string& variant) {
  if (!is_gguf(variant)) return 0;
  std::ifstream file(golden_root() / "encoders" / name_of(variant) / "sentence_bert_config.json");
  return file ? nlohmann::json::parse(file).at("max_seq_length").get<int64_t>() : 0;
}

struct GoldenText {
  std::vector<int32_t> ids;
  size_t second = 0;  // where segment 1 begins
};

class EncoderGoldenTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  // Products in f32 may add in another order beside others.
  static constexpr double kRounding = 2e-5;
  static constexpr int32_t kPages = 36;  // of all texts, twice

  void SetUp() override {
    backend_ = make_test_backend(std::get<0>(GetParam()));
    FASTSTREAM_REQUIRE_BACKEND(backend_);
    name_ = std::get<1>(GetParam());
    for (const auto& variant : manifest().at("variants")) {
      if (variant.at("name") == name_of(name_)) entry_ = variant;
    }
    const auto folder = golden_root() / "encoders" / name_of(name_);
    const auto numbers = read_numbers<int32_t>(folder / "tokens.i32");
    hidden_ = read_numbers<float>(folder / "hidden.f32");
    vectors_ = read_numbers<float>(folder / "vectors.f32");
    const auto n_texts = entry_.at("texts").get<size_t>();
    auto next = numbers.begin() + static_cast<ptrdiff_t>(n_texts);
    for (size_t i = 0; i < n_texts; ++i) {
      GoldenText text{.ids = {next, next + numbers[i]}};
      next += numbers[i];
      text.second = text.ids.size();
      // After the first [SEP].
      if (is_ranker()) {
        text.second = static_cast<size_t>(std::ranges::find(text.ids, 3) - text.ids.begin()) + 1;
      }
      texts_.push_back(std::move(text));
    }
  }

  [[nodiscard]] bool is_ranker() const { return entry_.at("rank").get<bool>(); }

  // Rows of model->RUN(batch, memory) for each group of texts in a step of its own.
  template <typename Run>
  std::vector<float> run(const std::vector<std::vector<GoldenText>>& steps, const Run& run) {
    const ConvertedCheckpoint on_disk(encoder_file(name_));
    const ModelFile file = ModelFile::open(on_disk.path());
    const ModelConfig config = read_config(file);
    const WeightLookup weights = load_weights(file, config, *backend_, nullptr);
    const auto model = make_model(config, weights, *backend_, {.max_tokens = 400, .max_logits = 8});
    // Layers use the same memory one after the other, as the Embedder's do, unless they have
    // sources.
    const DType type = backend_->kv_dtype(config.weight_format);
    size_t token_bytes = 0;
    size_t state_bytes = 0;
    for (const int64_t n : kv_layers(config)) {
      token_bytes = std::max(token_bytes, kv_token_bytes(*kv_geometry(config.layer(n)), type));
    }
    for (const int64_t n : state_layers(config)) {
      state_bytes = std::max(state_bytes, layer_state_bytes(config, n));
    }
    const size_t page_bytes = size_t{kPages * kPageTokens} * token_bytes;
    const size_t layer_bytes = config.encoder ? page_bytes : 0;
    const Buffer pages =
        backend_->allocate(page_bytes + kv_layers(config).size() * layer_bytes + 1);
    const auto n_states = static_cast<int32_t>(texts_.size()) + 1;
    const std::vector<std::byte> zeros(state_bytes + 1);
    const Buffer states = backend_->allocate(static_cast<size_t>(n_states) * state_bytes + 1);
    backend_->copy_to_device(states.get(), zeros.data(), zeros.size());
    std::vector<KvLayer> kv;
    for (const int64_t n : kv_layers(config)) {
      std::byte* const memory = pages.get() + kv.size() * layer_bytes;
      kv.push_back(kv_layer(*kv_geometry(config.layer(n)), type, memory, kPages, 0));
    }
    const std::vector<StateLayer> of_states(
        state_layers(config).size(), {.data = reinterpret_cast<float*>(states.get()),
                                      .stride = static_cast<int64_t>(state_bytes / sizeof(float)),
                                      .n_states = n_states});
    const LayerMemory memory{.kv = kv, .states = of_states};
    std::vector<float> rows;
    for (const std::vector<GoldenText>& step : steps) {
      if (config.encoder) {
        const Batch sources = pack(step, false, kPages / 2);
        model->read_sources(backend_->upload(sources), kv);
      }
      Batch batch = pack(read_by(config, step), config.embedding.segments > 1 && is_ranker());
      if (config.encoder) look_at_sources(batch);
      for (int32_t i = 0; !of_states.empty() && i < batch.n_sequences(); ++i) {
        batch.state_from.push_back(0);
        batch.state_to.push_back(i + 1);
        batch.state_border.push_back(0);
      }
      const Matrix result = run(*model, backend_->upload(batch), memory);
      const size_t before = rows.size();
      rows.resize(before + static_cast<size_t>(result.rows * result.cols));
      backend_->copy_to_host(rows.data() + before, result.data,
                             (rows.size() - before) * sizeof(float));
    }
    return rows;
  }

  // As the model sees them, or, beside an encoder, its decoder.
  static std::vector<GoldenText> read_by(const ModelConfig& config, std::vector<GoldenText> step) {
    if (!config.encoder) return step;
    for (GoldenText& text : step) {
      text.ids.insert(text.ids.begin(), *config.pooling->start);
      text.ids.pop_back();
    }
    return step;
  }

  // What pack() has put from the half of all pages on.
  static void look_at_sources(Batch& batch) {
    batch.source_len = batch.kv_len;
    batch.max_source_pages = batch.max_pages;
    for (const int32_t page : batch.page_table) batch.source_pages.push_back(kPages / 2 + page);
  }

  static Batch pack(const std::vector<GoldenText>& step, bool has_segments, int32_t page = 0) {
    Batch batch;
    batch.max_pages = 3;
    for (const GoldenText& text : step) {
      for (int32_t i = 0; i < batch.max_pages; ++i) batch.page_table.push_back(page++);
      batch.add_sequence(text.ids, 0);
      for (size_t i = 0; has_segments && i < text.ids.size(); ++i) {
        batch.segments.push_back(i < text.second ? 0 : 1);
      }
    }
    return batch;
  }

  [[nodiscard]] std::vector<std::vector<GoldenText>> each_alone() const {
    std::vector<std::vector<GoldenText>> steps;
    for (const GoldenText& text : texts_) steps.push_back({text});
    return steps;
  }

  static void expect_close(std::span<const float> got, std::span<const float> want, double bound) {
    ASSERT_EQ(got.size(), want.size());
    double largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(std::isfinite(got[i])) << i;
      largest = std::max(largest, std::abs(double{got[i]} - want[i]));
    }
    EXPECT_LT(largest, bound);
  }

  std::unique_ptr<Backend> backend_;
  std::string name_;
  nlohmann::json entry_;
  std::vector<GoldenText> texts_;
  std::vector<float> hidden_;
  std::vector<float> vectors_;
};

TEST_P(EncoderGoldenTest, HiddenStatesAreTransformersTogetherAndAlone) {
  const auto encode = [](Model& model, const BatchView& batch, const LayerMemory& memory) {
    return model.encode(batch, memory);
  };
  const std::vector<float> together = run({texts_}, encode);
  expect_close(together, hidden_, 1e-4);
  expect_close(run(each_alone(), encode), together, kRounding);
}

TEST_P(EncoderGoldenTest, VectorsTogetherAreThoseAlone) {
  const auto embed = [](Model& model, const BatchView& batch, const LayerMemory& memory) {
    return model.embed(batch, memory);
  };
  const std::vector<float> together = run({texts_}, embed);
  expect_close(run(each_alone(), embed), together, kRounding);
}

TEST_P(EncoderGoldenTest, TextsGiveTransformersVectors) {
  if (std::get<0>(GetParam()) == "reference") GTEST_SKIP() << "no device of the Embedder's";
  if (name_ == "gguf_qwen3") GTEST_SKIP() << "its tokenizer would begin all texts with [CLS]";
  if (name_ == "gguf_t5_encoder") GTEST_SKIP() << "the converter leaves its last product out";
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::int8}) {
    const ConvertedCheckpoint file(encoder_file(name_, format));
    Embedder embedder(
        file.path(),
        {.device = std::get<0>(GetParam()), .threads = 2, .context = context_of(name_)});
    const std::vector<TextVector> vectors =
        is_ranker() ? embedder.score(manifest().at("query").get<std::string>(), texts("paired"))
                    : embedder.embed(texts("texts"));
    std::vector<float> values;
    for (size_t i = 0; i < vectors.size(); ++i) {
      EXPECT_EQ(vectors[i].tokens, static_cast<int64_t>(texts_[i].ids.size())) << i;
      values.insert(values.end(), vectors[i].values.begin(), vectors[i].values.end());
    }
    const double largest = std::abs(*std::ranges::max_element(
        vectors_, [](float a, float b) { return std::abs(a) < std::abs(b); }));
    const double bound = format == WeightFormat::f32    ? 1e-4
                         : format == WeightFormat::bf16 ? 0.06
                                                        : 0.25;
    expect_close(values, vectors_, bound * std::max(largest, 1.0));
  }
}

TEST(EncoderGolden, FilesAreFoundToBeOfUse) {
  for (const char* name : {"bert_rank", "dpr_question", "bart_rank", "t5_rank"}) {
    const ConvertedCheckpoint on_disk(encoder_file(name));
    std::ostringstream out;
    EXPECT_EQ(error_of([&] { convert::verify_model_file(on_disk.path(), out); }), "") << name;
  }
}

TEST(EncoderGolden, TextsCanBeInterruptedWhileTheyAreTokenized) {
  struct Stop {};
  std::atomic<int> looks = 0;
  bool stop = false;
  const ConvertedCheckpoint file(encoder_file("bert"));
  Embedder embedder(file.path(), {.device = "cpu", .threads = 2, .check_interrupted = [&] {
                                    ++looks;
                                    if (stop) throw Stop();
                                  }});
  std::string words;
  for (int i = 0; i < 1 << 18; ++i) words += "the ";
  const std::vector<std::string> texts = {words};
  looks = 0;
  (void)embedder.embed(texts);
  EXPECT_GT(looks, 1) << "one of them before the step";
  stop = true;
  EXPECT_THROW((void)embedder.embed(texts), Stop);
}

std::vector<std::string> encoder_variants() {
  std::vector<std::string> names;
  for (const auto& variant : manifest().at("variants")) {
    names.push_back(variant.at("name").get<std::string>());
  }
  for (const std::string& name : golden_variants("gguf_encoders/")) {
    names.push_back(std::string(kGguf) + name.substr(name.find('/') + 1));
  }
  return names;
}

std::string encoder_test_name(const testing::TestParamInfo<EncoderGoldenTest::ParamType>& info) {
  return std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(Reference, EncoderGoldenTest,
                         testing::Combine(testing::Values("reference"),
                                          testing::ValuesIn(encoder_variants())),
                         encoder_test_name);
INSTANTIATE_TEST_SUITE_P(Cpu, EncoderGoldenTest,
                         testing::Combine(testing::Values("cpu"),
                                          testing::ValuesIn(encoder_variants())),
                         encoder_test_name);
INSTANTIATE_TEST_SUITE_P(Cuda, EncoderGoldenTest,
                         testing::Combine(testing::Values("cuda"),
                                          testing::ValuesIn(encoder_variants())),
                         encoder_test_name);

}  // namespace
}  // namespace faststream
