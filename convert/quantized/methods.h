// Ways of storing quantized matrices, by the names that "quant_method" has for them. Each joins the
// tensors of every quantized module X to one tensor, X.weight, which has values. Each throws Error
// when a tensor is missing, has another shape than the others ask for or a type that it cannot
// have, and for options that it does not know how to read.
#pragma once

#include <string_view>

#include "convert/checkpoint.h"
#include "support/json.h"

namespace faststream::convert {

/// GPTQ (arXiv:2210.17323) as AutoGPTQ and GPTQModel store it: X.qweight, X.qzeros, X.scales,
/// X.g_idx.
void join_gptq(const JsonView& quantization, Checkpoint& checkpoint);

/// AWQ (arXiv:2306.00978) as AutoAWQ stores it, for its kernels gemm and gemv.
void join_awq(const JsonView& quantization, Checkpoint& checkpoint);

/// BitNet (arXiv:2402.17764), weights of three values: X.weight, four of them a byte, and
/// X.weight_scale, or floats that become such whenever the model runs.
void join_bitnet(const JsonView& quantization, Checkpoint& checkpoint);

/// bitsandbytes: NF4 and FP4 (arXiv:2305.14314) and LLM.int8() (arXiv:2208.07339).
void join_bitsandbytes(const JsonView& quantization, Checkpoint& checkpoint);

/// E4M3 with X.weight_scale_inv or X.weight_scale: for each block, as DeepSeek V3 and others
/// publish their weights, for each row or for the matrix.
void join_fp8(const JsonView& quantization, Checkpoint& checkpoint);

/// NVIDIA's Model Optimizer: FP8, and NVFP4, numbers E2M1 with a scale E4M3 for each 16.
void join_modelopt(const JsonView& quantization, Checkpoint& checkpoint);

/// llm-compressor's formats: integers, packed or not, FP8, NVFP4 and MXFP4.
void join_compressed_tensors(const JsonView& quantization, Checkpoint& checkpoint);

}  // namespace faststream::convert
