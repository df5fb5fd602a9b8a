// Heads of EAGLE-3 beside a model (make_eagle_golden.py) give what their formula does, and those
// that do not fit are refused.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "convert/huggingface/weight_files.h"
#include "convert/pipeline.h"
#include "golden_data.h"
#include "models/tensor_plan.h"
#include "predicted_rows.h"
#include "support/error.h"
#include "unit/backend/test_backends.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

convert::ConvertOptions options_of(const fs::path& head, const fs::path& output) {
  const GoldenData golden = load_golden("gqa");
  convert::ConvertOptions options;
  options.checkpoint = golden.folder;
  options.tokenizer = golden.tokenizer;
  options.output = output;
  options.eagle = head;
  return options;
}

fs::path head_folder(const std::string& variant) { return golden_root() / "eagle" / variant; }

class EagleLogits : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(EagleLogits, AreThoseOfTheFormula) {
  const auto& [variant, device] = GetParam();
  const auto backend = make_test_backend(device);
  FASTSTREAM_REQUIRE_BACKEND(backend);
  const TemporaryFolder folder;
  convert::convert_checkpoint(options_of(head_folder(variant), folder / "m.bin"));
  const ModelFile file = ModelFile::open(folder / "m.bin");
  const auto wanted = read_numbers<float>(head_folder(variant) / "logits.f32");
  const std::vector<float> logits = predicted_rows(file, load_golden("gqa").tokens, 2, *backend);
  const auto got = std::span(logits).last(wanted.size());
  const auto row = static_cast<size_t>(read_config(file).predictors.at(0).output_rows());
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], 2e-3) << "row " << i / row << ", logit " << i % row;
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, EagleLogits,
                         testing::Combine(testing::Values("midlayer", "speculator", "norm_of_each"),
                                          testing::Values("reference", "cpu", "cuda")),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" + std::get<1>(tested.param);
                         });

// Heads of few bits are converted like the model, whose bits they do not change.
TEST(EagleHeads, ChangeNoTensorOfTheModel) {
  const TemporaryFolder folder;
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4, WeightFormat::bf16}) {
    convert::ConvertOptions options = options_of(head_folder("speculator"), folder / "with.bin");
    options.format = format;
    options.force = true;
    convert::convert_checkpoint(options);
    options.eagle.reset();
    options.output = folder / "without.bin";
    convert::convert_checkpoint(options);
    const ModelFile with = ModelFile::open(folder / "with.bin");
    const ModelFile without = ModelFile::open(folder / "without.bin");
    EXPECT_EQ(config_to_json(without_predictors(read_config(with))),
              config_to_json(read_config(without)));
    for (const TensorInfo& tensor : without.tensors()) {
      const TensorInfo* same = with.find(tensor.name);
      ASSERT_NE(same, nullptr) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(with.bytes(*same), without.bytes(tensor))) << tensor.name;
    }
  }
}

// A copy of a head that is changed, and what is said of it.
struct Fault {
  std::string name;
  std::string variant;
  std::function<void(json& config)> change;
  /// Of each tensor's name, shape and bytes; a name that becomes empty takes it away.
  std::function<void(std::string& name, std::vector<int64_t>& shape, std::vector<std::byte>& bytes)>
      edit;
  std::string message;
};

