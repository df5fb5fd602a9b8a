#include "engine/page_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "support/error.h"

namespace faststream {
namespace {

TEST(PagePool, HandsOutEachPageOnce) {
  PagePool pool(5);
  std::set<int32_t> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.take());
  EXPECT_EQ(pages, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.n_free(), 0);
  EXPECT_THROW(pool.take(), Error);
}

TEST(PagePool, TakesPagesThatWereInUseBeforeOthers) {
  PagePool pool(8, 3);
  const int32_t first = pool.take();
  const int32_t second = pool.take();
  EXPECT_EQ(pool.n_free(), 6);
  EXPECT_EQ(pool.n_ready(), 1) << "one more is modest";
  pool.release(first);
  EXPECT_EQ(pool.n_ready(), 2);
  EXPECT_EQ(pool.take(), first);
  pool.release(second);
  pool.release(first);
  for (int i = 0; i < 4; ++i) (void)pool.take();
  EXPECT_EQ(pool.n_used(), 4);
  EXPECT_EQ(pool.n_ready(), 0);
  EXPECT_EQ(pool.n_free(), 4);
}

TEST(PagePool, FreesASharedPageWithItsLastHolder) {
  PagePool pool(1);
  const int32_t page = pool.take();
  pool.retain(page);
  pool.release(page);
  EXPECT_EQ(pool.references(page), 1);
  EXPECT_EQ(pool.n_free(), 0);
  pool.release(page);
  EXPECT_EQ(pool.n_free(), 1);
  EXPECT_EQ(pool.take(), page);
}

TEST(PagePool, RefusesToHoldOrReleaseAFreePage) {
  PagePool pool(2);
  EXPECT_THROW(pool.release(0), std::logic_error);
  EXPECT_THROW(pool.retain(1), std::logic_error);
  EXPECT_THROW(pool.retain(2), std::out_of_range);
}

}  // namespace
}  // namespace faststream
