// A second, smaller model that proposes what it draws itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/loaded_model.h"
#include "engine/sequence.h"

namespace faststream {

/// Draws by the rules, and with the random numbers, of the model that it drafts for: where both
/// would give a token about the same probability, they draw the same one.
///
/// Of each text it keeps a sequence of what is in the text; what it draws itself is in a fork of
/// that, which goes when the draft is done. Where its context or its cache has no room for a text,
/// or its device fails, it proposes nothing for it.
class DraftModel final : public Drafter {
 public:
  /// Loads a model beside the one that is to be placed on a device with these options. Throws as
  /// Engine's constructor does.
  DraftModel(const std::filesystem::path& path, const EngineOptions& options);
  ~DraftModel() override;

  /// Of weights and caches.
  [[nodiscard]] size_t bytes() const { return model_.info.weight_bytes + model_.info.kv_bytes; }
  /// Throws Error when the other model has another tokenizer, or an encoder.
  void check_drafts_for(const LoadedModel& model) const;

  void read(const SequenceGroup& group) override;
  void draft(std::span<const DraftTask> tasks) override;
  void forget(const SequenceGroup& group) override;

 private:
  struct Draft {
    DraftTask task;
    Sequence fork = {};  // of the text's
    std::vector<int32_t> tokens = {};
  };

  Sequence* read_but_last(const SequenceGroup& group);
  void step(std::span<const NewTokens> inputs, std::span<const PageCopy> copies);
  void draw(std::vector<Draft*>& drafts);
  void begin(std::vector<Draft*>& drafts);
  void go_on(std::vector<Draft*>& drafts);

  LoadedModel model_;
  std::map<const SequenceGroup*, Sequence> texts_;
  std::vector<SampledToken> sampled_;
};

}  // namespace faststream
