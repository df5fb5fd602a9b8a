// Heads that predict further tokens (see predicted_tokens.py) are kept, whatever names they have.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>

#include "convert/huggingface/weight_files.h"
#include "convert/pipeline.h"
#include "engine/engine.h"
#include "engine/load_weights.h"
#include "engine/loaded_model.h"
#include "engine/mtp_drafter.h"
#include "golden_data.h"
#include "models/tensor_plan.h"
#include "predicted_rows.h"
#include "unit/backend/test_backends.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/engine/chosen_text.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

std::vector<float> floats_of(const ModelFile& file, const std::string& name) {
  const TensorInfo* tensor = file.find(name);
  if (tensor == nullptr) return {};
  const std::span<const std::byte> bytes = file.bytes(*tensor);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

struct Heads {
  std::string variant;
  /// Of what is not in the layer, and how it goes on. Empty: theirs are "model.mtp_".
  std::string prefix;
  std::vector<std::string> names;  ///< projection, norms of embedding, hidden state and output
  float norm_add = 0;
  int64_t of_mixer = -1;  ///< the model's layer that its own is twice; -1: the last one
  int64_t of_ffn = -1;
};

class PredictorHeads : public testing::TestWithParam<Heads> {
 protected:
  // Writes tensors of the variant's checkpoint but for some of the heads' beside its config.json.
  std::filesystem::path folder_without(const std::filesystem::path& place,
                                       const std::function<bool(const std::string&)>& dropped) {
    std::filesystem::path folder = place / "checkpoint";
    std::filesystem::create_directories(folder);
    std::filesystem::copy_file(golden_.folder / "config.json", folder / "config.json");
    convert::SourceFiles files;
    const convert::Checkpoint weights = convert::open_weight_files(golden_.folder, files);
    convert::TestTensors tensors;
    for (const auto& [name, tensor] : weights.tensors()) {
      if (dropped(name)) continue;
      tensors[name] = {DType::f32, tensor.shape, values_of(weights, name)};
    }
    write_bytes(folder / "model.safetensors", convert::safetensors_bytes(tensors));
    return folder;
  }
  static std::vector<float> values_of(const convert::Checkpoint& weights, const std::string& name) {
    const convert::SourceTensor& tensor = *weights.find(name);
    std::vector<std::byte> raw(tensor.bytes());
    weights.read(tensor, 0, raw);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    tensor.format->decode(raw.data(), values);
    return values;
  }
  convert::ConvertReport convert_to(const std::filesystem::path& output,
                                    const std::filesystem::path& checkpoint, bool no_mtp = false) {
    convert::ConvertOptions options;
    options.checkpoint = checkpoint;
    options.tokenizer = golden_.tokenizer;
    options.output = output;
    options.format = WeightFormat::f32;
    options.no_mtp = no_mtp;
    return convert::convert_checkpoint(options);
  }
  [[nodiscard]] bool is_of_heads(const std::string& name) const {
    if (GetParam().prefix.empty()) return name.starts_with("model.mtp_");
    return name.starts_with("mtp.") || name.starts_with(GetParam().prefix);
  }

  GoldenData golden_ = load_golden("families/" + GetParam().variant);
  TemporaryFolder folder_;
};

TEST_P(PredictorHeads, HaveTheTensorsOfTheCheckpoint) {
  convert_to(folder_ / "m.bin", golden_.folder);
  const ModelFile file = ModelFile::open(folder_ / "m.bin");
  const ModelConfig config = read_config(file);
  ASSERT_EQ(config.predictors.size(), 1U);
  EXPECT_TRUE(config.predictors[0].embedding.shared && config.predictors[0].output.shared);
  // Its layer is twice a layer of the model.
  const auto models_layer = [&](const TensorId& id) {
    const int64_t n = id.kind >= TensorKind::ffn_norm ? GetParam().of_ffn : GetParam().of_mixer;
    return "layers." + std::to_string(n < 0 ? config.n_layers() - 1 : n) + ".";
  };
  const float add = GetParam().norm_add;
  int n_compared = 0;
  for (const TensorPlan& plan : tensor_plan(config)) {
    if (plan.id.predictor == 0 || !is_of_layers(plan.id.kind)) continue;
    const std::vector<float> values = floats_of(file, plan.name);
    const std::vector<float> models =
        floats_of(file, models_layer(plan.id) +
                            plan.name.substr(std::string("predictors.0.layers.0.").size()));
    ASSERT_EQ(values.size(), models.size()) << plan.name;
    const float least = plan.role == TensorRole::norm ? add : 0;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], 2 * (models[i] - least) + least, 1e-5) << plan.name << " at " << i;
    }
    ++n_compared;
  }
  EXPECT_GE(n_compared, 7);
  convert::SourceFiles files;
  const convert::Checkpoint weights = convert::open_weight_files(golden_.folder, files);
  const char* names[] = {"hidden_projection", "embedding_norm", "hidden_norm", "output_norm"};
  for (size_t i = 0; i < std::size(names); ++i) {
    const std::string source = GetParam().prefix + GetParam().names[i] + ".weight";
    ASSERT_NE(weights.find(source), nullptr) << source;
    if (weights.find(source + "_scale_inv") != nullptr) continue;  // FP8, as the layer's
    std::vector<float> wanted = values_of(weights, source);
    if (i > 0) {
      for (float& value : wanted) value += add;
    }
    EXPECT_EQ(floats_of(file, "predictors.0." + std::string(names[i])), wanted) << source;
  }
}

