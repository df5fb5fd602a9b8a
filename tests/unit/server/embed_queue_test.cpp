#include "server/embed_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "unit/engine/engine_model.h"

namespace faststream::server {
namespace {

Embedder tiny_embedder() {
  ModelConfig config = engine_shape(WeightFormat::f32);
  config.output = {.norm = config.output.norm, .none = true};
  config.pooling = {.mode = Pooling::last};
  return {engine_model_of(config, "queued"), {.device = "cpu", .threads = 1}};
}

// A client that has its answer sends as many texts again.
TEST(EmbedQueue, HasRoomOnceATaskIsDone) {
  EmbedQueue queue(tiny_embedder(), 2);
  const std::vector<std::string> more_than_wait(3, "a");
  std::promise<bool> takes_more;
  std::promise<size_t> n_vectors;
  const auto on_second = [&](const std::vector<TextVector>& vectors, const std::string&) {
    n_vectors.set_value(vectors.size());
  };
  const auto on_first = [&](const std::vector<TextVector>&, const std::string&) {
    takes_more.set_value(queue.add({{}, more_than_wait, on_second, {}}));
  };
  ASSERT_TRUE(queue.add({{}, more_than_wait, on_first, {}}));
  ASSERT_TRUE(takes_more.get_future().get());
  EXPECT_EQ(n_vectors.get_future().get(), more_than_wait.size());
}

}  // namespace
}  // namespace faststream::server
