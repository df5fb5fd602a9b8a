#include "kernels/cuda/linear/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include "support/error.h"

namespace faststream {

namespace {

std::string last_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error";
}

void* open_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string error = last_error();
  const std::string built_with = std::string(FASTSTREAM_CUDA_LIBRARIES) + "/" + name;
  if (void* library = dlopen(built_with.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  throw Error("The GPU's matrix products need cuBLAS of CUDA " + std::to_string(CUBLAS_VER_MAJOR) +
              ", which cannot be loaded (" + error +
              "); install the CUDA toolkit, name its folder in LD_LIBRARY_PATH, or use --device "
              "cpu.");
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw Error("cuBLAS lacks a function that matrix products need (" + last_error() +
                "); install the CUDA toolkit that FastStream was built with, or use --device cpu.");
  }
}

CublasLt load() {
  void* library = open_library();
  CublasLt lt{};
  find(library, "cublasLtGetStatusString", lt.get_status_string);
  find(library, "cublasLtCreate", lt.create);
  find(library, "cublasLtDestroy", lt.destroy);
  find(library, "cublasLtMatmul", lt.matmul);
  find(library, "cublasLtMatmulAlgoCheck", lt.algo_check);
  find(library, "cublasLtMatmulAlgoGetHeuristic", lt.algo_get_heuristic);
  find(library, "cublasLtMatmulDescCreate", lt.desc_create);
  find(library, "cublasLtMatmulDescDestroy", lt.desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", lt.desc_set_attribute);
  find(library, "cublasLtMatmulPreferenceCreate", lt.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set_attribute);
  find(library, "cublasLtMatrixLayoutCreate", lt.layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", lt.layout_destroy);
  return lt;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt lt = load();
  return lt;
}

void cublas_check(cublasStatus_t status, std::string_view doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error("The GPU failed while " + std::string(doing) + ": " +
              cublas_lt().get_status_string(status) + "; try again, or use --device cpu.");
}

}  // namespace faststream
