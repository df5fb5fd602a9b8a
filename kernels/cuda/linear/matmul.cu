// cuBLASLt: one plan (descriptors and algorithm) for each shape, kept. It takes 100 us to propose
// an algorithm, and prompts of any length make new shapes: it is asked once for kRowsStep numbers
// of rows, as its algorithms serve any.
//
// Its algorithms for 16-bit matrices that do not split the inner dimension sum in the same order,
// whatever their tiles and the number of rows, and as linear_in_order.cu does (measured bit for bit
// on an H100; the exception, number 16, is slow and never proposed first). None that splits is
// taken, which would make a row's result depend on how many others there are: of the shapes
// measured, most lose nothing, the worst (32 rows of 11,008 inputs) a fifth.
#include "kernels/cuda/linear/matmul.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/linear/cublas_lt.h"

namespace faststream {

namespace {

constexpr size_t kMaxPlans = 4096;
constexpr int64_t kRowsStep = 16;

// For some numbers of rows cuBLASLt proposes nothing but algorithms for a fraction of the GPU, ten
// times slower than what it proposes for a few rows more, which serves as well. What proposals
// below this share of the GPU are compared with, and how many.
constexpr float kFewWaves = 0.3F;
constexpr int64_t kOtherRowsStep = 32;
constexpr int kOtherRows = 4;

cudaDataType_t cuda_type(DType type) {
  switch (type) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::i8:
      return CUDA_R_8I;
    case DType::u8:
    case DType::packed:
      break;
  }
  throw std::logic_error("not an element type of matrices");
}

cudaDataType_t out_type(const MatmulShape& shape) {
  if (shape.in == DType::i8) return CUDA_R_32I;
  return shape.out_f32 ? CUDA_R_32F : cuda_type(shape.in);
}

uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

struct LayoutDestroy {
  void operator()(cublasLtMatrixLayout_t layout) const { cublas_lt().layout_destroy(layout); }
};
struct DescDestroy {
  void operator()(cublasLtMatmulDesc_t desc) const { cublas_lt().desc_destroy(desc); }
};
struct PreferenceDestroy {
  void operator()(cublasLtMatmulPreference_t p) const { cublas_lt().preference_destroy(p); }
};
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LayoutDestroy>;
using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, DescDestroy>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, PreferenceDestroy>;

Layout make_layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t leading) {
  cublasLtMatrixLayout_t layout = nullptr;
  cublas_check(cublas_lt().layout_create(&layout, type, static_cast<uint64_t>(rows),
                                         static_cast<uint64_t>(cols), leading),
               "describing a matrix");
  return Layout(layout);
}

}  // namespace

struct Matmul::Plan {
  Desc desc;
  Layout w;
  Layout x;
  Layout out;
  cublasLtMatmulHeuristicResult_t choice{};

  [[nodiscard]] bool found() const { return choice.state == CUBLAS_STATUS_SUCCESS; }
};

Matmul::Matmul() : workspace_(allocate_device(kMatmulWorkspaceBytes)) {}

Matmul::~Matmul() = default;

void Matmul::HandleDestroy::operator()(cublasLtHandle_t handle) const {
  cublas_lt().destroy(handle);
}

cublasLtHandle_t Matmul::handle() {
  if (!handle_) {
    cublasLtHandle_t handle = nullptr;
    cublas_check(cublas_lt().create(&handle), "starting cuBLASLt");
    handle_.reset(handle);
  }
  return handle_.get();
}

// cuBLAS matrices are column-major. Read that way, w is [k, m] and wanted transposed, x is [k, n]
// and out is [m, n]: out = op(w) x, the "TN" order that its kernels prefer.
const Matmul::Plan& Matmul::plan(const MatmulShape& shape) {
  if (const auto it = plans_.find(shape); it != plans_.end()) return *it->second;
  if (plans_.size() >= kMaxPlans) plans_.clear();

  const bool integers = shape.in == DType::i8;
  auto plan = std::make_unique<Plan>();
  cublasLtMatmulDesc_t desc = nullptr;
  // CUBLAS_COMPUTE_32F is full float32 for f32 matrices; TF32 would have to be asked for.
  cublas_check(cublas_lt().desc_create(&desc, integers ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                       integers ? CUDA_R_32I : CUDA_R_32F),
               "describing a product");
  plan->desc.reset(desc);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  cublas_check(cublas_lt().desc_set_attribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                              sizeof transpose),
               "describing a product");
  const cudaDataType_t in = cuda_type(shape.in);
  const cudaDataType_t out = out_type(shape);
  plan->w = make_layout(in, shape.k, shape.m, shape.k);
  plan->x = make_layout(in, shape.k, shape.n, shape.x_stride);
  plan->out = make_layout(out, shape.m, shape.n, shape.out_stride);

  MatmulShape asked = shape;
  asked.n = (shape.n + kRowsStep - 1) / kRowsStep * kRowsStep;
  auto choice = choices_.find(asked);
  if (choice == choices_.end()) choice = choices_.emplace(asked, choose(asked, *plan)).first;
  plan->choice = choice->second;
  if (!serves(plan->choice, *plan)) plan->choice = choose(shape, *plan);
  return *plans_.emplace(shape, std::move(plan)).first->second;
}

