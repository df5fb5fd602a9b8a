// A place in the order of a row is found like a word in a dictionary: a histogram of the logits by
// the leading bits of their orders says in which bin the place is; the few logits of that bin are
// copied, and so on with further bits, until all that are left are equal. Weights are ones (the
// k-th token) or masses (the nucleus, the draw): integers, so that sums do not depend on the way.
//
// A row of 131,072 logits is 512 KiB, which a second-level cache holds. Where few tokens are
// wanted, the largest logits of blocks bound them from below, and hardly any block is read again.
#include "kernels/cpu/sampling/row_ranking.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/cpu/sampling/sample.h"

namespace faststream {
namespace {

constexpr int kMostBinBits = 11;  // of which the first-level cache holds the histogram
constexpr uint32_t kLeastOrder = logit_order(-std::numeric_limits<float>::infinity());

/// The smallest of these orders whose logit `fits`, as all larger ones do, and the last.
template <class Fits>
uint32_t first_order(Orders orders, const Fits& fits) {
  while (orders.low < orders.high) {
    const uint32_t middle = orders.low + (orders.high - orders.low) / 2;
    if (fits(order_logit(middle))) {
      orders.high = middle;
    } else {
      orders.low = middle + 1;
    }
  }
  return orders.high;
}

/// The orders of a bin.
Orders bin_orders(const Histogram& histogram, size_t bin) {
  const Orders& all = histogram.orders;
  const uint32_t first = all.low + (static_cast<uint32_t>(bin) << histogram.shift);
  return {first, first + std::min((1U << histogram.shift) - 1, all.high - first)};
}

uint64_t sum_from(const Histogram& histogram, size_t bin) {
  return std::accumulate(histogram.bins.begin() + static_cast<std::ptrdiff_t>(bin),
                         histogram.bins.end(), uint64_t{0});
}

}  // namespace

void RowRanking::read(std::span<const float> logits) {
  const auto count = static_cast<int64_t>(logits.size());
  largest_.resize(static_cast<size_t>(logit_blocks(count)));
  begin(logits, kernels_.largest_logits(logits.data(), count, largest_.data()));
}

double RowRanking::read_sum(std::span<const float> logits) {
  const auto count = static_cast<int64_t>(logits.size());
  largest_.resize(static_cast<size_t>(logit_blocks(count)));
  sums_.resize(largest_.size());
  begin(logits, kernels_.sum_logits(logits.data(), count, largest_.data(), sums_.data()));
  const float largest = order_logit(best_);
  return largest + std::log(kernels_.add_sums(largest_.data(), sums_.data(),
                                              static_cast<int64_t>(sums_.size()), largest));
}

void RowRanking::begin(std::span<const float> logits, bool are_numbers) {
  logits_ = logits;
  const float largest = *std::max_element(largest_.begin(), largest_.end());
  check_logits(!are_numbers, largest);
  best_ = logit_order(largest);
}

uint64_t RowRanking::total(const Softmax& softmax) const {
  return kernels_.total_mass(logits_.data(), static_cast<int64_t>(logits_.size()),
                             {softmax.largest, softmax.scale});
}

std::vector<uint64_t> RowRanking::top(int32_t n) {
  n = std::min(n, static_cast<int32_t>(logits_.size()));
  std::vector<uint64_t> keys;
  if (n == 0) return keys;
  const Orders orders = around_largest(n);
  const std::span<const float> likely = copy(logits_, orders, kept_);
  const Place last = Weighted(*this, likely, orders, {}).find(static_cast<uint64_t>(n));

  const std::span<float> above = copy(likely, {last.order + 1, best_}, kept_);
  std::sort(above.begin(), above.end(), std::greater<>());
  Place place;
  for (const float logit : above) {
    const uint32_t order = logit_order(logit);
    place = {order, place.order == order ? place.n + 1 : 0, 0};
    keys.push_back(key(place));
  }
  for (uint64_t i = 0; i <= last.n; ++i) keys.push_back(key({last.order, i, 0}));
  return keys;
}

RowRanking::Candidates RowRanking::candidates(const Softmax& softmax, int32_t kept) {
  const auto has_mass = [&](float logit) { return softmax.has_mass(logit); };
  Orders orders = {first_order({kLeastOrder, best_}, has_mass), best_};
  const auto n = static_cast<size_t>(kept);
  if (n == logits_.size()) return {*this, logits_, orders, softmax};

  orders.low = std::max(orders.low, around_largest(kept).low);
  std::span<const float> likely = copy(logits_, orders, kept_);
  if (n < likely.size()) {
    const Place last = Weighted(*this, likely, orders, {}).find(n);
    const size_t n_above = copy(likely, {last.order + 1, best_}, kept_).size();
    std::fill(kept_.begin() + static_cast<std::ptrdiff_t>(n_above),
              kept_.begin() + static_cast<std::ptrdiff_t>(n), order_logit(last.order));
    likely = likely.first(n);
    orders.low = last.order;
  }
  return {*this, likely, orders, softmax};
}

uint64_t RowRanking::key(const Place& place) const {
  const float logit = order_logit(place.order);
  const LogitSpan all = {logits_.data(), static_cast<int64_t>(logits_.size()), largest_.data()};
  const int64_t id = kernels_.find_logit(all, logit, static_cast<int64_t>(place.n));
  return token_key(logit, static_cast<int32_t>(id));
}

Orders RowRanking::around_largest(int64_t n) {
  const Orders all = {kLeastOrder, best_};
  // n blocks have a logit that is at least the n-th largest of all blocks.
  if (n > static_cast<int64_t>(largest_.size())) return all;
  return {Weighted(*this, largest_, all, {}).find(static_cast<uint64_t>(n)).order, best_};
}

std::span<float> RowRanking::copy(std::span<const float> logits, Orders orders,
                                  std::vector<float>& to) const {
  if (logits.data() != to.data()) to.resize(std::max(to.size(), logits.size() + kLogitBlock));
  // The order below that of 0 is that of -0, which no logit has; as a number it equals 0.
  const uint32_t high = orders.high == logit_order(0) - 1 ? orders.high - 1 : orders.high;
  LogitSpan span = {logits.data(), static_cast<int64_t>(logits.size()), nullptr};
  if (logits.data() == logits_.data()) span.largest = largest_.data();
  const int64_t count =
      kernels_.copy_logits(span, order_logit(orders.low), order_logit(high), to.data());
  return {to.data(), static_cast<size_t>(count)};
}

RowRanking::Weighted::Weighted(RowRanking& ranking, std::span<const float> logits, Orders orders,
                               const std::optional<Softmax>& softmax)
    : ranking_(ranking), logits_(logits), softmax_(softmax) {
  fill(ranking.histogram_, logits, orders);
  total_ = sum_from(ranking.histogram_, 0);
}

RowRanking::Place RowRanking::Weighted::find(uint64_t weight) {
  uint64_t before = 0;
  const auto find_bin = [&](const Histogram& histogram) {
    size_t bin = histogram.bins.size() - 1;
    for (; before + histogram.bins[bin] < weight; --bin) before += histogram.bins[bin];
    return bin_orders(histogram, bin);
  };
  Orders orders = find_bin(ranking_.histogram_);
  for (std::span<const float> logits = logits_; orders.low < orders.high;) {
    logits = ranking_.copy(logits, orders, ranking_.part_);
    fill(ranking_.part_histogram_, logits, orders);
    orders = find_bin(ranking_.part_histogram_);
  }
  // What is found weighs at least 1.
  const uint64_t each =
      softmax_ ? std::max<uint64_t>(softmax_->mass(order_logit(orders.low)), 1) : 1;
  const uint64_t n = (weight - before - 1) / each;
  return {orders.low, n, before + (n + 1) * each};
}

uint64_t RowRanking::Weighted::total_from(uint32_t order) {
  const Histogram& all = ranking_.histogram_;
  if (order <= all.orders.low) return total_;
  const size_t bin = (order - all.orders.low) >> all.shift;
  const Orders rest = {order, bin_orders(all, bin).high};
  fill(ranking_.part_histogram_, ranking_.copy(logits_, rest, ranking_.part_), rest);
  return sum_from(all, bin + 1) + sum_from(ranking_.part_histogram_, 0);
}

void RowRanking::Weighted::fill(Histogram& histogram, std::span<const float> logits,
                                Orders orders) const {
  // Few logits need few bins, which are cleared and walked through.
  const int bits = std::clamp(static_cast<int>(std::bit_width(logits.size())), 4, kMostBinBits);
  const uint32_t width = orders.high - orders.low;
  histogram.orders = orders;
  histogram.shift = std::max(0, static_cast<int>(std::bit_width(width)) - bits);
  histogram.bins.assign((width >> histogram.shift) + 1, 0);
  const HistogramTask task = {logits.data(), static_cast<int64_t>(logits.size()), orders.low,
                              histogram.shift, histogram.bins.data()};
  if (softmax_) {
    ranking_.kernels_.weigh_logits(task, {softmax_->largest, softmax_->scale});
  } else {
    ranking_.kernels_.count_logits(task);
  }
}

uint64_t RowRanking::Candidates::mass_within(float octaves) {
  return weighted_.total_from(
      first_order(orders_, [&](float logit) { return softmax_.octaves(logit) <= octaves; }));
}

RowRanking::Candidates::Found RowRanking::Candidates::find(uint64_t mass) {
  const Place place = weighted_.find(mass);
  return {ranking_.key(place), place.cumulative};
}

}  // namespace faststream
