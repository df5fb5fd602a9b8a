// Adapters that a checkpoint has for tasks: which are merged, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "convert/adapters/task_adapters.h"
#include "convert/huggingface/safetensors.h"
#include "convert/quantized/module_tensors.h"
#include "convert/source_model.h"
#include "golden/golden_data.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Of rank 1 and two tasks: of a product [2, 3], and of a table [2, 3].
const std::string kParts = ".parametrizations.weight.";
TestTensors tensors_for_tasks() {
  const auto of = [](const std::vector<int64_t>& shape, const std::vector<float>& values) {
    return TestTensor{DType::f32, shape, values};
  };
  return {{"dense" + kParts + "original", of({2, 3}, {0, 1, 2, 3, 4, 5})},
          {"dense" + kParts + "0.lora_A", of({2, 1, 3}, {9, 9, 9, 1, 2, 3})},
          {"dense" + kParts + "0.lora_B", of({2, 2, 1}, {9, 9, 10, 20})},
          {"table" + kParts + "original", of({2, 3}, {0, 0, 0, 0, 0, 0})},
          {"table" + kParts + "0.lora_A", of({2, 2, 1}, {9, 9, 10, 20})},
          {"table" + kParts + "0.lora_B", of({2, 1, 3}, {9, 9, 9, 1, 2, 3})},
          {"norm.weight", of({3}, {1, 1, 1})}};
}

class TaskAdapters : public testing::Test {
 protected:
  MergedTask merge(std::string_view task) {
    write_bytes(folder_ / "t.safetensors", safetensors_bytes(tensors_));
    weights_ = Checkpoint("folder");
    SourceFiles files;
    add_safetensors_file(weights_, folder_ / "t.safetensors", files);
    return merge_task(JsonView(config_, "config.json"), task, weights_);
  }
  std::string error(std::string_view task) {
    return error_of([&] { merge(task); });
  }
  [[nodiscard]] std::vector<float> values(const std::string& name) const {
    return values_of(weights_, *weights_.find(name));
  }

  json config_ = {{"lora_adaptations", {"ask", "answer"}},
                  {"lora_rank", 1},
                  {"lora_alpha", 0.5},
                  {"task_instructions", {{"answer", "The answer: "}}}};
  TestTensors tensors_ = tensors_for_tasks();
  Checkpoint weights_{""};
  TemporaryFolder folder_;
};

TEST_F(TaskAdapters, AddTheProductsOfTheTask) {
  const MergedTask merged = merge("answer");
  EXPECT_EQ(values("dense.weight"), (std::vector<float>{5, 11, 17, 13, 24, 35}));
  EXPECT_EQ(values("table.weight"), (std::vector<float>{5, 10, 15, 10, 20, 30}));
  EXPECT_EQ(weights_.tensors().size(), 3) << "all have plain names";
  EXPECT_EQ(to_text(merged.adapter.value()), "answer: 2 tensors changed, of rank 1");
  EXPECT_EQ(merged.instruction, "The answer: ");
  EXPECT_EQ(merge("ask").instruction, "") << "it has none";
}

TEST_F(TaskAdapters, StayOutWhereNoneIsChosen) {
  const MergedTask merged = merge("none");
  EXPECT_EQ(values("dense.weight"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_FALSE(merged.adapter);
  EXPECT_EQ(merged.instruction, "");
}

TEST_F(TaskAdapters, MustBeChosenByName) {
  EXPECT_TRUE(says(error(""), "config.json", "--task: ask, answer, none"));
  EXPECT_TRUE(says(error("asks"), "\"asks\"", "ask, answer, none"));
  tensors_ = {{"norm.weight", tensors_.at("norm.weight")}};
  EXPECT_EQ(error(""), "") << "Transformers' class lists tasks, too";
  EXPECT_EQ(error("none"), "");
  EXPECT_TRUE(says(error("ask"), "folder", "--task"));
}

TEST_F(TaskAdapters, AreRefusedWhenTheyAreDamaged) {
  const auto with = [&](const std::string& name, const TestTensor& tensor) {
    TestTensors whole = tensors_;
    tensors_.erase(name);
    if (!tensor.shape.empty()) tensors_[name] = tensor;
    std::string text = error("ask");
    tensors_ = std::move(whole);
    return text;
  };
  const std::string a = "dense" + kParts + "0.lora_A";
  EXPECT_TRUE(says(with(a, {}), "dense" + kParts + "original", "0.lora_A"));
  EXPECT_TRUE(says(with(a, {DType::f32, {2, 1, 2}, {1, 2, 3, 4}}), a, "[2, 1, 2]"));
  EXPECT_TRUE(says(with(a, {DType::f32, {1, 1, 3}, {1, 2, 3}}), a, "2 tasks"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(says(with(a, {DType::f32, {2, 1, 3}, {1, nan, 3, 4, 5, 6}}), a, "NaN"));
  EXPECT_TRUE(says(with("dense" + kParts + "original", {DType::f32, {6}, {0, 1, 2, 3, 4, 5}}),
                   "dense" + kParts + "original", "no matrix"));
  for (const json& changes :
       {json{{"lora_rank", 0}}, json{{"lora_rank", nullptr}}, json{{"lora_alpha", "1"}},
        json{{"lora_adaptations", nullptr}}, json{{"lora_adaptations", {1}}}}) {
    const json whole = config_;
    config_.merge_patch(changes);
    EXPECT_TRUE(says(error("ask"), "config.json", changes.begin().key())) << changes;
    config_ = whole;
  }
}

TEST(TaskAdaptersOfFolders, GiveAModelItsInstruction) {
  const fs::path golden = golden_root() / "encoders/jina_embeddings_v3_task";
  const auto open = [](const fs::path& folder, std::string_view task) {
    return open_source_model(folder, std::nullopt, {}, task);
  };
  EXPECT_EQ(open(golden, "retrieval.query").config.pooling->prompt, "the question is: ");
  EXPECT_EQ(open(golden, "separation").config.pooling->prompt, "");
  EXPECT_TRUE(open(golden, "none").adapters.empty());
  EXPECT_TRUE(says(error_of([&] { (void)open(golden, ""); }), "retrieval.query"));

  TemporaryFolder folder;
  fs::copy(golden, folder.path(), fs::copy_options::recursive);
  fs::remove(folder / "modules.json");
  EXPECT_TRUE(
      says(error_of([&] { (void)open(folder.path(), "retrieval.query"); }), "modules.json"));
  EXPECT_FALSE(open(folder.path(), "separation").config.pooling) << "--pooling says it";
  const fs::path gguf = golden_root() / "gguf_encoders/bert.gguf";
  EXPECT_TRUE(says(error_of([&] { (void)open(gguf, "separation"); }), "--task"));
}

}  // namespace
}  // namespace faststream::convert
