// Requests whose texts must not depend on which others they are computed beside.
#pragma once

#include <random>
#include <vector>

#include "engine/engine.h"
#include "unit/effort.h"

namespace faststream {

/// Of the vocabulary of engine_shape().
inline std::vector<int32_t> random_tokens(std::mt19937& random, size_t length) {
  std::vector<int32_t> tokens;
  while (tokens.size() < length) tokens.push_back(3 + static_cast<int32_t>(random() % 276));
  return tokens;
}

inline void append(std::vector<int32_t>& to, const std::vector<int32_t>& tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

/// Some with a common beginning, of several lengths, several samples of some; six that are short
/// when they begin and long when they end: together they do not fit.
inline std::vector<Request> requests_of_all_lengths() {
  std::mt19937 random(37);
  const std::vector<int32_t> common = random_tokens(random, 70);
  std::vector<Request> all;
  for (size_t i = 0; i < repetitions(30); ++i) {
    std::vector<int32_t> prompt{1};
    if (i % 3 == 0) append(prompt, common);
    append(prompt, random_tokens(random, random() % 150));
    Request request;
    request.prompt = prompt;
    request.max_tokens = 1 + static_cast<int64_t>(random() % 60);
    request.sampling.seed = random();
    if (i % 2 == 0) request.sampling.temperature = 0;
    if (i % 10 == 3) request.n = 3;
    all.push_back(request);
  }
  for (int i = 0; i < 6; ++i) {
    Request request;
    request.prompt = random_tokens(random, 20);
    request.max_tokens = 80;
    request.ignore_eos = true;
    request.sampling.seed = random();
    all.push_back(request);
  }
  return all;
}

inline std::vector<std::vector<int32_t>> samples_of(const Result& result) {
  std::vector<std::vector<int32_t>> samples;
  for (const Output& output : result.outputs) samples.push_back(output.tokens);
  return samples;
}

}  // namespace faststream
