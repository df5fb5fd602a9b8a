#include "convert/weights/input_metric.h"

#include <algorithm>
#include <cmath>

#include "support/hadamard.h"

namespace faststream::convert {
namespace {

// What is added to the diagonal, as a part of its mean: so much that inputs that were not seen cost
// something, too. Of few rows more, for what they say of columns together is mostly chance.
double damping(double count, int64_t size) {
  constexpr double kLeast = 0.01;
  constexpr double kOfFew = 0.1;
  return std::max(kLeast, kOfFew * static_cast<double>(size) / std::max(count, 1.0));
}

// H [n, n] of a block as it is multiplied with weights of the file.
std::vector<double> moments_of_block(const InputMoments& moments, int64_t first, int64_t size,
                                     std::span<const float> factors, int64_t head_dim,
                                     bool rotated) {
  const auto n = static_cast<size_t>(size);
  const auto at = static_cast<size_t>(first);
  std::vector<double> h(n * n);
  if (moments.gram.empty()) {
    for (size_t i = 0; i < n; ++i) h[i * n + i] = moments.mean_squares[at + i];
  } else {
    std::ranges::copy(moments.gram_block(first), h.begin());
  }
  if (!factors.empty()) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        h[i * n + j] /= double{factors[at + i]} * double{factors[at + j]};
      }
    }
  }
  // R H Rᵀ: rows of H, then columns.
  const std::span<double> all = h;
  for (const size_t together : {static_cast<size_t>(head_dim), rotated ? n : 0}) {
    if (together == 0) continue;
    for (size_t begin = 0; begin < all.size(); begin += together) {
      hadamard(all.subspan(begin, together));
    }
    for (size_t begin = 0; begin < all.size(); begin += together * n) {
      hadamard(all.subspan(begin, together * n), n);
    }
  }
  return h;
}

// Adds `part` of the diagonal's mean to it, and returns what was added.
double damp(std::vector<double>& h, size_t n, double part) {
  double mean = 0;
  for (size_t i = 0; i < n; ++i) mean += h[i * n + i] / static_cast<double>(n);
  // Inputs that are always 0: any weights would do.
  const double added = mean > 0 && std::isfinite(mean) ? part * mean : 1;
  for (size_t i = 0; i < n; ++i) h[i * n + i] += added;
  return added;
}

// M, upper triangular, with M Mᵀ = H, in place of H's upper triangle. `least`: of H's eigenvalues.
void factorize(std::vector<double>& h, size_t n, double least) {
  for (size_t j = n; j-- > 0;) {
    double* row_j = &h[j * n];
    double rest = row_j[j];
    for (size_t k = j + 1; k < n; ++k) rest -= row_j[k] * row_j[k];
    row_j[j] = std::sqrt(std::max(rest, least / 2));  // but for rounding at least `least`
    for (size_t i = 0; i < j; ++i) {
      double* row_i = &h[i * n];
      double sum = row_i[j];
      for (size_t k = j + 1; k < n; ++k) sum -= row_i[k] * row_j[k];
      row_i[j] = sum / row_j[j];
    }
  }
}

// U = M⁻¹, so that Uᵀ U = (M Mᵀ)⁻¹.
std::vector<double> inverse_of_upper(const std::vector<double>& m, size_t n) {
  std::vector<double> u(n * n);
  for (size_t i = n; i-- > 0;) {
    double* row = &u[i * n];
    row[i] = 1;
    for (size_t k = i + 1; k < n; ++k) {
      const double factor = m[i * n + k];
      for (size_t j = k; j < n; ++j) row[j] -= factor * u[k * n + j];
    }
    for (size_t j = i; j < n; ++j) row[j] /= m[i * n + i];
  }
  return u;
}

int64_t block_columns(const InputMoments& moments) {
  return moments.gram.empty() ? kLeastGramColumns : moments.gram_columns;
}

}  // namespace

bool InputMetric::can_rotate(const InputMoments& moments, int64_t head_dim) {
  const auto columns = static_cast<int64_t>(moments.mean_squares.size());
  const int64_t block = block_columns(moments);
  return head_dim == 0 || columns <= block || block % head_dim == 0;
}

InputMetric::InputMetric(const InputMoments& moments, std::span<const float> factors,
                         int64_t head_dim, bool rotated, const ForEach& each) {
  const auto columns = static_cast<int64_t>(moments.mean_squares.size());
  const int64_t most = block_columns(moments);
  for (int64_t first = 0; first < columns; first += most) {
    blocks_.push_back({first, std::min(most, columns - first), {}, {}, {}});
  }
  each(static_cast<int64_t>(blocks_.size()), [&](int64_t b) {
    Block& block = blocks_[static_cast<size_t>(b)];
    const auto n = static_cast<size_t>(block.size);
    std::vector<double> h =
        moments_of_block(moments, block.first, block.size, factors, head_dim, rotated);
    const double added = damp(h, n, damping(moments.count, block.size));
    block.moments.assign(h.begin(), h.end());
    factorize(h, n, added);
    const std::vector<double> u = inverse_of_upper(h, n);
    // Errors of blocks are compared by a row's scale alone, so that any unit of H would do.
    block.factor.assign(u.begin(), u.end());
    for (size_t i = 0; i < n; ++i) {
      const double diagonal = u[i * n + i];
      block.importance.push_back(static_cast<float>(1 / (diagonal * diagonal)));
    }
  });
}

}  // namespace faststream::convert
