// A text for drafters, without an engine.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/sequence_group.h"

namespace faststream {

/// A text whose tokens a test chooses.
class ChosenText final : public SequenceGroup {
 public:
  std::vector<int32_t> text;
  std::vector<int32_t> supposed = {-1};

  [[nodiscard]] int32_t width() const override { return 1; }
  [[nodiscard]] size_t n_sequences() const override { return 1; }
  [[nodiscard]] const std::vector<int32_t>& tokens(size_t /*i*/) const override { return text; }
  [[nodiscard]] std::span<const int32_t> source() const override { return {}; }
  [[nodiscard]] SamplingRow sampling_row(size_t /*i*/) const override { return {}; }
  void suppose(std::span<const int32_t> tokens) override {
    supposed.assign(tokens.begin(), tokens.end());
  }
  std::span<const int32_t> accept(std::span<SampledToken> /*sampled*/) override { return {}; }
  std::string_view write() override { return {}; }
  [[nodiscard]] int32_t newest_token() const override { return text.back(); }
  void finish(FinishReason /*reason*/) override {}
  [[nodiscard]] bool finished() const override { return false; }
  std::vector<Output> take_outputs() override { return {}; }
};

}  // namespace faststream
