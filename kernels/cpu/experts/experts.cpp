// The rows of x are copied together by expert, so that each expert's feed-forward is two products
// like any other and its weights are read once a step; then each token gets the sum of its rows'
// results, in the order of its own choice.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/experts/router.h"

namespace faststream {
namespace {

/// Part `index` of `parts` of a weight's rows.
Weight part_of(const Weight& weight, int64_t index, int64_t parts) {
  const int64_t rows = weight.rows / parts;
  return weight.row_range(index * rows, rows);
}

const float* part_of(const float* bias, int64_t index, int64_t rows) {
  return bias != nullptr ? bias + index * rows : nullptr;
}

/// The rows that experts work on, each a token with one of its experts, sorted by expert.
struct ExpertRows {
  std::vector<int64_t> first;   ///< [n_experts + 1]
  std::vector<int64_t> row_of;  ///< [tokens, used]
};

// n_experts: those that do nothing, too, which have the last rows.
ExpertRows sort_by_expert(const std::vector<ChosenExpert>& chosen, int64_t n_experts) {
  ExpertRows rows;
  rows.first.resize(static_cast<size_t>(n_experts) + 1);
  for (const ChosenExpert& one : chosen) ++rows.first[static_cast<size_t>(one.expert) + 1];
  for (size_t e = 1; e < rows.first.size(); ++e) rows.first[e] += rows.first[e - 1];
  std::vector<int64_t> next = rows.first;
  for (const ChosenExpert& one : chosen) {
    rows.row_of.push_back(next[static_cast<size_t>(one.expert)]++);
  }
  return rows;
}

}  // namespace

void CpuBackend::experts(Input& input, const Matrix& scores, const Router& router,
                         const Experts& experts, OutputMode output, const Matrix& out) {
  const Matrix x = normalize(*this, input);
  const int64_t n = experts.n_experts;
  const int64_t tokens = x.rows;
  const int64_t used = router.used;
  require(n > 0 && experts.up.rows % n == 0 && experts.down.rows % n == 0,
          "experts: each must have as many rows of the weights");
  require_f32(x, tokens, experts.up.cols, "experts: x must be [tokens, in] f32");
  const int64_t scored = scores.cols;
  require(scored == n || (scored > n && !router.weighs_input && x.cols == out.cols),
          "experts: scores must be of all, and those without tensors give what they read");
  require_f32(scores, tokens, scored, "experts: scores must be [tokens, experts] f32");
  require_f32(out, tokens, experts.down.rows / n, "experts: out must be [tokens, hidden] f32");

  std::vector<ChosenExpert> chosen(static_cast<size_t>(tokens * used));
  pool_.parallel_for(tokens, 8, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const float* logits = static_cast<const float*>(scores.data) + t * scores.stride;
      choose_experts(
          {logits, static_cast<size_t>(scored)}, router,
          std::span(chosen).subspan(static_cast<size_t>(t * used), static_cast<size_t>(used)));
    }
  });
  const ExpertRows rows = sort_by_expert(chosen, scored);

  const int64_t in = x.cols;
  const int64_t middle = experts.down.cols;
  const int64_t hidden = out.cols;
  const int64_t count = tokens * used;
  auto* memory = expert_scratch_.get<float>(count * (in + middle + hidden));
  const Matrix inputs(memory, DType::f32, count, in);
  const Matrix activated(memory + count * in, DType::f32, count, middle);
  const Matrix results(memory + count * (in + middle), DType::f32, count, hidden);
  pool_.parallel_for(tokens, 8, [&](int64_t first, int64_t last) {
    for (int64_t i = first * used; i < last * used; ++i) {
      const float* from = static_cast<const float*>(x.data) + i / used * x.stride;
      float* to = static_cast<float*>(inputs.data) + rows.row_of[static_cast<size_t>(i)] * in;
      std::copy_n(from, in, to);
      if (!router.weighs_input) continue;
      for (int64_t c = 0; c < in; ++c) to[c] *= chosen[static_cast<size_t>(i)].weight;
    }
  });

  std::vector<Product> up;
  std::vector<Product> down;
  for (int64_t e = 0; e < n; ++e) {
    const int64_t first = rows.first[static_cast<size_t>(e)];
    const int64_t count_of = rows.first[static_cast<size_t>(e) + 1] - first;
    if (count_of == 0) continue;
    const Matrix from = inputs.row_range(first, count_of);
    const Matrix to = activated.row_range(first, count_of);
    const Weight up_weight = part_of(experts.up, e, n);
    const float* up_bias = part_of(experts.up_bias, e, up_weight.rows);
    up.push_back(experts.gated
                     ? gated_product(from, up_weight, up_bias, experts.gate(), to)
                     : linear_product(from, up_weight,
                                      {.bias = up_bias, .activation = experts.activation}, to));
    const Weight down_weight = part_of(experts.down, e, n);
    down.push_back(linear_product(to, down_weight, {.bias = part_of(experts.down_bias, e, hidden)},
                                  results.row_range(first, count_of)));
  }
  multiply(std::move(up));
  multiply(std::move(down));

  pool_.parallel_for(tokens, 1, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      float* to = static_cast<float*>(out.data) + t * out.stride;
      if (output != OutputMode::add) std::fill_n(to, hidden, 0.0F);
      for (int64_t i = t * used; i < (t + 1) * used; ++i) {
        const ChosenExpert& one = chosen[static_cast<size_t>(i)];
        const float weight = router.weighs_input ? 1 : one.weight;
        const Matrix& given = one.expert < n ? results : inputs;
        const float* result =
            static_cast<const float*>(given.data) + rows.row_of[static_cast<size_t>(i)] * hidden;
        for (int64_t c = 0; c < hidden; ++c) to[c] += weight * result[c];
      }
    }
  });
}

}  // namespace faststream
