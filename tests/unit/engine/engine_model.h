// Small models with random weights and a tokenizer, as files, for tests of the engine.
#pragma once

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "bench/random_model.h"
#include "engine/engine.h"
#include "model_file/model_file.h"
#include "model_file/model_image.h"
#include "model_file/model_writer.h"
#include "models/tensor_plan.h"
#include "text/tokenizer.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {

/// GQA, a head_dim that is not hidden / heads, a context that ends inside a page. A window, if any,
/// is of the first of two layers.
inline ModelConfig engine_shape(WeightFormat format, int64_t window = 0) {
  ModelConfig config = plain_decoder({.n_layers = 2,
                                      .hidden = 64,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 24,
                                      .ffn_hidden = 96,
                                      .vocab = 280,
                                      .max_context = 1000});
  config.weight_format = config.output_format = format;
  config.embedding_format = is_float(format) ? format : WeightFormat::bf16;
  if (window > 0) {
    LayerConfig windowed = config.layer_kinds[0];
    windowed.name = "windowed";
    windowed.attention().window = window;
    config.layer_kinds.push_back(windowed);
    config.layers[0] = 1;
  }
  return config;
}

/// The same with a layer more, whose mixer keeps a state, before the others.
inline ModelConfig hybrid_engine_shape(const Mixer& mixer) {
  ModelConfig config = engine_shape(WeightFormat::f32);
  LayerConfig recurrent = config.layer_kinds[0];
  recurrent.name = "recurrent";
  recurrent.mixers = {mixer};
  config.layer_kinds.push_back(recurrent);
  config.layers.insert(config.layers.begin(), 1);
  return config;
}
inline Mixer small_delta_net() {
  return DeltaNetConfig{.n_key_heads = 1,
                        .n_value_heads = 2,
                        .key_head_dim = 12,
                        .value_head_dim = 10,
                        .convolution = {.taps = 4, .activation = Activation::silu},
                        .norm = {.kind = NormKind::rms, .eps = 1e-6F}};
}

/// What the weights of a model are.
using MakeWeights = std::function<ModelImage(const ModelConfig& config)>;
inline ModelImage random_weights(const ModelConfig& config) {
  return bench::make_random_model(config, 11);
}

/// The file of a model with these pieces and the control token [TOOL_CALLS]; one that gives scores
/// takes pairs. Made once a process, by its name, and removed at its end.
inline std::filesystem::path engine_model_of(const ModelConfig& config, const std::string& name,
                                             SentencePieceModel pieces = small_model(true),
                                             const MakeWeights& make_weights = random_weights) {
  struct Files {
    std::map<std::string, std::filesystem::path> paths;
    ~Files() {
      std::error_code ignored;
      for (const auto& [made, path] : paths) std::filesystem::remove(path, ignored);
    }
  };
  static Files files;
  if (const auto found = files.paths.find(name); found != files.paths.end()) return found->second;

  const ModelImage weights = make_weights(config);
  pieces.pieces.push_back({"[TOOL_CALLS]", 0, SentencePieceModel::PieceType::control});
  const std::string tokenizer = compile_sentencepiece(pieces);
  TokenizerConfig ids{.bos = 1, .eos = {2}, .prefix = {1}, .suffix = {}};
  if (config.pooling && config.pooling->scores) ids.between = {2};
  std::vector<TensorSpec> specs{{"tokenizer", DType::u8, {static_cast<int64_t>(tokenizer.size())}}};
  for (const TensorPlan& plan : tensor_plan(config)) {
    specs.push_back({plan.name, plan.stored_as(), plan.stored_shape()});
  }
  const auto path = std::filesystem::temp_directory_path() /
                    ("faststream-engine-" + std::to_string(getpid()) + "-" + name + ".bin");
  ModelWriter writer(
      path, {{"model", config_to_json(config)}, {"tokenizer", tokenizer_config_to_json(ids)}},
      specs, true);
  writer.append(as_bytes(tokenizer));
  const ModelFile source = ModelFile::from_bytes(weights.bytes(), "random");
  for (const TensorPlan& plan : tensor_plan(config)) {
    writer.append(source.bytes(source.require(plan.name, plan.stored_as(), plan.stored_shape())));
  }
  writer.finish();
  return files.paths[name] = path;
}
/// Of engine_shape().
inline std::filesystem::path engine_model(WeightFormat format = WeightFormat::f32,
                                          int64_t window = 0) {
  return engine_model_of(engine_shape(format, window),
                         std::string(format_name(format)) + "-" + std::to_string(window));
}

/// read(result) of each request, all of which are in work at once.
template <class Read>
auto run_together(Engine& engine, const std::vector<Request>& requests, Read read) {
  std::vector<std::future<Result>> futures;
  for (const Request& request : requests) futures.push_back(engine.submit(request));
  std::vector<decltype(read(Result{}))> all;
  for (auto& future : futures) all.push_back(read(future.get()));
  return all;
}

/// The same, one after the other.
template <class Read>
auto run_alone(Engine& engine, const std::vector<Request>& requests, Read read) {
  std::vector<decltype(read(Result{}))> all;
  for (const Request& request : requests) all.push_back(read(engine.submit(request).get()));
  return all;
}

}  // namespace faststream
