#include "engine/source.h"

#include <string>

#include "support/error.h"

namespace faststream {

CacheCost EncoderOutputs::missing_for_source(std::span<const int32_t> tokens) const {
  if (sources_.contains(tokens)) return {};
  return {.pages = pages_for(static_cast<int64_t>(tokens.size()))};
}

// At another one's, or at a new one, with its pages taken.
void EncoderOutputs::look_at(Sequence& sequence, std::span<const int32_t> source) {
  if (const auto known = sources_.find(source); known != sources_.end()) {
    sequence.source = *known;
    return;
  }
  const auto n_tokens = static_cast<int64_t>(source.size());
  if (n_tokens < 1 || n_tokens > max_tokens_) {
    throw Error("a source has " + std::to_string(n_tokens) +
                " tokens, but the encoder reads 1 to " + std::to_string(max_tokens_));
  }
  if (pages_for(n_tokens) > pool_.n_free()) {
    throw Error("the KV cache has no room for a source of " + std::to_string(n_tokens) +
                " tokens; give fewer sequences or a larger --kv-tokens");
  }
  sequence.source = *sources_.insert(std::make_shared<Source>(source, pool_)).first;
}

// The last one to look at it gives its pages back.
void EncoderOutputs::release(Sequence& sequence) {
  if (!sequence.source) return;
  const auto known = sources_.find(sequence.source);
  sequence.source.reset();
  if (known->use_count() == 1) sources_.erase(known);
}

void EncoderOutputs::pack(std::span<const NewTokens> inputs, Batch& batch) const {
  for (const NewTokens& input : inputs) {
    if (!input.sequence->source || !input.sequence->source->is_read) {
      throw Error("a sequence in a batch has no source that the encoder has read");
    }
    const Source& source = *input.sequence->source;
    batch.source_len.push_back(source.n_tokens());
    batch.max_source_pages =
        std::max(batch.max_source_pages, static_cast<int32_t>(source.pages().size()));
  }
  batch.source_pages.resize(inputs.size() * static_cast<size_t>(batch.max_source_pages));
  auto row = batch.source_pages.begin();
  for (const NewTokens& input : inputs) {
    std::ranges::copy(input.sequence->source->pages(), row);
    row += batch.max_source_pages;
  }
}

}  // namespace faststream
