// Products with many rows: prefill.
#pragma once

#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/matmul.h"
#include "kernels/cuda/scratch.h"

namespace faststream {

/// x [rows, in] · weightᵀ for x and weight of the same floating type, without scales. Temporaries
/// are taken from `scratch`. Returns false, with nothing done to the result, when cuBLASLt cannot.
bool float_product(Matmul& matmul, DeviceBuffer& scratch, const Matrix& x, const Weight& weight,
                   const ProductDestination& to, const Queue& queue);

/// What float_product() does at a time when there is a bias or an activation; without, it takes no
/// scratch.
ScratchPiece finished_piece(int64_t rows, int64_t outputs);

/// Whether int8_product can run beside i8 weights, and int8_product_sm90a beside int4 ones: 16-bit
/// x, and sides that are multiples of 16.
bool int8_fits(const Matrix& x, const Weight& weight);

/// x [rows, in] · weightᵀ with each row of x quantized to eight bits (symmetric, scale
/// max|x| / 127), on the int8 tensor cores. If `gated`, as in few_rows_product. Temporaries are
/// taken from `scratch`. The input: can_quantize(). Returns false, with nothing done to the result,
/// when cuBLASLt cannot.
bool int8_product(Matmul& matmul, DeviceBuffer& scratch, const Input& input, const Weight& weight,
                  const ProductDestination& to, bool gated, const Queue& queue);

/// What int8_product() does at a time, for weights [width, inputs].
ScratchPiece int8_piece(int64_t rows, int64_t inputs, int64_t width);

/// int8_product() that finishes sums in registers, on Hopper; also of int4 weights. Returns false,
/// with nothing done to the result, when rows of it do not begin at multiples of 16 bytes, or there
/// is more to do with sums than biases, gates of SiLU (of int4 also of GELU and clamped ones) and
/// additions to f32.
bool int8_product_sm90a(DeviceBuffer& scratch, const Input& input, const Weight& weight,
                        const ProductDestination& to, bool gated, const Queue& queue);

/// Whether coded_product_sm90a() can run: bf16 x, rows of x and of the result at multiples of 16
/// bytes, gates of SiLU, GELU or clamped ones, and no activations.
bool coded_product_fits(const Matrix& x, const Weight& weight, const ProductDestination& to,
                        bool gated);

/// x [rows, in] · weightᵀ for codes of floats, on Hopper, as of a bf16 matrix of these floats. If
/// `gated`, as in few_rows_product.
void coded_product_sm90a(const Matrix& x, const Weight& weight, const ProductDestination& to,
                         bool gated, const Queue& queue);

/// The same of weights of which rounds_to_e4m3() is true, with each row of x rounded to E4M3
/// (symmetric, scale max|x| / 448). Temporaries are taken from `scratch`. The input:
/// can_quantize().
void e4m3_product_sm90a(DeviceBuffer& scratch, const Input& input, const Weight& weight,
                        const ProductDestination& to, bool gated, const Queue& queue);

/// x [rows, in] · gate_upᵀ and its gate at once, on Hopper, for 16-bit x and weights of its type.
/// Returns false, with nothing done, for others, for rows of x or of the result that do not begin
/// at multiples of 16 bytes, and gates other than SiLU's.
bool gated_product_sm90a(const Matrix& x, const Weight& weight, const ProductDestination& to,
                         const Queue& queue);

/// x [rows, in] · weightᵀ with its bias and activation, on Hopper, for 16-bit x and weights of its
/// type. Returns false, with nothing done, for others, for rows of x, the weight or the result that
/// do not begin at multiples of 16 bytes, and for activations that it has no kernel for.
bool finished_product_sm90a(const Matrix& x, const Weight& weight, const ProductDestination& to,
                            const Queue& queue);

/// The format that weights are multiplied in, but for those of experts: their own, or what they are
/// decoded to before each product with rows of type `act`.
WeightFormat widened_format(WeightFormat format, int32_t input_bits, DType act);

/// Kernels read weights before they wait for the kernel ahead: those that earlier kernels have
/// written are there for all that are launched after this.
void finish_weights(const Queue& queue);

/// What weights take that are decoded to `widened`.
size_t widened_bytes(WeightFormat widened, int64_t rows, int64_t cols);

/// What gated_linear() does at a time where the gate is not fused: products in memory [rows,
/// width].
ScratchPiece gated_piece(int64_t rows, int64_t width, DType type);

/// out [rows, n] = activation(gate_up[:, :n]) * gate_up[:, n:], any types.
void apply_gate(const Matrix& gate_up, const Gate& gate, const Matrix& out, const Queue& queue);

}  // namespace faststream
