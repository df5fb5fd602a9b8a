// cuBLASLt, loaded when it is first asked for.
#pragma once

#include <cublasLt.h>

#include <string_view>

namespace faststream {

/// The functions of cuBLASLt that products use. The library has 540 MB, of which the loader touches
/// 100 before it is ready: 65 ms of a processor that no run on a CPU should take, nor one on a GPU
/// without such products.
struct CublasLt {
  decltype(&cublasLtGetStatusString) get_status_string;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
  decltype(&cublasLtMatmulAlgoGetHeuristic) algo_get_heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set_attribute;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_attribute;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
};

/// The library of the version that this was compiled with, from where the system looks for
/// libraries or from the toolkit that it was built with; never unloaded. Throws Error where it
/// cannot be loaded.
const CublasLt& cublas_lt();

/// Throws Error that says what the GPU failed at, a participle with its object: "describing a
/// product".
void cublas_check(cublasStatus_t status, std::string_view doing);

}  // namespace faststream
