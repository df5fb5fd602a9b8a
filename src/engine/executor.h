// What computes steps: a device, or several ranks together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/batch.h"
#include "engine/adapter_file.h"
#include "engine/layer_cache.h"
#include "engine/vocabulary_map.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "models/model.h"
#include "support/kv_format.h"

namespace faststream {

struct RunnerLimits {
  int32_t n_pages = 0;
  int32_t n_modest_pages = std::numeric_limits<int32_t>::max();  ///< see PagePool
  /// Sequences that hold pages at a time: what memory layers with a window need follows. 0: any.
  int32_t sequences = 0;
  BatchLimits batch;
  /// Of a rank's logits: where a step has no more, each rank multiplies its part of them, and rank
  /// 0 gathers them; else rank 0 multiplies all.
  int64_t gathered_bytes = int64_t{1} << 20;
  KvFormat kv = KvFormat::plain;  ///< of layers that take it: see kv_type_of()
  int32_t states = 0;             ///< see CacheBounds: ranks, whose layers differ, have as many
};

CacheBounds bounds_of(const RunnerLimits& limits);

/// Has a model, the memory of its caches and that of a step. Which pages are whose, others know.
/// One thread at a time may use it.
class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;

  /// Of several ranks that of a share: what is the same for all is what callers need of it.
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual const RunnerLimits& limits() const = 0;
  /// As kv_type_of() takes it.
  [[nodiscard]] virtual KvType kv_type() const = 0;
  /// Bytes of all caches, on each rank.
  [[nodiscard]] virtual size_t kv_bytes() const = 0;

  /// One of the model's predictors, counted from 0, with caches of its own; of each there is one at
  /// a time. It reads hidden states that the last step of this one, the model or the predictor
  /// before, which must outlive it, left: of all its tokens (Model::hidden_states(), or what is
  /// made of Model::layer_states()); of stages, the last step whose choices were waited for.
  [[nodiscard]] virtual std::unique_ptr<Executor> make_predictor(size_t predictor,
                                                                 const RunnerLimits& limits) = 0;
  /// Whether a batch may have tokens that choose() chose last and nobody has read: chosen_from().
  [[nodiscard]] virtual bool reads_choices() const { return false; }
  // Batches must live, and stay unchanged, until the next one.

  /// See Model::read_sources().
  virtual void read_sources(const Batch& batch) = 0;
  /// See Model::forward().
  virtual void forward(const Batch& batch) = 0;
  /// See Runner.
  virtual std::unique_ptr<Choices> choose(std::span<const SamplingRow> rules) = 0;
  virtual std::vector<float> logits() = 0;
  virtual void copy(std::span<const std::vector<PageCopy>> copies) = 0;
  /// Waits until the device has done what it was given; of stages, which have several steps under
  /// way, for nothing.
  virtual void wait() = 0;

  // Of a predictor alone: what its next step's tokens have, each beside it.

  /// These rows of the hidden states that it reads.
  virtual void take_hidden_states(std::span<const int32_t> rows) = 0;
  /// These rows of what its own last step left: those whose logits were wanted.
  virtual void take_own_states(std::span<const int32_t> rows) = 0;
  /// Of the hidden states that it reads keeps some for later steps, from row `to` on, of
  /// kMostKeptHidden.
  virtual void keep_hidden_states(int32_t first, int32_t count, int32_t to) = 0;
  /// These rows of what was kept.
  virtual void take_kept_states(std::span<const int32_t> rows) = 0;
  /// These rows stay, from the first one on, and no others; it has nothing beside its next step's
  /// tokens then.
  virtual void compact_kept_states(std::span<const int32_t> rows) = 0;
};

/// Whether it pays to begin a step before the host knows what the one before chose: `executor`, of
/// `backend`, reads it by itself, and does not compute in its calls.
inline bool may_run_ahead(const Backend& backend, const Executor& executor) {
  return backend.runs_beside_host() && executor.reads_choices();
}

