// A place in the order of a row is found like a word in a dictionary: a histogram of the logits by
// the leading bits of their orders says in which bin the place is; the few logits of that bin are
// copied, and so on with further bits, until all that are left are equal. Weights are ones (the
// k-th token) or masses (the nucleus, the draw): integers, so that sums do not depend on the way.
//
// A row of 131,072 logits is 512 KiB, which a second-level cache holds. Where few tokens are
// wanted, the largest logits of blocks bound them from below, and hardly any block is read again.
#include "kernels/cpu/row_ranking.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/sample.h"

namespace faststream {
namespace {

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

}  // namespace

int Orders::shift() const { return std::max(0, static_cast<int>(std::bit_width(high - low)) - kBinBits); }

Orders Orders::bin(size_t index) const {
  const uint32_t first = low + (static_cast<uint32_t>(index) << shift());
  return {first, first + std::min((1U << shift()) - 1, high - first)};
}

void RowRanking::read(std::span<const float> logits) {
  logits_ = logits;
  largest_.resize((logits.size() - 1) / kLogitBlock + 1);
  const bool are_numbers =
      kernels_.largest_logits(logits.data(), static_cast<int64_t>(logits.size()), largest_.data());
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
  const Orders orders = around_likeliest(n);
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

  orders.low = std::max(orders.low, around_likeliest(kept).low);
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

Orders RowRanking::around_likeliest(int64_t n) {
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
    : ranking_(ranking), logits_(logits), orders_(orders), softmax_(softmax) {
  fill(ranking.bins_, logits, orders);
  for (const uint64_t weight : ranking.bins_) total_ += weight;
}

RowRanking::Place RowRanking::Weighted::find(uint64_t weight) {
  uint64_t before = 0;
  const auto find_bin = [&](const std::vector<uint64_t>& bins) {
    size_t bin = bins.size() - 1;
    for (; before + bins[bin] < weight; --bin) before += bins[bin];
    return bin;
  };
  Orders orders = orders_.bin(find_bin(ranking_.bins_));
  std::span<const float> logits = logits_;
  while (orders.low < orders.high) {
    logits = ranking_.copy(logits, orders, ranking_.part_);
    fill(ranking_.part_bins_, logits, orders);
    orders = orders.bin(find_bin(ranking_.part_bins_));
  }
  const uint64_t each = softmax_ ? softmax_->mass(order_logit(orders.low)) : 1;
  const uint64_t n = (weight - before - 1) / each;
  return {orders.low, n, before + (n + 1) * each};
}

uint64_t RowRanking::Weighted::total_from(uint32_t order) {
  if (order <= orders_.low) return total_;
  const auto bin = static_cast<size_t>((order - orders_.low) >> orders_.shift());
  uint64_t sum = 0;
  for (size_t i = bin + 1; i < kBins; ++i) sum += ranking_.bins_[i];
  const Orders rest = {order, orders_.bin(bin).high};
  fill(ranking_.part_bins_, ranking_.copy(logits_, rest, ranking_.part_), rest);
  for (const uint64_t weight : ranking_.part_bins_) sum += weight;
  return sum;
}

void RowRanking::Weighted::fill(std::vector<uint64_t>& bins, std::span<const float> logits,
                                Orders orders) const {
  std::fill(bins.begin(), bins.end(), 0);
  const HistogramTask task = {logits.data(), static_cast<int64_t>(logits.size()), orders.low,
                              orders.shift(), bins.data()};
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