TEST_P(PredictorHeads, AreOnADeviceOnlyWhereTheyAreWanted) {
  convert_to(folder_ / "m.bin", golden_.folder);
  const ModelFile file = ModelFile::open(folder_ / "m.bin");
  const ModelConfig config = read_config(file);
  const ModelConfig alone = without_predictors(config);
  const auto whole = weights_to_load(file, config).bytes.size();
  const auto model = weights_to_load(file, alone).bytes.size();
  EXPECT_EQ(whole, file.weights().bytes.size());
  const TensorInfo& first = *file.find("predictors.0.embedding_norm");
  EXPECT_LE(model, first.offset - file.weights().offset);
  const auto backend = make_test_backend("cpu");
  FASTSTREAM_REQUIRE_BACKEND(backend);
  const TensorId norm{.kind = TensorKind::embedding_norm, .predictor = 1};
  EXPECT_ANY_THROW(load_weights(file, alone, *backend, nullptr)(norm));
  const std::byte* loaded = load_weights(file, config, *backend, nullptr)(norm);
  EXPECT_EQ(std::memcmp(loaded, file.bytes(first).data(), first.bytes), 0);
}

TEST_P(PredictorHeads, LeaveNothingBehindWhereTheyAreNotWanted) {
  if (GetParam().variant == "deepseek_v3") GTEST_SKIP() << "its FP8 is not written again";
  const auto with = folder_without(folder_ / "a", [](const auto&) { return false; });
  const auto without =
      folder_without(folder_ / "b", [&](const auto& name) { return is_of_heads(name); });
  const convert::ConvertReport report = convert_to(folder_ / "a.bin", with, true);
  EXPECT_TRUE(report.predictors.empty());
  EXPECT_FALSE(report.left_out.empty());
  convert_to(folder_ / "b.bin", without);
  const auto bytes = [](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_TRUE(bytes(folder_ / "a.bin") == bytes(folder_ / "b.bin"));
}

TEST_P(PredictorHeads, AreLeftOutWhereTheyAreIncomplete) {
  if (GetParam().variant == "deepseek_v3") GTEST_SKIP() << "its FP8 is not written again";
  const std::string missing = GetParam().prefix + GetParam().names[2] + ".weight";
  const auto without =
      folder_without(folder_ / "a", [&](const auto& name) { return name == missing; });
  const convert::ConvertReport report = convert_to(folder_ / "a.bin", without);
  EXPECT_TRUE(report.predictors.empty());
  EXPECT_FALSE(report.left_out.empty());
  EXPECT_TRUE(read_config(ModelFile::open(folder_ / "a.bin")).predictors.empty());
}

// Drawn and not, alone and together, of prompts that begin the same.
TEST_P(PredictorHeads, ChangeNoText) {
  convert_to(folder_ / "m.bin", golden_.folder);
  const auto texts = [&](const std::string& speculate, int32_t slots) {
    Engine engine(folder_ / "m.bin", {.device = "cpu",
                                      .threads = 2,
                                      .slots = slots,
                                      .speculate = speculate,
                                      .always_speculate = true});
    std::vector<std::future<Result>> results;
    for (int i = 0; i < 6; ++i) {
      Request request;
      request.prompt = std::vector<int32_t>(golden_.tokens.begin(),
                                            golden_.tokens.begin() + (i < 4 ? 5 * i + 3 : 14));
      request.max_tokens = 30;
      request.ignore_eos = true;
      request.sampling.temperature = i % 2 == 0 ? 0 : 0.7F;
      request.sampling.seed = i;
      results.push_back(engine.submit(request));
    }
    std::vector<std::vector<int32_t>> all;
    for (auto& result : results) all.push_back(result.get().outputs.at(0).tokens);
    EXPECT_EQ(engine.stats().proposed_tokens > 0, speculate != "off");
    return all;
  };
  const auto expected = texts("off", 1);
  EXPECT_EQ(texts("mtp", 1), expected);
  EXPECT_EQ(texts("mtp", 4), expected);
}

// Of a head whose matrices the checkpoint has, and make_predictor_golden.py what they give: for the
// prompt's last tokens but one, and for one that it drew itself, beside its own hidden state.
class PredictedLogits : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(PredictedLogits, AreThoseOfTransformersLayers) {
  const auto& [variant, device] = GetParam();
  const auto backend = make_test_backend(device);
  FASTSTREAM_REQUIRE_BACKEND(backend);
  const GoldenData golden = load_golden("families/" + variant);
  const auto wanted = read_numbers<float>(golden_root() / "predictors" / (variant + ".f32"));
  const TemporaryFolder folder;
  convert::ConvertOptions options;
  options.checkpoint = golden.folder;
  options.tokenizer = golden.tokenizer;
  options.output = folder / "m.bin";
  options.format = WeightFormat::f32;
  convert::convert_checkpoint(options);
  const ModelFile file = ModelFile::open(folder / "m.bin");
  const std::vector<float> logits = predicted_rows(file, golden.tokens, 1, *backend);
  const auto got = std::span(logits).last(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], 2e-3) << "row " << i / static_cast<size_t>(golden.vocab);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, PredictedLogits,
    testing::Combine(testing::Values("glm4_moe", "deepseek_v3", "qwen3_5_multimodal", "qwen3_next",
                                     "mimo_v2_flash"),
                     testing::Values("reference", "cpu", "cuda")),
    [](const auto& tested) { return std::get<0>(tested.param) + "_" + std::get<1>(tested.param); });

