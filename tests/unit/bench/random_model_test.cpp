// Random models: the same bytes whole, in pieces and for ever; in pieces they take no memory.
#include "bench/random_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "model_file/layout.h"

namespace faststream::bench {
namespace {

// Tensors of less than a piece, of several, and of a piece and a bit.
ModelConfig shape(WeightFormat format) {
  ModelConfig config = named_shape("llama-tiny", format);
  config.vocab = 8209;
  return config;
}

std::vector<std::byte> made(const RandomModel& model, uint64_t offset, size_t bytes) {
  std::vector<std::byte> out(bytes, std::byte{0xAA});
  model.make(offset, out);
  return out;
}

uint64_t checksum_of_weights(WeightFormat format) {
  const ModelImage image = make_random_model(shape(format), 5);
  return layout::checksum(image.bytes().subspan(image.tensors().front().offset));
}

TEST(RandomModel, IsTheSameWithEveryRelease) {
  EXPECT_EQ(checksum_of_weights(WeightFormat::f32), 0xb49040e7835ab3e5U);
  EXPECT_EQ(checksum_of_weights(WeightFormat::bf16), 0x18159ad0b80ad0faU);
  EXPECT_EQ(checksum_of_weights(WeightFormat::int8), 0x72517ed417619eb5U);
}

TEST(RandomModel, KnowsShapesThatAreValid) {
  for (const std::string_view name : shape_names()) {
    for (const WeightFormat format : kWeightFormats) {
      EXPECT_NO_THROW(validate(named_shape(name, format), name));
    }
  }
}

TEST(RandomModel, CanBeInterruptedWithinATensor) {
  ModelConfig config = named_shape("llama-tiny", WeightFormat::f32);
  config.vocab = 1 << 20;  // 256 MiB of embeddings, of which the first are made
  RandomModel model(config, 5);
  int calls = 0;
  const auto interrupt = [&] {
    if (++calls == 2) throw std::runtime_error("interrupted");
  };
  EXPECT_THROW(model.make_all(interrupt), std::runtime_error);
  const ModelImage image = std::move(model).image();
  const TensorInfo& embedding = image.tensors().front();
  const auto bytes = image.bytes().subspan(embedding.offset, embedding.bytes);
  EXPECT_NE(bytes.front(), std::byte{});
  EXPECT_EQ(bytes.back(), std::byte{}) << "not made";
}

TEST(RandomModel, MakesAnyRangeOfItsFileAsTheWholeIs) {
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::f16, WeightFormat::int8}) {
    const ModelImage whole = make_random_model(shape(format), 7);
    const RandomModel model(shape(format), 7);
    const std::span<const std::byte> bytes = whole.bytes();
    const uint64_t begin = whole.tensors().front().offset;
    for (const uint64_t step : {uint64_t{77'777}, uint64_t{1'500'001}, bytes.size() - begin}) {
      for (uint64_t offset = begin; offset < bytes.size(); offset += step) {
        const size_t count = std::min<uint64_t>(step, bytes.size() - offset);
        ASSERT_TRUE(std::ranges::equal(made(model, offset, count), bytes.subspan(offset, count)))
            << format_name(format) << " from " << offset;
      }
    }
  }
}

TEST(RandomModel, GivesItsFileWeightsThatAreMadeWhenTheyAreRead) {
  const ModelImage whole = make_random_model(shape(WeightFormat::bf16), 7);
  const RandomModel model(shape(WeightFormat::bf16), 7);
  const ModelFile file = model.file("random");
  const WeightSource expected = ModelFile::from_bytes(whole.bytes(), "whole").weights();
  const WeightSource source = file.weights();
  ASSERT_EQ(source.bytes.size(), expected.bytes.size());
  constexpr size_t kFrom = 1000;
  std::vector<std::byte> out(source.bytes.size() - kFrom);
  source.make(kFrom, out);
  EXPECT_TRUE(std::ranges::equal(out, expected.bytes.subspan(kFrom)));
}

TEST(RandomModel, HasWeightsInPlaceOnceAllAreMade) {
  const ModelImage whole = make_random_model(shape(WeightFormat::int8), 7);
  RandomModel model(shape(WeightFormat::int8), 7);
  model.make_all();
  EXPECT_TRUE(std::ranges::equal(model.file("random").weights().bytes,
                                 whole.bytes().subspan(whole.tensors().front().offset)));
}

TEST(RandomModel, OfAnySizeTakesNoMemoryForWeightsThatNobodyReads) {
  const RandomModel model(named_shape("llama-3-70b", WeightFormat::f32), 1);  // 282 GB
  const ModelFile file = model.file("random");
  const size_t bytes = file.weights().bytes.size();
  EXPECT_GT(bytes, size_t{280'000'000'000});
  std::vector<std::byte> last(4096);
  file.weights().make(bytes - last.size(), last);
  EXPECT_NE(last, std::vector<std::byte>(last.size()));
}

}  // namespace
}  // namespace faststream::bench