// The fastest algorithm for a shape that differs from the plan's in n alone, or one whose state is
// a failure.
cublasLtMatmulHeuristicResult_t Matmul::choose(const MatmulShape& shape, const Plan& plan) {
  cublasLtMatmulPreference_t raw = nullptr;
  cublas_check(cublas_lt().preference_create(&raw), "choosing a product's algorithm");
  const Preference preference(raw);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    cublas_check(cublas_lt().preference_set_attribute(raw, name, &value, sizeof value),
                 "choosing a product's algorithm");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMatmulWorkspaceBytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.w_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.x_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_alignment);
  const bool in_order = shape.in == DType::f16 || shape.in == DType::bf16;
  if (in_order) {
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  }

  // What cuBLASLt thinks fastest for n rows.
  const auto propose = [&](int64_t n) {
    const Layout x = make_layout(cuda_type(shape.in), shape.k, n, shape.x_stride);
    const Layout out = make_layout(out_type(shape), shape.m, n, shape.out_stride);
    cublasLtMatmulHeuristicResult_t result{};
    int n_results = 0;
    const cublasStatus_t status =
        cublas_lt().algo_get_heuristic(handle(), plan.desc.get(), plan.w.get(), x.get(), out.get(),
                                       out.get(), raw, 1, &result, &n_results);
    if (status != CUBLAS_STATUS_SUCCESS || n_results == 0) {
      result.state = CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return result;
  };
  cublasLtMatmulHeuristicResult_t best = propose(shape.n);
  if (best.state != CUBLAS_STATUS_SUCCESS) return best;
  for (int i = 1; i <= kOtherRows && in_order && best.wavesCount < kFewWaves; ++i) {
    const auto other = propose((shape.n / kOtherRowsStep + i) * kOtherRowsStep);
    if (other.wavesCount > 2 * best.wavesCount && serves(other, plan)) best = other;
  }
  return best;
}

bool Matmul::serves(const cublasLtMatmulHeuristicResult_t& choice, const Plan& plan) {
  cublasLtMatmulHeuristicResult_t checked{};
  return choice.state == CUBLAS_STATUS_SUCCESS &&
         cublas_lt().algo_check(handle(), plan.desc.get(), plan.w.get(), plan.x.get(),
                                plan.out.get(), plan.out.get(), &choice.algo,
                                &checked) == CUBLAS_STATUS_SUCCESS &&
         checked.workspaceSize <= kMatmulWorkspaceBytes;
}

void Matmul::prepare(DType type, int device) {
  prepared_ = std::async(std::launch::async, [this, type, device] {
    cuda_check(cudaSetDevice(device), "selecting a GPU");
    constexpr int64_t kSide = 1024;
    for (const bool out_f32 : {true, false}) {
      (void)plan({.m = kSide,
                  .n = kSide,
                  .k = kSide,
                  .x_stride = kSide,
                  .out_stride = kSide,
                  .in = type,
                  .out_f32 = out_f32,
                  .w_alignment = 256,
                  .x_alignment = 256,
                  .out_alignment = 256});
    }
  });
}

bool Matmul::run(MatmulShape shape, const void* x, const void* w, void* out, cudaStream_t stream) {
  if (prepared_.valid()) prepared_.get();
  shape.w_alignment = alignment_of(w);
  shape.x_alignment = alignment_of(x);
  shape.out_alignment = alignment_of(out);
  const Plan& chosen = plan(shape);
  if (!chosen.found()) return false;

  const float one = 1;
  const float zero = 0;
  const int32_t int_one = 1;
  const int32_t int_zero = 0;
  const bool integers = shape.in == DType::i8;
  const void* alpha = integers ? static_cast<const void*>(&int_one) : &one;
  const void* beta = integers ? static_cast<const void*>(&int_zero) : shape.add ? &one : &zero;
  cublas_check(
      cublas_lt().matmul(handle(), chosen.desc.get(), alpha, w, chosen.w.get(), x, chosen.x.get(),
                         beta, out, chosen.out.get(), out, chosen.out.get(), &chosen.choice.algo,
                         workspace_.get(), kMatmulWorkspaceBytes, stream),
      "multiplying matrices");
  return true;
}

}  // namespace faststream
