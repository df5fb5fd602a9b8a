// Activations beside i8 weights.
#pragma once

#include <algorithm>

#include "backend/backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/scratch.h"

namespace faststream {

/// Whether quantize_rows() takes the input as it is: ready, or f32 rows whose norm gives bf16, of
/// at most 16,384 elements, a multiple of eight, or of 64 to be rotated, that begin at multiples of
/// 16 bytes, as the norm's do.
bool can_quantize(const Input& input, bool rotated);

/// Whether rows beside such weights, of E4M3 on Hopper, are rounded to E4M3: as many columns as a
/// multiple of 32.
bool rounds_to_e4m3(const Weight& weight);

/// Rows [first, first + count) of an input, with its norm, if it has one, still to be applied.
Input row_range(const Input& input, int64_t first, int64_t count);

/// Rows (of any float type; normalized, and rounded to bf16, where that is still to be done;
/// rotated, as support/hadamard.h says, in bf16 and rounded to it, where that is asked for) as
/// integers from -127 to 127, symmetric, round to nearest: value = integer · scales[row],
/// scales[row] = max|x| / 127. `integers` has x's rows and columns without gaps, as i8, or as bf16,
/// which holds them exactly. The same in both, so that a row's product does not depend on which
/// kernel makes it. As u8, codes of E4M3 in the places of a coded weight's: of numbers up to 448,
/// as many as a multiple of 16.
void quantize_rows(const Input& input, bool rotated, const Matrix& integers, float* scales,
                   const Queue& queue);

/// What kernels of Hopper that multiply rows of eight bits do at a time.
ScratchPiece eight_bits_piece(int64_t rows, int64_t inputs);

/// multiply(rows, their scales, the number of the first) for pieces of an input, as quantize_rows()
/// makes them of `type` in `scratch`.
template <typename Multiply>
void in_pieces_of_eight_bits(DeviceBuffer& scratch, const Input& input, bool rotated, DType type,
                             const Queue& queue, const Multiply& multiply) {
  const Matrix& x = input.x;
  const ScratchPiece piece = eight_bits_piece(x.rows, x.cols);
  std::byte* memory = scratch.at_least(piece.bytes);
  for (int64_t first = 0; first < x.rows; first += piece.rows) {
    const int64_t rows = std::min(piece.rows, x.rows - first);
    const Matrix quantized(memory, type, rows, x.cols);
    auto* scales = reinterpret_cast<float*>(memory + (rows * x.cols + 255) / 256 * 256);
    quantize_rows(row_range(input, first, rows), rotated, quantized, scales, queue);
    multiply(quantized, scales, first);
  }
}

/// x as a product in float arithmetic takes it: as it is, or rotated beside a weight that is, in
/// f32 and so many bytes of `memory`.
Matrix rows_for(const Matrix& x, const Weight& weight, DeviceBuffer& memory, const Queue& queue);
size_t rows_for_bytes(int64_t rows, int64_t columns);

}  // namespace faststream
