#include "models/products.h"

#include <algorithm>
#include <span>

namespace faststream {
namespace {

// Where there are as many rows of logits as tokens they are the same.
std::span<const AdapterRows> ranges_of(const Pass& pass, int64_t rows) {
  const Batch& batch = *pass.batch.host;
  return rows == pass.batch.n_tokens ? batch.adapter_tokens : batch.adapter_logits;
}

const LowRank& change_in(const Linear& linear, const AdapterRows& range) {
  return linear.adapters[static_cast<size_t>(range.adapter)];
}

// Two products of few columns, beside which the matrix' own counts alone.
void add_low_rank(const Pass& pass, const Matrix& x, const LowRank& change, const Matrix& out) {
  const Matrix low = pass.memory.low_rank.first_rows(x.rows).columns(0, change.a.rows);
  Input input{.x = x};
  pass.backend.linear(input, change.a, {}, low);
  Input of_low{.x = low};
  pass.backend.linear(of_low, change.b, {.output = OutputMode::add}, out);
}

}  // namespace

bool is_adapted(const Pass& pass, const Linear& linear, int64_t rows) {
  return !linear.adapters.empty() &&
         std::ranges::any_of(ranges_of(pass, rows), [&](const AdapterRows& range) {
           return static_cast<bool>(change_in(linear, range));
         });
}

void multiply(const Pass& pass, Input& input, const Linear& linear, const Matrix& out,
              OutputMode output) {
  pass.backend.linear(input, linear.weight, {.bias = linear.bias, .output = output}, out);
  if (!is_adapted(pass, linear, out.rows)) return;
  const Matrix& x = normalize(pass.backend, input);
  for (const AdapterRows& range : ranges_of(pass, out.rows)) {
    const LowRank& change = change_in(linear, range);
    if (!change) continue;
    add_low_rank(pass, x.row_range(range.first, range.count), change,
                 out.row_range(range.first, range.count));
  }
}

void multiply_and_activate(const Pass& pass, Input& input, const Linear& linear,
                           Activation activation, const Matrix& out) {
  if (is_adapted(pass, linear, out.rows)) {
    multiply(pass, input, linear, out);
    pass.backend.activate(activation, out);
  } else {
    pass.backend.linear(input, linear.weight, {.bias = linear.bias, .activation = activation}, out);
  }
}

}  // namespace faststream
