// Pages are found by the tokens that lead to them, held once, and go when room is needed.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "backend/batch.h"

namespace faststream {
namespace {

std::vector<int32_t> numbers(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<int32_t> take(PagePool& pool, int32_t n_tokens) {
  std::vector<int32_t> pages;
  for (int32_t n = 0; n < n_tokens; n += kPageTokens) pages.push_back(pool.take());
  return pages;
}

void release(PagePool& pool, const std::vector<int32_t>& pages) {
  for (const int32_t page : pages) pool.release(page);
}

TEST(PrefixCache, FindsTheLongestPrefix) {
  PagePool pool(16);
  PrefixCache cache(pool);
  const std::vector<int32_t> text = numbers(80);
  const std::vector<int32_t> pages = take(pool, 80);
  cache.insert(text, pages);

  const auto all = cache.find(text);
  EXPECT_EQ(all.pages, (std::vector<int32_t>{pages[0], pages[1]}));
  EXPECT_EQ(all.partial_page, pages[2]);
  EXPECT_EQ(all.partial_tokens, 16);
  EXPECT_TRUE(all.whole_node);
  EXPECT_EQ(all.n_tokens(), 80);

  std::vector<int32_t> other = text;
  other[40] = 999;
  const auto part = cache.find(other);
  EXPECT_EQ(part.pages, std::vector<int32_t>{pages[0]});
  EXPECT_EQ(part.partial_page, pages[1]);
  EXPECT_EQ(part.partial_tokens, 8);
  EXPECT_FALSE(part.whole_node);

  EXPECT_EQ(cache.find(numbers(80, 1)).n_tokens(), 0);
  EXPECT_EQ(cache.find({}).n_tokens(), 0);
  release(pool, pages);
}

TEST(PrefixCache, FindsTheLongestPrefixAmongManyBranches) {
  PagePool pool(400);
  PrefixCache cache(pool);
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> texts;
  for (int i = 0; i < 120; ++i) {
    std::vector<int32_t> text;
    for (uint32_t n = 1 + random() % 90; n > 0; --n)
      text.push_back(static_cast<int32_t>(random() % 2));
    const std::vector<int32_t> pages = take(pool, static_cast<int32_t>(text.size()));
    cache.insert(text, pages);
    release(pool, pages);
    texts.push_back(text);
  }
  for (int i = 0; i < 500; ++i) {
    std::vector<int32_t> query;
    for (uint32_t n = random() % 40; n > 0; --n)
      query.push_back(static_cast<int32_t>(random() % 2));
    size_t longest = 0;
    for (const auto& text : texts) {
      const auto end = std::mismatch(text.begin(), text.end(), query.begin(), query.end());
      longest = std::max(longest, static_cast<size_t>(end.first - text.begin()));
    }
    // Below another's page nothing is inserted, so a longer prefix may be missing, never a shorter.
    const auto found = static_cast<size_t>(cache.find(query).n_tokens());
    EXPECT_LE(found, longest);
    EXPECT_GE(found, std::min<size_t>(longest, kPageTokens));
  }
}

TEST(PrefixCache, KeepsTextsOfDifferentKindsApart) {
  PagePool pool(8);
  PrefixCache cache(pool);
  const std::vector<int32_t> text = numbers(40);
  const std::vector<int32_t> pages = take(pool, 40);
  const std::vector<int32_t> other_pages = take(pool, 40);
  cache.insert(text, pages);
  EXPECT_EQ(cache.find(text, {7}).n_tokens(), 0);
  cache.insert(text, other_pages, {7});
  EXPECT_EQ(cache.find(text).pages, std::vector<int32_t>{pages[0]});
  EXPECT_EQ(cache.find(text, {7}).pages, std::vector<int32_t>{other_pages[0]});
  release(pool, pages);
  release(pool, other_pages);

  // Each kind's pages go by themselves, and it may come again.
  EXPECT_TRUE(cache.make_room(6));
  EXPECT_EQ(cache.find(text).n_tokens(), 0);
  EXPECT_EQ(cache.find(text, {7}).n_tokens(), 40);
  EXPECT_TRUE(cache.make_room(8));
  EXPECT_EQ(cache.find(text, {7}).n_tokens(), 0);
  const std::vector<int32_t> again = take(pool, 40);
  cache.insert(text, again, {7});
  EXPECT_EQ(cache.find(text, {7}).n_tokens(), 40);
  release(pool, again);
}

TEST(PrefixCache, LetsAPageGrow) {
  PagePool pool(4);
  PrefixCache cache(pool);
  const std::vector<int32_t> text = numbers(40);
  const std::vector<int32_t> pages = take(pool, 40);
  cache.insert(std::span(text).first(10), std::span(pages).first(1));
  EXPECT_EQ(cache.find(text).n_tokens(), 10);
  cache.insert(text, pages);
  EXPECT_EQ(cache.n_pages(), 2);
  EXPECT_EQ(cache.find(text).n_tokens(), 40);
  release(pool, pages);
}

TEST(PrefixCache, KeepsTheFirstOfTwoCopies) {
  PagePool pool(4);
  PrefixCache cache(pool);
  const std::vector<int32_t> text = numbers(64);
  const std::vector<int32_t> first = take(pool, 64);
  const std::vector<int32_t> second = take(pool, 64);
  cache.insert(text, first);
  cache.insert(text, second);
  EXPECT_EQ(cache.find(text).pages, first);
  release(pool, second);
  EXPECT_EQ(pool.n_free(), 2);
  release(pool, first);
  EXPECT_EQ(pool.n_idle(), 2);
}

TEST(PrefixCache, FreesTheLeastRecentlyUsedLeafFirst) {
  PagePool pool(5);
  PrefixCache cache(pool);
  const std::vector<int32_t> old_text = numbers(64);
  const std::vector<int32_t> new_text = numbers(64, 500);
  const std::vector<int32_t> old_pages = take(pool, 64);
  const std::vector<int32_t> new_pages = take(pool, 64);
  cache.insert(old_text, old_pages);
  cache.insert(new_text, new_pages);
  release(pool, old_pages);
  release(pool, new_pages);
  cache.hold(std::span(old_pages).first(1));  // the root page of the older text is in use again
  EXPECT_EQ(pool.n_free(), 1);
  EXPECT_EQ(pool.n_idle(), 3);

  EXPECT_TRUE(cache.make_room(2));
  EXPECT_EQ(cache.find(old_text).n_tokens(), 32);
  EXPECT_EQ(cache.find(new_text).n_tokens(), 64);
  EXPECT_TRUE(cache.make_room(4));
  EXPECT_EQ(cache.find(old_text).n_tokens(), 32);
  EXPECT_EQ(cache.find(new_text).n_tokens(), 0);
  EXPECT_FALSE(cache.make_room(5));
  release(pool, {old_pages[0]});
  EXPECT_TRUE(cache.make_room(5));
  EXPECT_EQ(cache.n_pages(), 0);
}

TEST(PrefixCache, FreesIdlePagesRatherThanGrowBeyondAModestSize) {
  PagePool pool(100, 4);
  PrefixCache cache(pool);
  for (int32_t text = 0; text < 20; ++text) {
    ASSERT_TRUE(cache.make_room(2));
    const std::vector<int32_t> pages = take(pool, 64);
    cache.insert(numbers(64, 1000 * text), pages);
    release(pool, pages);
  }
  EXPECT_EQ(pool.n_used(), 4);
  EXPECT_EQ(cache.find(numbers(64, 19000)).n_tokens(), 64);
  // What is held has what it needs.
  ASSERT_TRUE(cache.make_room(50));
  EXPECT_EQ(take(pool, 50 * 32).size(), 50U);
  EXPECT_EQ(pool.n_used(), 50);
  EXPECT_FALSE(cache.make_room(51));
}

TEST(PrefixCache, HandsAPageOver) {
  PagePool pool(2);
  PrefixCache cache(pool);
  const std::vector<int32_t> text = numbers(12);
  const std::vector<int32_t> pages = take(pool, 12);
  cache.insert(text, pages);
  release(pool, pages);
  cache.take_over(pages[0]);
  EXPECT_EQ(cache.n_pages(), 0);
  EXPECT_EQ(pool.references(pages[0]), 1);
  EXPECT_EQ(pool.n_idle(), 0);
  release(pool, pages);
  EXPECT_EQ(pool.n_free(), 2);
}

TEST(PrefixCache, GivesEveryPageBackAtItsEnd) {
  PagePool pool(64);
  {
    PrefixCache cache(pool);
    std::mt19937 random(5);
    std::vector<std::vector<int32_t>> held;
    for (int i = 0; i < 2000; ++i) {
      std::vector<int32_t> text;
      for (uint32_t n = 2 + random() % 120; n > 0; --n) {
        text.push_back(static_cast<int32_t>(random() % 3));
      }
      const PrefixCache::Match match = cache.find(text);
      cache.hold(match.pages);
      std::vector<int32_t> pages = match.pages;
      while (pages.size() * kPageTokens < text.size() && cache.make_room(1)) {
        pages.push_back(pool.take());
      }
      const size_t room = pages.size() * kPageTokens;
      cache.insert(std::span(text).first(std::min(text.size(), room)), pages);
      held.push_back(pages);
      if (held.size() > 8) {
        const size_t victim = random() % held.size();
        release(pool, held[victim]);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
      }
      // A page in use never hangs below an idle one: all idle pages can be freed.
      if (i % 50 == 0) {
        EXPECT_TRUE(cache.make_room(pool.n_free() + pool.n_idle()));
        EXPECT_EQ(pool.n_idle(), 0);
      }
    }
    for (const auto& pages : held) release(pool, pages);
    EXPECT_EQ(pool.n_free() + pool.n_idle(), 64);
  }
  EXPECT_EQ(pool.n_free(), 64);
}

}  // namespace
}  // namespace faststream
