// What each of several ranks has of a model's weights.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "backend/backend.h"
#include "bench/random_model.h"
#include "engine/load_weights.h"
#include "model_file/model_image.h"
#include "models/shares.h"
#include "models/tensor_plan.h"
#include "unit/engine/model_shapes.h"
#include "unit/models/descriptions.h"

namespace faststream {
namespace {

// A tensor's rows, one after the other.
struct Rows {
  const std::byte* data;
  int64_t row_bytes;

  [[nodiscard]] std::vector<std::byte> range(int64_t row, int64_t first, int64_t count) const {
    const std::byte* begin = data + row * row_bytes + first;
    return {begin, begin + count};
  }
};

TEST(LoadShares, GivesEachRankItsRowsAndColumns) {
  ModelConfig grouped = small_decoder();
  grouped.weight_format = WeightFormat::int4;
  for (const ModelConfig& config :
       {small_decoder(), rich_decoder(), small_hybrid(), small_translator(), grouped,
        exchanging_shape(), small_predictor()}) {
    const ModelImage image = bench::make_random_model(config, 3);
    const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
    for (const int32_t ranks : {1, 2, 3}) {
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const RankPlace place{rank, ranks};
        const auto backend = make_reference_backend();
        const WeightLookup lookup = load_weights(file, config, *backend, nullptr, place);
        std::map<TensorId, std::vector<int64_t>> shapes;  // as the share has them
        for (const TensorPlan& plan : tensor_plan(share_of(config, place))) {
          shapes[plan.id] = plan.shape;
        }
        for (const TensorPlan& plan : tensor_plan(config)) {
          const int64_t columns = plan.columns();
          const Rows whole{file.bytes(*file.find(plan.name)).data(),
                           plan.bytes_of_columns(columns)};
          std::vector<SplitShare> rows = {{0, plan.shape[0]}};
          SplitShare cols{0, columns};
          std::vector<int64_t> shape = plan.shape;
          if (shapes.at(plan.id) != plan.shape) {
            const std::vector<SplitShare> shares = shares_of(plan.split, place);
            if (plan.split.columns) {
              cols = shares.front();
              shape[1] = cols.count;
            } else {
              rows = shares;
              shape[0] = 0;
              for (const SplitShare& share : rows) shape[0] += share.count;
            }
          }
          ASSERT_EQ(shapes.at(plan.id), shape)
              << plan.name << " on rank " << rank << " of " << ranks;
          const Rows own{lookup(plan.id), plan.bytes_of_columns(cols.count)};
          int64_t at = 0;
          for (const SplitShare& share : rows) {
            for (int64_t row = share.first; row < share.first + share.count; ++row, ++at) {
              ASSERT_EQ(own.range(at, 0, own.row_bytes),
                        whole.range(row, plan.bytes_of_columns(cols.first), own.row_bytes))
                  << plan.name << ", row " << row << " on rank " << rank << " of " << ranks;
            }
          }
        }
      }
    }
  }
}

// Nothing but that.
TEST(LoadShares, TakesTheRoomOfTheShare) {
  constexpr size_t kGaps = 256;  // before a tensor, at most
  for (const ModelConfig& config : {small_decoder(), rich_decoder(), small_translator()}) {
    const ModelImage image = bench::make_random_model(config, 3);
    const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
    for (const int32_t ranks : {2, 3}) {
      for (int32_t rank = 0; rank < ranks; ++rank) {
        size_t bytes = 0;
        for (const TensorPlan& plan : tensor_plan(share_of(config, {rank, ranks}))) {
          if (plan.id.predictor > 0) continue;
          const auto row_bytes = static_cast<size_t>(plan.bytes_of_columns(plan.columns()));
          bytes += static_cast<size_t>(plan.shape[0]) * row_bytes + kGaps;
        }
        EXPECT_LE(bytes_to_load(file, config, {rank, ranks}), bytes);
      }
    }
  }
}

}  // namespace
}  // namespace faststream
