// Frames go round: a page keeps its own as long as anybody may want it.
#include "engine/window_pages.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "bench/random_model.h"
#include "engine/kv_groups.h"

namespace faststream {
namespace {

TEST(WindowPages, GiveAHeldPageAFrameOfItsOwn) {
  WindowPages windows(64, 2, 10);
  EXPECT_EQ(windows.frame(7), -1);
  windows.hold(7);
  windows.hold(3);
  EXPECT_GE(windows.frame(7), 0);
  EXPECT_GE(windows.frame(3), 0);
  EXPECT_NE(windows.frame(7), windows.frame(3));
  EXPECT_THROW(windows.hold(4), std::logic_error) << "all are held";
}

TEST(WindowPages, KeepAReleasedPagesFrameUntilAnotherNeedsIt) {
  WindowPages windows(64, 2, 10);
  windows.hold(0);
  windows.hold(1);
  const int32_t frame = windows.frame(0);
  windows.release(0);
  windows.release(1);
  EXPECT_EQ(windows.frame(0), frame);
  windows.hold(0);  // again
  windows.hold(2);
  EXPECT_EQ(windows.frame(0), frame);
  EXPECT_EQ(windows.frame(1), -1) << "released the longest ago of those that nobody holds";
}

TEST(WindowPages, KeepAFrameThatSeveralHold) {
  WindowPages windows(64, 1, 10);
  windows.hold(0);
  windows.hold(0);
  windows.release(0);
  EXPECT_THROW(windows.hold(1), std::logic_error);
  windows.release(0);
  windows.hold(1);
  EXPECT_EQ(windows.frame(0), -1);
  EXPECT_THROW(windows.release(0), std::logic_error);
}

TEST(WindowPages, ForgetPagesThatAreFree) {
  WindowPages windows(64, 1, 10);
  windows.hold(0);
  EXPECT_THROW(windows.forget(0), std::logic_error) << "it is held";
  windows.release(0);
  windows.forget(0);
  windows.forget(0);
  EXPECT_EQ(windows.frame(0), -1);
  windows.hold(5);
  EXPECT_EQ(windows.frame(5), 0);
}

TEST(KvGroups, HaveTheLayersOfTheSameWindow) {
  ModelConfig config = bench::named_shape("llama-tiny", WeightFormat::f32);
  config.layer_kinds.resize(3, config.layer_kinds[0]);
  config.layer_kinds[1].attention().window = 128;
  config.layer_kinds[1].attention().n_kv_heads = 4;
  config.layer_kinds[1].attention().value_head_dim = 8;
  config.layer_kinds[2].attention().window = 512;  // all of the context
  config.layers = {1, 0, 1, 2};
  const std::vector<KvGroup> groups = kv_groups(config, DType::bf16);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].layers, (std::vector<size_t>{1, 3}));
  EXPECT_EQ(groups[0].token_bytes, size_t{2} * 2 * (2 * 16) * 2);
  EXPECT_EQ(groups[1].window, 128);
  EXPECT_EQ(groups[1].layers, (std::vector<size_t>{0, 2}));
  EXPECT_EQ(groups[1].token_bytes, size_t{2} * (4 * 16 + 4 * 8) * 2);
  config.encoder = std::make_shared<const ModelConfig>(config);
  EXPECT_EQ(kv_groups(config, DType::bf16).size(), 1U) << "sources are in all layers' pages";
}

}  // namespace
}  // namespace faststream
