// Matrices of numbers E2M1, two a byte, with scales for a few columns of a row.
#pragma once

#include "convert/checkpoint.h"

namespace faststream::convert {

/// NVFP4: bytes [rows, columns / 2], scales E4M3 [rows, columns / 16], and of these one scale, that
/// multiplies or divides them. Throws Error when one has another shape or type.
SourceTensor nvfp4_matrix(const Checkpoint& checkpoint, SourceTensor matrix, SourceTensor scales,
                          SourceTensor scale_of_scales, bool divides);

/// MXFP4: bytes [..., columns / 2] and powers of two [..., columns / 32], as bytes or E8M0. Throws
/// Error likewise.
SourceTensor mxfp4_matrix(const Checkpoint& checkpoint, SourceTensor matrix, SourceTensor scales);

/// MXFP4 as gpt-oss has it: joins tensors X_blocks, bytes [..., blocks, 16], and X_scales, bytes
/// [..., blocks], to X.
void join_mxfp4_blocks(Checkpoint& checkpoint);

}  // namespace faststream::convert