// Of a checkpoint with more heads, each the one before with every tensor turned along its last
// axis.
class SeveralHeads : public testing::Test {
 protected:
  static constexpr int kHeads = 3;

  // first: what names of the only head begin with; another's begin with next(n).
  void checkpoint(const std::string& variant, const std::string& first,
                  const std::function<std::string(int)>& next) {
    const GoldenData golden = load_golden("families/" + variant);
    convert::SourceFiles files;
    const convert::Checkpoint weights = convert::open_weight_files(golden.folder, files);
    convert::TestTensors tensors;
    for (const auto& [name, tensor] : weights.tensors()) {
      std::vector<std::byte> raw(tensor.bytes());
      weights.read(tensor, 0, raw);
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      tensor.format->decode(raw.data(), values);
      tensors[name] = {DType::f32, tensor.shape, values};
      if (!name.starts_with(first) || tensor.shape.size() > 2) continue;
      if (name.ends_with("embed_tokens.weight") || name.ends_with("head.weight")) continue;
      const auto columns = static_cast<std::ptrdiff_t>(tensor.shape.back());
      for (int n = 1; n < kHeads; ++n) {
        for (auto row = values.begin(); row != values.end(); row += columns) {
          std::rotate(row, row + columns - 1, row + columns);
        }
        tensors[next(n) + name.substr(first.size())] = {DType::f32, tensor.shape, values};
      }
    }
    std::ifstream file(golden.folder / "config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    if (config.contains("num_nextn_predict_layers")) config["num_nextn_predict_layers"] = kHeads;
    write_bytes(folder_ / "config.json", config.dump());
    write_bytes(folder_ / "model.safetensors", convert::safetensors_bytes(tensors));
  }

  // The model reads what comes before the last token in pieces and by itself, and then all heads
  // draft as often as they are asked to.
  void expect_drafts(const std::string& variant) {
    const GoldenData golden = load_golden("families/" + variant);
    const auto rows =
        read_numbers<int32_t>(golden_root() / "predictors" / (variant + "_drafts.i32"));
    convert::ConvertOptions options;
    options.checkpoint = folder_ / "";
    options.tokenizer = golden.tokenizer;
    options.output = folder_ / "m.bin";
    options.format = WeightFormat::f32;
    convert::convert_checkpoint(options);
    for (const auto& [device, stages] : {std::pair("cpu", 1), {"cpu,cpu", 1}, {"cpu,cpu", 2}}) {
      LoadedModel model(
          folder_ / "m.bin",
          {.device = device, .threads = 2, .stages = stages, .slots = 4, .speculate = "mtp"}, 64);
      ASSERT_EQ(model.config.predictors.size(), static_cast<size_t>(kHeads));
      constexpr size_t kColumns = 6;
      ASSERT_GT(rows.size(), 7 * kColumns);
      for (size_t at = 0; at < rows.size(); at += kColumns) {
        MtpDrafter drafter(model, false);
        ChosenText text;
        text.text.assign(golden.tokens.begin(), golden.tokens.begin() + rows[at]);
        Sequence sequence;
        while (sequence.n_cached + 1 < rows[at]) {
          const int32_t first = sequence.n_cached;
          const int32_t left = rows[at] - 1 - first;
          const int32_t n = left > 6 ? left - 6 : std::min(left, first % 3 + 1);
          const NewTokens input{.sequence = &sequence,
                                .tokens = std::span(text.text).subspan(static_cast<size_t>(first),
                                                                       static_cast<size_t>(n))};
          model.runner->step({&input, 1});
          static_cast<void>(model.runner->logits());
          drafter.processed(std::vector<ProcessedTokens>{{&text, first, 0, n}}, 1);
        }
        drafter.draft(std::vector<DraftTask>{{.group = &text, .n_tokens = kColumns - 1}});
        EXPECT_EQ(text.supposed,
                  std::vector<int32_t>(rows.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                                       rows.begin() + static_cast<std::ptrdiff_t>(at + kColumns)))
            << rows[at] << " tokens on " << device << " in " << stages;
        model.runner->release(sequence);
      }
    }
  }

  TemporaryFolder folder_;
};

// As DeepSeek V3's would be: each reads the hidden states of the one before.
TEST_F(SeveralHeads, ThatReadEachOthersStatesDraftWhatPyTorchDoes) {
  checkpoint("glm4_moe", "model.layers.2.",
             [](int n) { return "model.layers." + std::to_string(2 + n) + "."; });
  expect_drafts("glm4_moe");
}

TEST_F(SeveralHeads, ThatReadTheModelsStatesDraftWhatPyTorchDoes) {
  checkpoint("mimo_v2_flash", "model.mtp.layers.0.",
             [](int n) { return "model.mtp.layers." + std::to_string(n) + "."; });
  expect_drafts("mimo_v2_flash");
}

const std::vector<std::string> kOfQwen = {"fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden",
                                          "norm"};
const std::vector<std::string> kOfLayers = {"eh_proj", "enorm", "hnorm", "shared_head.norm"};
const std::vector<std::string> kOfMimo = {"eh_proj", "enorm", "hnorm", "final_layernorm"};
const std::vector<std::string> kOfErnie = {"model.mtp_linear_proj.0", "model.mtp_emb_norm.0",
                                           "model.mtp_hidden_norm.0", "model.norm"};
const std::vector<std::string> kOfLongcat = {"layers.0.eh_proj", "layers.0.enorm.m",
                                             "layers.0.hnorm.m", "norm"};
const std::vector<std::string> kOfNemotron = {"layers.0.eh_proj", "layers.0.enorm",
                                              "layers.0.hnorm", "layers.1.final_layernorm"};

TEST(IndexersOfSparseAttention, AreLeftOutWithAWordOnHowLongTextsCanBe) {
  const std::filesystem::path tokenizer = golden_root() / "gqa/tokenizer.model";
  for (const char* path : {"families/deepseek_v32", "gguf_families/deepseek_v32.gguf"}) {
    const std::string left_out =
        to_text(convert::open_source_model(golden_root() / path, tokenizer).left_out);
    EXPECT_NE(left_out.find("indexer (without them texts have 80 tokens at most)"),
              std::string::npos)
        << left_out;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PredictorHeads,
                         testing::Values(Heads{"qwen3_5_multimodal", "mtp.", kOfQwen, 1},
                                         Heads{"qwen3_next", "mtp.", kOfQwen, 1},
                                         Heads{"glm4_moe", "model.layers.2.", kOfLayers},
                                         Heads{"deepseek_v3", "model.layers.3.", kOfLayers},
                                         Heads{"mimo_v2_flash", "model.mtp.layers.0.", kOfMimo, 0,
                                               2, 0},
                                         Heads{"exaone_moe", "mtp.", kOfQwen, 0, 2, 2},
                                         Heads{"ernie4_5_moe", "", kOfErnie, 0, 0, 0},
                                         Heads{"longcat_flash", "model.mtp.", kOfLongcat},
                                         Heads{"nemotron_h", "mtp.", kOfNemotron}),
                         [](const auto& heads) { return heads.param.variant; });

}  // namespace
}  // namespace faststream
