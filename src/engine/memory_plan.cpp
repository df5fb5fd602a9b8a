#include "engine/memory_plan.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "backend/batch.h"
#include "engine/cache_kinds.h"
#include "engine/speculation.h"
#include "support/error.h"

namespace faststream {
namespace {

// Of what is free, for the rest of the program and for others: an eighth, at most so much.
constexpr size_t kMostReserve = size_t{512} << 20;
// A slot that is chosen has memory for so many tokens: one that has none would wait, or have
// another sequence computed again.
constexpr int64_t kSlotTokens = 256;
// Slots that are chosen where each has memory for a whole text: the model is small then, and a
// device beside the host computes a step of fewer sequences sooner than the host launches the next
// one.
constexpr int32_t kRoomySlots = 4096;
// Cached tokens that nobody uses are kept in so much memory, and at most an eighth of what fits.
constexpr int64_t kKeptTokens = 16384;

int64_t whole_pages(int64_t tokens) { return int64_t{pages_for(tokens)} * kPageTokens; }

// What memory leaves for the KV cache, in bytes.
size_t cache_room(size_t free_bytes, size_t taken) {
  const size_t room = free_bytes > taken ? free_bytes - taken : 0;
  return room - std::min(room / 8, kMostReserve);
}

// Tokens, a multiple of kPageTokens, for whose caches, bytes(n_pages), `room` bytes suffice.
template <typename Bytes>
int64_t tokens_that_fit(size_t room, const Bytes& bytes) {
  constexpr int32_t kMost = (1 << 30) / kPageTokens;
  int32_t fits = 0;
  for (int32_t most = kMost; fits < most;) {
    const int32_t n_pages = fits + (most - fits + 1) / 2;
    if (bytes(n_pages) <= room) {
      fits = n_pages;
    } else {
      most = n_pages - 1;
    }
  }
  return int64_t{fits} * kPageTokens;
}

// Tokens of KV cache for which memory suffices.
struct CacheRoom {
  int64_t tokens = 0;                      // beside the slots that there are
  std::function<int64_t()> with_one_slot;  // beside one alone
};

// Where fewer slots would leave room for `needed` tokens: that advice, between other words.
std::string fewer_slots(const CacheRoom& room, int64_t needed, const std::string& before,
                        const std::string& after) {
  if (room.with_one_slot() < needed) return "";
  return before + "fewer slots (--slots, outside a batch --beams)" + after;
}

// Where no KV cache of `needed` tokens fits, which is the least that there can be.
[[noreturn]] void refuse_memory(const CacheRoom& room, int64_t needed) {
  throw Error("a KV cache does not fit into memory beside the model; " +
              fewer_slots(room, needed, "give ", ", ") +
              "end other programs, raise the limit of memory, or convert the model to a smaller "
              "type (--dtype)");
}

// Throws Error where there is no page for a source and one for its answer.
void check_source(const EngineOptions& options, const CacheRoom& room) {
  constexpr int64_t kLeast = int64_t{2} * kPageTokens;
  if (options.kv_tokens > 0 && options.kv_tokens < kLeast) {
    throw UsageError("--kv-tokens " + std::to_string(options.kv_tokens) +
                     ": the KV cache must hold a source and its answer, at least " +
                     std::to_string(kLeast) + " tokens");
  }
  if (room.tokens < kLeast) refuse_memory(room, kLeast);
}

// Tokens of context: what was asked for, else the model's own, as far as memory reaches beside a
// source.
int64_t choose_context(const ModelConfig& config, const EngineOptions& options,
                       const CacheRoom& room, int64_t source) {
  const int64_t asked = options.context;
  if (asked < 0 || asked > config.max_context) {
    throw UsageError("--context " + std::to_string(asked) + ": the model takes 1 to " +
                     std::to_string(config.max_context) + " tokens" +
                     (config.context_end == ContextEnd::trained
                          ? ", for which it was trained"
                          : ", since " + why_context_ends(config)));
  }
  if (options.kv_tokens < 0 || (options.kv_tokens > 0 && options.kv_tokens < asked + source)) {
    throw UsageError("--kv-tokens " + std::to_string(options.kv_tokens) +
                     ": the KV cache must hold at least one context of " +
                     std::to_string(std::max<int64_t>(asked, 1)) + " tokens" +
                     (source > 0 ? " and a source of " + std::to_string(source) : "") +
                     "; give more" + (asked > 1 ? ", or a smaller --context" : ""));
  }
  int64_t fits = room.tokens;
  if (options.kv_tokens > 0) fits = std::min(fits, options.kv_tokens);
  fits = std::clamp<int64_t>(fits - source, 0, config.max_context);
  if (fits == 0) refuse_memory(room, std::max<int64_t>(asked, 1) + source);
  if (asked > fits) {
    throw Error("the KV cache of " + std::to_string(asked) + " tokens does not fit into memory; " +
                "give a smaller --context, up to " + std::to_string(fits) +
                fewer_slots(room, asked + source, ", or ", ""));
  }
  return asked == 0 ? fits : asked;
}

// Tokens of KV cache: what was asked for, else what a text needs at most (`each`, whole pages) for
// each slot, as memory allows.
int64_t choose_kv_tokens(const EngineOptions& options, int64_t each, int32_t slots,
                         const CacheRoom& room, bool takes_on_use) {
  if (options.kv_tokens == 0) {
    const int64_t most = takes_on_use ? std::max(each, room.tokens / 2) : room.tokens;
    return whole_pages(std::min(slots * each, most));
  }
  if (options.kv_tokens > room.tokens) {
    throw Error("the KV cache of " + std::to_string(options.kv_tokens) +
                " tokens does not fit into memory; give a smaller --kv-tokens, up to " +
                std::to_string(room.tokens) + fewer_slots(room, options.kv_tokens, ", or ", ""));
  }
  return whole_pages(options.kv_tokens);
}

int32_t choose_size(int32_t asked, int32_t preferred, int32_t least, int32_t most,
                    const std::string& option) {
  if (asked != 0 && (asked < least || asked > most)) {
    throw UsageError(option + " " + std::to_string(asked) + ": give " + std::to_string(least) +
                     " to " + std::to_string(most) + ", or leave it out");
  }
  return asked == 0 ? preferred : asked;
}

// Of a step.
BatchLimits choose_limits(const ModelConfig& config, int64_t source, int32_t slots,
                          int32_t max_logits, int32_t step_tokens) {
  const int64_t tokens =
      std::min<int64_t>(step_tokens, slots * std::max(config.max_context, source));
  // An encoder reads a source as a whole.
  return {.max_tokens = static_cast<int32_t>(std::max<int64_t>({tokens, slots, source})),
          .max_logits = std::max(max_logits, slots)};
}

// Tokens that a step may have proposed beside those of so many sequences.
int32_t choose_proposed_tokens(const ModelConfig& config, const EngineOptions& options,
                               int32_t slots) {
  const bool speculates =
      !config.encoder && speculation_from_name(options.speculate).kind != Speculation::Kind::off;
  return speculates ? std::min(slots * kMostProposed, kMostSpeculating) : 0;
}

// What a model, or a predictor of one, takes beside weights and caches.
struct StepMemory {
  size_t bytes = 0;    // that are its own
  size_t scratch = 0;  // of the backend
};

StepMemory step_memory(const ModelConfig& config, const BackendFigures& backend,
                       const RunnerLimits& limits) {
  const size_t logits_bytes = static_cast<size_t>(limits.batch.max_logits) *
                              static_cast<size_t>(logits_stride(config.output_rows())) *
                              sizeof(float);
  StepBounds bounds = step_bounds(config, limits.batch, limits.sequences, config.max_context);
  bounds.kv_format = limits.kv;
  return {.bytes = logits_bytes + activation_bytes(config, backend.activations, limits.batch),
          .scratch = backend.scratch_bytes(bounds)};
}

// Tokens of KV cache for which memory suffices beside so many slots, a multiple of kPageTokens.
int64_t tokens_beside(const ModelConfig& config, size_t weight_bytes, const BackendFigures& backend,
                      const BatchLimits& limits, int32_t slots) {
  struct Part {
    ModelConfig config;
    RunnerLimits limits;
    CacheKinds kinds;
  };
  std::vector<Part> parts;
  const auto add = [&](const ModelConfig& part, const RunnerLimits& of_part) {
    parts.push_back({part, of_part, cache_kinds(part, {backend.kv.dtype, of_part.kv})});
  };
  const RunnerLimits of_model{.sequences = slots, .batch = limits, .kv = backend.kv.format};
  add(config, of_model);
  const bool has_predictors = !config.predictors.empty() && config.has_first_layer();
  for (size_t n = 0; has_predictors && n < config.predictors.size(); ++n) {
    add(predictor_of(config, n), predictor_limits(of_model));
  }
  size_t taken = weight_bytes;
  size_t scratch = 0;
  for (const Part& part : parts) {
    const StepMemory memory = step_memory(part.config, backend, part.limits);
    taken += memory.bytes;
    scratch = std::max(scratch, memory.scratch);
  }
  return tokens_that_fit(cache_room(backend.free_bytes, taken + scratch), [&](int32_t n_pages) {
    size_t bytes = 0;
    for (Part& part : parts) {
      part.limits.n_pages = n_pages;
      bytes += bytes_of(part.kinds, bounds_of(part.limits));
    }
    return bytes;
  });
}

bool has_experts(const ModelConfig& config) {
  return std::ranges::any_of(config.layer_kinds,
                             [](const LayerConfig& layer) { return layer.experts.has_value(); });
}

// Tokens of a step: see plan_memory(). fits(step_tokens): tokens of cache beside it, of which
// `least` are needed.
template <typename Fits>
int32_t choose_step_tokens(const ModelConfig& config, const BackendFigures& backend, int64_t least,
                           const Fits& fits) {
  if (!backend.runs_beside_host || !has_experts(config)) return kMaxStepTokens;
  least = std::max(least, fits(kMaxStepTokens) / 16 * 15);
  for (int32_t tokens = kMostStepTokens; tokens > kMaxStepTokens; tokens /= 2) {
    if (fits(tokens) >= least) return tokens;
  }
  return kMaxStepTokens;
}

}  // namespace

BackendFigures figures_of(const Backend& backend, const ModelConfig& config, KvFormat kv) {
  return {.free_bytes = backend.free_memory(),
          .takes_on_use = backend.takes_memory_on_use(),
          .runs_beside_host = backend.runs_beside_host(),
          .most_slots = backend.most_slots(),
          .activations = backend.activation_dtype(config.weight_format),
          .kv = {backend.kv_dtype(config.weight_format), kv},
          .scratch_bytes = [&backend](const StepBounds& bounds) {
            return backend.scratch_bytes(bounds);
          }};
}

// Of texts that may have proposals there are two sequences each: what is in them, and a draft.
RunnerLimits predictor_limits(const RunnerLimits& of_model) {
  const int32_t texts = std::min(of_model.sequences, kMostSpeculating);
  RunnerLimits limits = of_model;
  limits.sequences = 2 * texts;
  limits.batch.max_logits = texts;
  limits.kv = KvFormat::plain;
  return limits;
}

MemoryPlan plan_memory(const ModelConfig& config, const EngineOptions& options, size_t weight_bytes,
                       int32_t max_logits, const BackendFigures& backend) {
  MemoryPlan plan;
  plan.kv = backend.kv.format;
  const int32_t most_slots = backend.runs_beside_host ? kRoomySlots : backend.most_slots;
  plan.slots = choose_size(options.slots, most_slots, 1, kMaxSlots, "--slots");
  plan.chunk = choose_size(options.chunk, kMaxStepTokens, kMinChunk, kMaxStepTokens, "--chunk");
  const int64_t source = config.encoder ? config.encoder->max_context : 0;
  const auto limits = [&](int32_t slots, int32_t step_tokens) {
    const int32_t n_proposed = choose_proposed_tokens(config, options, slots);
    const int32_t n_rows = std::min(slots, kMostSpeculating) + n_proposed;
    return choose_limits(config, source, slots, std::max(max_logits, n_rows), step_tokens);
  };
  const auto fitting = [&](int32_t slots, int32_t step_tokens) {
    return tokens_beside(config, weight_bytes, backend, limits(slots, step_tokens), slots);
  };
  int64_t fits = fitting(plan.slots, kMaxStepTokens);
  const int64_t text_tokens = config.max_context + source;
  const auto slot_tokens = [&] {
    return plan.slots > backend.most_slots ? text_tokens : std::min(kSlotTokens, text_tokens);
  };
  while (options.slots == 0 && plan.slots > 1 && fits < plan.slots * slot_tokens()) {
    plan.slots /= 2;
    fits = fitting(plan.slots, kMaxStepTokens);
  }
  const int64_t asked = std::max(options.kv_tokens, options.context + source);
  const int32_t step_tokens = choose_step_tokens(
      config, backend, asked, [&](int32_t tokens) { return fitting(plan.slots, tokens); });
  fits = fitting(plan.slots, step_tokens);
  plan.limits = limits(plan.slots, step_tokens);
  plan.proposed_tokens = choose_proposed_tokens(config, options, plan.slots);
  const CacheRoom memory = {.tokens = fits, .with_one_slot = [&] {
                              return plan.slots > 1 ? fitting(1, step_tokens) : 0;
                            }};
  if (config.encoder) check_source(options, memory);
  const int64_t room = options.kv_tokens > 0 ? std::min(fits, options.kv_tokens) : fits;
  const int64_t reserve = std::min(whole_pages(source), room / 2 / kPageTokens * kPageTokens);
  plan.context = choose_context(config, options, memory, reserve);
  plan.source = std::min(source, whole_pages(room) - whole_pages(plan.context));
  plan.kv_tokens = choose_kv_tokens(options, whole_pages(plan.context) + whole_pages(plan.source),
                                    plan.slots, memory, backend.takes_on_use);
  const bool modest = backend.takes_on_use && options.kv_tokens == 0;
  plan.kept_tokens =
      modest ? whole_pages(std::min({kKeptTokens, fits / 8, plan.kv_tokens})) : plan.kv_tokens;
  return plan;
}

}  // namespace faststream
