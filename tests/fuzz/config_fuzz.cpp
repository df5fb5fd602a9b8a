// config.json and its kin of a Hugging Face folder: whatever the bytes, an Error or a configuration
// that is valid, survives the model file's header, and plans tensors of possible sizes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "convert/families/family.h"
#include "convert/huggingface/answers_from_hf.h"
#include "convert/huggingface/hf_folder.h"
#include "convert/huggingface/sentence_transformers.h"
#include "convert/tokenizers/added_tokens.h"
#include "models/tensor_plan.h"
#include "support/error.h"
#include "support/json.h"

namespace {

void check(const faststream::ModelConfig& config) {
  const nlohmann::json header = faststream::config_to_json(config);
  if (faststream::config_to_json(faststream::config_from_json(header, "fuzz")) != header) {
    std::abort();
  }
  constexpr int64_t kEnough = 8;  // layers are all alike
  if (config.n_layers() > kEnough) return;
  for (const faststream::TensorPlan& plan : faststream::tensor_plan(config)) {
    for (const int64_t extent : plan.shape) {
      if (extent < 1) std::abort();
    }
  }
}

void check(const faststream::AnswerRules& rules) {
  const nlohmann::json header = faststream::answer_rules_to_json(rules);
  if (faststream::answer_rules_to_json(
          faststream::answer_rules_from_json(header, 1000, 1000, "fuzz")) != header) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json config = faststream::parse_json_object(text, "fuzz");
    const nlohmann::json empty = nlohmann::json::object();
    static_cast<void>(
        faststream::convert::tokenizer_config_from_hf(config, config, config, "fuzz"));
    static_cast<void>(faststream::convert::tokenizer_config_from_hf(empty, empty, config, "fuzz"));
    static_cast<void>(faststream::convert::added_tokens_from_hf(config, empty, config, "fuzz"));
    static_cast<void>(faststream::convert::added_tokens_from_hf(empty, config, empty, "fuzz"));
    check(faststream::convert::answers_from_hf(config, config, {}, {}, 1000, "fuzz"));
    try {
      static_cast<void>(faststream::convert::pooling_from_json(config, "fuzz"));
    } catch (const faststream::Error&) {  // it is another file
    }
    const nlohmann::json of_text = faststream::convert::text_config(config);
    const faststream::convert::Checkpoint none("fuzz");
    check(
        faststream::convert::describe_family({faststream::JsonView(of_text, "fuzz"), none}, "fuzz")
            .config);
  } catch (const faststream::Error&) {  // the only way to say no
  }
  return 0;
}
