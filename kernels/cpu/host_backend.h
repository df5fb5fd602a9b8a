// What the CPU backends share: their memory is the host's.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "backend/backend.h"
#include "kernels/cpu/sum_over_ranks.h"

namespace faststream {

/// The memory half of Backend for devices that work on host memory, synchronously. Weights are used
/// where they are.
class HostBackend : public Backend {
 public:
  [[nodiscard]] size_t free_memory() const override;
  [[nodiscard]] bool takes_memory_on_use() const override { return true; }
  [[nodiscard]] bool runs_beside_host() const override { return false; }
  [[nodiscard]] bool keeps_choices() const override { return true; }
  Buffer allocate(size_t bytes) override;
  /// Returns source.bytes, read into memory so that the first token does not wait for the disk; a
  /// copy of slices.
  const std::byte* load_weights(const WeightSource& source,
                                const std::function<void(size_t)>& progress) override;
  void copy_to_device(void* device, const void* host, size_t bytes) override;
  void copy_to_host(void* host, const void* device, size_t bytes) override;
  void synchronize() override {}
  /// A view of the batch's own vectors.
  BatchView upload(const Batch& batch) override;
  std::unique_ptr<Choices> choose(const Matrix& logits, std::span<const SamplingRow> rules) final;
  void join(RankLink& link, DType sums) override;
  void sum_over_ranks(const Matrix& share, OutputMode output, const Matrix& out) override;
  void gather_columns(const Matrix& m, int64_t each) override;
  void sum_floats_over_ranks(const Matrix& m) final;
  void norm_over_ranks(std::span<const SharedNorm> norms) final;
  void note_time() override;
  std::vector<double> take_times() override;

 protected:
  /// See choose().
  virtual void sample_rows(const Matrix& logits, std::span<const SamplingRow> rules,
                           std::span<SampledToken> sampled) = 0;
  // What norm_over_ranks() does on each rank: sums [rows, 1] f32 = of each row of x Σ x²; and x =
  // the norm of x where each row's sum was divided by n.
  virtual void sum_squares(const Matrix& x, const Matrix& sums) = 0;
  virtual void norm_by_squares(const Matrix& x, const Norm& norm, const Matrix& sums,
                               int64_t n) = 0;
  std::unique_ptr<Choices> made_choices(std::vector<SampledToken>&& sampled);

 private:
  const std::byte* copy_slices(const WeightSource& source,
                               const std::function<void(size_t)>& progress);

  std::vector<Buffer> weights_;  // copies of slices
  std::vector<int32_t> chosen_;  // tokens, of each row
  // Once it has joined others; of terms as they were told, and of float32.
  std::optional<RankSums> sums_;
  std::optional<RankSums> float_sums_;
  std::vector<float> squares_;  // of norm_over_ranks()
  std::vector<std::chrono::steady_clock::time_point> noted_;
};

/// Throws std::logic_error, which is a defect of the caller and not of the user, unless `holds`.
inline void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

}  // namespace faststream
