#include "kernels/cuda/ranks/term_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace faststream {
namespace {

struct TermPlace {
  int64_t at = 0;
  size_t kernel = 0;  // that has it
};

// The places of sums of so many bytes, of a rank that begins a new kernel where it has to, and now
// and then. made_unset: for each kernel what it makes unset.
std::vector<TermPlace> places_of(const std::vector<int64_t>& sums, uint32_t seed,
                                 std::vector<std::vector<TermRing::Part>>& made_unset) {
  TermRing ring(2);
  std::mt19937 random(seed);
  std::vector<TermPlace> places;
  const auto launch = [&] {
    const auto parts = ring.launch();
    made_unset.emplace_back(parts.begin(), parts.end());
  };
  for (const int64_t bytes : sums) {
    if (!ring.has_room(bytes) || random() % 50 == 0) launch();
    places.push_back({ring.reserve(bytes), made_unset.size()});
  }
  launch();
  return places;
}

// Ranks that divide sums differently among kernels write to no place that another has not made
// unset since it was used.
TEST(TermRing, GivesPlacesThatAllRanksHaveMadeUnset) {
  constexpr int64_t kGrain = 16;
  std::mt19937 random(3);
  std::vector<int64_t> sums;
  for (int i = 0; i < 3000; ++i) {
    sums.push_back(kGrain * static_cast<int64_t>(1 + random() % (random() % 9 == 0 ? 65536 : 900)));
  }
  std::vector<std::vector<TermRing::Part>> of_writer;
  std::vector<std::vector<TermRing::Part>> of_owner;
  const std::vector<TermPlace> writer = places_of(sums, 1, of_writer);
  const std::vector<TermPlace> owner = places_of(sums, 2, of_owner);
  const auto grains = static_cast<size_t>(TermRing(2).bytes() / kGrain);
  std::vector<bool> used(grains);
  size_t ended = 0;  // of the owner's kernels, surely: what they make unset is
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(writer[i].at, owner[i].at);
    // The writer's kernel began after the last sum before it, to which the owner gave its terms in
    // a kernel after all earlier ones.
    size_t first = i;
    while (first > 0 && writer[first - 1].kernel == writer[i].kernel) --first;
    const size_t known = first == 0 ? 0 : owner[first - 1].kernel;
    for (; ended < known; ++ended) {
      for (const TermRing::Part& part : of_owner[ended]) {
        std::fill_n(used.begin() + part.at / kGrain, part.bytes / kGrain, false);
      }
    }
    const auto begin = used.begin() + writer[i].at / kGrain;
    const auto end = begin + sums[i] / kGrain;
    ASSERT_LE(writer[i].at + sums[i], TermRing(2).bytes());
    ASSERT_EQ(std::find(begin, end, true), end) << "sum " << i;
    std::fill(begin, end, true);
  }
}

}  // namespace
}  // namespace faststream
