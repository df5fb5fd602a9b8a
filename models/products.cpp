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

// Calls changed(first, count, change) for each range of rows that an adapter changes, in order.
template <typename Changed>
void for_changed(const Pass& pass, const Linear& linear, int64_t n_rows, const Changed& changed) {
  if (linear.adapters.empty()) return;
  for (const AdapterRows& range : ranges_of(pass, n_rows)) {
    const LowRank& change = change_in(linear, range);
    if (change) changed(int64_t{range.first}, int64_t{range.count}, change);
  }
}

// Two products of few columns, beside which the matrix' own counts alone.
void add_low_rank(const Pass& pass, const Matrix& x, const LowRank& change, const Matrix& out) {
  const Matrix low = pass.memory.low_rank.first_rows(x.rows).columns(0, change.a.rows);
  Input input{.x = x};
  pass.backend.linear(input, change.a, {}, low);
  Input of_low{.x = low};
  pass.backend.linear(of_low, change.b, {.output = OutputMode::add}, out);
}

// out = x · weightᵀ + bias and what the adapter adds.
void multiply_changed(const Pass& pass, Input& input, const Linear& linear, const LowRank& change,
                      const Matrix& out) {
  pass.backend.linear(input, linear.weight, {.bias = linear.bias}, out);
  add_low_rank(pass, input.x, change, out);
}

}  // namespace

bool is_adapted(const Pass& pass, const Linear& linear, int64_t rows) {
  return !linear.adapters.empty() &&
         std::ranges::any_of(ranges_of(pass, rows), [&](const AdapterRows& range) {
           return static_cast<bool>(change_in(linear, range));
         });
}

namespace {

// Calls plain(rows, first) for the rows that no adapter changes, and changed(rows, first, change)
// for those that one does: so a row's bits do not depend on others'. `rows` are those from `first`
// on.
template <typename Plain, typename Changed>
void for_parts(const Pass& pass, Input& input, const Linear& linear, int64_t n_rows,
               const Plain& plain, const Changed& changed) {
  if (!is_adapted(pass, linear, n_rows)) return plain(input, 0);
  const Matrix& x = normalize(pass.backend, input);
  int64_t done = 0;
  const auto plain_until = [&](int64_t end) {
    if (end == done) return;
    Input rows{.x = x.row_range(done, end - done)};
    plain(rows, done);
    done = end;
  };
  for_changed(pass, linear, n_rows, [&](int64_t first, int64_t count, const LowRank& change) {
    plain_until(first);
    Input rows{.x = x.row_range(first, count)};
    changed(rows, first, change);
    done = first + count;
  });
  plain_until(n_rows);
}

}  // namespace

void multiply(const Pass& pass, Input& input, const Linear& linear, const Matrix& out,
              OutputMode output) {
  const bool adapted = is_adapted(pass, linear, out.rows);
  if (adapted) output = kept(output);
  pass.backend.linear(input, linear.weight, {.bias = linear.bias, .output = output}, out);
  if (!adapted) return;
  const Matrix& x = normalize(pass.backend, input);
  for_changed(pass, linear, out.rows, [&](int64_t first, int64_t count, const LowRank& change) {
    add_low_rank(pass, x.row_range(first, count), change, out.row_range(first, count));
  });
}

void multiply_and_activate(const Pass& pass, Input& input, const Linear& linear,
                           Activation activation, const Matrix& out) {
  for_parts(
      pass, input, linear, out.rows,
      [&](Input& rows, int64_t first) {
        pass.backend.linear(rows, linear.weight, {.bias = linear.bias, .activation = activation},
                            out.row_range(first, rows.x.rows));
      },
      [&](Input& rows, int64_t first, const LowRank& change) {
        const Matrix own = out.row_range(first, rows.x.rows);
        multiply_changed(pass, rows, linear, change, own);
        pass.backend.activate(activation, own);
      });
}

void multiply_gated(const Pass& pass, Input& input, const Linear& linear, const Gate& gate,
                    const Matrix& both) {
  const int64_t size = both.cols / 2;
  const Matrix up = both.columns(size, size);
  for_parts(
      pass, input, linear, both.rows,
      [&](Input& rows, int64_t first) {
        pass.backend.gated_linear(rows, linear.weight, linear.bias, gate,
                                  up.row_range(first, rows.x.rows));
      },
      [&](Input& rows, int64_t first, const LowRank& change) {
        const Matrix own = both.row_range(first, rows.x.rows);
        multiply_changed(pass, rows, linear, change, own);
        pass.backend.scale(own.columns(0, size), gate.activation, up.row_range(first, rows.x.rows));
      });
}

}  // namespace faststream
