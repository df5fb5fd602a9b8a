// Beam searches find the texts that Transformers finds, with the same scores (make_beam_golden.py).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/batch/batch_line.h"
#include "engine/engine.h"
#include "golden_data.h"
#include "searches.h"
#include "unit/backend/test_backends.h"
#include "unit/effort.h"

namespace faststream {
namespace {

using nlohmann::json;

const json& beam_golden() {
  static const json all = [] {
    std::ifstream file(golden_root() / "beams.json");
    return json::parse(file);
  }();
  return all;
}

convert::ConvertOptions searched_model(const std::string& family) {
  convert::ConvertOptions options;
  options.checkpoint = golden_root() / "families" / family;
  options.tokenizer = golden_root() / "gqa" / "tokenizer.model";
  options.format = WeightFormat::f32;
  return options;
}

/// The search as a line of a batch asks for it.
Request search_line(const json& search, const json& prompt) {
  json line = search.at("settings");
  line["prompt"] = prompt;
  line["n"] = line.at("beams");
  line["max_tokens"] = beam_golden().at("max_tokens");
  line["stop_tokens"] = beam_golden().at("ends");
  line["ignore_eos"] = true;  // 2 is among the ends
  Request defaults;
  defaults.sampling.seed = 0;
  const cli::BatchLine parsed =
      cli::parse_batch_line(line.dump(), 1, cli::BatchFormat::json, defaults);
  EXPECT_EQ(parsed.error, "");
  return parsed.request;
}

class BeamGolden : public DeviceTest {
 protected:
  // All searches of a model at once or one after the other.
  static void compare(const std::string& family, const EngineOptions& options, bool together) {
    const ConvertedCheckpoint model(searched_model(family));
    Engine engine(model.path(), options);
    Searches searches(engine, together);
    for (const char* part : {"beams", "groups"}) {
      for (const json& search : beam_golden().at("parts").at(part)) {
        if (search.at("model") != family) continue;
        for (size_t i = 0; i < search.at("texts").size(); ++i) {
          const json& texts = search.at("texts")[i];
          if (texts.is_null()) continue;  // rounding decides
          const Request request = search_line(search, beam_golden().at("prompts")[i]);
          searches.submit(search.at("settings").dump() + ", prompt " + std::to_string(i), request,
                          [&texts, request](Result result) {
                            expect_texts(std::move(result), request, texts);
                          });
          if (HasFailure()) return;
        }
      }
    }
    searches.finish(options.kv_tokens > 0);
  }
};

TEST_P(BeamGolden, FindsTransformersTextsAlone) {
  compare("llama", {.device = GetParam(), .threads = 2, .slots = 8}, false);
}

TEST_P(BeamGolden, FindsTransformersTextsInBatches) {
  for (const char* family : {"llama", "mistral", "gpt2"}) {
    if (kSanitized && family != std::string_view("mistral")) continue;
    SCOPED_TRACE(family);
    compare(family, {.device = GetParam(), .threads = 2, .slots = 64}, true);
  }
}

TEST_P(BeamGolden, FindsTransformersTextsWithPagesForATenth) {
  for (const char* family : {"llama", "mistral"}) {
    SCOPED_TRACE(family);
    compare(family,
            {.device = GetParam(), .threads = 2, .context = 96, .slots = 64, .kv_tokens = 640},
            true);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, BeamGolden, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, BeamGolden, testing::Values("cuda"));

}  // namespace
}  // namespace faststream
