#include "convert/families/positions.h"

#include <cmath>
#include <memory>
#include <utility>

#include "support/error.h"

namespace faststream::convert {
namespace {

constexpr int64_t kMaxComputed = int64_t{1} << 26;  // numbers of a table

}  // namespace

void compute_positions(FamilyModel& model,
                       double (*value)(int64_t position, int64_t column, int64_t hidden)) {
  model.modules.unused.emplace_back("embed_positions.weight");
  model.finish = [value, before = std::move(model.finish)](
                     const ModelConfig& config, const Checkpoint& weights, TensorParts& parts) {
    if (before) before(config, weights, parts);
    TensorId positions{TensorKind::positions};
    if (weights.find(parts.at(positions).front().source) != nullptr) return;
    const int64_t rows = config.embedding.positions;
    const int64_t hidden = config.hidden;
    if (rows > kMaxComputed / hidden) {
      throw Error(weights.name() + ": the configuration asks for " + std::to_string(rows) +
                  " positions of " + std::to_string(hidden) + " numbers, which are too many");
    }
    auto table = std::make_shared<std::vector<float>>();
    table->reserve(static_cast<size_t>(rows * hidden));
    for (int64_t i = 0; i < rows * hidden; ++i) {
      table->push_back(static_cast<float>(value(i / hidden, i % hidden, hidden)));
    }
    const TensorPart part{.source = "", .shape = {rows, hidden}, .values = std::move(table)};
    parts[positions] = {part};
    if (!config.encoder) return;
    positions.of_encoder = true;
    parts[positions] = {part};
  };
}

double sinusoid(int64_t position, int64_t column, int64_t hidden) {
  const int64_t n_sines = (hidden + 1) / 2;
  const int64_t pair = column < n_sines ? column : column - n_sines;
  const double angle =
      static_cast<double>(position) /
      std::pow(10000.0, 2 * static_cast<double>(pair) / static_cast<double>(hidden));
  return column < n_sines ? std::sin(angle) : std::cos(angle);
}

double fairseq_sinusoid(int64_t position, int64_t column, int64_t hidden) {
  constexpr int64_t kFirst = 2;
  const int64_t half = hidden / 2;
  if (column >= 2 * half) return 0;
  const auto step = static_cast<float>(std::log(10000.0) / static_cast<double>(half - 1));
  const float frequency = std::exp(static_cast<float>(column % half) * -step);
  const float angle = static_cast<float>(position + kFirst) * frequency;
  return column < half ? std::sin(angle) : std::cos(angle);
}

}  // namespace faststream::convert
