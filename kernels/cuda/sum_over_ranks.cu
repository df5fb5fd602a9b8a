// Sums over ranks, and what rank 0 gathers: by the GPUs themselves where they reach each other's
// memory, else by their hosts.
#include <vector>

#include "kernels/cpu/sum_over_ranks.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/ranks/peer_sums.h"

namespace faststream {

struct CudaBackend::Ranks {
  std::unique_ptr<PeerSums> peers;  // null: there are none
  RankSums hosts;
  std::vector<float> memory;  // for these
};

void CudaBackend::join(RankLink& link, DType sums) {
  synchronize();
  ranks_.reset(
      new Ranks{.peers = PeerSums::make(link, sums), .hosts = RankSums(link, sums), .memory = {}});
  step_kernel_.join(ranks_->peers.get());
}

void CudaBackend::sum_over_ranks(const Matrix& share, OutputMode output, const Matrix& out) {
  if (share.rows == 0) return;
  if (ranks_->peers && PeerSums::takes(share, out)) {
    if (step_kernel_.sum_over_ranks(share, output == OutputMode::add, out)) return;
    return ranks_->peers->add_up(queue(), share, output, out);
  }
  ranks_->memory.resize(static_cast<size_t>(share.rows * share.cols));
  const size_t bytes = ranks_->memory.size() * sizeof(float);
  copy_to_host(ranks_->memory.data(), share.data, bytes);
  ranks_->hosts.add_up(ranks_->memory);
  copy_to_device(share.data, ranks_->memory.data(), bytes);
  norm(share, {}, output, out);
}

void CudaBackend::gather_columns(const Matrix& m, int64_t each) {
  if (m.rows == 0) return;
  if (ranks_->peers && ranks_->peers->takes_columns(m, each)) {
    return ranks_->peers->gather_columns(queue(), m, each);
  }
  ranks_->memory.resize(static_cast<size_t>(m.rows * m.stride));
  const size_t bytes = ranks_->memory.size() * sizeof(float) -
                       static_cast<size_t>(m.stride - m.cols) * sizeof(float);
  copy_to_host(ranks_->memory.data(), m.data, bytes);
  const Matrix all(ranks_->memory.data(), DType::f32, m.rows, m.stride);
  ranks_->hosts.gather_columns(all.columns(0, m.cols), each);
  copy_to_device(m.data, ranks_->memory.data(), bytes);
}

void CudaBackend::forget_ranks(Ranks* ranks) { delete ranks; }

}  // namespace faststream
