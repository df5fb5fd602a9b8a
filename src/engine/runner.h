// Runs a model over packed batches of sequences.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/batch.h"
#include "engine/load_weights.h"
#include "engine/page_pool.h"
#include "engine/sampling.h"
#include "engine/source.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "models/model.h"

namespace faststream {

/// A sequence's place in the KV cache. It holds its pages once each, taken from Runner::pages() by
/// Runner::step() or by whoever plans steps, until it is given to Runner::release(), which must
/// happen before it goes.
struct Sequence {
  /// Of `pages`, those that it holds in a group of layers with a window.
  struct HeldPages {
    size_t first = 0;
    size_t end = 0;
  };

  int32_t n_cached = 0;                 ///< tokens whose keys and values are in the pages
  int32_t rope_length = 0;              ///< ModelConfig::rope_length() of the text when it began
  std::vector<int32_t> pages = {};      ///< one for each kPageTokens tokens
  std::vector<HeldPages> windows = {};  ///< of each of PagePool::windows(); the runner's
  std::shared_ptr<Source> source = {};  ///< what it looks at, where the model has an encoder

  /// Pages that it lacks to hold so many tokens.
  [[nodiscard]] int32_t missing_pages(int64_t tokens) const {
    return std::max(pages_for(tokens) - static_cast<int32_t>(pages.size()), 0);
  }
};

/// New tokens of one sequence, to be processed in one step.
struct NewTokens {
  enum class Logits { none, last, all };

  Sequence* sequence = nullptr;
  std::span<const int32_t> tokens;  ///< at least one
  Logits logits = Logits::last;     ///< of which tokens the next-token logits are wanted
};

struct RunnerLimits {
  int32_t n_pages = 0;
  int32_t n_modest_pages = std::numeric_limits<int32_t>::max();  ///< see PagePool
  /// Sequences that hold pages at a time: what memory layers with a window need follows. 0: any.
  int32_t sequences = 0;
  BatchLimits batch;
};

/// Owns a model on a backend with its KV cache. One step is one forward pass over the new tokens of
/// any number of sequences. One thread at a time may use it, but for this: while one uses the
/// device (read_sources(), compute(), choose(), copy()) for some sequences, another may do for
/// others what needs no device.
class Runner {
 public:
  /// Loads the weights. `file` and `backend` must outlive the runner. `progress` may be empty.
  Runner(const ModelFile& file, Backend& backend, const RunnerLimits& limits,
         const std::function<void(size_t)>& progress);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const RunnerLimits& limits() const { return limits_; }
  [[nodiscard]] PagePool& pages() { return pages_; }
  /// Bytes of the KV cache.
  [[nodiscard]] size_t kv_bytes() const { return kv_bytes_; }

  /// A sequence, without pages, of a text that begins with n_tokens.
  [[nodiscard]] Sequence begin(int64_t n_tokens) const {
    return {.rope_length = config_.rope_length(n_tokens)};
  }
  /// A source for sequences to hold, with its pages taken, still to be read. Throws Error when it
  /// is empty, longer than the encoder can read, or a token id is out of range, or there are too
  /// few free pages.
  [[nodiscard]] std::shared_ptr<Source> make_source(std::span<const int32_t> tokens);
  /// Has the encoder read sources, all different, of limits().batch.max_tokens tokens together at
  /// most, as one batch.
  void read_sources(std::span<Source* const> sources);

  /// Processes new tokens of any number of sequences, whose sources are read, as one batch. Takes
  /// the pages that they need; when these do not suffice, or a limit or a token id is out of range,
  /// throws Error and changes nothing. When the device fails, Error is thrown and no sequence has
  /// advanced. Afterwards logits() and choose() speak of the wanted rows, in the order of `inputs`.
  void step(std::span<const NewTokens> inputs);
  /// The part of step() that needs no device: takes the pages, and the sequences advance. The
  /// sources may be read later.
  void advance(std::span<const NewTokens> inputs);
  /// The other part. When it throws, advance() is to be taken back.
  void compute(std::span<const NewTokens> inputs);
  /// Has sequences that have advanced stand where they stood; they keep the pages.
  static void take_back(std::span<const NewTokens> inputs);

  /// Rows of logits that the last step left.
  [[nodiscard]] int32_t n_logits() const { return batch_.n_logits(); }
  /// The last step's logits [n_logits, vocab].
  [[nodiscard]] std::vector<float> logits();
  /// Has a token chosen from each row of the last step's logits, once a step, as
  /// Backend::choose() has it. rules: [n_logits].
  [[nodiscard]] std::unique_ptr<Choices> choose(std::span<const SamplingRow> rules);
  /// The same, and waits. `sampled` keeps its memory.
  void sample(std::span<const SamplingRow> rules, std::vector<SampledToken>& sampled);

  /// Whether a sequence whose first n_tokens are in `pages` can go on from there: whether layers
  /// with a window still have what it sees.
  [[nodiscard]] bool can_go_on(std::span<const int32_t> pages, int32_t n_tokens) const;
  /// Holds what a sequence that was given pages of others sees in layers with a window, so that it
  /// stays; can_go_on().
  void hold_windows(Sequence& sequence) { move_windows(sequence, 0); }
  /// Copies pages of the KV cache, after all earlier steps and before all later ones. The targets
  /// differ from each other and from all sources.
  void copy_pages(std::span<const PageCopy> copies) { copy(copies_of_groups(copies)); }
  /// The part of copy_pages() that needs no device: the copies of each group of layers.
  [[nodiscard]] std::vector<std::vector<PageCopy>> copies_of_groups(
      std::span<const PageCopy> copies);
  /// The other part.
  void copy(std::span<const std::vector<PageCopy>> copies);
  /// A sequence of the same tokens, which shares the pages.
  [[nodiscard]] Sequence fork(const Sequence& sequence);
  /// Gives a sequence `page`, which it holds from now on, in place of one that others hold too.
  /// Returns the copy to make before its next step.
  [[nodiscard]] PageCopy replace_page(Sequence& sequence, size_t index, int32_t page);
  /// Gives the pages of a sequence back; it may then begin again.
  void release(Sequence& sequence);

 private:
  void take_pages(std::span<const NewTokens> inputs);
  void move_windows(Sequence& sequence, size_t n_new);
  void pack(std::span<const NewTokens> inputs);
  void pack_pages(std::span<const NewTokens> inputs);
  void pack_sources(std::span<const NewTokens> inputs);
  void check_tokens(std::span<const int32_t> tokens, int64_t vocab) const;
  [[nodiscard]] Matrix logits_memory() const;
  Matrix multiply_logits();

  ModelConfig config_;
  Backend& backend_;
  RunnerLimits limits_;
  PagePool pages_;
  Buffer kv_memory_;
  size_t kv_bytes_ = 0;
  std::vector<KvLayer> kv_;                      // of each layer
  std::vector<std::vector<KvLayer>> kv_groups_;  // the same by group
  Buffer logits_memory_;
  std::unique_ptr<Model> model_;
  Batch batch_;           // of the last step
  LogitProduct product_;  // likewise
};

/// The rule by which a sample draws the token at `position` from its own stream of random numbers;
/// without penalties and biases, which need the sample's tokens.
SamplingRow sampling_row(const SamplingParams& params, int64_t position, int32_t stream = 0);

}  // namespace faststream