void write_head(const Fault& fault, const fs::path& folder) {
  const fs::path from = head_folder(fault.variant);
  std::ifstream file(from / "config.json");
  json config = json::parse(file);
  if (fault.change) fault.change(config);
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << config;
  convert::SourceFiles files;
  const convert::Checkpoint weights = convert::open_weight_files(from, files);
  json header;
  std::string data;
  for (const auto& [source, tensor] : weights.tensors()) {
    std::string name = source;
    std::vector<int64_t> shape = tensor.shape;
    std::vector<std::byte> bytes(tensor.bytes());
    weights.read(tensor, 0, bytes);
    if (fault.edit) fault.edit(name, shape, bytes);
    if (name.empty()) continue;
    header[name] = {{"dtype", tensor.format->name},
                    {"shape", shape},
                    {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::ofstream out(folder / "model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << text << data;
}

auto without_tensor(const std::string& dropped) {
  return [dropped](std::string& name, auto& /*shape*/, auto& /*bytes*/) {
    if (name == dropped) name.clear();
  };
}

// Sets the n-th of a tensor's numbers of eight bytes.
auto with_number(const std::string& tensor, size_t n, int64_t value) {
  return [=](const std::string& name, auto& /*shape*/, std::vector<std::byte>& bytes) {
    if (name == tensor) std::memcpy(bytes.data() + n * sizeof value, &value, sizeof value);
  };
}

auto with_member(const std::string& pointer, const json& value) {
  return [=](json& config) { config[json::json_pointer(pointer)] = value; };
}

std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

// What the reference computes of the last rows of a text with the head "midlayer" so changed.
std::vector<float> logits_with(const std::function<void(json& config)>& change) {
  const auto backend = make_test_backend("reference");
  const TemporaryFolder folder;
  write_head({.name = {}, .variant = "midlayer", .change = change, .edit = {}, .message = {}},
             folder / "head");
  convert::convert_checkpoint(options_of(folder / "head", folder / "m.bin"));
  return predicted_rows(ModelFile::open(folder / "m.bin"), load_golden("gqa").tokens, 2, *backend);
}

TEST(EagleHeads, SeeAWindowWhereTheirLayerDoes) {
  const auto with_window = [](int64_t window) {
    return logits_with([=](json& config) {
      config["layer_types"] = {"sliding_attention", "full_attention"};  // the second is another's
      config["sliding_window"] = window;
    });
  };
  const std::vector<float> plain = logits_with({});
  EXPECT_EQ(with_window(256), plain) << "longer than the text";
  EXPECT_EQ(logits_with([](json& config) { config["sliding_window"] = 2; }), plain)
      << "of no layer";
  const std::vector<float> narrow = with_window(2);
  ASSERT_EQ(narrow.size(), plain.size());
  EXPECT_NE(narrow, plain);
}

class EagleFaults : public testing::TestWithParam<Fault> {};

TEST_P(EagleFaults, AreRefusedInASentence) {
  const TemporaryFolder folder;
  write_head(GetParam(), folder / "head");
  try {
    convert::convert_checkpoint(options_of(folder / "head", folder / "m.bin"));
    ADD_FAILURE() << "was converted";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
    EXPECT_NE(message.find((folder / "head").string()), std::string::npos) << message;
  }
  EXPECT_FALSE(fs::exists(folder / "m.bin"));
}

constexpr const char* kLayers = "/eagle_config/eagle_aux_hidden_state_layer_ids";

INSTANTIATE_TEST_SUITE_P(
    Heads, EagleFaults,
    testing::Values(
        Fault{
            "other_width", "midlayer", with_member("/hidden_size", 48), {}, "hidden states of 48"},
        Fault{"other_target",
              "midlayer",
              with_member("/target_hidden_size", 64),
              {},
              "hidden states of 64, with its own of 32"},
        Fault{"more_tokens",
              "midlayer",
              with_member("/vocab_size", 1000),
              {},
              "a head for 1000 tokens, but the model has only 136"},
        Fault{"more_draft_tokens",
              "midlayer",
              with_member("/draft_vocab_size", 137),
              {},
              "\"draft_vocab_size\" 137"},
        Fault{"other_draft_vocabulary",
              "midlayer",
              with_member("/draft_vocab_size", 49),
              {},
              "has 50 elements where \"draft_vocab_size\" is 49"},
        Fault{"no_map", "midlayer", {}, without_tensor("d2t"), "no tensor \"d2t\""},
        Fault{"token_beyond", "midlayer", {}, with_number("d2t", 49, 87), "row 49 a token"},
        Fault{"token_before", "midlayer", {}, with_number("d2t", 3, -4), "row 3 a token"},
        Fault{"token_far_away", "midlayer", {}, with_number("d2t", 3, INT64_MAX), "row 3 a token"},
        Fault{"token_twice",
              "midlayer",
              {},
              [](const std::string& name, auto& /*shape*/, std::vector<std::byte>& bytes) {
                if (name != "d2t") return;
                int64_t first = 0;
                std::memcpy(&first, bytes.data(), sizeof first);
                --first;  // of the row after it
                std::memcpy(bytes.data() + sizeof first, &first, sizeof first);
              },
              "row 1 the token of another row"},
        Fault{"map_of_floats",
              "midlayer",
              {},
              [](std::string& name, auto& /*shape*/, auto& /*bytes*/) {
                if (name == "d2t") name = "other";
                if (name == "norm.weight") name = "d2t";
              },
              "no list of whole numbers"},
        Fault{"layer_beyond",
              "midlayer",
              with_member(kLayers, json{0, 1, 3}),
              {},
              "is not a whole number from 0 to 2"},
        Fault{"layer_before",
              "midlayer",
              with_member(kLayers, json{-1, 1, 2}),
              {},
              "is not a whole number from 0 to 2"},
        Fault{"layers_in_disorder",
              "midlayer",
              with_member(kLayers, json{1, 0, 2}),
              {},
              "does not ascend"},
        Fault{"fewer_layers",
              "midlayer",
              with_member(kLayers, json{0, 2}),
              {},
              "does not join 2 hidden states of 32"},
        Fault{"no_layers",
              "midlayer",
              with_member("/eagle_config", json::object()),
              {},
              "which layers' states"},
        Fault{"last_states_alone",
              "midlayer",
              with_member("/eagle_config/use_aux_hidden_state", false),
              {},
              "not supported"},
        Fault{"window_of_no_size",
              "midlayer",
              with_member("/layer_types", json{"sliding_attention"}),
              {},
              "\"sliding_window\" does not say"},
        Fault{"window_of_no_layer",
              "midlayer",
              with_member("/use_sliding_window", true),
              {},
              "\"use_sliding_window\""},
        Fault{"other_layer",
              "midlayer",
              with_member("/layer_types", json{"chunked_attention"}),
              {},
              "\"chunked_attention\""},
        Fault{"two_layers", "midlayer", with_member("/num_hidden_layers", 2), {}, "2 layers"},
        Fault{"other_speculator",
              "speculator",
              with_member("/speculators_model_type", "dflash"),
              {},
              "\"dflash\""},
        Fault{"quantized",
              "midlayer",
              with_member("/quantization_config", json::object()),
              {},
              "quantized already"},
        Fault{"no_product", "midlayer", {}, without_tensor("fc.weight"), "no tensor \"fc.weight\""},
        Fault{"of_eagle_1",
              "midlayer",
              {},
              [](const std::string& name, auto& shape, std::vector<std::byte>& bytes) {
                if (name != "fc.weight") return;
                shape[1] = 64;
                bytes.resize(bytes.size() / 3 * 2);
              },
              "EAGLE-1"},
        Fault{"no_layer",
              "midlayer",
              {},
              without_tensor("midlayer.self_attn.q_proj.weight"),
              "no tensor \"layers.0.self_attn.q_proj.weight\""},
        Fault{"no_output", "midlayer", {}, without_tensor("lm_head.weight"), "\"lm_head.weight\""},
        Fault{"other_heads", "midlayer", with_member("/num_key_value_heads", 4), {}, "k_proj"},
        Fault{"unknown_tensor",
              "midlayer",
              {},
              [](std::string& name, auto& /*shape*/, auto& /*bytes*/) {
                if (name == "t2d") name = "midlayer.gate.weight";
              },
              "no place"}),
    [](const auto& fault) { return fault.param.name; });

}  // namespace
}  // namespace faststream
