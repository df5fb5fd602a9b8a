// config.json and its kin of a Hugging Face folder: whatever the bytes, an Error or a configuration
// that is valid, survives the model file's header, plans tensors of possible sizes, and says of
// which tensors of a checkpoint they are made.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "convert/families/family.h"
#include "convert/huggingface/answers_from_hf.h"
#include "convert/huggingface/hf_folder.h"
#include "convert/huggingface/sentence_transformers.h"
#include "convert/tokenizers/added_tokens.h"
#include "fuzz/fuzz_target.h"
#include "models/tensor_plan.h"
#include "support/error.h"
#include "support/json.h"

namespace {

constexpr int64_t kEnoughLayers = 8;  // layers are all alike

void check(const faststream::ModelConfig& config) {
  const nlohmann::json header = faststream::config_to_json(config);
  if (faststream::config_to_json(faststream::config_from_json(header, "fuzz")) != header) {
    std::abort();
  }
  if (config.n_layers() > kEnoughLayers) return;
  for (const faststream::TensorPlan& plan : faststream::tensor_plan(config)) {
    for (const int64_t extent : plan.shape) {
      if (extent < 1) std::abort();
    }
  }
}

// With as many tensors as layers are listed for, of which none is read.
faststream::convert::Checkpoint some_checkpoint() {
  faststream::convert::Checkpoint checkpoint("fuzz");
  checkpoint.add_file(faststream::convert::SourceFiles().open("/proc/self/exe"));
  for (int n = 0; n < kEnoughLayers; ++n) {
    checkpoint.add_tensor({.name = std::to_string(n), .shape = {1}});
  }
  return checkpoint;
}

void list_parts(const faststream::convert::FamilyModel& family,
                const faststream::convert::Checkpoint& weights) {
  int64_t heads = 0;  // or experts, of all layers
  for (const size_t kind : family.config.layers) {
    const faststream::LayerConfig& layer = family.config.layer_kinds[kind];
    for (const faststream::Mixer& mixer : layer.mixers) heads += faststream::n_heads_of(mixer);
    if (layer.experts) heads += layer.experts->scored();
  }
  constexpr int64_t kEnoughHeads = 256;
  if (heads > kEnoughHeads) return;
  faststream::convert::TensorParts parts =
      faststream::convert::parts_of(family.config, family.modules, weights, family.encoder_modules);
  if (family.finish) family.finish(family.config, weights, parts);
  for (const auto& [id, of_tensor] : parts) {
    for (const faststream::convert::TensorPart& part : of_tensor) {
      for (const int64_t extent : part.shape) {
        if (extent < 0) std::abort();
      }
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

FUZZ_TARGET(config) {
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
    static const faststream::convert::Checkpoint weights = some_checkpoint();
    const faststream::convert::FamilyModel family = faststream::convert::describe_family(
        {faststream::JsonView(of_text, "fuzz"), weights}, "fuzz");
    check(family.config);
    list_parts(family, weights);
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
