// Products of a pass with the matrices of layers, which adapters may change for some of its rows.
#pragma once

#include "models/decoder_weights.h"
#include "models/pass.h"

namespace faststream {

/// Whether an adapter changes the matrix for some of these rows, which are those of all tokens or
/// of those whose logits are wanted.
bool is_adapted(const Pass& pass, const Linear& linear, int64_t rows);

/// out [rows, linear.weight.rows] = or += x [rows, in] · weightᵀ + bias, where x is what `input`
/// says, and what the adapters of rows add to that. Rows are as is_adapted() has them.
void multiply(const Pass& pass, Input& input, const Linear& linear, const Matrix& out,
              OutputMode output = OutputMode::store);

/// out = activation(the same).
void multiply_and_activate(const Pass& pass, Input& input, const Linear& linear,
                           Activation activation, const Matrix& out);

/// The second half of the columns of `both` = activation(gate) · up, where gates and up are the
/// halves of the same; the first half is anything.
void multiply_gated(const Pass& pass, Input& input, const Linear& linear, const Gate& gate,
                    const Matrix& both);

}  // namespace faststream
