#include "engine/runner.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "support/error.h"

namespace faststream {
namespace {

// Finds tensors of `file` in the copy at `base`, where the range file.weights() is.
WeightLookup lookup_in(const ModelFile& file, const std::byte* base) {
  return [&file, base](std::string_view name) {
    return base + (file.find(name)->offset - file.weights().offset);
  };
}

// Bytes of the keys, or the values, of one token in a layer.
size_t half_layer_bytes(const LayerConfig& layer, DType dtype) {
  return static_cast<size_t>(layer.attention.kv_dim()) * dtype_size(dtype);
}

}  // namespace

size_t kv_bytes_per_token(const ModelConfig& config, DType dtype) {
  size_t bytes = 0;
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    bytes += 2 * half_layer_bytes(config.layer(n), dtype);
  }
  return bytes;
}

SamplingRow sampling_row(const SamplingParams& params, int64_t position, int32_t stream) {
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .seed = params.seed.value_or(0),
          .sequence = static_cast<uint64_t>(stream),
          .position = static_cast<uint64_t>(position),
          .min_p = params.min_p};
}

ModelConfig read_config(const ModelFile& file) {
  return config_from_json(file.section("model"), file.name());
}

Runner::Runner(const ModelFile& file, Backend& backend, const RunnerLimits& limits,
               const std::function<void(size_t)>& progress)
    : config_(read_config(file)),
      backend_(backend),
      limits_(limits),
      pages_(limits.n_pages, limits.n_modest_pages) {
  for (const TensorPlan& plan : tensor_plan(config_)) {
    (void)file.require(plan.name, plan.dtype, plan.shape);  // before anything large is allocated
  }
  const std::byte* base = backend.load_weights(file.weights(), progress);
  model_ = make_model(config_, lookup_in(file, base), backend, limits.batch);

  const DType dtype = backend.kv_dtype(config_.weights);
  const size_t tokens = static_cast<size_t>(limits.n_pages) * kPageTokens;
  kv_bytes_ = tokens * kv_bytes_per_token(config_, dtype);
  kv_memory_ = backend.allocate(kv_bytes_);
  std::byte* memory = kv_memory_.get();
  for (int64_t n = 0; n < config_.n_layers(); ++n) {
    const AttentionConfig& attention = config_.layer(n).attention;
    const size_t half = tokens * half_layer_bytes(config_.layer(n), dtype);
    kv_.push_back({.k = memory,
                   .v = memory + half,
                   .dtype = dtype,
                   .n_pages = limits.n_pages,
                   .n_kv_heads = static_cast<int32_t>(attention.n_kv_heads),
                   .head_dim = static_cast<int32_t>(attention.head_dim)});
    memory += 2 * half;
  }
  logits_memory_ = backend.allocate(static_cast<size_t>(limits.batch.max_logits) *
                                    static_cast<size_t>(config_.vocab) * sizeof(float));
}

void Runner::step(std::span<const NewTokens> inputs) {
  take_pages(inputs);
  pack(inputs);
  const BatchView view = backend_.upload(batch_);
  const Matrix logits(logits_memory_.get(), DType::f32, batch_.n_logits(), config_.vocab);
  model_->forward(view, kv_, logits);
  for (const NewTokens& input : inputs) {
    input.sequence->n_cached += static_cast<int32_t>(input.tokens.size());
  }
}

std::vector<float> Runner::logits() {
  std::vector<float> host(static_cast<size_t>(n_logits()) * static_cast<size_t>(config_.vocab));
  backend_.copy_to_host(host.data(), logits_memory_.get(), host.size() * sizeof(float));
  return host;
}

std::vector<SampledToken> Runner::sample(std::span<const SamplingRow> rules) {
  std::vector<SampledToken> sampled(static_cast<size_t>(n_logits()));
  const Matrix logits(logits_memory_.get(), DType::f32, batch_.n_logits(), config_.vocab);
  backend_.sample(logits, rules, sampled);
  return sampled;
}

void Runner::copy_page(int32_t from, int32_t to) {
  const PageCopy copy{.from = from, .to = to};
  backend_.copy_pages(kv_, {&copy, 1});
}

void Runner::release(Sequence& sequence) {
  for (const int32_t page : sequence.pages) pages_.release(page);
  sequence.pages.clear();
  sequence.n_cached = 0;
}

// Checks everything first, so that a refusal changes nothing.
void Runner::take_pages(std::span<const NewTokens> inputs) {
  const auto missing_pages = [](const NewTokens& input) {
    return input.sequence->missing_pages(input.sequence->n_cached +
                                         static_cast<int64_t>(input.tokens.size()));
  };
  int64_t tokens = 0;
  int64_t logits = 0;
  int64_t pages = 0;
  for (const NewTokens& input : inputs) {
    const auto n = static_cast<int64_t>(input.tokens.size());
    if (n == 0) throw Error("a sequence in a batch has no tokens");
    for (const int32_t token : input.tokens) {
      if (token < 0 || token >= config_.vocab) {
        throw Error("token id " + std::to_string(token) + " is outside the model's vocabulary of " +
                    std::to_string(config_.vocab));
      }
    }
    tokens += n;
    logits += input.logits == NewTokens::Logits::all    ? n
              : input.logits == NewTokens::Logits::last ? 1
                                                        : 0;
    pages += missing_pages(input);
  }
  if (tokens > limits_.batch.max_tokens || logits > limits_.batch.max_logits) {
    throw Error("a batch of " + std::to_string(tokens) + " tokens and " + std::to_string(logits) +
                " rows of logits exceeds the limits of " +
                std::to_string(limits_.batch.max_tokens) + " and " +
                std::to_string(limits_.batch.max_logits));
  }
  if (pages > pages_.n_free()) {
    throw Error("the KV cache has " + std::to_string(pages_.n_free()) + " free pages of " +
                std::to_string(kPageTokens) + " tokens, " + std::to_string(pages) +
                " are needed; give a smaller context or fewer sequences");
  }
  for (const NewTokens& input : inputs) {
    for (int32_t n = missing_pages(input); n > 0; --n) {
      input.sequence->pages.push_back(pages_.take());
    }
  }
}

void Runner::pack(std::span<const NewTokens> inputs) {
  batch_ = Batch{};
  batch_.query_start.push_back(0);
  for (const NewTokens& input : inputs) {
    batch_.max_pages =
        std::max(batch_.max_pages, static_cast<int32_t>(input.sequence->pages.size()));
  }
  for (size_t s = 0; s < inputs.size(); ++s) {
    const NewTokens& input = inputs[s];
    const Sequence& sequence = *input.sequence;
    const int32_t first_row = batch_.n_tokens();
    for (size_t i = 0; i < input.tokens.size(); ++i) {
      batch_.tokens.push_back(input.tokens[i]);
      batch_.positions.push_back(sequence.n_cached + static_cast<int32_t>(i));
      batch_.sequence_of.push_back(static_cast<int32_t>(s));
    }
    batch_.query_start.push_back(batch_.n_tokens());
    batch_.kv_len.push_back(batch_.positions.back() + 1);
    batch_.page_table.insert(batch_.page_table.end(), sequence.pages.begin(), sequence.pages.end());
    batch_.page_table.resize((s + 1) * static_cast<size_t>(batch_.max_pages), 0);
    if (input.logits == NewTokens::Logits::none) continue;
    const int32_t first =
        input.logits == NewTokens::Logits::all ? first_row : batch_.n_tokens() - 1;
    for (int32_t row = first; row < batch_.n_tokens(); ++row) batch_.logit_rows.push_back(row);
  }
}

}  // namespace faststream
