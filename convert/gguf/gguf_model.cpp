#include "convert/gguf/gguf_model.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_file.h"
#include "convert/tokenizers/gguf_tokenizer.h"
#include "convert/tokenizers/tokenizer_file.h"
#include "engine/default_sampling.h"
#include "support/error.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

// "tokenizer.chat_template" is the one in use; others have names.
nlohmann::json chat_templates(const GgufMetadata& metadata) {
  auto found = metadata.find_text("tokenizer.chat_template");
  if (!found) found = metadata.find_text("tokenizer.chat_template.default");
  if (!found) return nullptr;
  const auto tool_use = metadata.find_text("tokenizer.chat_template.tool_use");
  if (!tool_use) return *found;
  return {{"default", *found}, {"tool_use", *tool_use}};
}

// "general.sampling.*" in the terms of a model file; null where there is none of them.
nlohmann::json recommended_sampling(const GgufMetadata& metadata) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kNumbers = {
      {{"temp", "temperature"},
       {"top_p", "top_p"},
       {"min_p", "min_p"},
       {"penalty_repeat", "repetition_penalty"}}};
  const std::string prefix = "general.sampling.";
  nlohmann::json sampling;
  for (const auto& [theirs, ours] : kNumbers) {
    if (const auto value = metadata.find_number(prefix + theirs)) {
      sampling[ours] = static_cast<float>(*value);
    }
  }
  if (const auto top_k = metadata.find_integer(prefix + "top_k")) sampling["top_k"] = *top_k;
  if (!sampling.is_null()) (void)sampling_from_json(sampling, metadata.where());
  return sampling;
}

// Dimensions of one element come and go, and vectors have been stored as matrices. Gives parts the
// shapes that their tensors have where these hold the same rows.
void take_shapes(const Checkpoint& weights, TensorParts& parts) {
  for (auto& [id, of_tensor] : parts) {
    for (TensorPart& part : of_tensor) {
      const SourceTensor* tensor = part.source.empty() ? nullptr : weights.find(part.source);
      if (tensor != nullptr && has_rows_of(*tensor, part)) part.shape = tensor->shape;
    }
  }
}

}  // namespace

SourceModel open_gguf_model(const fs::path& path, const std::optional<fs::path>& tokenizer) {
  SourceFiles files;
  GgufFile gguf = open_gguf_file(path, files);
  if (gguf.metadata.find_text("general.type") == "adapter") {
    throw Error(path.string() + ": is an adapter and no model; convert the model's own file");
  }
  GgufFamilyModel family = describe_gguf(gguf.metadata, gguf.weights);
  std::vector<LeftOut> left_out = leave_out(gguf.weights, family.modules);
  GgufTokenizer own = tokenizer_from_gguf(gguf.metadata);
  SourceModel model{.family = gguf.metadata.text("general.architecture"),
                    .config = std::move(family.config),
                    .tokenizer = {.config = std::move(own.config),
                                  .sentencepiece = std::move(own.sentencepiece),
                                  .description = std::move(own.description)},
                    .chat_template = chat_templates(gguf.metadata),
                    .special_tokens = {},
                    .answers = {},
                    .sampling = recommended_sampling(gguf.metadata),
                    .weights = std::move(gguf.weights),
                    .parts = {},
                    .added_tokens = {},
                    .left_out = std::move(left_out),
                    .files = {}};
  if (tokenizer) {
    use_tokenizer(read_tokenizer_file(*tokenizer, model.config.vocab, files), model.tokenizer);
  }
  model.parts = parts_of(model.config, family.modules, model.weights, family.encoder_modules);
  if (family.finish) family.finish(model.config, model.parts);
  model.predictors = keep_predictors(family.predictors, family.modules, model.config, model.weights,
                                     model.parts, model.left_out);
  take_shapes(model.weights, model.parts);
  take_types_of_weights(model);
  refuse_unknown_tensors(model, [&](std::string_view name) {
    return std::ranges::find(family.modules.unused, name) != family.modules.unused.end();
  });
  if (model.config.encoder) {
    if (!model.sampling.contains("temperature")) model.sampling["temperature"] = 0;
    model.answers = answer_rules_to_json(family.answers);
  }
  model.files = std::move(files);
  return model;
}

}  // namespace faststream::convert
