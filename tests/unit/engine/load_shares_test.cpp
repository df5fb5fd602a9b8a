// What each of several devices has of a model's weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/backend.h"
#include "bench/random_model.h"
#include "engine/load_weights.h"
#include "model_file/model_image.h"
#include "models/tensor_plan.h"
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

TEST(LoadShares, GivesEachDeviceItsRowsAndColumns) {
  ModelConfig grouped = small_decoder();
  grouped.weight_format = WeightFormat::int4;
  for (const ModelConfig& config :
       {small_decoder(), rich_decoder(), small_hybrid(), small_translator(), grouped}) {
    const ModelImage image = bench::make_random_model(config, 3);
    const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
    for (const int64_t devices : {1, 2, 3}) {
      for (int64_t device = 0; device < devices; ++device) {
        const auto backend = make_reference_backend();
        const WeightLookup lookup =
            load_weights(file, config, *backend, nullptr, {device, devices});
        for (const TensorPlan& plan : tensor_plan(config)) {
          const int64_t columns = plan.columns();
          const Rows whole{file.bytes(*file.find(plan.name)).data(),
                           plan.bytes_of_columns(columns)};
          std::vector<SplitShare> rows = {{0, plan.shape[0]}};
          SplitShare cols{0, columns};
          if (plan.split.by != SplitBy::none) {
            const std::vector<SplitShare> shares = shares_of(plan.split, device, devices);
            if (plan.split.columns) {
              cols = shares.front();
            } else {
              rows = shares;
            }
          }
          const Rows own{lookup(plan.id), plan.bytes_of_columns(cols.count)};
          int64_t at = 0;
          for (const SplitShare& share : rows) {
            for (int64_t row = share.first; row < share.first + share.count; ++row, ++at) {
              ASSERT_EQ(own.range(at, 0, own.row_bytes),
                        whole.range(row, plan.bytes_of_columns(cols.first), own.row_bytes))
                  << plan.name << ", row " << row << " on device " << device << " of " << devices;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace faststream
