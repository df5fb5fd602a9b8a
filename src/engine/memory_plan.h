// What a model may use of a device's memory: arithmetic alone, so that it is tested without one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "backend/backend.h"
#include "engine/executor.h"
#include "engine/options.h"
#include "models/config.h"
#include "models/model.h"

namespace faststream {

/// Tokens that are processed at once; of prompts alone more where a model has experts and the
/// device memory for it.
inline constexpr int32_t kMaxStepTokens = 2048;
inline constexpr int32_t kMostStepTokens = 8192;
/// The fewest prompt tokens of a step that let every prompt go on (see cut() in
/// scheduling_policy_plan.cpp).
inline constexpr int32_t kMinChunk = 4;
/// Sequences that can run at once: each has a token in every step.
inline constexpr int32_t kMaxSlots = 8192;

/// What a plan asks of a backend.
struct BackendFigures {
  size_t free_bytes = 0;          ///< weights that lie in a mapped file included
  bool takes_on_use = false;      ///< see Backend::takes_memory_on_use()
  bool runs_beside_host = false;  ///< see Backend::runs_beside_host()
  int32_t most_slots = 1;         ///< see Backend::most_slots()
  DType activations = DType::f32;
  KvType kv;  ///< see kv_type_of()
  std::function<size_t(const StepBounds&)> scratch_bytes;
};

/// A backend's figures for a model whose keys and values are to have a format; the backend must
/// outlive them.
BackendFigures figures_of(const Backend& backend, const ModelConfig& config,
                          KvFormat kv = KvFormat::plain);

/// Of each of a model's predictors, beside a model of these.
RunnerLimits predictor_limits(const RunnerLimits& of_model);

struct MemoryPlan {
  int64_t context = 0;  ///< tokens
  int64_t source = 0;   ///< tokens of the longest one; 0: the model has no encoder
  int32_t slots = 0;
  int32_t chunk = 0;        ///< see EngineOptions
  int64_t kv_tokens = 0;    ///< whole pages, at least one context and one source
  int64_t kept_tokens = 0;  ///< whole pages; the modest size of PagePool
  BatchLimits limits;
  int32_t proposed_tokens = 0;    ///< beside a token of each sequence: see kMostSpeculating
  KvFormat kv = KvFormat::plain;  ///< see kv_type_of()
};

/// Divides what is free beside weights, activations, logits and scratch memory. max_logits: rows of
/// logits that a step may ask for, at least one for each slot. Throws UsageError for options that
/// make no sense, Error when there is not enough memory.
///
/// A device that takes memory at once gets a full context for each slot, as memory allows. One that
/// takes it on use shares it with other programs: at most half of what is free becomes cache,
/// unless
/// --kv-tokens asks for more or one context needs it; and beyond a modest size, which does for a
/// few conversations, a cached prefix that nobody uses is dropped before more memory is taken.
///
/// A step reads the weights of nearly all experts, however few rows each of them has: so on a
/// device beside the host, steps of models that have some may have kMostStepTokens, where that
/// leaves the cache 15 of 16 parts of what it had, and all that was asked for. Only prompts alone
/// fill them: those beside sequences that run are of `chunk` tokens at most. Who comes meanwhile
/// waits no longer than for other steps (StepBudget).
MemoryPlan plan_memory(const ModelConfig& config, const EngineOptions& options, size_t weight_bytes,
                       int32_t max_logits, const BackendFigures& backend);

}  // namespace faststream
