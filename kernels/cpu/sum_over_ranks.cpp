#include "kernels/cpu/sum_over_ranks.h"

#include <algorithm>
#include <cstring>

namespace faststream {
namespace {

constexpr size_t kLargestOneShot = size_t{256} << 10;  // bytes of a rank

// out[i] = the sum of terms[r · stride + i] over ranks r, in their order.
template <typename T>
void sum_terms(const std::byte* bytes, size_t stride, int ranks, std::span<float> out) {
  const auto* terms = reinterpret_cast<const T*>(bytes);
  std::ranges::fill(out, 0.0F);
  for (int r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < out.size(); ++i) out[i] += static_cast<float>(terms[i]);
    terms += stride;
  }
  for (float& sum : out) sum = static_cast<float>(T(sum));
}

}  // namespace

void RankSums::add_up(std::span<float> x) {
  if (type_ == DType::bf16) {
    add_up_terms<BFloat16>(x);
  } else {
    add_up_terms<float>(x);
  }
}

template <typename T>
void RankSums::add_up_terms(std::span<float> x) {
  const auto ranks = static_cast<size_t>(link_.count());
  const size_t piece = (x.size() + ranks - 1) / ranks;
  const bool one_shot = x.size() * sizeof(T) <= kLargestOneShot;
  terms_.assign((one_shot ? x.size() : piece * ranks) * sizeof(T), std::byte{0});
  auto* terms = reinterpret_cast<T*>(terms_.data());
  for (size_t i = 0; i < x.size(); ++i) terms[i] = T(x[i]);
  if (one_shot) {
    return sum_terms<T>(link_.gather(terms_).data(), x.size(), link_.count(), x);
  }
  sums_.resize(piece);
  sum_terms<T>(link_.exchange(terms_).data(), piece, link_.count(), sums_);
  for (size_t i = 0; i < piece; ++i) terms[i] = T(sums_[i]);
  const auto* all =
      reinterpret_cast<const T*>(link_.gather(std::span(terms_).first(piece * sizeof(T))).data());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(all[i]);
}

void RankSums::gather_columns(const Matrix& m, int64_t each) {
  const auto piece = static_cast<size_t>(each);
  const auto rows = static_cast<size_t>(m.rows);
  // Of a row what a rank has there, and zeros behind it.
  const auto own = [&](int rank) { return std::clamp<int64_t>(m.cols - rank * each, 0, each); };
  const auto at = [&](size_t row, int rank) {
    return static_cast<float*>(m.data) + static_cast<int64_t>(row) * m.stride + rank * each;
  };
  sums_.assign(rows * piece, 0.0F);
  for (size_t r = 0; r < rows && own(link_.rank()) > 0; ++r) {
    std::copy_n(at(r, link_.rank()), own(link_.rank()), sums_.data() + r * piece);
  }
  const std::span<const std::byte> all = link_.gather(std::as_bytes(std::span(sums_)));
  if (link_.rank() != 0) return;
  for (int rank = 1; rank < link_.count(); ++rank) {
    const auto* parts =
        reinterpret_cast<const float*>(all.data()) + static_cast<size_t>(rank) * rows * piece;
    for (size_t r = 0; r < rows && own(rank) > 0; ++r) {
      std::copy_n(parts + r * piece, own(rank), at(r, rank));
    }
  }
}

void RankSums::add_up(const Matrix& m) {
  const auto cols = static_cast<size_t>(m.cols);
  const auto row = [&](size_t r) {
    return std::span(static_cast<float*>(m.data) + static_cast<int64_t>(r) * m.stride, cols);
  };
  const auto copy_of = [&](size_t r) { return std::span(rows_).subspan(r * cols, cols); };
  rows_.resize(static_cast<size_t>(m.rows) * cols);
  for (size_t r = 0; r < static_cast<size_t>(m.rows); ++r)
    std::ranges::copy(row(r), copy_of(r).begin());
  add_up(std::span(rows_));
  for (size_t r = 0; r < static_cast<size_t>(m.rows); ++r)
    std::ranges::copy(copy_of(r), row(r).begin());
}

void RankSums::add_up(const Matrix& share, OutputMode output, const Matrix& out) {
  const std::span<float> x(static_cast<float*>(share.data),
                           static_cast<size_t>(share.rows * share.cols));
  add_up(x);
  for (int64_t r = 0; r < out.rows; ++r) {
    const float* from = x.data() + r * share.cols;
    auto* to = static_cast<float*>(out.data) + r * out.stride;
    for (int64_t c = 0; c < out.cols; ++c) {
      to[c] = output == OutputMode::add ? to[c] + from[c] : from[c];
    }
  }
}

}  // namespace faststream
