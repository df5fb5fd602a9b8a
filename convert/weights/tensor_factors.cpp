#include "convert/weights/tensor_factors.h"

#include <utility>
#include <vector>

namespace faststream::convert {

TensorFactors::TensorFactors(const ModelConfig& config, std::span<const TensorPlan> plans,
                             const SourceModel& source, TensorStream& stream,
                             std::function<void(uint64_t)> on_block)
    : config_(config),
      plans_(plans),
      source_(source),
      stream_(stream),
      on_block_(std::move(on_block)) {}

TensorStream::Factors TensorFactors::take(size_t n) {
  if (const auto balanced = balanced_matrix(config_, plans_, n)) balance(*balanced);
  const auto known = factors_.extract(plans_[n].id);
  return known.empty() ? TensorStream::Factors{} : std::move(known.mapped());
}

// Gives the matrix and what gives its input their factors.
void TensorFactors::balance(const Balanced& balanced) {
  const int64_t experts = balanced.experts();
  using RowsAs = TensorStream::RowsAs;
  const auto squares = [&](const TensorPlan& plan, RowsAs rows_as = RowsAs::they_are) {
    return stream_.squares(plan, source_.parts.at(plan.id), experts, rows_as, on_block_);
  };
  // A norm is read by several products, whose results are used apart (Q, K, V; gate, up): what is
  // lost counts beside the row it is lost of. Else results are added up.
  const bool apart = balanced.norm != nullptr;
  const std::vector<double> of_matrix =
      squares(*balanced.matrix, apart ? RowsAs::units : RowsAs::they_are).columns;
  std::vector<float> of_input;
  const auto give = [&](const TensorPlan& plan, const std::vector<float>& rows) {
    factors_[plan.id].rows = rows;
    if (balanced.bias != nullptr) factors_[balanced.bias->id].rows = rows;
  };
  if (balanced.norm != nullptr) {
    of_input = norm_factors(of_matrix);
    give(*balanced.norm, of_input);
  } else if (balanced.values != nullptr) {
    const auto& [dim, first_row, columns] = balanced.values->heads;
    const auto before = static_cast<size_t>(first_row);
    const std::vector<double> of_rows = squares(*balanced.values).rows;
    std::vector<float> rows = value_factors(dim, std::span(of_rows).subspan(before), of_matrix);
    of_input = factors_of_queries(dim, rows, of_matrix.size());
    rows.insert(rows.begin(), before, 1.0F);
    give(*balanced.values, rows);
  } else {
    of_input = middle_factors(balanced.inputs(), squares(*balanced.gate_up).rows, of_matrix);
    std::vector<float>& rows = factors_[balanced.gate_up->id].rows;
    const int64_t middle = balanced.inputs();
    for (auto begin = of_input.begin(); begin != of_input.end(); begin += middle) {
      rows.insert(rows.end(), static_cast<size_t>(middle), 1.0F);
      rows.insert(rows.end(), begin, begin + middle);
    }
  }
  for (float& factor : of_input) factor = 1 / factor;
  factors_[balanced.matrix->id].columns = std::move(of_input);
  factors_[balanced.matrix->id].experts = experts;
}

}  // namespace faststream::convert
