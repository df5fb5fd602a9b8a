// CUDA's attention with a window reads no page before it: its entry of the page table may be any.
#include <algorithm>
#include <cmath>

#include "unit/backend_fixture.h"

namespace faststream {
namespace {

class CudaAttention : public BackendTest {
 protected:
  HostTensor attend(const Batch& batch, const HostTensor& q, const HostTensor& k,
                    const HostTensor& v, const KvLayer& shape, int32_t window) {
    const DeviceTensor device_q(*backend_, q);
    const DeviceTensor device_k(*backend_, k);
    const DeviceTensor device_v(*backend_, v);
    const DeviceTensor out(*backend_, HostTensor(q.dtype, q.rows, q.cols));
    KvLayer kv = shape;
    kv.k = device_k.data();
    kv.v = device_v.data();
    backend_->attention(
        backend_->upload(batch), device_q.matrix(), kv,
        {.scale = 1.0F / std::sqrt(static_cast<float>(kv.head_dim)), .window = window},
        out.matrix());
    return out.fetch();
  }
};

TEST_P(CudaAttention, PagesBeforeTheWindowMayHoldAnything) {
  constexpr int32_t kWindow = 75;
  constexpr int32_t kHeads = 2;
  const std::vector<TestSequence> sequences = {{1, 700}, {130, 900}, {20, 300}, {1, 70}};
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const int32_t dim : {64, 72, 128, 256}) {
      const int32_t unused = pages_of(sequences);
      const int32_t n_pages = unused + 1;
      Batch batch = make_batch(random_, sequences, unused);
      HostTensor k = random_tensor(random_, type, n_pages, int64_t{kHeads} * kPageTokens * dim);
      HostTensor v = random_tensor(random_, type, n_pages, int64_t{kHeads} * kPageTokens * dim);
      const HostTensor q = random_tensor(random_, type, batch.n_tokens(), int64_t{kHeads} * dim);
      const KvLayer shape{.dtype = type, .n_pages = n_pages, .n_kv_heads = kHeads, .head_dim = dim};
      const HostTensor want = attend(batch, q, k, v, shape, kWindow);

      // All entries before windows become the page that no sequence has, which holds NaN.
      for (int64_t c = 0; c < k.cols; ++c) {
        k.set(unused, c, NAN);
        v.set(unused, c, NAN);
      }
      for (size_t s = 0; s < sequences.size(); ++s) {
        const int32_t first_position = sequences[s].kv_len - sequences[s].queries;
        const int32_t first_page = std::max(first_position - kWindow + 1, 0) / kPageTokens;
        const auto row = batch.page_table.begin() + static_cast<ptrdiff_t>(s) * batch.max_pages;
        std::fill(row, row + first_page, unused);
      }
      expect_near(
          attend(batch, q, k, v, shape, kWindow), want, [](int64_t, int64_t) { return 0; },
          "attention with a window, " + std::string(dtype_name(type)) + ", heads of " +
              std::to_string(dim));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaAttention, ::testing::Values("cuda"));

}  // namespace
}  // namespace faststream
