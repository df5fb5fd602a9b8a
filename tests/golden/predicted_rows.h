// Logits of a model file's predictor, of a golden prompt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "engine/load_weights.h"
#include "engine/runner.h"
#include "model_file/model_file.h"

namespace faststream {

/// [tokens - 1 + further, rows of the output matrix]: after each of the tokens but the first one,
/// beside the hidden state of the one before, and then so many times after the likeliest token of
/// the row before, beside the predictor's own hidden state. The model reads the tokens in pieces,
/// whose hidden states are there whether their logits are wanted or not.
inline std::vector<float> predicted_rows(const ModelFile& file, std::span<const int32_t> tokens,
                                         int further, Backend& backend) {
  const auto n_tokens = static_cast<int32_t>(tokens.size());
  const RunnerLimits limits{
      .n_pages = 32, .sequences = 2, .batch = {.max_tokens = n_tokens, .max_logits = n_tokens}};
  auto executor =
      std::make_unique<DeviceExecutor>(file, read_config(file), backend, limits, nullptr);
  DeviceExecutor& model = *executor;
  Runner runner(std::move(executor));
  std::unique_ptr<DeviceExecutor> own = model.make_own_predictor(0, limits);
  DeviceExecutor& head = *own;
  Runner predictor(std::move(own));
  const OutputConfig& output = head.config().output;
  Sequence sequence = runner.begin(n_tokens);
  Sequence predicted = predictor.begin(n_tokens);
  std::vector<float> logits;
  const auto predict = [&](std::span<const int32_t> next) {
    predictor.step({{{&predicted, next, NewTokens::Logits::all}}});
    const std::vector<float> more = predictor.logits();
    logits.insert(logits.end(), more.begin(), more.end());
  };
  const size_t first = tokens.size() / 3;
  const std::pair<std::span<const int32_t>, NewTokens::Logits> pieces[] = {
      {tokens.first(first), NewTokens::Logits::none},
      {tokens.subspan(first, first), NewTokens::Logits::last},
      {tokens.subspan(2 * first), NewTokens::Logits::all}};
  size_t n_read = 0;
  for (const auto& [piece, of] : pieces) {
    runner.step({{{&sequence, piece, of}}});
    std::vector<int32_t> rows(std::min(piece.size(), tokens.size() - 1 - n_read));
    std::iota(rows.begin(), rows.end(), 0);
    head.take_hidden_states(rows);
    predict(tokens.subspan(n_read + 1, rows.size()));
    n_read += rows.size();
  }
  std::vector<int32_t> row{static_cast<int32_t>(pieces[2].first.size()) - 2};
  for (int n = 0; n < further; ++n) {
    const auto last =
        std::span<const float>(logits).last(static_cast<size_t>(head.config().output_rows()));
    const auto likeliest = std::ranges::max_element(last) - last.begin();
    const int32_t token = output.tokens.empty() ? static_cast<int32_t>(likeliest)
                                                : output.tokens[static_cast<size_t>(likeliest)];
    head.take_own_states(row);
    predict({&token, 1});
    row = {0};
  }
  runner.release(sequence);
  predictor.release(predicted);
  return logits;
}

}  // namespace faststream