/// One device's.
class DeviceExecutor final : public Executor {
 public:
  /// Loads what `config`'s rank has of the weights. config: of the files, or a share_of() it. Files
  /// and `backend` must outlive this. `progress` may be empty.
  DeviceExecutor(const ModelFiles& files, const ModelConfig& config, Backend& backend,
                 const RunnerLimits& limits, const std::function<void(size_t)>& progress);

  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] const RunnerLimits& limits() const override { return limits_; }
  [[nodiscard]] KvType kv_type() const override;
  [[nodiscard]] size_t kv_bytes() const override { return kv_bytes_; }
  // Rows of logits that are not the tokens' name others than were chosen.
  [[nodiscard]] bool reads_choices() const override {
    return backend_.keeps_choices() && !vocabulary_;
  }

  [[nodiscard]] std::unique_ptr<Executor> make_predictor(size_t predictor,
                                                         const RunnerLimits& limits) override;
  /// The same, which is a device's own.
  [[nodiscard]] std::unique_ptr<DeviceExecutor> make_own_predictor(
      size_t predictor, const RunnerLimits& limits) const;

  /// Has the device begin with all that it was given, see Backend::launch().
  void launch() { backend_.launch(); }
  void read_sources(const Batch& batch) override;
  void forward(const Batch& batch) override;
  std::unique_ptr<Choices> choose(std::span<const SamplingRow> rules) override;
  std::vector<float> logits() override;
  void copy(std::span<const std::vector<PageCopy>> copies) override;
  void wait() override { backend_.synchronize(); }
  void take_hidden_states(std::span<const int32_t> rows) override;
  void take_own_states(std::span<const int32_t> rows) override;
  void keep_hidden_states(int32_t first, int32_t count, int32_t to) override;
  void take_kept_states(std::span<const int32_t> rows) override;
  void compact_kept_states(std::span<const int32_t> rows) override;

  // Of a stage in place of forward(): floats of the stream's rows, behind them what predictors read
  // as far as stages before have it, see Model; of the last one how many tokens that is of, too.

  /// given: what stage_rows() of the stage before returned; of the first one nothing. Throws Error
  /// where it is not of as many rows as the batch has tokens.
  void begin_stage(const Batch& batch, std::span<const std::byte> given);
  /// Waits for what the stage that was begun last gives.
  [[nodiscard]] std::vector<std::byte> stage_rows();
  /// Of the first stage: goes on to choose(), or logits(), of rows that the last stage returned,
  /// and has predictors read of these tokens.
  void finish(std::span<const std::byte> rows);

 private:
  DeviceExecutor(const DeviceExecutor& source, size_t predictor, const RunnerLimits& limits);
  void take_states(const DeviceExecutor& of, std::span<const int32_t> rows);
  void copy_hidden_states(const DeviceExecutor& of, int32_t first, int32_t count, const Matrix& to);
  [[nodiscard]] bool has_states_before(int64_t layer, const Batch& batch) const;
  std::unique_ptr<Choices> choose_rows(std::span<const SamplingRow> rules);
  void allocate_memory();
  void allocate_caches();
  [[nodiscard]] Matrix logits_memory() const;
  /// Columns of logits that each rank multiplies; 0: rank 0 has all.
  [[nodiscard]] int64_t shared_columns() const;
  void multiply_logits();
  void begin_logits(const LogitProduct& product, int32_t n_logits);

  ModelConfig config_;
  Backend& backend_;
  RunnerLimits limits_;
  Buffer kv_memory_;
  size_t kv_bytes_ = 0;
  std::vector<KvLayer> kv_;                      // of kv_layers()
  std::vector<std::vector<KvLayer>> kv_groups_;  // the same by group
  std::vector<StateLayer> states_;               // of state_layers()
  Buffer logits_memory_;
  WeightLookup weights_;
  std::unique_ptr<Model> model_;
  const DeviceExecutor* decoder_ = this;     // whose weights these are
  const DeviceExecutor* source_ = nullptr;   // of a predictor: whose hidden states it reads
  int32_t n_logits_ = 0;                     // of the last step
  LogitProduct product_;                     // likewise
  Matrix stage_rows_;                        // likewise, of a stage
  Matrix stage_states_;                      // likewise: what predictors read of its tokens
  bool has_logits_ = false;                  // likewise: they are multiplied
  Batch taken_;                              // of what take_kept_states() took
  std::optional<VocabularyMap> vocabulary_;  // where rows of logits are not the tokens
};

}  // namespace faststream
