// Texts whose rotations depend on their length are those of Transformers, whatever length the run
// allows and whoever else is in it (make_rope_golden.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "golden_data.h"
#include "searches.h"
#include "unit/backend/test_backends.h"

namespace faststream {
namespace {

using nlohmann::json;

const json& rope_golden() {
  static const json all = [] {
    std::ifstream file(golden_root() / "ropes.json");
    return json::parse(file);
  }();
  return all;
}

class RopeGolden : public DeviceTest {
 protected:
  // All texts of a model, at once or one after the other, `times` times.
  static void compare(const std::string& family, EngineOptions options, bool together,
                      int times = 1, bool preempts = false) {
    SCOPED_TRACE(family);
    convert::ConvertOptions converted;
    converted.checkpoint = golden_root() / "families" / family;
    converted.tokenizer = golden_root() / "gqa" / "tokenizer.model";
    converted.format = WeightFormat::f32;
    const ConvertedCheckpoint model(converted);
    options.device = GetParam();
    options.threads = 2;
    Engine engine(model.path(), options);
    Searches searches(engine, together);
    for (int time = 0; time < times; ++time) submit(searches, family, engine.info().context);
    searches.finish(preempts);
  }

 private:
  // Those that the context has room for.
  static void submit(Searches& searches, const std::string& family, int64_t context) {
    const auto text = rope_golden().at("text").get<std::vector<int32_t>>();
    for (const json& search : rope_golden().at("searches")) {
      if (search.at("model") != family) continue;
      for (const json& found : search.at("texts")) {
        const auto length = found.at(0).get<int64_t>();
        Request request;
        request.prompt = std::vector<int32_t>(text.begin(), text.begin() + length);
        request.max_tokens = rope_golden().at("max_tokens").get<int64_t>();
        if (length + request.max_tokens > context) continue;
        request.sampling.temperature = 0;
        request.search.beams = search.at("beams").get<int32_t>();
        request.ignore_eos = true;
        const std::vector<int32_t> expected(found.begin() + 1, found.end());
        searches.submit("a prompt of " + std::to_string(length) + " tokens, " +
                            search.at("beams").dump() + " beams",
                        request, [expected](const Result& result) {
                          EXPECT_EQ(result.outputs.at(0).tokens, expected);
                        });
      }
    }
  }
};

constexpr const char* kFamilies[] = {"phi3_short", "llama_dynamic"};

TEST_P(RopeGolden, TextsAreTransformersTexts) {
  for (const char* family : kFamilies) {
    compare(family, {.slots = 4, .prefix_sharing = false}, false);
  }
}

// All prompts begin alike, so that those before have what those after them could go on from.
TEST_P(RopeGolden, TextsAreTransformersTextsInBatchesAndFromTheCache) {
  for (const char* family : kFamilies) {
    compare(family, {.slots = 16, .chunk = 16}, true, 2);
    compare(family, {.slots = 4}, false, 2);
  }
}

TEST_P(RopeGolden, TextsAreTransformersTextsWhereNoneCanBeLong) {
  compare("phi3_short", {.context = 128, .slots = 8}, true);
  compare("phi3_short", {.context = 160, .slots = 8}, true);
}

TEST_P(RopeGolden, TextsAreTransformersTextsWithPagesForFew) {
  compare("phi3_short", {.context = 192, .slots = 16, .kv_tokens = 416}, true, 4);
  compare("llama_dynamic", {.context = 64, .slots = 12, .kv_tokens = 192}, true, 2, true);
}

INSTANTIATE_TEST_SUITE_P(Cpu, RopeGolden, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, RopeGolden, testing::Values("cuda"));

}  // namespace
}  // namespace faststream
