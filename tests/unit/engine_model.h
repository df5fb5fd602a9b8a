// Small models with random weights and a tokenizer, as files, for tests of the engine.
#pragma once

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/random_model.h"
#include "model_file/model_file.h"
#include "model_file/model_image.h"
#include "model_file/model_writer.h"
#include "text/tokenizer.h"
#include "tokenizer_models.h"

namespace faststream {

/// GQA, a head_dim that is not hidden / heads, a context that ends inside a page.
inline ModelConfig engine_shape(DType dtype) {
  ModelConfig config = plain_decoder({.n_layers = 2,
                                      .hidden = 64,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 24,
                                      .ffn_hidden = 96,
                                      .vocab = 280,
                                      .max_context = 1000});
  config.weights = config.output_dtype = dtype;
  config.embedding_dtype = dtype == DType::i8 ? DType::bf16 : dtype;
  return config;
}

/// The file of a model of engine_shape() with small_model()'s tokenizer; made once a process and
/// removed at its end.
inline std::filesystem::path engine_model(DType dtype = DType::f32) {
  struct Files {
    std::map<DType, std::filesystem::path> paths;
    ~Files() {
      std::error_code ignored;
      for (const auto& [type, path] : paths) std::filesystem::remove(path, ignored);
    }
  };
  static Files files;
  if (const auto found = files.paths.find(dtype); found != files.paths.end()) return found->second;

  const ModelConfig config = engine_shape(dtype);
  const ModelImage weights = make_random_model(config, 11);
  const std::string tokenizer = serialize_sentencepiece_model(small_model(true));
  const TokenizerConfig ids{.bos = 1, .eos = {2}, .prefix = {1}, .suffix = {}};
  std::vector<TensorSpec> specs{{"tokenizer", DType::u8, {static_cast<int64_t>(tokenizer.size())}}};
  for (const TensorPlan& plan : tensor_plan(config)) {
    specs.push_back({plan.name, plan.dtype, plan.shape});
  }
  const auto path =
      std::filesystem::temp_directory_path() / ("faststream-engine-" + std::to_string(getpid()) +
                                                "-" + std::string(dtype_name(dtype)) + ".bin");
  ModelWriter writer(
      path, {{"model", config_to_json(config)}, {"tokenizer", tokenizer_config_to_json(ids)}},
      specs, true);
  writer.append(as_bytes(tokenizer));
  const ModelFile source = ModelFile::from_bytes(weights.bytes(), "random");
  for (const TensorPlan& plan : tensor_plan(config)) {
    writer.append(source.bytes(source.require(plan.name, plan.dtype, plan.shape)));
  }
  writer.finish();
  return files.paths[dtype] = path;
}

}  // namespace faststream
