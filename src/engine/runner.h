// Runs a model over packed batches of sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/batch.h"
#include "engine/executor.h"
#include "engine/sampling.h"
#include "engine/sequence.h"
#include "engine/sequence_caches.h"
#include "model_file/model_file.h"
#include "models/config.h"

namespace faststream {

/// Has an executor run a model, and knows which sequences have what of its caches. One step is one
/// forward pass over the new tokens of any number of sequences. One thread at a time may use it,
/// but for this: while one uses the device (read_sources(), compute(), choose(), copy()) for some
/// sequences, another may do for others what needs no device.
class Runner {
 public:
  /// Loads the weights. Files and `backend` must outlive the runner. `progress` may be empty.
  Runner(const ModelFiles& files, Backend& backend, const RunnerLimits& limits,
         const std::function<void(size_t)>& progress);
  /// Of what an executor has loaded already.
  explicit Runner(std::unique_ptr<Executor> executor);

  [[nodiscard]] Executor& executor() { return *executor_; }
  [[nodiscard]] const ModelConfig& config() const { return executor_->config(); }
  [[nodiscard]] const RunnerLimits& limits() const { return executor_->limits(); }
  [[nodiscard]] SequenceCaches& caches() { return caches_; }
  [[nodiscard]] PagePool& pages() { return caches_.pages(); }
  /// As kv_type_of() takes it.
  [[nodiscard]] KvType kv_type() const { return executor_->kv_type(); }
  /// Bytes of all caches on each rank.
  [[nodiscard]] size_t kv_bytes() const { return executor_->kv_bytes(); }

  /// A sequence, without pages, of a text that begins with n_tokens. adapter: as TextKind has it.
  [[nodiscard]] Sequence begin(int64_t n_tokens, int32_t adapter = 0) const {
    return {.kind = {.rope_length = config().rope_length(n_tokens), .adapter = adapter}};
  }
  /// Has the encoder read sources, all different, of limits().batch.max_tokens tokens together at
  /// most, as one batch. Throws Error when there are more, or a token id is out of range.
  void read_sources(std::span<Source* const> sources);

  /// Processes new tokens of any number of sequences, whose sources are read, as one batch; all of
  /// them count. Takes the pages that they need; when these do not suffice, or a limit or a token
  /// id is out of range, throws Error and changes nothing. When the device fails, Error is thrown
  /// and no sequence has advanced. Afterwards logits() and choose() speak of the wanted rows, in
  /// the order of `inputs`.
  void step(std::span<const NewTokens> inputs);
  /// The part of step() that needs no device: takes the pages, and the sequences advance. The
  /// sources may be read later. Each sequence is to be committed in the caches, or the whole step
  /// abandoned.
  void begin_step(std::span<const NewTokens> inputs);
  /// The other part. When it throws, the step is to be abandoned.
  void compute(std::span<const NewTokens> inputs);
  /// Has sequences that a step was begun for stand where they stood; they keep the pages.
  void abandon_step(std::span<const NewTokens> inputs);

  /// See Executor.
  void wait() { executor_->wait(); }

  /// Rows of logits that the last step left.
  [[nodiscard]] int32_t n_logits() const { return batch_.n_logits(); }
  /// The last step's logits [n_logits, vocab].
  [[nodiscard]] std::vector<float> logits() { return executor_->logits(); }
  /// Has a token chosen from each row of the last step's logits, once a step, as
  /// Backend::choose() has it. rules: [n_logits].
  [[nodiscard]] std::unique_ptr<Choices> choose(std::span<const SamplingRow> rules) {
    return executor_->choose(rules);
  }
  /// The same, and waits. `sampled` keeps its memory.
  void sample(std::span<const SamplingRow> rules, std::vector<SampledToken>& sampled);

  /// Copies pages of the caches, after all earlier steps and before all later ones. The targets
  /// differ from each other and from all sources.
  void copy_pages(std::span<const PageCopy> copies) { copy(caches_.copies_of_caches(copies)); }
  /// The part of it that needs the device: SequenceCaches::copies_of_caches().
  void copy(std::span<const std::vector<PageCopy>> copies) { executor_->copy(copies); }
  /// As SequenceCaches have them.
  [[nodiscard]] Sequence fork(const Sequence& sequence) { return caches_.fork(sequence); }
  [[nodiscard]] PageCopy replace_page(Sequence& sequence, size_t index, int32_t page) {
    return caches_.replace_page(sequence, index, page);
  }
  void release(Sequence& sequence) { caches_.release(sequence); }

 private:
  [[nodiscard]] bool reads_choice(std::span<const int32_t> tokens) const;
  void check(std::span<const NewTokens> inputs) const;
  void pack(std::span<const NewTokens> inputs);

  std::unique_ptr<Executor> executor_;
  SequenceCaches caches_;
  int32_t n_kv_groups_;
  Batch batch_;  // of the last step
};

/// The rule by which a sample draws the token at `position` from its own stream of random numbers;
/// without penalties and biases, which need the sample's tokens.
SamplingRow sampling_row(const SamplingParams& params, int64_t position, int32_t stream = 0);

}  // namespace faststream
