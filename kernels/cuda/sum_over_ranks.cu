// Sums over ranks, and what rank 0 gathers: by the GPUs themselves where they reach each other's
// memory, else by NCCL, or where that is asked for; else by their hosts.
#include <algorithm>

#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/ranks/joined_ranks.h"
#include "kernels/cuda/ranks/meeting.h"

namespace faststream {

// All memory is made here: within a step other ranks would wait until it is allocated, and it for
// them.
CudaBackend::Ranks::Ranks(RankLink& link, DType sums)
    : type(sums),
      hosts(link, sums),
      hosts_of_floats(link, DType::f32),
      floats(allocate_device(kMostFloats * sizeof(float))) {
  const bool asks_for_nccl = !all_agree(link, !nccl_is_asked_for());
  if (!asks_for_nccl) peers = PeerSums::make(link, sums);
  if (!peers) nccl = NcclSums::make(link, asks_for_nccl);
}

std::string CudaBackend::Ranks::description() const {
  if (peers) return "";
  return nccl ? ", sums by " + nccl->description() : ", sums by the host";
}

void CudaBackend::join(RankLink& link, DType sums) {
  synchronize();
  ranks_.reset(new Ranks(link, sums));
  step_kernel_.join(ranks_->peers.get());
}

std::optional<ProductDestination> CudaBackend::place_of_share(const ProductDestination& to,
                                                              int64_t rows, int64_t cols) {
  if (!to.is_share || !ranks_ || !ranks_->peers) return std::nullopt;
  const std::optional<TermPlaces> places = ranks_->peers->next_places(rows, cols);
  if (!places) return std::nullopt;
  ProductDestination sent = to;
  sent.out = places->own;
  sent.far = places->far;
  sent.dtype = places->dtype;
  sent.stride = cols;
  return sent;
}

void CudaBackend::sum_over_ranks(const Matrix& share, OutputMode output, const Matrix& out) {
  if (share.rows == 0) return;
  const bool is_of_step = ranks_->peers && PeerSums::takes(share, out) &&
                          step_kernel_.sum_over_ranks(share, output == OutputMode::add, out);
  if (!is_of_step) add_up_over_ranks(share, output, out, ranks_->type);
}

void CudaBackend::add_up_over_ranks(const Matrix& share, OutputMode output, const Matrix& out,
                                    DType type) {
  if (ranks_->peers && PeerSums::takes(share, out)) {
    return ranks_->peers->add_up(queue(), share, output, out, type);
  }
  if (ranks_->nccl && NcclSums::takes(share)) {
    return ranks_->nccl->add_up(queue(), share, output, out, type);
  }
  ranks_->memory.resize(static_cast<size_t>(share.rows * share.cols));
  const size_t bytes = ranks_->memory.size() * sizeof(float);
  copy_to_host(ranks_->memory.data(), share.data, bytes);
  (type == DType::f32 ? ranks_->hosts_of_floats : ranks_->hosts).add_up(ranks_->memory);
  copy_to_device(share.data, ranks_->memory.data(), bytes);
  norm(share, {}, output, out);
}

void CudaBackend::sum_floats_over_ranks(const Matrix& m) {
  const int64_t each = Ranks::rows_at_once(m.cols);
  for (int64_t first = 0; first < m.rows; first += each) {
    const Matrix rows = m.row_range(first, std::min(each, m.rows - first));
    const Matrix all = ranks_->float_rows(rows.rows, m.cols);
    const Matrix copy = all.columns(0, m.cols);
    norm(rows, {}, OutputMode::store, copy);
    add_up_over_ranks(all, OutputMode::store, all, DType::f32);
    norm(copy, {}, OutputMode::store, rows);
  }
}

void CudaBackend::gather_columns(const Matrix& m, int64_t each) {
  if (m.rows == 0) return;
  if (ranks_->peers && ranks_->peers->takes_columns(m, each)) {
    return ranks_->peers->gather_columns(queue(), m, each);
  }
  if (ranks_->nccl && ranks_->nccl->takes_columns(each)) {
    return ranks_->nccl->gather_columns(queue(), m, each);
  }
  ranks_->memory.resize(static_cast<size_t>(m.rows * m.stride));
  const size_t bytes = ranks_->memory.size() * sizeof(float) -
                       static_cast<size_t>(m.stride - m.cols) * sizeof(float);
  copy_to_host(ranks_->memory.data(), m.data, bytes);
  const Matrix all(ranks_->memory.data(), DType::f32, m.rows, m.stride);
  ranks_->hosts.gather_columns(all.columns(0, m.cols), each);
  copy_to_device(m.data, ranks_->memory.data(), bytes);
}

std::string CudaBackend::description() const {
  return "CUDA " + std::to_string(device_) + " (" + name_ + ")" +
         (ranks_ ? ranks_->description() : "");
}

void CudaBackend::forget_ranks(Ranks* ranks) { delete ranks; }

}  // namespace faststream
